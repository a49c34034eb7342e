"""Named arrays in a folder, written and read by Orbax; typed PRNG keys are stored as words."""

import contextlib
import gc
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shoal.base.errors import ShoalError

# Dtypes that are restored bit for bit; Orbax refuses JAX's other dtypes (such as uint4) only while it writes.
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

Result = TypeVar("Result")

SECONDS_TO_SETTLE = 0.2  # seconds after a failure within which nearly all of Orbax's running tasks have ended

_writing = threading.Lock()


class OrbaxError(Exception):
    """Orbax cannot write or read; the message is the reason in a few words."""


def is_key(leaf: Any) -> bool:
    """Report whether a leaf (or its shape) is a typed PRNG key or an array of them; imports no JAX."""
    return not isinstance(getattr(leaf, "dtype", np.dtype(np.float32)), np.dtype)


def to_numpy(leaf: Any) -> tuple[np.ndarray, str | None]:
    """Convert a leaf to a NumPy array: a key to its words, with the name of its implementation.

    Returns:
      the array [...] and None, or the words [..., words of a key] and the name, such as "threefry2x32".
    """
    if not is_key(leaf):
        return np.asarray(leaf), None
    import jax  # noqa: PLC0415 (a directory is read without it)

    return np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf))


def copy_of_keys(keys: Any) -> Any:
    """Copy typed keys: `jax.device_get` leaves them where they are, in a buffer that the next update may reuse."""
    words, implementation = to_numpy(keys)
    return from_numpy(np.array(words), implementation)


def from_numpy(array: np.ndarray, implementation: str | None) -> Any:
    """Convert the result of `to_numpy` back."""
    if implementation is None:
        return array
    import jax  # noqa: PLC0415

    return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=implementation)


def describe(converted: Mapping[str, tuple[np.ndarray, str | None]]) -> dict[str, dict[str, Any]]:
    """Describe results of `to_numpy` by name: `dtype`, `shape`, and of keys the implementation's name as `key`."""
    return {
        name: {"dtype": array.dtype.name, "shape": array.shape} | ({"key": key} if key else {})
        for name, (array, key) in converted.items()
    }


def check_storable(leaves: Mapping[str, Any]) -> None:
    """Require that named leaves can be written and read again.

    Raises:
      ShoalError: a dtype, a key's implementation or a name that the format cannot hold; the sentence names the leaf.
    """
    names_by_path: dict[str, str] = {}
    for name, leaf in leaves.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ShoalError(f"{name!r} cannot be saved under that name: it is not valid Unicode.") from None
        path = name if name.endswith("/") else f"{name}/"
        if path in names_by_path:
            raise ShoalError(
                f"{names_by_path[path]!r} and {name!r} cannot be saved together: rename one of them."
            )
        names_by_path[path] = name
        if is_key(leaf):
            _check_key_storable(name, leaf)
        elif leaf.dtype.name not in STORABLE:
            raise ShoalError(
                f"{name!r} cannot be saved: its dtype is {leaf.dtype.name}; use one such as float32 or int32."
            )


def _check_key_storable(name: str, leaf: Any) -> None:
    import jax  # noqa: PLC0415

    implementation = ""

    def key_data_of(key: Any) -> Any:
        nonlocal implementation
        implementation = str(jax.random.key_impl(key))
        return jax.random.key_data(key)

    key_data = jax.eval_shape(key_data_of, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    try:
        restored = jax.eval_shape(lambda x: jax.random.wrap_key_data(x, impl=implementation), key_data)
    except (TypeError, ValueError):
        restored = None
    if restored is None or restored.dtype != leaf.dtype:
        raise ShoalError(
            f"{name!r} cannot be saved: JAX does not find its keys' implementation by the name "
            f"{implementation!r}; use one of its own, such as threefry2x32."
        )


def write_arrays(path: Path, leaves: Mapping[str, np.ndarray]) -> None:
    """Write named arrays into a new folder.

    Raises:
      OrbaxError: they cannot be written; a part of them may exist.
    """

    # Orbax refuses empty trees and arrays of size zero: `read_arrays` makes those from their expected shapes.
    stored = {_stored_name(name): array for name, array in leaves.items() if array.size}

    def write() -> None:
        from orbax.checkpoint import v1 as orbax  # noqa: PLC0415 (takes a third of a second)

        orbax.save(path.absolute(), stored, overwrite=True)

    if stored:
        with _writing:  # two saves at once fail with "File exists", even of different folders
            _run_quietly(write)


def read_arrays(path: Path, expected: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Read the named arrays of a folder, sorted by name; `expected` has the `dtype` and `shape` of each.

    Raises:
      OrbaxError: they cannot be read.
    """

    def read() -> dict[str, np.ndarray]:
        from orbax.checkpoint import v1 as orbax  # noqa: PLC0415

        leaves = {name: np.zeros(leaf["shape"], np.dtype(leaf["dtype"])) for name, leaf in expected.items()}
        stored = {_stored_name(name): (name, array) for name, array in leaves.items() if array.size}
        if stored:  # the expected names and dtypes leave Orbax no choice
            loaded = orbax.load(path.absolute(), {key: array for key, (_, array) in stored.items()})
            leaves |= {name: loaded[key] for key, (name, _) in stored.items()}
        return {name: np.asarray(leaves[name]) for name in sorted(leaves)}

    return _run_quietly(read)


def _stored_name(name: str) -> str:
    """Return the name under which Orbax stores an array: of several parts none is empty, since "/" would be "" to it.

    A name of one part stays, also "", which is that of a policy that is one array.
    """
    if "/" not in name:
        return name
    return "/".join(part if part.strip("%") else f"{part}%" for part in name.split("/"))


def _run_quietly(action: Callable[[], Result]) -> Result:
    """Run an action of Orbax, which prints tracebacks of its own threads where it fails."""
    hook = sys.unraisablehook
    with _mute_loggers("absl", "asyncio"), _ignore_warnings():
        sys.unraisablehook = _ignore_closed_loops(hook)
        try:
            result = action()
            sys.unraisablehook = hook
            return result
        except Exception as error:
            reason = _reason(error)
        # Other arrays in progress find their event loop closed when they end, and their remains print
        # complaints when they are collected. Wait for both here; errors of those that end later still are
        # filtered out.
        time.sleep(SECONDS_TO_SETTLE)
        gc.collect()
    raise OrbaxError(reason)


@contextlib.contextmanager
def _mute_loggers(*names: str) -> Iterator[None]:
    """Reject the output of loggers, since the raised error says the same.

    Several threads may do so at once, and end in any order: each adds and removes a filter of its own.
    """

    def reject(_: logging.LogRecord) -> bool:
        return False

    loggers = [logging.getLogger(name) for name in names]
    try:
        for logger in loggers:
            logger.addFilter(reject)
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(reject)


@contextlib.contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Ignore warnings in the main thread.

    Python's filters belong to the whole process: a second thread that ended later would put its own view of them
    back for good. It leaves them alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _ignore_closed_loops(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a hook for errors that nobody can catch, which ignores those of a closed event loop."""
    if getattr(hook, "ignores_closed_loops", False):
        return hook

    def filtered(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            hook(unraisable)

    filtered.ignores_closed_loops = True  # type: ignore[attr-defined]
    return filtered


def _reason(error: BaseException) -> str:
    """Return the reason of an error, in the operating system's words where it was its error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if code := re.search(r"os_error_code='(\d+)'", str(cause)):
            return os.strerror(int(code[1]))
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
