"""The list of runs, sweeps and studies of `shoal runs`: filtered and sorted, as a table and as JSON."""

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from shoal.base.errors import ShoalError, nearest
from shoal.base.numbers import format_estimate
from shoal.base.terminal import harmless
from shoal.records.json_files import report_wrong_types
from shoal.reports import records
from shoal.reports.run_record import RunState, Score, directory_bytes

Order = Literal["date", "score", "size", "steps", "environment"]
LONGEST = 80  # letters of the settings of a run
COLUMNS = ("run", "kind", "environment", "algorithm", "state", "members", "steps", "score", "date", "size")
NUMBERS = ("members", "steps", "size")  # columns that are aligned to the right


@dataclasses.dataclass(frozen=True)
class ListedRun:
    """A run, a sweep or a study in the list, or a directory that is damaged, of which only the path is known.

    Attributes:
      kind: "run", "pbt", "sweep" or "study"; "" where it is damaged.
      members: their number.
      steps: environment steps that each member has made.
      score: the interquartile mean over seeds, of the best setting where there are several; NaN where there is none.
      failed: the number of its seeds that failed, each of which counts as minus infinity.
      best: the label of that setting; "" where there is only one.
      settings: those that differ from the preset or the defaults; of a sweep those of the best setting.
      started_time: by ISO 8601, in UTC.
      problem: why the directory cannot be read, one sentence; "" where it can.
    """

    path: Path
    kind: str = ""
    environment: str = ""
    algorithm: str = ""
    name: str = ""
    state: RunState | Literal["damaged"] = "damaged"
    members: int = 0
    steps: int = 0
    score: float = math.nan
    interval: tuple[float, float] | None = None
    failed: int = 0
    best: str = ""
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    started_time: str = ""
    bytes: int = 0
    tags: tuple[str, ...] = ()
    note: str = ""
    problem: str = ""


def entries(
    directory: Path | str, *, tags: Sequence[str] = (), environment: str = "", state: str = ""
) -> list[ListedRun]:
    """List the runs, sweeps and studies in a directory and below it, or the one that it holds.

    Args:
      tags: lists those alone that have all of these.
      environment: a name, or a pattern such as `MiniGrid-*`; "" for all.
      state: "training", "interrupted", "finished", "failed" or "damaged"; "" for all.
    Raises:
      ShoalError: there is no such directory, or nothing in it, or nothing that the filters let through.
    """
    found = list(map(entry_of, records.find(directory)))
    if not found:
        raise ShoalError(f"directory {str(directory)!r} holds no run, sweep or study.")
    listed = [
        entry
        for entry in found
        if set(tags) <= set(entry.tags)
        # `fnmatch.fnmatch` would ignore the case on some systems.
        and fnmatch.fnmatchcase(entry.environment, environment or "*")
        and state in ("", entry.state)
    ]
    if not listed:
        filters = {"tag": " ".join(tags), "environment": environment, "state": state}
        wanted = ", ".join(f"{name} {value}" for name, value in filters.items() if value)
        raise ShoalError(f"no run in {str(directory)!r} has {wanted}{_hint(found, tags, environment)}")
    return listed


def _hint(found: Sequence[ListedRun], tags: Sequence[str], environment: str) -> str:
    """Suggest the tag or the environment that was probably meant."""
    known_tags, environments = {tag for entry in found for tag in entry.tags}, {x.environment for x in found}
    hints = [nearest(tag, known_tags) for tag in tags if tag not in known_tags]
    if environment and environment not in environments:
        hints.append(nearest(environment, environments))
    return next(filter(None, hints), ".")


