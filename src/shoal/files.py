"""Files that are whole or not there."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shoal.errors import ShoalError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its place only when it is whole, so that a reader never sees a part of it.

    It is opened at once, so that a path that cannot be written is known before anything is computed for it.

    Raises:
      ShoalError: it cannot be written.
    """
    if path.is_dir():
        raise ShoalError(f"{path} cannot be written: it is a directory.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with one_sentence(f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Makes renames within a directory last through a loss of power, where the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Turns an error of the operating system into one sentence: what failed, and why.

    Raises:
      ShoalError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise ShoalError(f"{what}: {error.strerror or error}.") from error
