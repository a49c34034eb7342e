"""Named arrays and a record in one file, in the format of safetensors.

    8 bytes     the length of the header
    header      {"__metadata__": {"shoal": RECORD}, NAME: {"dtype": ..., "shape": ..., "data_offsets": ...}, ...}
    data        the numbers of all arrays

RECORD is the text of a JSON object. It begins with the file's own checksum: the SHA-256 of all bytes of the file with
zeros in that place, in every schema. So a file is verified before anything in it is interpreted, and the same arrays
and entries make the same bytes. `safetensors` reads it in any language; it is written here, since that library would
hold all arrays in memory twice more, or replace devices and links, and leave files of other names when it is killed.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NotRequired, TypedDict

import numpy as np
from safetensors import safe_open

from shoal.base.files import write_whole_file
from shoal.records.arrays import FLOAT8, SAFETENSORS_DTYPES, Leaf, from_numpy, is_key
from shoal.records.json_files import parse_json, to_jsonable

SUFFIX = ".safetensors"
SCHEMA = 1  # counts up when an entry changes its meaning
START = rb'{"__metadata__":{"shoal":"{\"sha256\":\"'  # of each header; the checksum follows
ZEROS = b"0" * 64
PIECE = 1 << 20  # bytes that are read at once


class SavedLeaf(TypedDict):
    """An array in the record of a file; of typed keys the words, and their implementation's name as `key`."""

    dtype: str
    shape: list[int]
    key: NotRequired[str]


class UnusableError(Exception):
    """A file cannot be used; the message is one clause that says why."""


class DamageError(UnusableError):
    """A file does not hold the bytes that were written, as its checksum says; nothing else is damage."""


class NewerSchemaError(UnusableError):
    """A file was written by a newer version of Shoal: it may be sound, and must stay as it is."""


# ---- writing


def write(
    path: Path, leaves: Mapping[str, tuple[np.ndarray, str | None]], entries: Mapping[str, object]
) -> int:
    """Write arrays (results of `arrays.to_numpy` by name) and the entries of a record; replaces a file once complete.

    Numbers of the entries that are not finite become the strings that `float` reads.

    Returns:
      the number of bytes.
    Raises:
      ShoalError: the file cannot be written, and the one before stays; or JSON cannot hold an entry.
    """
    arrays = {name: _as_stored(array) for name, (array, _) in leaves.items()}
    # The largest numbers first, so that each is aligned for those who map the file.
    ordered = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    described = {
        name: {"dtype": array.dtype.name, "shape": array.shape} | ({"key": key} if key else {})
        for name, (array, key) in leaves.items()
    }
    record = to_jsonable({**entries, "schema": SCHEMA, "leaves": described}, not_finite=str)
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    header = _header(arrays, ordered, text)
    data = [arrays[name].reshape(-1).view(np.uint8).data for name in ordered]
    length = len(header) + sum(part.nbytes for part in data)
    # The checksum stands in the header, which is written first, so that all bytes are read twice.
    digest = hashlib.sha256(header)
    for part in data:
        digest.update(part)
    place = 8 + len(START)
    with write_whole_file(path, parents=False, needed=length) as file:
        file.write(header[:place] + digest.hexdigest().encode() + header[place + len(ZEROS) :])
        for part in data:
            file.write(part)
    return length


def _as_stored(array: np.ndarray) -> np.ndarray:
    """Return an array in C's order and little-endian; numbers of 8 bits that NumPy does not know become bytes."""
    array = np.asarray(array, order="C")
    if array.dtype.name in FLOAT8:
        return array.view(np.uint8)
    return array if array.dtype.byteorder != ">" else array.astype(array.dtype.newbyteorder("<"))


