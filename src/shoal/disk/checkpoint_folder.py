"""The folder of one checkpoint: how it is written, verified and read.

    arrays/         named arrays, written by Orbax
    record.json     what only the host knows
    manifest.json   written last: the length and SHA-256 of every other file, and what the arrays are

The manifest holds its own checksum too, over all its other entries as they are written; that is so in every schema.
A folder is verified before anything in it is read for its content.
"""

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import sync_directory, sync_tree
from shoal.disk.arrays import STORABLE, describe, from_numpy, is_key, read_arrays, write_arrays
from shoal.disk.checksums import file_sha256, folder_sha256
from shoal.disk.json_files import json_text, parse_json

ARRAYS = "arrays"
RECORD = "record.json"
MANIFEST = "manifest.json"
SCHEMA = 1  # counts up when an entry changes its meaning


class UnusableError(Exception):
    """A folder cannot be used as a checkpoint; the message is one clause that says why."""


class DamageError(UnusableError):
    """A folder does not hold the bytes that were written, as its manifest says; nothing else is damage."""


class NewerSchemaError(UnusableError):
    """A folder was written by a newer version of Shoal: it may be sound, and must stay as it is."""


# ---- writing


def write_folder(
    folder: Path, steps: int, leaves: Mapping[str, tuple[np.ndarray, str | None]], record: str
) -> int:
    """Write a checkpoint (results of `arrays.to_numpy` by name) into a new folder, and flush each of its
    files and folders to the disk.

    Returns:
      the number of bytes written.
    Raises:
      OSError, OrbaxError: it cannot be written; a part of it may exist.
    """
    folder.mkdir()
    write_arrays(folder / ARRAYS, {name: array for name, (array, _) in leaves.items()})
    (folder / RECORD).write_bytes(record.encode())
    sync_tree(folder)
    checksums = folder_sha256(folder)
    manifest = {
        "schema": SCHEMA,
        "steps": steps,
        "written_time": time.time(),
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "sha256": sha256}
            for name, sha256 in checksums.items()
        },
        "leaves": describe(leaves),
    }
    with open(folder / MANIFEST, "wb") as file:
        file.write(manifest_text(manifest).encode())
        file.flush()
        os.fsync(file.fileno())
    sync_directory(folder)
    return sum(size for _, size in _list_files(folder))


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Return the text of `manifest.json`: the entries, and their own checksum."""
    return json_text({**manifest, "sha256": _sha256_of_entries(manifest)})


def _sha256_of_entries(entries: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_text(entries).encode()).hexdigest()


# ---- verifying


def verify(folder: Path, steps: int) -> dict[str, Any]:
    """Verify a checkpoint without reading its content; every byte is compared with the manifest's checksums.

    Returns:
      the manifest.
    Raises:
      UnusableError: it is not sound; a DamageError where its bytes are not those that were written.
    """
    _check_is_folder(folder)
    found = dict(_list_files(folder))
    if MANIFEST not in found:
        what = f"it has no {MANIFEST}" if found else "it is empty"
        raise DamageError(f"{what}, since it was not written or not deleted to the end")
    manifest = _read_manifest(folder)
    if manifest["steps"] != steps:
        raise UnusableError(f"its {MANIFEST} is that of the checkpoint at {manifest['steps']}")
    _compare_files(folder, manifest["files"], found)
    return manifest


def folder_bytes(folder: Path) -> int:
    """Return the length of all files of a folder together, damaged or not; of one that cannot be read, 0."""
    try:
        return sum(size for _, size in _list_files(folder))
    except UnusableError:
        return 0


def _check_is_folder(folder: Path) -> None:
    with _reading("it"):
        mode = folder.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise UnusableError("it is a symbolic link, not a folder")
    if not stat.S_ISDIR(mode):
        raise UnusableError("it is a file, not a folder")


def _list_files(folder: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path within a folder, and the length, of each file; follows no links.

    Raises:
      UnusableError: something below it is neither a file nor a folder, or cannot be listed.
    """
    with _reading(repr(prefix) if prefix else "it"):
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        modes = [entry.stat(follow_symlinks=False) for entry in entries]
    for entry, status in zip(entries, modes, strict=True):
        name = prefix + entry.name
        if stat.S_ISDIR(status.st_mode):
            yield from _list_files(folder / entry.name, f"{name}/")
        elif stat.S_ISREG(status.st_mode):
            yield name, status.st_size
        else:
            kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no regular file"
            raise UnusableError(f"{name!r} is {kind}")


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read a manifest, and verify its own checksum, schema and entries."""
    with _reading(repr(MANIFEST)):
        data = (folder / MANIFEST).read_bytes()
    if not data:
        raise DamageError(f"its {MANIFEST} is empty")
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        raise DamageError(f"its {MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict):
        raise DamageError(f"its {MANIFEST} is not a JSON object")
    entries = {name: entry for name, entry in manifest.items() if name != "sha256"}
    if manifest.get("sha256") != _sha256_of_entries(entries):
        raise DamageError(f"its {MANIFEST} was altered")
    schema = entries.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise NewerSchemaError(
            f"its schema is {schema}, of a newer version of Shoal, and this one reads schema {SCHEMA}"
        )
    if not _has_entries(entries):
        raise UnusableError(f"its {MANIFEST} does not have the entries of a checkpoint")
    return entries


def _has_entries(manifest: Mapping[str, Any]) -> bool:
    """Report whether all entries of a manifest have the right types, and every dtype is one that can be stored."""
    return (
        manifest.get("schema") == SCHEMA
        and isinstance(manifest.get("steps"), int)
        and isinstance(manifest.get("written_time"), int | float)
        and all(_is_object_of(manifest.get(name)) for name in ("files", "leaves"))
        and all(isinstance(x.get("bytes"), int) and "sha256" in x for x in manifest["files"].values())
        and all(map(_is_leaf, manifest["leaves"].values()))
    )


def _is_object_of(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, dict) for entry in value.values())


def _is_leaf(entry: Mapping[str, Any]) -> bool:
    shape = entry.get("shape")
    return (
        entry.get("dtype") in STORABLE
        and isinstance(shape, list)
        and all(isinstance(size, int) and size >= 0 for size in shape)
        and isinstance(entry.get("key", ""), str)
    )


def _compare_files(folder: Path, expected: Mapping[str, Any], found: Mapping[str, int]) -> None:
    missing = sorted(set(expected) - set(found))
    if missing:
        others = f", and {len(missing) - 1} of its other files are" if len(missing) > 1 else ""
        raise DamageError(f"{missing[0]!r} is missing{others}")
    if extra := sorted(set(found) - {*expected, MANIFEST}):
        raise UnusableError(f"{extra[0]!r} is not one of its files")
    for name, entry in expected.items():
        if found[name] != entry["bytes"]:
            raise DamageError(_other_length(name, found[name], entry["bytes"]))
    for name, entry in expected.items():
        with _reading(repr(name)):
            is_same = file_sha256(folder / name) == entry["sha256"]
        if not is_same:
            raise DamageError(f"{name!r} was altered")


def _other_length(name: str, found: int, expected: int) -> str:
    if not found:
        return f"{name!r} is empty"
    if found < expected:
        return f"{name!r} is truncated to {found:,} of {expected:,} bytes"
    return f"{name!r} has {found:,} bytes instead of {expected:,}"


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnusableError(f"{what} cannot be read: {error.strerror or error}") from error


# ---- reading


def find_misfit(saved: Mapping[str, Mapping[str, Any]], expected: Mapping[str, Any]) -> str:
    """Compare the leaves of a manifest with the arrays, or their shapes and dtypes, that are expected; reads
    no array.

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


def _shape_and_dtype(entry: Mapping[str, Any], as_keys: bool) -> tuple[tuple[int, ...], str]:
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


def read_leaves(folder: Path, leaves: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Read the arrays and typed keys of a folder that was verified, sorted by name.

    Raises:
      UnusableError: they cannot be read, or are not what the manifest says.
    """
    try:
        stored = read_arrays(folder / ARRAYS, leaves)
        shapes = {name: (list(array.shape), array.dtype.name) for name, array in stored.items()}
        if shapes != {name: (entry["shape"], entry["dtype"]) for name, entry in leaves.items()}:
            raise ValueError("other shapes or dtypes")
        return {name: from_numpy(array, leaves[name].get("key")) for name, array in stored.items()}
    except Exception as error:  # Orbax, NumPy and JAX raise many kinds of errors
        raise UnusableError("its arrays cannot be read") from error


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record of a folder that was verified.

    Raises:
      UnusableError: it cannot be read.
    """
    with _reading(repr(RECORD)):
        data = (folder / RECORD).read_bytes()
    try:
        record = parse_json(data, f"its {RECORD}")
    except ShoalError:
        record = None
    if not isinstance(record, dict):
        raise UnusableError(f"its {RECORD} is not a JSON object")
    return record
