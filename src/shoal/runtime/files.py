"""Small files that are whole or not there: strict JSON, written beside its place and moved into it."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError


def write_text(path: Path, text: str) -> None:
    """Writes a file so that a reader, and a crash at any instant, sees the old one or the new one.

    Raises:
      ShoalError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with one_sentence(f"{path} cannot be written"):
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
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


def null(_: float) -> None:
    """What becomes of a measurement that is not finite: null."""


def write_json(path: Path, value: Mapping[str, Any], not_finite: Callable[[float], Any] = null) -> None:
    """Writes a JSON file atomically; see `plain` for what becomes of arrays and infinities.

    Raises:
      ShoalError: the file cannot be written.
    """
    write_text(path, json.dumps(plain(value, not_finite=not_finite), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file that holds an object.

    Raises:
      ShoalError: it is missing or damaged.
    """
    with one_sentence(f"{path} cannot be read"):
        text = path.read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ShoalError(f"{path} is damaged: it is not JSON ({error}).") from None
    if not isinstance(value, dict):
        raise ShoalError(f"{path} is damaged: it holds a {type(value).__name__}, not an object.")
    return value


def plain(value: Any, *, not_finite: Callable[[float], Any]) -> Any:
    """A value of JSON's own types: arrays become (lists of) numbers, tuples lists, paths strings.

    Strict JSON has no NaN and no infinities: they become `not_finite(x)`. `str` keeps them, since
    `float("inf")` reads it back; `null` does not.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(part, not_finite=not_finite) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, not_finite=not_finite) for part in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist(), not_finite=not_finite)
    raise TypeError(f"{value!r} is a {type(value).__name__}, which JSON cannot hold")


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
