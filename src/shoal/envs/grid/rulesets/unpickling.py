"""Read pickles of arrays without executing their content.

A pickle is a small program that builds values and calls functions by their names. Here it is read by an
interpreter that knows only the operations with which values and arrays are pickled, in protocols 0 to 5. A
name can stand only for one of a few replacement functions, those that arrays of NumPy and JAX need; they can
only make arrays of whole numbers from bytes. Neither NumPy's nor JAX's own functions are ever called, and any
other name is an error. Dictionaries, lists, tuples, texts and numbers need no names.

The cost of reading is bounded: no more bytes than the caller allows, no more than `MAX_OPERATIONS`
operations, and every key of a dictionary is a text, since hashing nested tuples takes time that is
exponential in their depth.
"""

import pickletools
import re
from collections.abc import Callable
from typing import IO, Any, NoReturn, Protocol, cast

import numpy as np

from shoal.base.errors import ShoalError

WHOLE_NUMBERS = re.compile("[iu][1248]")
BYTE_ORDERS = "|<>="
NEWEST_PROTOCOL = 5
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


class Stream(Protocol):
    """A source of bytes, read by their number or up to the end of a line."""

    def read(self, size: int = ..., /) -> bytes:
        """Read at most so many bytes."""
        ...

    def readline(self, size: int = ..., /) -> bytes:
        """Read the bytes to the end of the line, at most so many."""
        ...


class _BoundedReader:
    """A stream with a limit on the bytes read; more are refused before memory is allocated."""

    def __init__(self, file: Stream, limit: int):
        self._file, self._remaining, self._limit = file, limit, limit

    def read(self, size: int) -> bytes | bytearray:
        """Read at most so many bytes; memory is allocated only as they are read."""
        if size > self._remaining:
            self._refuse()
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
            self._refuse()
        self._remaining -= size

    def _refuse(self) -> NoReturn:
        raise ShoalError(f"would unpack to more than {self._limit:,} bytes, which are the most that are read")


_MARK = object()  # marks on the stack where the values of a tuple, list or dictionary begin


