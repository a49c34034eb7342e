"""Read pickles of arrays without executing their content.

A pickle is a small program that builds values and calls functions by their names. Python's `pickle.Unpickler` reads it
here, but a name stands only for a function of ours that records a call: neither NumPy's nor JAX's own functions are
ever called, and a name that no array needs is an error. The arrays are made afterwards, from the bytes, shape and type
in the records of their calls.

The cost of reading is bounded. No more bytes are unpacked than the caller allows. Before the pickle is read,
`pickletools.genops`, which runs nothing, lists its operations, and `_check` refuses those that let few bytes take much
time or memory. The operations that are left take memory in proportion to their own bytes.
"""

import dataclasses
import io
import pickle
import pickletools
import re
from collections.abc import Iterable
from typing import IO, Any, NoReturn

import numpy as np

from shoal.base.errors import ShoalError

WHOLE_NUMBERS = re.compile("[|<>=][iu][1248]")  # with the order of their bytes
# One of the original's files needs some 250: a dictionary of four arrays and of twenty settings.
MAX_OPERATIONS = 10_000
FRAME_HEADER = 9  # bytes
READ_CHUNK = 2**16  # bytes
PLAIN_NAME = re.compile(r"[\w.]{1,80}")
MAX_REASON_LENGTH = 200  # characters of an error that quotes the file

# A value on the stack twice, a class by its number in this process, and a value that is kept elsewhere.
REFUSED = {"DUP", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
# After these a value may be stored, to be used again; not after those that make a tuple.
STORABLE = {
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE"),
}
# The functions by which NumPy and JAX make arrays and dtypes, and old protocols make bytes.
NAMES = {
    ("jax._src.array", "_reconstruct_array"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
    ("__builtin__", "bytes"),
}


@dataclasses.dataclass(eq=False, slots=True)
class RecordedCall:
    """A call that a pickle asks for: the function's name, its arguments, and the state that the result is given."""

    name: str
    arguments: tuple[object, ...]
    state: object = None

    def __setstate__(self, state: object) -> None:
        """Record the state."""
        self.state = state


class _Function:
    """The replacement for a function: a call of it is recorded, and a file cannot change it."""

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __call__(self, *arguments: object) -> RecordedCall:
        return RecordedCall(self._name, arguments)

    def __setstate__(self, state: object) -> NoReturn:
        raise ValueError("it changes a function")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Function:
        """Return the replacement for a name.

        Raises:
          ShoalError: there is none.
        """
        if (module, name) not in NAMES:
            requested = f"{module}.{name}"
            quoted = requested if PLAIN_NAME.fullmatch(requested) else repr(requested[:80])
            raise ShoalError(
                f"holds code: it asks for {quoted}, where only arrays may be; nothing of it was run"
            )
        return _Function(name)


def _unpack(file: IO[bytes], max_bytes: int) -> io.BytesIO:
    unpacked = io.BytesIO()
    while chunk := file.read(READ_CHUNK):
        if unpacked.tell() + len(chunk) > max_bytes:
            raise ShoalError(
                f"would unpack to more than {max_bytes:,} bytes, which are the most that are read"
            )
        unpacked.write(chunk)
    unpacked.seek(0)
    return unpacked


def _check(file: IO[bytes]) -> None:
    """Require a pickle whose cost is in proportion to its length.

    - Python allocates room for values up to the highest index that one is stored at.
    - The time to hash a tuple of twice the same tuple, and so on, doubles with each, so no tuple is used twice.
    - Where an operation crosses the end of a frame, Python skips the frame's rest, and reads what was not checked.

    Raises:
      ValueError: it is not.
    """
    may_repeat: dict[int, bool] = {}  # by the index of a stored value
    frame_end, last_position, last_name = 0, 0, ""
    operations: Iterable[tuple[pickletools.OpcodeInfo, Any, Any]] = pickletools.genops(file)
    for count, (operation, argument, position) in enumerate(operations):
        name = operation.name
        if count >= MAX_OPERATIONS:
            raise ValueError(
                f"it takes more than {MAX_OPERATIONS:,} operations, and a file of rulesets some 250"
            )
        if name in REFUSED:
            raise ValueError(f"it uses the operation {name}, by which no array is pickled")
        if last_position < frame_end < position or (name == "FRAME" and position < frame_end):
            raise ValueError("an operation crosses the end of a frame")
        if name == "FRAME":
            frame_end = position + FRAME_HEADER + argument
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            index = len(may_repeat) if name == "MEMOIZE" else argument
            if index > MAX_OPERATIONS:
                raise ValueError(f"it stores a value at the index {index}; the highest is {MAX_OPERATIONS:,}")
            may_repeat[index] = last_name in STORABLE
        elif name in ("GET", "BINGET", "LONG_BINGET") and not may_repeat.get(argument, False):
            raise ValueError("it uses a value again that is a tuple or was not stored")
        last_position, last_name = position, name
    if file.read(1):
        raise ValueError("something follows its end")


def _to_array(value: object) -> object:
    """Make the array of a recorded call; any other value is left as it is.

    Raises:
      ValueError: the call makes something else than an array of whole numbers.
    """
    match value:
        case RecordedCall("_frombuffer", (content, dtype, shape, str(order))):
            is_column_major = {"C": False, "F": True}[order]
        case RecordedCall("_reconstruct", _, (_, shape, dtype, is_column_major, content)):
            pass
        case RecordedCall("_reconstruct_array", (_, _, (_, shape, dtype, is_column_major, content), _)):
            pass
        case RecordedCall():
            raise ValueError("it makes an array in an unknown way")
        case _:
            return value
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array has no shape")
    dtype, content = _to_dtype(dtype), _to_bytes(content)
    flat = np.frombuffer(content, dtype) if content else np.zeros(0, dtype)
    return flat.reshape(shape, order="F" if is_column_major else "C")


def _to_bytes(content: object) -> bytes | bytearray:
    match content:
        case bytes() | bytearray():
            return content
        case RecordedCall("encode", (str(text), "latin1")):  # protocols 0 to 2 have no operation for bytes
            return text.encode("latin-1")
        case RecordedCall("bytes", ()):
            return b""
    raise ValueError("an array's bytes are missing")


def _to_dtype(dtype: object) -> np.dtype:
    match dtype:
        case RecordedCall("dtype", (str(name), *_), (_, str(order), *_)):
            if not WHOLE_NUMBERS.fullmatch(order + name):
                raise ValueError(f"it holds values of type {name[:20]!r}, where whole numbers are needed")
            return np.dtype(order + name)
    raise ValueError("an array's type is missing")


def damage(error: Exception) -> ShoalError:
    """Say of an error of any kind that a file is damaged, in a sentence that begins with the file's name."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return ShoalError(f"is damaged: {reason[:MAX_REASON_LENGTH]}")


def unpickle(file: IO[bytes], max_bytes: int, arrays: Iterable[str]) -> object:
    """Read the content of a pickle: plain values, with a `RecordedCall` for every array.

    Args:
      arrays: keys of the dictionary that it holds, under which arrays are made of the calls.
    Raises:
      ShoalError: it holds something other than arrays, is damaged, or too long; the message continues a sentence that
        begins with the file's name.
    """
    try:
        unpacked = _unpack(file, max_bytes)
        _check(unpacked)
        unpacked.seek(0)
        value = _Unpickler(unpacked, encoding="latin1").load()
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise ValueError("a key of a dictionary is not a text")
            value |= {name: _to_array(value[name]) for name in arrays if name in value}
        return value
    except ShoalError:
        raise
    except Exception as error:  # a pickle can raise as many kinds of errors as a program
        raise damage(error) from error
