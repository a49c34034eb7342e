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

    Raises:
      ShoalError: it cannot be written.
    """
    if path.is_dir():
        raise ShoalError(f"{path} cannot be written: it is a directory")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ShoalError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
