"""`shoal compare RUN RUN...`: compare the scores of runs, and print a table."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from shoal.base.errors import ShoalError
from shoal.base.numbers import format_numbers
from shoal.base.terminal import harmless
from shoal.cli import flags
from shoal.config.requirements import Needs, Table
from shoal.records.json_files import json_text
from shoal.reports.compare import NO_BOUNDS
from shoal.reports.compare_inputs import split_label
from shoal.runs.comparing import compare

CELL, NARROW = 38, 18  # characters of a column with intervals, and of one without
COMMAND = "shoal compare RUN RUN..."
DESCRIPTION = (
    "Compares runs and sweeps by the scores of their seeds: interquartile mean (IQM), median, mean and optimality gap, "
    "each run's difference to the first, and the probability that a seed of it is better. RUN:LABEL is one setting of "
    "a run that trained several; NAME=RUN names a run, or groups the runs of one name in several environments."
)


@dataclasses.dataclass(frozen=True)
class CompareFlags:
    """The flags of a comparison."""

    needs: ClassVar[Table] = {
        "consecutive": (Needs("target", other_than=(None,), such_as=475),),
        "labels": (Needs("plot", other_than=("",), such_as="compared.pdf"),),
    }

    metric: str = "absolute"
    """Compares by this score: absolute (the best policies, evaluated again), final (the last policies), or a metric of
    the evaluations, of which the last counts."""
    target: float | None = None
    """Counts the environment steps until this score is reached; a normalised one where environments are several."""
    consecutive: int = 2
    """Counts the score as reached when this many evaluations in a row reach it (target)."""
    bounds: tuple[str, ...] = ()
    """Normalises scores so that LOW becomes 0 and HIGH 1, ENV=LOW:HIGH for each environment; without it by the
    score_bounds that an environment declares."""
    anyway: bool = False
    """Compares runs that were evaluated differently, such as in other environments or by sampled actions."""
    plot: str = ""
    """Draws scores with their intervals, curves, performance profiles and sample efficiency into this new file, which
    must end in .png, .pdf or .svg."""
    labels: tuple[str, ...] = ()
    """Shows runs in the picture by these texts, in this order: NAME=TEXT or NAME=TEXT:COLOUR for each (plot)."""
    export: str = ""
    """Writes the evaluations into this JSON file in the format of marl-eval; it must not exist."""
    json: bool = False
    """Prints everything as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Compare, and print a table."""
    arguments = flags.join_repeated(arguments, ("--bounds", "--labels"))
    settings, words = flags.parse(COMMAND, DESCRIPTION, CompareFlags(), arguments)
    options = {name: x for name, x in vars(settings).items() if name != "json"}
    options |= {"bounds": dict(map(_bound, settings.bounds)), "labels": dict(map(_label, settings.labels))}
    result = compare(runs_of(words), **options)
    print(json_text(result, str).rstrip() if settings.json else table(result))
    return 0


def runs_of(words: Sequence[str]) -> list[str] | dict[str, list[str]]:
    """Read the words of a comparison: paths, or groups NAME=RUN; a path that exists may have an equals sign.

    Raises:
      ShoalError: some words have a name and others do not.
    """
    groups: dict[str, list[str]] = {}
    plain = []
    for word in words:
        name, separator, path = word.partition("=")
        if separator and name and not os.path.exists(split_label(word)[0]) and "/" not in name:
            groups.setdefault(name, []).append(path)
        else:
            plain.append(word)
    if groups and plain:
        raise ShoalError(
            f"{plain[0]!r} has no name, and {next(iter(groups))!r} is one; give each run as NAME=RUN, or none"
        )
    return groups or plain


def _bound(word: str) -> tuple[str, tuple[float, ...]]:
    name, _, values = word.rpartition("=")
    low, separator, high = values.partition(":")
    try:
        if name and separator:
            return name, (float(low), float(high))
    except ValueError:
        pass
    raise ShoalError(f"--bounds {word!r} is not ENV=LOW:HIGH; give one such as CartPole-v1=20:500")


def _label(word: str) -> tuple[str, str]:
    name, _, text = word.partition("=")
    return name, text


def table(result: Mapping[str, Any]) -> str:
    """Format a comparison: a heading, a line for each row and quantity, and notes."""
    # Names are the user's, and a terminal would obey control characters in them.
    result = {**result, "rows": [{**row, "name": harmless(row["name"])} for row in result["rows"]]}
    lines = [_heading(result), "", *_aggregate_lines(result), "", *_difference_lines(result)]
    for name in result["environments"] if result["target"] is not None else ():
        lines += [*_target_lines(result, name), *_sooner_lines(result, name)]
    notes = [f"  {note}" for note in result["notes"]]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _heading(result: Mapping[str, Any]) -> str:
    kind = {
        "absolute": "returns of the best policies, evaluated again",
        "final": "returns of the last policies",
    }
    score = kind.get(result["metric"], f"{result['metric']} of the last evaluation")
    if result["is_normalised"]:
        ends = [f"{name} {low:g} to {high:g}" for name, (low, high) in result["bounds"].items()]
        score += f", normalised from 0 to 1: {', '.join(ends)}"
    return f"{', '.join(result['environments'])}: {score}"


def _aggregate_lines(result: Mapping[str, Any]) -> list[str]:
    width = _width(result)
    rows = [[f"{'':<{width}}{'seeds':>5}", "IQM", "median", "mean", "optimality gap"]]
    for row in result["rows"]:
        names = ("iqm", "median", "mean", "optimality_gap")
        cells = [_text(row[name], row["failed"], with_interval=name == "iqm") for name in names]
        rows.append([f"{row['name']:<{width}}{row['seeds']:>5}", *cells])
    return _aligned(rows, (width + 7, CELL, NARROW, NARROW))


def _difference_lines(result: Mapping[str, Any]) -> list[str]:
    first, *others = result["rows"]
    rows = [[f"against {first['name']}", "difference of IQM", "probability of improvement"]]
    for row in others:
        failed = first["failed"] + row["failed"]
        rows.append([row["name"], _text(row["difference"], failed, "+"), _text(row["improvement"], failed)])
    return _aligned(rows, (_width(result) + 7, CELL))


def _target_lines(result: Mapping[str, Any], environment: str) -> list[str]:
    found = [row["steps_to_score"][environment] for row in result["rows"]]
    where = f" in {environment}" if len(result["environments"]) > 1 else ""
    rows = [[f"steps to {found[0]['target']:g}{where}", "median", "seeds that reached it"]]
    for row, x in zip(result["rows"], found, strict=True):
        rows.append([row["name"], _text(x, x["failed"], until=x["until"]), f"{x['reached']} of {x['of']}"])
    return ["", *_aligned(rows, (_width(result) + 7, CELL))]


def _sooner_lines(result: Mapping[str, Any], environment: str) -> list[str]:
    """Format how probably a seed of each row reaches the score before one of the first."""
    first, *others = result["rows"]
    rows = [[f"against {first['name']}", "probability of being sooner", "by common evaluations"]]
    for row in others:
        x = row["steps_to_score"][environment]["sooner"]
        ends = ", ".join(f"{end:.2f}" for end in x["interval"] or ())
        value = "none" if x["value"] is None else f"{x['value']:.2f}" + f"  [{ends}]" * bool(ends)
        rows.append([row["name"], value, f"{x['points']}"])
    return ["", *_aligned(rows, (_width(result) + 7, CELL))]


def _aligned(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Format rows whose columns are as wide as these, or as their longest cell, of which nothing is cut."""
    columns = [max(width, *(len(row[k]) + 2 for row in rows)) for k, width in enumerate(widths)]
    cells = ([*(x.ljust(width) for x, width in zip(row, columns, strict=False)), row[-1]] for row in rows)
    return ["  " + "".join(row) for row in cells]


