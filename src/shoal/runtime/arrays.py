"""Named arrays in a folder, written and read by Orbax; typed PRNG keys as words."""

import contextlib
import gc
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError

# What comes back bit for bit; Orbax refuses the other types of JAX (such as uint4) only while it writes.
STORABLE = frozenset(
    [
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *("int2", "int4"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float8_e3m4"),
        *("float8_e4m3fnuz", "float8_e5m2fnuz"),
        "float4_e2m1fn",
    ]
)

LATE = 0.2  # seconds after a failure within which nearly everything that was under way has ended


class OrbaxError(Exception):
    """What kept Orbax from writing or reading, in a few words."""


def is_key(leaf: Any) -> bool:
    """Whether a leaf (or its shape) is a typed PRNG key or an array of them; imports no JAX."""
    return not isinstance(getattr(leaf, "dtype", np.dtype(np.float32)), np.dtype)


def as_words(leaf: Any) -> tuple[np.ndarray, str | None]:
    """Convert a leaf to a NumPy array: a key to its words, with the name of its implementation.

    Args:
      leaf: an array of any shape [...], or typed keys [...].

    Returns:
      the array [...] and None, or the words [..., words of a key] and the name, such as "threefry2x32".
    """
    if not is_key(leaf):
        return np.asarray(leaf), None
    import jax  # noqa: PLC0415 (a directory is read without it)

    return np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf))


def from_words(words: np.ndarray, implementation: str | None) -> Any:
    """Convert back what `as_words` gave."""
    if implementation is None:
        return words
    import jax  # noqa: PLC0415

    return jax.random.wrap_key_data(jax.numpy.asarray(words), impl=implementation)


def check_storable(leaves: Mapping[str, Any]) -> None:
    """Require that named leaves can be written and read again.

    Args:
      leaves: arrays or their shapes and dtypes, by name.

    Raises:
      ShoalError: a dtype, a key's implementation or a name that the format cannot hold; the sentence names the leaf.
    """
    places: dict[str, str] = {}
    for name, leaf in leaves.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ShoalError(f"{name!r} cannot be saved under that name: it is not valid Unicode.") from None
        place = name if name.endswith("/") else f"{name}/"
        if place in places:
            raise ShoalError(f"{places[place]!r} and {name!r} cannot be saved together: rename one of them.")
        places[place] = name
        if is_key(leaf):
            _check_key(name, leaf)
        elif leaf.dtype.name not in STORABLE:
            raise ShoalError(
                f"{name!r} cannot be saved: its dtype is {leaf.dtype.name}; use one such as float32 or int32."
            )


def _check_key(name: str, leaf: Any) -> None:
    import jax  # noqa: PLC0415

    found = ""

    def words_of(key: Any) -> Any:
        nonlocal found
        found = str(jax.random.key_impl(key))
        return jax.random.key_data(key)

    words = jax.eval_shape(words_of, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    try:
        again = jax.eval_shape(lambda x: jax.random.wrap_key_data(x, impl=found), words)
    except (TypeError, ValueError):
        again = None
    if again is None or again.dtype != leaf.dtype:
        raise ShoalError(
            f"{name!r} cannot be saved: JAX does not find its keys' implementation by the name "
            f"{found!r}; use one of its own, such as threefry2x32."
        )


def write_arrays(path: Path, leaves: Mapping[str, np.ndarray]) -> None:
    """Write named arrays into a new folder.

    Raises:
      OrbaxError: they cannot be written; a part of them may be there.
    """

    # Orbax takes no empty tree and no array of size zero: those are rebuilt from what `read_arrays` is told.
    stored = {name: array for name, array in leaves.items() if array.size}

    def write() -> None:
        from orbax.checkpoint import v1 as orbax  # noqa: PLC0415 (takes a third of a second)

        orbax.save(path.absolute(), stored, overwrite=True)

    if stored:
        _attempt(write)


def read_arrays(path: Path, expected: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Read the named arrays of a folder, sorted by name.

    Args:
      path: the folder.
      expected: `dtype` and `shape` of each by its name.

    Raises:
      OrbaxError: they cannot be read.
    """

    def read() -> dict[str, np.ndarray]:
        from orbax.checkpoint import v1 as orbax  # noqa: PLC0415

        leaves = {name: np.zeros(leaf["shape"], np.dtype(leaf["dtype"])) for name, leaf in expected.items()}
        stored = {name: array for name, array in leaves.items() if array.size}
        if stored:  # naming what is expected leaves Orbax no choice of types
            leaves |= orbax.load(path.absolute(), stored)
        return {name: np.asarray(leaves[name]) for name in sorted(leaves)}

    return _attempt(read)


def _attempt(action: Callable[[], Any]) -> Any:
    """Carry out an action of Orbax, which prints tracebacks of its own threads where it fails.

    Raises:
      OrbaxError: it failed.
    """
    hook = sys.unraisablehook
    with _silenced("absl", "asyncio"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.unraisablehook = _without_closed_loops(hook)
        try:
            result = action()
            sys.unraisablehook = hook
            return result
        except Exception as error:
            reason = _reason(error)
        # Other arrays that were under way find their event loop closed when they end, and what was left of them
        # complains when it is collected. Have both done here; those that end later still are filtered out.
        time.sleep(LATE)
        gc.collect()
    raise OrbaxError(reason)


@contextlib.contextmanager
def _silenced(*names: str) -> Iterator[None]:
    """Keep loggers off stderr, since what is raised says the same."""
    loggers = [logging.getLogger(name) for name in names]
    disabled = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, before in zip(loggers, disabled, strict=True):
            logger.disabled = before


def _without_closed_loops(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hook for errors that nobody can catch, which leaves out those of a closed event loop."""
    if getattr(hook, "leaves_out_closed_loops", False):
        return hook

    def filtered(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            hook(unraisable)

    filtered.leaves_out_closed_loops = True  # type: ignore[attr-defined]
    return filtered


def _reason(error: BaseException) -> str:
    """What went wrong, in the operating system's words where it was its error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        if code := re.search(r"os_error_code='(\d+)'", str(seen)):
            return os.strerror(int(code[1]))
        seen = seen.__cause__ or seen.__context__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
