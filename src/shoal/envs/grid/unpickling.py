"""Reads pickles of arrays without running what they hold.

A pickle is a small program that calls functions by their names. Here a name stands for nothing but one of a few
stand-ins of our own, those that arrays of NumPy and JAX are pickled by; they can only make arrays of whole
numbers out of bytes. Neither NumPy's nor JAX's own functions are ever called, and any other name ends the
reading. Dictionaries, lists, tuples, texts and numbers need no names.
"""

import io
import pickle
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from shoal.errors import ShoalError

WHOLE_NUMBERS = re.compile("[iu][1248]")
ORDERS = "|<>="


class PickledArray:
    """An array that is being read; `array` is None until its bytes have come."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, in_columns, content = state
        self.array = _array(content, kind, shape, "F" if in_columns else "C")


class _Kind:
    """Stands in for a dtype."""

    __slots__ = ("name", "order")

    def __init__(self, name: str, *_: Any):
        if not isinstance(name, str) or not WHOLE_NUMBERS.fullmatch(name):
            raise ValueError(f"it holds values of type {str(name)[:20]!r}, where whole numbers are needed")
        self.name, self.order = name, "="

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ORDERS:
            raise ValueError("a dtype has an unknown order of bytes")
        self.order = state[1]


class _StandIn:
    """Stands in for a function, and can be called but not changed."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise ValueError("it changes a function")


def _array(content: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(kind, _Kind) or not isinstance(content, bytes | bytearray):
        raise ValueError("an array's bytes or type are missing")
    return np.frombuffer(content, np.dtype(kind.order + kind.name)).reshape(shape, order=order)


def _of_buffer(content: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
    """NumPy's way from protocol 5 on."""
    held = PickledArray()
    held.array = _array(content, kind, shape, order)
    return held


def _begun(*_: Any) -> PickledArray:
    """NumPy's way before: an empty array, which is then told its state."""
    return PickledArray()


def _of_jax(_make: Any, _arguments: Any, state: Any, _aval: Any) -> PickledArray:
    """JAX's way: how NumPy makes the array, and what it is then told."""
    held = PickledArray()
    held.__setstate__(state)
    return held


def _never(*_: Any) -> NoReturn:
    raise ValueError("it makes an array in an unknown way")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("jax._src.array", "_reconstruct_array"): _of_jax,
    ("numpy", "ndarray"): _never,  # is only named
    ("numpy", "dtype"): _Kind,
    ("numpy.core.multiarray", "_reconstruct"): _begun,
    ("numpy._core.multiarray", "_reconstruct"): _begun,
    ("numpy.core.numeric", "_frombuffer"): _of_buffer,
    ("numpy._core.numeric", "_frombuffer"): _of_buffer,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise ShoalError(
                f"holds code: it asks for {module}.{name}, where only arrays may be; nothing of it was run"
            )
        return _StandIn(_STAND_INS[module, name])

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ValueError("it refers to something outside")


def unpickled(content: bytes) -> Any:
    """What a pickle holds: plain values, and a `PickledArray` for every array.

    Raises:
      ShoalError: it asks for anything but arrays, or is damaged; the message goes on after a file's name.
    """
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except ShoalError:
        raise
    except Exception as error:  # a pickle can go wrong in as many ways as a program
        why = " ".join(str(error).split()) or type(error).__name__
        raise ShoalError(f"is damaged: {why}") from error