def _width(result: Mapping[str, Any]) -> int:
    """Return the width of the column of names, which holds the headings of the tables too."""
    names = [row["name"] for row in result["rows"]]
    where = max(map(len, result["environments"])) if len(result["environments"]) > 1 else 0
    return max(len(names[0]) + 2, *map(len, names), 8 + where + 4 * bool(where)) + 2


def _text(
    estimate: Mapping[str, Any], failed: int, sign: str = "", *, until: float = 0, with_interval: bool = True
) -> str:
    """Format an estimate with its interval, such as `412.0  [-inf (1 failed), 480.0]`.

    Args:
      until: of environment steps, those after which nothing was observed; 0 for an estimate of scores.
      with_interval: whether the interval is shown, beside that it gives the number of digits.
    """
    if estimate["value"] is None:
        return "none" if estimate["why"] == NO_BOUNDS else f"none: {estimate['why']}"
    interval = estimate["interval"]
    numbers = [estimate["value"], *(interval if interval and with_interval else ())]
    if until:
        texts = [f"> {until:,.0f}" if math.isinf(x) else f"{x:,.0f}" for x in numbers]
    else:
        texts = format_numbers(numbers, interval, sign)
    if failed:
        texts = [text + f" ({failed} failed)" * math.isinf(x) for x, text in zip(numbers, texts, strict=True)]
    value, *ends = texts
    return value + (f"  [{', '.join(ends)}]" if ends else "")
