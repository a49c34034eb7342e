"""Records of runs, sweeps and studies: what their directories hold, finished or not.

Reading imports no JAX, takes no lock and changes no file, so that it works beside a process that trains.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.files import user_path
from shoal.records.directory import CONFIG, RunDirectory
from shoal.records.json_files import read_json, report_wrong_types
from shoal.records.search_files import CONFIRMATION, SWEEP, holds_sweep
from shoal.reports.run_record import RunRecord, read_run
from shoal.reports.sweep_record import SweepRecord, read_sweep


def read(run: object) -> RunRecord | SweepRecord:
    """Read the record of a directory: of a path, or of what `train` or `sweep` returned.

    Raises:
      ShoalError: it holds no run, sweep or study, and the sentence has the nearest name; or a file is damaged.
    """
    path = user_path(getattr(run, "path", run), "run directory")  # type: ignore[arg-type]  # it refuses others
    return read_sweep(path) if holds_sweep(path) else read_run(RunDirectory.open(path, beside=SWEEP).path)


def find(directory: Path | str) -> list[Path]:
    """Find the paths of all runs, sweeps and studies in a directory and below it, or of the one that it holds.

    A run of a sweep belongs to the sweep. Hidden directories are not searched, and of links only those to a run.

    Raises:
      ShoalError: there is no such directory.
    """
    directory = user_path(directory, "directory")
    if not directory.is_dir():
        raise ShoalError(f"there is no directory {str(directory)!r}.")
    return [Path(path) for path in _paths(str(directory))]


def _paths(directory: str) -> Iterator[str]:
    """Return the directories that hold something, in a directory and below it; and those that cannot be searched."""
    inside: set[str] = set()
    if _holds_record(directory):
        yield directory
        # What lies within a run is a part of it; a sweep's folder may hold runs of others.
        if not os.path.isfile(os.path.join(directory, SWEEP)):
            return
        inside = _folders_of_sweep(Path(directory))
    try:
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        yield directory
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in inside or not entry.is_dir():
            continue
        # A link may lead to a folder above it, without end.
        if not entry.is_symlink():
            yield from _paths(entry.path)
        elif _holds_record(entry.path):
            yield entry.path


def _folders_of_sweep(path: Path) -> set[str]:
    """Return the folders of a sweep that hold its own runs; all where `sweep.json` is damaged."""
    try:
        with report_wrong_types(str(path / SWEEP)):
            planned = [Path(run["path"]).parts[0] for run in read_json(path / SWEEP)["runs"]]
            return {CONFIRMATION, *planned}
    except ShoalError:
        return set(os.listdir(path))


def _holds_record(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in (CONFIG, SWEEP))
