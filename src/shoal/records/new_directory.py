"""Directories of new runs: check that one can be made, make it, and remove it again."""

import contextlib
import errno
import os
import re
import time
from pathlib import Path

from filelock import lock_descriptor

from shoal.base.errors import ShoalError
from shoal.base.files import free_bytes, report_os_errors, temporary_name
from shoal.records.lock import LOCK

RUNS_DIR = Path("runs")  # the parent of the directories of runs without `run_dir`
PROBE = ".probe.{}"  # with the number of the process


def check_vacant(path: Path, marker: str | None, needed: int = 0) -> None:
    """Require that a directory can be made and written to; leaves nothing behind.

    Args:
      marker: the file that identifies a run, which must not exist, nor any other file but `leftovers` and the lock of
        a run that was removed; None for a directory that may hold other files.
    Raises:
      ShoalError: it cannot be made, written to or locked, or holds files already.
    """
    if marker:
        check_no_run(path, marker)
    with report_os_errors(f"run directory {str(path)!r} cannot be written to"):
        if marker and path.is_dir() and set(path.iterdir()) - {path / LOCK, *leftovers(path, marker)}:
            raise ShoalError(f"run directory {str(path)!r} is not empty and holds no run; name a new one.")
        existing = _nearest_existing(path)
        _probe_write(existing)
    available = free_bytes(existing)
    if available is not None and available < needed:
        raise ShoalError(
            f"run directory {str(path)!r} has too little space: the policies of the run take {needed:,} bytes, "
            f"and {available:,} are free."
        )


def leftovers(path: Path, marker: str) -> list[Path]:
    """List the temporary files of processes that were killed before they had made their run."""
    return [*path.glob(temporary_name(marker, "*")), *path.glob(PROBE.format("*"))]


def check_no_run(path: Path, marker: str) -> None:
    """Require that a directory, if it exists, holds no run.

    Raises:
      ShoalError: it does, or it cannot be read.
    """
    with report_os_errors(f"run directory {str(path)!r} cannot be written to"):
        try:
            (path / marker).lstat()
        except FileNotFoundError:
            return
    raise ShoalError(f"run directory {str(path)!r} already holds another run; name a new one.")


def make_directory(path: Path, marker: str) -> tuple[Path, ...]:
    """Make a directory for a new run, and its missing parents.

    Returns:
      the directories that were made, the outermost first.
    Raises:
      ShoalError: as `check_vacant`; then none is left.
    """
    check_vacant(path, marker)
    created: list[Path] = []
    with report_os_errors(f"run directory {str(path)!r} cannot be written to"):
        _make_missing_directories(path, created)
    return tuple(created)


def make_named_directory(environment: str, algorithm: str) -> tuple[Path, tuple[Path, ...]]:
    """Make a directory under `runs/` with a readable name; a number is appended where the name is taken.

    Returns:
      the directory, and the directories that were made, the outermost first.
    Raises:
      ShoalError: it cannot be made; then none is left.
    """
    prefix = f"{environment}-{algorithm}"[:100]
    stem = re.sub(r"[^\w.-]+", "-", f"{prefix}-{time.strftime('%Y%m%d-%H%M%S')}")
    created: list[Path] = []
    with report_os_errors(f"run directory {str(RUNS_DIR / stem)!r} cannot be written to"):
        _make_missing_directories(RUNS_DIR, created)
        number = 1
        while True:
            path = RUNS_DIR / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir()  # fails where another process was faster
                return path, (*created, path)
            except FileExistsError:
                number += 1
            except OSError:
                remove_empty(created)
                raise


def remove_empty(directories: list[Path] | tuple[Path, ...]) -> None:
    """Remove directories that were made, the innermost first, as far as they are empty."""
    for path in reversed(directories):
        with contextlib.suppress(OSError):
            path.rmdir()


def _make_missing_directories(path: Path, created: list[Path]) -> None:
    """Make a directory and its missing parents, and add them to `created`; if that fails, none is left."""
    missing = [parent for parent in (path, *path.parents) if not parent.is_dir()]
    try:
        for parent in reversed(missing):
            # Another process was faster; or it is a file, which is detected below.
            with contextlib.suppress(FileExistsError):
                parent.mkdir()
                created.append(parent)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError:
        remove_empty(created)
        created.clear()
        raise


def _nearest_existing(path: Path) -> Path:
    """Return the directory itself, or its nearest parent that exists.

    Raises:
      OSError: there can be no such directory, since a part of the path is a file, or the name is too long.
    """
    for parent in (path, *path.parents):
        try:
            parent.lstat()
        except FileNotFoundError:
            continue
        if not parent.is_dir():
            is_dangling = parent.is_symlink() and not parent.exists()
            what = "a symbolic link to nothing" if is_dangling else "no directory"
            raise NotADirectoryError(errno.ENOTDIR, f"{str(parent)!r} is {what}")
        return parent
    return Path()


def _probe_write(directory: Path) -> None:
    """Write a byte into a directory, and lock it; a file system may be read-only or full, or lack locks."""
    probe = directory / PROBE.format(os.getpid())
    try:
        with open(probe, "wb", buffering=0) as file:
            file.write(b"\0")
            with report_os_errors(f"directory {str(directory)!r} cannot be locked"):
                lock_descriptor(file.fileno(), blocking=False)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
