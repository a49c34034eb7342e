"""Strict JSON files that are complete or absent: written to a temporary file and moved to their path."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.files import report_os_errors, write_whole_file


def write_text(path: Path, text: str, *, new: bool = False) -> None:
    """Write a file so that a reader, and a crash at any instant, finds the old one or the new one.

    Args:
      path: the file, in a directory that exists.
      text: its content.
      new: whether the file must not exist yet.
    Raises:
      ShoalError: the file cannot be written.
    """
    data = text.encode()
    with write_whole_file(path, parents=False, new=new, needed=len(data)) as file:
        file.write(data)


def to_null(_: float) -> None:
    """Replace a measurement that is not finite by null."""


def write_json(path: Path, value: Mapping[str, Any], not_finite: Callable[[float], Any] = to_null) -> None:
    """Write a JSON file atomically; `to_jsonable` converts arrays and infinities.

    Raises:
      ShoalError: the file cannot be written.
    """
    write_text(path, json_text(value, not_finite))


def json_text(value: Mapping[str, Any], not_finite: Callable[[float], Any] = to_null) -> str:
    """Return the text of a JSON file; see `to_jsonable`."""
    return json.dumps(to_jsonable(value, not_finite=not_finite), indent=2, allow_nan=False) + "\n"


def read_number(value: Any) -> float:
    """Read a number that `to_jsonable` wrote; null was one that is not finite."""
    return math.nan if value is None else float(value)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
      ShoalError: it is missing or damaged.
    """
    with report_os_errors(f"{path} cannot be read"):
        text = path.read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ShoalError(f"{path} is damaged: it is not JSON ({error}).") from None
    if not isinstance(value, dict):
        raise ShoalError(f"{path} is damaged: it holds a {type(value).__name__}, not an object.")
    return value


def to_jsonable(value: Any, *, not_finite: Callable[[float], Any]) -> Any:
    """Convert a value to JSON's own types: arrays become (lists of) numbers, tuples lists, paths strings.

    Strict JSON has no NaN and no infinities: they become `not_finite(x)`. With `str` they are preserved,
    since `float("inf")` reads them back; with `to_null` they are not.

    Raises:
      ShoalError: JSON cannot hold a value.
    """
    if isinstance(value, Mapping):
        return {str(name): to_jsonable(part, not_finite=not_finite) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(part, not_finite=not_finite) for part in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "__array__"):
        return to_jsonable(np.asarray(value).tolist(), not_finite=not_finite)
    raise ShoalError(f"{value!r} is a {type(value).__name__}, which JSON cannot hold.")