def _header(arrays: Mapping[str, np.ndarray], ordered: list[str], record: str) -> bytes:
    """Return the length and the header of a file; in the place of the checksum there are zeros."""
    header: dict[str, object] = {"__metadata__": {"shoal": f'{{"sha256":"{ZEROS.decode()}",{record[1:]}'}}
    offset = 0
    for name in ordered:
        end = offset + arrays[name].nbytes
        dtype = SAFETENSORS_DTYPES[arrays[name].dtype.name]
        header[name] = {"dtype": dtype, "shape": arrays[name].shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# ---- verifying


def verify(path: Path) -> dict[str, Any]:
    """Verify every byte of a file, before anything in it is interpreted.

    Returns:
      the record, in which `leaves` has the `dtype` and `shape` of each array, and of typed keys the implementation's
      name as `key`.
    Raises:
      UnusableError: it is not sound; a DamageError where its bytes are not those that were written.
    """
    try:
        # Opening a FIFO must not wait for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UnusableError("it is not a regular file")
            header = _verified_header(file, status.st_size)
    except IsADirectoryError:
        raise UnusableError("it is a folder, not a file") from None
    except OSError as error:
        raise UnusableError(f"it cannot be read: {error.strerror or error}") from error
    # From here on the file is what some version of Shoal wrote.
    text = json.loads(header)["__metadata__"]["shoal"]
    record: dict[str, Any] = parse_json(text.encode(), f"the record of {path}")
    if (schema := record["schema"]) > SCHEMA:
        raise NewerSchemaError(
            f"its schema is {schema}, of a newer version of Shoal, and this one reads schema {SCHEMA}"
        )
    return record


def _verified_header(file: IO[bytes], length: int) -> bytes:
    """Compare the checksum of an open file, and return its header."""
    if not length:
        raise DamageError("it is empty")
    size = int.from_bytes(file.read(8), "little")
    if length < 8 or size > length - 8:
        raise DamageError(f"it is truncated to {length:,} bytes, or its first eight were altered")
    header = file.read(size)
    expected = header[len(START) : len(START) + len(ZEROS)]
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    digest.update(header[: len(START)] + ZEROS + header[len(START) + len(ZEROS) :])
    while piece := file.read(PIECE):
        digest.update(piece)
    if header.startswith(START) and digest.hexdigest().encode() == expected:
        return header
    raise DamageError(_difference(header, length))


def _difference(header: bytes, length: int) -> str:
    """Say how a damaged file differs, as far as its header tells."""
    try:
        ends = [entry["data_offsets"][1] for entry in json.loads(header).values() if "data_offsets" in entry]
        expected = 8 + len(header) + max(ends, default=0)
        if length < expected:
            return f"it is truncated to {length:,} of {expected:,} bytes"
        if length > expected:
            return f"it has {length:,} bytes instead of {expected:,}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    return "it was altered"


# ---- reading


def find_misfit(saved: Mapping[str, SavedLeaf], expected: Mapping[str, Leaf]) -> str:
    """Compare the `leaves` of a record with the expected arrays, or their shapes and dtypes; reads no array.

    Returns:
      one clause that names the first leaf which differs, or "".
    """
    if missing := sorted(set(expected) - set(saved)):
        return f"it has no {missing[0]!r}"
    if additional := sorted(set(saved) - set(expected)):
        return f"it has {additional[0]!r}, which is not expected"
    for name in sorted(expected):
        shape, dtype = _shape_and_dtype(saved[name], is_key(expected[name]))
        expected_shape, expected_dtype = tuple(expected[name].shape), expected[name].dtype.name
        if dtype != expected_dtype:
            return f"it has {name!r} of dtype {dtype}, and {expected_dtype} is expected"
        if shape != expected_shape:
            return f"it has {name!r} of shape {shape}, and {expected_shape} is expected"
    return ""


def _shape_and_dtype(entry: SavedLeaf, as_keys: bool) -> tuple[tuple[int, ...], str]:
    """Return the shape and dtype's name of a leaf; where keys are expected too, those of the keys, not the words."""
    shape, dtype = tuple(entry["shape"]), entry["dtype"]
    if "key" not in entry:
        return shape, dtype
    if not as_keys:
        return shape, f"{entry['key']} keys"
    import jax  # noqa: PLC0415 (only typed keys need it)

    words = jax.ShapeDtypeStruct(shape, np.dtype(dtype))
    try:
        keys = jax.eval_shape(lambda x: jax.random.wrap_key_data(x, impl=entry["key"]), words)
    except (TypeError, ValueError):  # JAX has no such implementation
        return shape[:-1], f"{entry['key']} keys"
    return keys.shape, keys.dtype.name


def read(path: Path, leaves: Mapping[str, SavedLeaf], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the arrays and typed keys of a file that was verified, sorted by name.

    Args:
      leaves: as its record describes them.
      without: prefixes of the names of those that are not read.
    Raises:
      UnusableError: they cannot be read, or differ from the record.
    """
    try:
        return dict(_read(path, leaves, without))
    except Exception as error:  # safetensors, NumPy and JAX raise many kinds of errors
        raise UnusableError("its arrays cannot be read") from error


def _read(
    path: Path, leaves: Mapping[str, SavedLeaf], without: tuple[str, ...]
) -> Iterator[tuple[str, object]]:
    import ml_dtypes  # noqa: PLC0415 (after it NumPy knows the names of its dtypes)

    with safe_open(path, framework="numpy") as file:
        for name in sorted(name for name in leaves if not name.startswith(without)):
            entry = leaves[name]
            array = file.get_tensor(name)
            if entry["dtype"] in FLOAT8:
                array = array.view(getattr(ml_dtypes, entry["dtype"]))
            yield name, from_numpy(array, entry.get("key"))
