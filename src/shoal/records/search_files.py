"""The files of a sweep's directory, and its best members.

sweep.json          what was asked for, and which run trains which settings
runs/000, ...       ordinary run directories, one for each compiled group, or a part of one
confirmation/...    those of the best settings, trained again on new seeds
members.csv         a line for each member
summary.json        settings sorted by score, the best, and the command that trains it alone
winner.json         the best setting as a `config.json`
"""

from pathlib import Path
from typing import NamedTuple

from shoal.base.errors import ShoalError
from shoal.records.directory import SUMMARY
from shoal.records.json_files import read_json, report_wrong_types

SWEEP, MEMBERS, WINNER = "sweep.json", "members.csv", "winner.json"
CONFIRMATION = "confirmation"  # the folder of the runs of the best settings on new seeds


class Chosen(NamedTuple):
    """The members of one setting: their run's directory, and their label there."""

    run: Path
    label: str | None


def holds_sweep(path: str | Path) -> bool:
    """Report whether a directory holds a sweep, finished or not."""
    return bool(path) and (Path(path).expanduser() / SWEEP).is_file()


def resolve_run(path: str | Path, label: str | None = None) -> Chosen:
    """Return the run of a directory: itself, or the one with the best setting of a sweep.

    Args:
      label: of the members that are asked for; None for the best setting of a sweep, and for all of a run.
    Raises:
      ShoalError: it is a sweep that has no results yet, or no setting of that label.
    """
    if not holds_sweep(path):
        return Chosen(Path(path), label)
    path = Path(path).expanduser()
    if not (path / SUMMARY).is_file():
        raise ShoalError(f"sweep {str(path)!r} has no results yet; the command that started it resumes it.")
    with report_wrong_types(f"{path / SUMMARY}, or {SWEEP} beside it,"):
        summary = read_json(path / SUMMARY)
        if label is None:
            if summary["best"] is None:
                raise ShoalError(
                    f"sweep {str(path)!r} has no best setting, since a number was not finite in the training of each; "
                    "name one by its label."
                )
            label, run = summary["best"]["label"], summary["best"]["run"]
            if run is not None:
                return Chosen(path / run, label)
        runs = {known: run["path"] for run in read_json(path / SWEEP)["runs"] for known in run["labels"]}
        if label not in runs:
            raise ShoalError(f"label={label!r} is not one of the sweep's; members.csv lists them.")
        return Chosen(path / runs[label], label)
