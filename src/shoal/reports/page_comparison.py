"""The table at the top of a report of several runs, and their differences to the first of each environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.numbers import format_interval
from shoal.reports import compare, compare_inputs
from shoal.reports.markup import Markup, breakable, element, join, table
from shoal.reports.run_html import number_cells
from shoal.reports.run_record import RunRecord
from shoal.reports.sweep_record import SweepRecord

HEAD = (
    *("run", "score (IQM)", "95% interval", "difference to the first", "its 95% interval"),
    *(
        "probability of improvement",
        "its 95% interval",
        "seeds",
        "steps of each seed",
        "environment",
        "algorithm",
        "state",
        "settings",
    ),
)
NUMBERS = HEAD[1:9]
WORDS = HEAD[9:]


def comparison(records: Mapping[str, RunRecord | SweepRecord]) -> Markup:
    """Make the table of several records, by their names, with sentences that qualify it."""
    differences: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    for environment in dict.fromkeys(record.environment for record in records.values()):
        names = [name for name, record in records.items() if record.environment == environment]
        if len(names) > 1:
            found, sentences = _differences(environment, names, records)
            differences |= found
            notes += sentences
    rows = [
        _row(k, name, record, differences.get(name, {})) for k, (name, record) in enumerate(records.items())
    ]
    head, rows = _without_equal(rows)
    listed = [element("li", f"{note.rstrip('.')}.") for note in dict.fromkeys(notes)]
    return join(
        [
            element(
                "div", table("Comparison of the runs", head, rows, NUMBERS), class_="scroll", tabindex="0"
            ),
            element("ul", *listed) if listed else "",
        ]
    )


def _without_equal(rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Leave out the columns of words that say the same in each row."""
    shown = [k for k, name in enumerate(HEAD) if name not in WORDS or len({row[k] for row in rows}) > 1]
    return [HEAD[k] for k in shown], [[row[k] for k in shown] for row in rows]


def _differences(
    environment: str, names: Sequence[str], records: Mapping[str, RunRecord | SweepRecord]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Compare the runs of one environment with the first of them.

    Returns:
      by name, `difference` and `improvement` as `compare` has them; and sentences, such as why they are not compared.
    """
    problems = {name: _problem(records[name].path) for name in names}
    notes = [f"{name} is not compared with the others: {x}" for name, x in problems.items() if x]
    names = [name for name, x in problems.items() if not x]
    if len(names) < 2:
        return {}, notes
    try:
        compared = compare.read_comparison(
            [str(records[name].path) for name in names],
            # Of the optimality gap, which is not shown; to look them up would import the environment, and JAX.
            bounds={environment: (0.0, 1.0)},
        )
    except ShoalError as error:
        return {}, [*notes, f"The runs in {environment} are not compared with each other: {error}"]
    first, *others = compared.rows
    found = {
        name: {
            "difference": compare.difference(first, row),
            "improvement": compare.improvement(first, row),
        }
        for name, row in zip(names[1:], others, strict=True)
    }
    return found, [*notes, *compared.notes]


def _problem(path: Path) -> str:
    """Say why a run cannot be compared with any other; "" if it can."""
    try:
        compare_inputs.read_entry(compare_inputs.read_sources([path])[0], compare_inputs.FINAL)
    except ShoalError as error:
        return str(error)
    return ""


def _row(
    place: int, name: str, record: RunRecord | SweepRecord, difference: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    score, change, improvement = record.score, *(difference.get(x, {}) for x in ("difference", "improvement"))
    settings = ", ".join(f"{key}={value}" for key, value in record.settings.items())
    interval = (
        None if score is None or record.kind == "pbt" else score.interval
    )  # its members are not independent
    return [
        element("a", breakable(name), href=f"#run-{place}"),
        "" if score is None else number_cells([score.iqm], interval)[0],
        format_interval(interval),
        *number_cells([change.get("value")], change.get("interval"), "+"),
        format_interval(change.get("interval"), "+"),
        *number_cells([improvement.get("value")], improvement.get("interval")),
        format_interval(improvement.get("interval")),
        f"{record.num_members:,}",
        f"{record.steps:,}",
        record.environment,
        record.algorithm,
        record.state,
        settings,
    ]
