"""Reading and type checks of a caller's arguments; an error is one sentence with the name, the value and the remedy."""

import numbers
import operator
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError, nearest

MAX_REPR_LENGTH = 80  # characters of a value in a message
LARGEST_INDEX = 2**31 - 1  # compiled programs count in 32 bits
LARGEST_SEED = 2**32 - 1  # `jax.random.key` takes 32 bits: 2**32 would be the seed 0 once more


def whole_number(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Return a whole number as an int; 10.0 and NumPy's integers are whole numbers, True is not.

    Raises:
      ShoalError: it is not a whole number, or out of its bounds.
    """
    number = _to_int(value)
    if number is None:
        raise ShoalError(f"{name}={short_repr(value)} is not a whole number.")
    if low is not None and number < low:
        raise ShoalError(f"{name}={number} is too small: it must be at least {low}.")
    if high is not None and number > high:
        raise ShoalError(f"{name}={number} is too large: it must be at most {high}.")
    return number


def _to_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        return int(float(value)) if float(value).is_integer() else None
    if hasattr(value, "dtype") and str(value.dtype) == "bool":
        return None
    try:
        return operator.index(value)
    except TypeError:  # as of text, None, lists, and arrays of several numbers
        return None


def num_bytes(name: str, value: str) -> float:
    """Return the bytes of a size such as 500MB or 1GB; 0 for "never".

    Raises:
      ShoalError: it is neither.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]?)B?", value.strip(), re.IGNORECASE)
    if value != "never" and found is None:
        raise ShoalError(
            f"{name}={short_repr(value)} is not a size; give one such as 500MB or 1GB, 0, or never."
        )
    return float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " ") if found else 0.0


def seed(name: str, value: object) -> int:
    """Return a seed that a random key can be made from.

    Raises:
      ShoalError: it is not a whole number from 0 to 2**32 - 1.
    """
    return whole_number(name, value, 0, LARGEST_SEED)


def boolean(name: str, value: object) -> bool:
    """Return a boolean.

    Raises:
      ShoalError: it is neither True nor False.
    """
    if not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "bool":
        raise ShoalError(f"{name}={short_repr(value)} is neither True nor False.")
    return bool(value)


def text(name: str, value: object, example: str = "") -> str:
    """Return a text.

    Raises:
      ShoalError: it is of another type; the sentence has an example of a right one.
    """
    if not isinstance(value, str):
        hint = f"; give a name such as {example!r}" if example else ""
        raise ShoalError(f"{name}={short_repr(value)} is of type {type(value).__name__}, not a text{hint}.")
    return value


def one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """Return one of several words.

    Raises:
      ShoalError: it is none of them; the sentence names the nearest.
    """
    if not isinstance(value, str) or value not in choices:
        hint = nearest(value, choices) if isinstance(value, str) else ""
        raise ShoalError(f"{name}={short_repr(value)} is none of {', '.join(choices)}{hint or '.'}")
    return value


def path(name: str, value: object) -> Path:
    """Return a path that a file system can have, with `~` expanded; it need not exist.

    Raises:
      ShoalError: it is not a path, empty, or one that the operating system refuses, such as one with a name too long.
    """
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise ShoalError(f"{name}={short_repr(value)} is of type {type(value).__name__}, not a path.")
    if not os.fspath(value):
        raise ShoalError(f"{name}={short_repr(value)} is empty; give a path.")
    try:
        expanded = Path(value).expanduser()
        os.lstat(expanded)
    except (FileNotFoundError, NotADirectoryError):
        pass  # nothing exists there, which the caller checks
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # ValueError: a zero byte; RuntimeError: no such ~user
        reason = getattr(error, "strerror", None) or str(error)
        raise ShoalError(f"{name}={short_repr(value)} cannot be a path: {reason}.") from error
    return expanded


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return a mapping by names, such as parameters; None becomes an empty one.

    Raises:
      ShoalError: it is not a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ShoalError(
            f"{name}={short_repr(value)} is not a dictionary by names, such as {{'gravity': 9.0}}."
        )
    return value


def parameters_of_call(name: str, value: object, parameters: Mapping[str, object]) -> dict[str, Any]:
    """Join an environment's parameters that a call gives as a dictionary with those that it gives as keywords.

    Raises:
      ShoalError: `value` is not a mapping.
    """
    return {**mapping(name, value), **parameters}


def short_repr(value: object) -> str:
    """Format a value for a message: its representation in one line, cut where it is long."""
    is_traced = "Tracer" in {cls.__name__ for cls in type(value).__mro__}  # JAX is not imported here
    text = "<traced>" if is_traced else " ".join(repr(value).split())
    return text if len(text) <= MAX_REPR_LENGTH else f"{text[: MAX_REPR_LENGTH - 3]}..."
