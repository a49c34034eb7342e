"""Run the command `shoal`, and kill this process at the moment that the environment asks for.

`KILL_AT=fsync:3` kills before the third call of `os.fsync`, `KILL_AT=fsync_after:3` behind it; the other points are
the names of `POINTS`. The process dies by SIGKILL, as it would by `kill -9` or the kernel's lack of memory.
`COUNT_TO=PATH` writes how many calls there were. Nothing of this is in Shoal itself: functions are replaced from here.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

PIECE_SECONDS = 0.03  # what a piece of training takes longer: time for the thread that writes

counts: dict[str, int] = {}
counting = threading.Lock()
point, _, number = os.environ.get("KILL_AT", "").partition(":")


def die() -> None:
    """End the process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # until the signal arrives


def reached(name: str) -> bool:
    """Count a call, and report whether the process is to end at it."""
    with counting:
        counts[name] = counts.get(name, 0) + 1
        return name == point and counts[name] == int(number)


def deadly(name: str, function):
    """Return a function that also ends the process, before or behind the n-th call."""

    @functools.wraps(function)
    def called(*arguments, **keywords):
        if reached(name):
            die()
        result = function(*arguments, **keywords)
        if reached(f"{name}_after"):
            die()
        return result

    return called


def append_half(append):
    """Return a function that appends to the metrics, but at the n-th call only a half, and ends the process."""

    def called(file, data):
        if reached("append_half"):
            os.write(file.fileno(), data[: len(data) // 2])
            die()
        append(file, data)

    return called


def with_half_writes(open_whole):
    """Return a way to open a file whose n-th write is only of a half, and ends the process."""

    class Half(NamedTuple):
        file: IO[bytes]

        def write(self, data):
            if reached("write_half"):
                self.file.write(data[: len(data) // 2])
                self.file.flush()
                die()
            self.file.write(data)

    @contextlib.contextmanager
    def opened(*arguments, **keywords):
        with open_whole(*arguments, **keywords) as file:
            yield Half(file)

    return opened


def slowly(between_pieces):
    """Return a method that waits a little first."""

    def called(*arguments):
        time.sleep(PIECE_SECONDS)
        return between_pieces(*arguments)

    return called


def main() -> int:
    """Replace the functions, and run the command of `sys.argv`."""
    for name in ("rename", "replace", "fsync", "link"):
        setattr(os, name, deadly(name, getattr(os, name)))
    Path.unlink = deadly("unlink", Path.unlink)

    from shoal.cli import main as command
    from shoal.records import array_file, metrics_file
    from shoal.runs.train import checkpointing

    array_file.write_whole_file = with_half_writes(array_file.write_whole_file)
    metrics_file._append = append_half(metrics_file._append)
    checkpointing.REST = 0  # a run of a second shall have many checkpoints
    checkpointing.RunSupervisor.between_pieces = slowly(checkpointing.RunSupervisor.between_pieces)
    if path := os.environ.get("COUNT_TO"):
        atexit.register(lambda: Path(path).write_text(json.dumps(counts)))
    return command()


if __name__ == "__main__":
    sys.exit(main())
