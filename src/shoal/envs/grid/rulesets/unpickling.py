"""Read pickles of arrays without executing their content.

A pickle is a small program that builds values and calls functions by their names. Here Python's own interpreter of it
(`pickle._Unpickler`, the one that is written in Python) has only the operations with which values and arrays are
pickled, in protocols 0 to 5. A name can stand only for one of a few replacement functions, those that arrays of NumPy
and JAX need; they can only make arrays of whole numbers from bytes. Neither NumPy's nor JAX's own functions are ever
called, and any other name is an error. Dictionaries, lists, tuples, texts and numbers need no names.

The cost of reading is bounded: no more bytes than the caller allows, no more than `MAX_OPERATIONS`
operations, and every key of a dictionary is a text, since hashing nested tuples takes time that is
exponential in their depth.
"""

import pickle
import re
from collections.abc import Callable, Mapping
from typing import IO, Any, NoReturn, cast

import numpy as np

from shoal.base.errors import ShoalError

WHOLE_NUMBERS = re.compile("[iu][1248]")
BYTE_ORDERS = "|<>="
# One of the original's files needs some 250: a dictionary of four arrays and of twenty settings.
MAX_OPERATIONS = 10_000
READ_CHUNK = 2**20  # bytes
PLAIN_NAME = re.compile(r"[\w.]{1,80}")
MAX_REASON_LENGTH = 200  # characters of an error that quotes the file


class PickledArray:
    """An array that is being read; `array` is None until its bytes are read."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def set_state(self, state: Any) -> None:
        """Set what NumPy pickles of an array: version, shape, type, order and bytes."""
        _, shape, dtype, is_column_major, content = state
        self.array = _array(content, dtype, shape, "F" if is_column_major else "C")


class _DType:
    """Replacement for a dtype."""

    __slots__ = ("name", "order")

    def __init__(self, name: str, *_: Any):
        if not isinstance(name, str) or not WHOLE_NUMBERS.fullmatch(name):
            raise ValueError(f"it holds values of type {str(name)[:20]!r}, where whole numbers are needed")
        self.name, self.order = name, "="

    def set_state(self, state: Any) -> None:
        """Set what NumPy pickles of a dtype, of which only the byte order is used."""
        if not isinstance(state[1], str) or len(state[1]) != 1 or state[1] not in BYTE_ORDERS:
            raise ValueError("a dtype has an unknown order of bytes")
        self.order = state[1]


class _StandIn:
    """Replacement for a function, which can be called but not changed."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


def _array(content: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(kind, _DType) or not isinstance(content, bytes | bytearray):
        raise ValueError("an array's bytes or type are missing")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array has no shape")
    dtype = np.dtype(kind.order + kind.name)
    flat = np.frombuffer(content, dtype) if content else np.zeros(0, dtype)
    return flat.reshape(shape, order=order)


def _array_from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> PickledArray:
    """Make an array as NumPy does from protocol 5 on."""
    array = PickledArray()
    array.array = _array(content, kind, shape, order)
    return array


def _empty_array(*_: Any) -> PickledArray:
    """Make an empty array as NumPy does before protocol 5; its state is set later."""
    return PickledArray()


def _array_from_jax(_make: Any, _arguments: Any, state: Any, _aval: Any) -> PickledArray:
    """Make an array as JAX does: from NumPy's constructor and its state."""
    array = PickledArray()
    array.set_state(state)
    return array


def _bytes_from_text(text: str, encoding: str) -> bytes:
    """Make bytes from text, as protocols 0 to 2 do, which have no operation for bytes."""
    if encoding != "latin1":
        raise ValueError("bytes are written in an unknown way")
    return text.encode("latin-1")


def _no_bytes() -> bytes:
    """Make empty bytes, as protocols 0 to 2 do."""
    return b""


def _refuse_array(*_: Any) -> NoReturn:
    raise ValueError("it makes an array in an unknown way")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("jax._src.array", "_reconstruct_array"): _array_from_jax,
    ("numpy", "ndarray"): _refuse_array,  # is only named, never called
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array_from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _array_from_buffer,
    ("_codecs", "encode"): _bytes_from_text,
    ("__builtin__", "bytes"): _no_bytes,
}


class _BoundedReader:
    """A stream with a limit on the bytes read; more are refused before memory is allocated."""

    def __init__(self, file: IO[bytes], limit: int):
        self._file, self._remaining, self._limit = file, limit, limit

    def read(self, size: int) -> bytes | bytearray:
        """Read so many bytes, or those that are left; memory is allocated only as they are read."""
        if size > self._remaining:
            self.count(size)
        content: bytes | bytearray = self._file.read(min(size, READ_CHUNK))
        if READ_CHUNK <= len(content) < size:
            content = bytearray(content)
            while more := self._file.read(min(size - len(content), READ_CHUNK)):
                content += more
        self.count(len(content))
        return content

    def readline(self) -> bytes:
        """Read the bytes to the end of the line."""
        line = self._file.readline(self._remaining + 1)
        self.count(len(line))
        return line

    def count(self, size: int) -> None:
        """Count so many bytes as read."""
        if size > self._remaining:
            raise ShoalError(
                f"would unpack to more than {self._limit:,} bytes, which are the most that are read"
            )
        self._remaining -= size


