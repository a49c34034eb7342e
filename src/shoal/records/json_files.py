"""Strict JSON files that are complete or absent: written to a temporary file and moved to their path."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors, write_whole_file


def write_text(path: Path, text: str, *, new: bool = False) -> None:
    """Write a file so that a reader, and a crash at any instant, finds the old one or the new one; with `new`
    there must be no old one.

    Raises:
      ShoalError: the file cannot be written.
    """
    data = text.encode()
    with write_whole_file(path, parents=False, new=new, needed=len(data)) as file:
        file.write(data)


def to_null(_: float) -> None:
    """Replace a measurement that is not finite by null."""


def write_json(
    path: Path, value: Mapping[str, object], not_finite: Callable[[float], object] = to_null
) -> None:
    """Write a JSON file atomically; `to_jsonable` converts arrays and infinities.

    Raises:
      ShoalError: the file cannot be written.
    """
    write_text(path, json_text(value, not_finite))


def json_text(
    value: Mapping[str, object] | Sequence[object], not_finite: Callable[[float], object] = to_null
) -> str:
    """Return a value as strict JSON, as it stands in a file; see `to_jsonable`."""
    return json.dumps(to_jsonable(value, not_finite=not_finite), indent=2, allow_nan=False) + "\n"


def read_number(value: float | str | None) -> float:
    """Read a number that `to_jsonable` wrote; null was one that is not finite."""
    return math.nan if value is None else float(value)


def read_json(path: Path, what: str = "") -> dict[str, Any]:
    """Read a JSON file that holds an object; a key that is asked for and missing is a ShoalError that names the file.

    Raises:
      ShoalError: it is missing or damaged.
    """
    what = what or str(path)
    with report_os_errors(f"{what} cannot be read"):
        data = path.read_bytes()
    value = parse_json(data, what)
    if not isinstance(value, dict):
        raise ShoalError(f"{what} is damaged: it holds a {type(value).__name__}, not an object.")
    return value


def parse_json(data: bytes, what: str) -> Any:
    """Read JSON whose objects raise a ShoalError where a key is asked for that they do not have.

    Raises:
      ShoalError: it is no JSON.
    """

    class Entries(dict[str, Any]):
        def __missing__(self, key: str) -> NoReturn:
            beside = f" beside {', '.join(map(repr, list(self)[:3]))}" if self else ""
            raise ShoalError(f"{what} is damaged: it lacks {key!r}{beside}.")

        # A class within a function cannot be pickled.
        def __reduce__(self) -> tuple[type, tuple[object]]:
            return dict, (dict(self),)

    try:
        return json.loads(data.decode(), object_hook=Entries)
    except (ValueError, RecursionError) as error:
        raise ShoalError(f"{what} is damaged: it is not JSON ({error}).") from None


@contextlib.contextmanager
def report_wrong_types(what: str) -> Iterator[None]:
    """Convert errors of code that reads a file's JSON, where an entry is missing or of another type, to one sentence.

    Raises:
      ShoalError: instead of another error.
    """
    try:
        yield
    except ShoalError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise ShoalError(f"{what} is damaged: an entry is missing or of another type ({error}).") from error


def to_jsonable(value: object, *, not_finite: Callable[[float], object]) -> object:
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
