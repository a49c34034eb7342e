"""The table at the top of a report of several runs, and their differences to the first of each environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.numbers import format_interval
from shoal.reports import compare, compare_inputs
from shoal.reports.compare_rows import Estimate
from shoal.reports.markup import Markup, breakable, element, join, scroll, table
from shoal.reports.run_html import number_cells
from shoal.reports.run_record import RunRecord
from shoal.reports.sweep_record import SweepRecord

WORDS = ("environment", "algorithm", "state", "settings")  # columns that are shown where rows differ in them
NONE: Estimate = {"value": None, "interval": None}


def comparison(records: Mapping[str, RunRecord | SweepRecord]) -> Markup:
    """Make the table of several records, by their names, with sentences that qualify it."""
    differences: dict[str, dict[str, Estimate]] = {}
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
    columns = [x for x in zip(*rows, strict=True) if x[0][0] not in WORDS or len(set(x)) > 1]
    head = [column[0][0] for column in columns]
    cells = [[text for _, text in row] for row in zip(*columns, strict=True)]
    compared = table("Comparison of the runs", head, cells, {*head} - {"run", *WORDS})
    listed = [element("li", f"{note.rstrip('.')}.") for note in dict.fromkeys(notes)]
    return join([scroll(compared), element("ul", *listed) if listed else ""])


def _differences(
    environment: str, names: Sequence[str], records: Mapping[str, RunRecord | SweepRecord]
) -> tuple[dict[str, dict[str, Estimate]], list[str]]:
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
        name: {"difference": compare.difference(first, row), "improvement": compare.improvement(first, row)}
        for name, row in zip(names[1:], others, strict=True)
    }
    return found, [*notes, *compared.notes]


def _problem(path: Path) -> str:
    """Say why a run cannot be compared with any other; "" if it can."""
    try:
        compare_inputs.read_entry(compare_inputs.read_source(str(path)), compare_inputs.FINAL)
    except ShoalError as error:
        return str(error)
    return ""


def _row(
    place: int, name: str, record: RunRecord | SweepRecord, difference: Mapping[str, Estimate]
) -> list[tuple[str, str]]:
    """Return the columns of a row, each with its title."""
    score, change, improvement = (
        record.score,
        *(difference.get(x, NONE) for x in ("difference", "improvement")),
    )
    interval = score and score.interval  # which population-based training never has
    return [
        ("run", element("a", breakable(name), href=f"#run-{place}")),
        ("score (IQM)", "" if score is None else number_cells([score.iqm], interval)[0]),
        ("95% interval", format_interval(interval)),
        ("difference to the first", number_cells([change["value"]], change["interval"], "+")[0]),
        ("its 95% interval", format_interval(change["interval"], "+")),
        ("probability of improvement", number_cells([improvement["value"]], improvement["interval"])[0]),
        ("its 95% interval", format_interval(improvement["interval"])),
        ("seeds", f"{record.num_members:,}"),
        ("steps of each seed", f"{record.steps:,}"),
        ("environment", record.environment),
        ("algorithm", record.algorithm),
        ("state", record.state),
        ("settings", ", ".join(f"{key}={value}" for key, value in record.settings.items())),
    ]