class _Operations(dict[int, Callable[[Any], None]]):
    """The operations that a pickle may use, by their codes; counts those that are taken."""

    count = 0

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.count += 1
        if self.count > MAX_OPERATIONS:
            raise ValueError(
                f"it takes more than {MAX_OPERATIONS:,} operations, and a file of rulesets some 250"
            )
        if code not in self:
            raise ValueError(f"it uses the operation {chr(code)!r}, by which no array is pickled")
        return super().__getitem__(code)


# The operations of literals, tuples, lists, dictionaries, the memo and names, as Python reads them.
_PLAIN = b"".join(
    (
        *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG, pickle.LONG1, pickle.LONG4),
        *(pickle.FLOAT, pickle.BINFLOAT, pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING),
        *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
        *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8),
        *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
        *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
        *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.GLOBAL, pickle.STACK_GLOBAL),
    )
)


class _Unpickler(pickle._Unpickler):
    """Python's interpreter of pickles without all that could call a function of its own."""

    stack: list[Any]
    metastack: list[list[Any]]
    pop_mark: Callable[[], list[Any]]
    readline: Callable[[], bytes]

    def __init__(self, file: _BoundedReader):
        super().__init__(cast(IO[bytes], file), encoding="latin1")
        self._file = file
        python: Mapping[int, Callable[[Any], None]] = pickle._Unpickler.dispatch
        operations = _Operations({code: python[code] for code in _PLAIN})
        self.dispatch = operations  # type: ignore[misc]
        operations |= {
            pickle.BYTEARRAY8[0]: python[pickle.BINBYTES8[0]],  # Python would allocate it before it is read
            pickle.SETITEM[0]: _Unpickler._set_item,
            pickle.SETITEMS[0]: _Unpickler._set_items,
            pickle.DICT[0]: _Unpickler._make_dictionary,
            pickle.REDUCE[0]: _Unpickler._call,
            pickle.BUILD[0]: _Unpickler._set_state,
            pickle.INST[0]: _Unpickler._refuse_instance,
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement for a name.

        Raises:
          ShoalError: there is none.
        """
        if (module, name) not in _STAND_INS:
            requested = f"{module}.{name}"
            quoted = requested if PLAIN_NAME.fullmatch(requested) else repr(requested[:80])
            raise ShoalError(
                f"holds code: it asks for {quoted}, where only arrays may be; nothing of it was run"
            )
        return _StandIn(_STAND_INS[module, name])

    def _update(self, values: list[Any]) -> None:
        """Add keys and values, in turns, to the dictionary on top."""
        target, keys = self.stack[-1], values[::2]
        if not isinstance(target, dict) or len(values) % 2:
            raise ValueError("a dictionary lacks a value")
        if not all(type(key) is str for key in keys):
            raise ValueError("a key of a dictionary is not a text")
        target.update(zip(keys, values[1::2], strict=True))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def _set_items(self) -> None:
        self._update(self.pop_mark())

    def _make_dictionary(self) -> None:
        values = self.pop_mark()
        self.stack.append({})
        self._update(values)

    def _call(self) -> None:
        """Call a replacement function with a tuple of arguments."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _StandIn) or not isinstance(arguments, tuple):
            raise ValueError("it calls what cannot be called")
        result = function(*arguments)
        if isinstance(result, bytes):  # a copy of a text, which may be requested again and again
            self._file.count(len(result))
        self.stack.append(result)

    def _set_state(self) -> None:
        """Set the state of an array or a dtype."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], PickledArray | _DType):
            raise ValueError("it changes what cannot be changed")
        self.stack[-1].set_state(state)

    def _refuse_instance(self) -> None:
        self.find_class(*(self.readline()[:-1].decode() for _ in range(2)))
        raise ValueError("it makes an object of a class")


def _run(file: IO[bytes], max_bytes: int) -> Any:
    unpickler = _Unpickler(_BoundedReader(file, max_bytes))
    value = unpickler.load()
    if unpickler.stack or unpickler.metastack:
        raise ValueError("values are left over at its end")
    if file.read(1):  # reads to the end of the compressed file, where the checksum is
        raise ValueError("something follows its end")
    return value


def unpickle(file: IO[bytes], max_bytes: int) -> Any:
    """Read the content of a pickle, no further than needed: plain values, and a `PickledArray` for every array.

    Raises:
      ShoalError: it holds something other than arrays, is damaged, or too long; the message continues a sentence that
        begins with the file's name.
    """
    try:
        return _run(file, max_bytes)
    except ShoalError:
        raise
    except Exception as error:  # a pickle can raise as many kinds of errors as a program
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ShoalError(f"is damaged: {reason[:MAX_REASON_LENGTH]}") from error