def entry_of(path: Path) -> ListedRun:
    """Return the entry of a directory that should hold a run; one whose files are damaged has a problem."""
    try:
        with report_wrong_types(f"a file of {str(path)!r}"):
            record = records.read(path)
            score = record.score or Score(math.nan)
            return ListedRun(
                record.path,
                record.kind,
                record.environment,
                record.algorithm,
                record.name,
                record.state,
                record.num_members,
                record.steps,
                score.iqm,
                score.interval,
                score.failed,
                score.label,
                record.settings,
                record.date.isoformat(timespec="seconds"),
                record.bytes,
                record.tags,
                record.note,
            )
    except ShoalError as error:
        return ListedRun(path, problem=str(error), bytes=directory_bytes(path))


def in_order(listed: Sequence[ListedRun], order: Order) -> list[ListedRun]:
    """Sort a list: the newest, the best, the largest or the longest trained first, environments by name and then by
    score. What has no value, such as a score, comes last; equal ones are sorted by path.
    """
    keys: dict[Order, Callable[[ListedRun], Any]] = {
        "date": lambda entry: _newest_first(entry.started_time),
        "score": lambda entry: _largest_first(entry.score),
        "size": lambda entry: -entry.bytes,
        "steps": lambda entry: -entry.steps,
        "environment": lambda x: (not x.environment, x.environment, _largest_first(x.score)),
    }
    by_path = sorted(listed, key=lambda entry: str(entry.path))
    return sorted(by_path, key=keys[order])  # which keeps the order of equal ones


def to_json(entry: ListedRun) -> dict[str, object]:
    """Return an entry as JSON's values, the score NaN where there is none; `problem` only where there is one."""
    return {name: x for name, x in vars(entry).items() if name != "problem" or x}


def table(listed: Sequence[ListedRun]) -> str:
    """Format a line for each entry, under a line of titles; the last column says what tells it apart, see `_about`."""
    rows = [(dict(zip(COLUMNS, COLUMNS, strict=True)), "")]
    rows += [(_cells(entry), _about(entry)) for entry in listed]
    # A column that says the same in each line is worth its width only where it may differ.
    columns = [x for x in COLUMNS if x != "kind" or any(entry.kind != "run" for entry in listed)]
    widths = {x: max(len(cells[x]) for cells, _ in rows) for x in columns}
    lines = []
    for cells, about in rows:
        texts = [cells[x].rjust(widths[x]) if x in NUMBERS else cells[x].ljust(widths[x]) for x in columns]
        lines.append("  ".join([*texts, about]).rstrip())
    return "\n".join(lines)


def _newest_first(time: str) -> tuple[bool, list[int]]:
    return not time, [-ord(letter) for letter in time]


def _largest_first(value: float) -> tuple[bool, float]:
    return math.isnan(value), 0.0 if math.isnan(value) else -value


def _cells(entry: ListedRun) -> dict[str, str]:
    score = "" if math.isnan(entry.score) else format_estimate(entry.score, entry.interval).replace("  ", " ")
    score += f" ({entry.failed} failed)" if entry.failed else ""
    is_damaged = entry.state == "damaged"
    return {
        "run": harmless(" ".join(str(entry.path).splitlines())),
        "kind": entry.kind,
        "environment": entry.environment,
        "algorithm": entry.algorithm,
        "state": entry.state,
        "members": "" if is_damaged else f"{entry.members:,}",
        "steps": "" if is_damaged else f"{entry.steps:,}",
        "score": score,
        "date": entry.started_time[:16].replace("T", " "),
        "size": f"{entry.bytes / 1e6:,.1f} MB",
    }


def _about(entry: ListedRun) -> str:
    """Format what tells a run apart from others of its environment: its name, tags, note, and settings."""
    settings = entry.best or " ".join(f"{name}={_short(value)}" for name, value in entry.settings.items())
    if len(settings) > LONGEST:
        settings = f"{settings[:LONGEST]}..."
    tags = " ".join(f"#{tag}" for tag in entry.tags)
    parts = (entry.problem, entry.name, tags, f"best: {settings}" if entry.best else settings, entry.note)
    return "; ".join(" ".join(part.split()) for part in parts if part)


def _short(value: object) -> str:
    if isinstance(value, list):
        return "x".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