class _Machine:
    """The stack and the memo of a pickle that is being read; a method for each kind of operation."""

    def __init__(self, file: _BoundedReader) -> None:
        self.stack: list[Any] = []
        self._file = file
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        """Remove and return the value on top."""
        if not self.stack or self.stack[-1] is _MARK:
            raise ValueError("an operation lacks its value")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        """Remove and return the values above the last mark, and remove the mark."""
        for place in reversed(range(len(self.stack))):
            if self.stack[place] is _MARK:
                values = self.stack[place + 1 :]
                del self.stack[place:]
                return values
        raise ValueError("an operation lacks its mark")

    def push_tuple(self, length: int) -> None:
        """Make a tuple of the values on top."""
        values = [self.pop() for _ in range(length)]
        self.stack.append(tuple(reversed(values)))

    def append(self, values: list[Any]) -> None:
        """Append values to the list on top."""
        target = self.pop()
        if not isinstance(target, list):
            raise ValueError("values are appended to something other than a list")
        target.extend(values)
        self.stack.append(target)

    def set_items(self, values: list[Any]) -> None:
        """Add keys and values, in turns, to the dictionary on top."""
        target = self.pop()
        keys = values[::2]
        if not isinstance(target, dict) or len(values) % 2:
            raise ValueError("a dictionary lacks a value")
        if not all(type(key) is str for key in keys):
            raise ValueError("a key of a dictionary is not a text")
        target.update(zip(keys, values[1::2], strict=True))
        self.stack.append(target)

    def push_dictionary(self) -> None:
        """Make a dictionary of the values above the last mark."""
        values = self.pop_to_mark()
        self.stack.append({})
        self.set_items(values)

    def put(self, number: int | None = None) -> None:
        """Store the value on top under a number, or under the next one if none is given."""
        value = self.pop()
        self._memo[len(self._memo) if number is None else number] = value
        self.stack.append(value)

    def get(self, number: int) -> None:
        """Push the value that was stored under a number."""
        if number not in self._memo:
            raise ValueError(f"it uses value {number} before it has it")
        self.stack.append(self._memo[number])

    def push_named(self, module: Any, name: Any) -> None:
        """Push the replacement for a name.

        Raises:
          ShoalError: there is none.
        """
        stand_in = (
            _STAND_INS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        )
        if stand_in is None:
            requested = f"{module}.{name}"
            quoted = requested if PLAIN_NAME.fullmatch(requested) else repr(requested[:80])
            raise ShoalError(
                f"holds code: it asks for {quoted}, where only arrays may be; nothing of it was run"
            )
        self.stack.append(_StandIn(stand_in))

    def call(self) -> None:
        """Call a replacement function with a tuple of arguments."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _StandIn) or not isinstance(arguments, tuple):
            raise ValueError("it calls what cannot be called")
        result = function(*arguments)
        if isinstance(result, bytes):  # a copy of a text, which may be requested again and again
            self._file.count(len(result))
        self.stack.append(result)

    def set_state(self) -> None:
        """Set the state of an array or a dtype."""
        state, target = self.pop(), self.pop()
        if not isinstance(target, PickledArray | _DType):
            raise ValueError("it changes what cannot be changed")
        target.set_state(state)
        self.stack.append(target)


_LITERALS = re.compile(
    "INT|BININT[12]?|LONG[14]?|FLOAT|BINFLOAT|STRING|(SHORT_)?BINSTRING|UNICODE|(SHORT_)?BINUNICODE8?"
    "|(SHORT_)?BINBYTES8?|BYTEARRAY8"
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: machine.push_tuple(1),
    "TUPLE2": lambda machine, _: machine.push_tuple(2),
    "TUPLE3": lambda machine, _: machine.push_tuple(3),
    "LIST": lambda machine, _: machine.stack.append(machine.pop_to_mark()),
    "DICT": lambda machine, _: machine.push_dictionary(),
    "APPEND": lambda machine, _: machine.append([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.pop_to_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": lambda machine, words: machine.push_named(*words.split(" ", 1)),
    "INST": lambda machine, words: machine.push_named(*words.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.push_named(*[machine.pop(), machine.pop()][::-1]),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.set_state(),
    "FRAME": lambda machine, _: None,  # only a hint for reading ahead
}


def _execute(machine: _Machine, name: str, argument: Any) -> None:
    """Carry out one operation other than the last."""
    if _LITERALS.fullmatch(name):
        machine.stack.append(argument)
    elif name in _CONSTANTS:
        machine.stack.append(_CONSTANTS[name]())
    elif name in _OPERATIONS:
        _OPERATIONS[name](machine, argument)
    elif name != "PROTO":
        raise ValueError(f"it uses the operation {name}, by which no array is pickled")
    elif argument > NEWEST_PROTOCOL:
        raise ValueError(f"its protocol is {argument}, and the newest that is read is {NEWEST_PROTOCOL}")


def _run(file: _BoundedReader) -> Any:
    machine = _Machine(file)
    for count, (operation, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], file))):
        if operation.name == "STOP":
            break
        if count == MAX_OPERATIONS:
            raise ValueError(
                f"it takes more than {MAX_OPERATIONS:,} operations, and a file of rulesets some 250"
            )
        _execute(machine, operation.name, argument)
    value = machine.pop()
    if machine.stack:
        raise ValueError("values are left over at its end")
    if file.read(1):  # reads to the end of the compressed file, where the checksum is
        raise ValueError("something follows its end")
    return value


def unpickle(file: Stream, max_bytes: int) -> Any:
    """Read the content of a pickle, no further than needed: plain values, and a `PickledArray` for every array.

    Raises:
      ShoalError: it holds something other than arrays, is damaged, or too long; the message continues a sentence that
        begins with the file's name.
    """
    try:
        return _run(_BoundedReader(file, max_bytes))
    except ShoalError:
        raise
    except Exception as error:  # a pickle can raise as many kinds of errors as a program
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ShoalError(f"is damaged: {reason[:MAX_REASON_LENGTH]}") from error
