"""The data of a rollout in parts: a directory of NumPy files, which is written and read part by part.

    index.json               settings, versions, arrays with shapes and dtypes, the number of parts that are complete
    rewards.000000.npy       an array of a part; a `/` in its name is `%2F` in the file's

A part has the same number of steps as every other, but the last. Put behind each other, the parts of an array are the
array that a rollout with `save` has: those of time-steps begin with the start, so that part 0 has one row more.

A file has its name once it is complete, and a part is counted once all its files are. A rollout is a function of its
settings, so that one that was interrupted makes the steps of the complete parts again, without copying them, and
compares the last of them with the files before it goes on.
"""

import contextlib
import math
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import free_bytes, report_os_errors, sync_directory, write_whole_file
from shoal.config import struct
from shoal.records.json_files import json_text, parse_json, read_json, write_json
from shoal.records.lock import LOCK, Lock
from shoal.types import Array, PyTree

INDEX, FORMAT = "index.json", "shoal-rollout-1"
PART_BYTES = 2**28
# Entries of the index that grow; the others are settings.
PROGRESS = ("parts", "steps", "part_steps", "arrays")


class RolloutParts:
    """The complete parts of a rollout: `parts[k]` maps part k's arrays into memory, by name.

    Attributes:
      index: the content of `index.json`; its `steps` are those of the complete parts, its `num_steps` those of all.

    Raises:
      ShoalError: there is no index, or it is of another format; with `[k]`, a file of the part cannot be read.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory).expanduser()
        self.index = read_json(self.directory / INDEX)
        if self.index["format"] != FORMAT:
            raise ShoalError(f"{self.directory / INDEX} is not the index of a rollout in parts.")

    def __len__(self) -> int:
        return int(self.index["parts"])

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, part: int) -> dict[str, np.ndarray]:
        files = {name: file_of(self.directory, name, range(len(self))[part]) for name in self.index["arrays"]}
        with report_os_errors(f"part {part} of {self.directory} cannot be read"):
            return {name: np.load(file, mmap_mode="r") for name, file in files.items()}


class PartsWriter:
    """Writes the data of a rollout into a directory; as a context manager it holds the directory's lock.

    An interrupted rollout of the same settings is continued.

    Args:
      settings: what the data depends on, as JSON values.
      overwrite: whether a rollout that is there is replaced, also one that could be continued.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object], *, overwrite: bool = False):
        self.directory, self.overwrite = directory, overwrite
        self.settings = parse_json(json_text({"format": FORMAT, **settings}).encode(), INDEX)
        self.files: dict[str, IO[bytes]] = {}
        self._part, self._opened = contextlib.ExitStack(), contextlib.ExitStack()

    def __enter__(self) -> "PartsWriter":
        """Lock the directory, which is made, and find out how far a rollout in it has come.

        Raises:
          ShoalError: it holds something else, or cannot be written.
        """
        with report_os_errors(f"{self.directory} cannot be written"):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._check_vacant()
        with self._opened:
            self._opened.enter_context(Lock(self.directory, "directory"))
            self.index = self._continued() or self.settings | {"parts": 0, "steps": 0}
            write_json(self.directory / INDEX, self.index)
            with report_os_errors(f"{self.directory} cannot be written"):
                self._remove_incomplete()
            self._opened = self._opened.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """Remove the files of an incomplete part."""
        with self._opened:
            self._part.__exit__(*error)

    @property
    def data(self) -> RolloutParts:
        """The parts that are complete."""
        return RolloutParts(self.directory)

    def start(self, start: PyTree, row_bytes: int, num_steps: int, steps_per_call: int) -> None:
        """Prepare to write; `start` is the first row of the time-steps.

        Raises:
          ShoalError: the disk has too little space for the steps that are to come.
        """
        # Copies, since the states are donated.
        self.first_rows = {name: np.array(x) for name, x in struct.named_leaves(start).items()}
        self.num_steps, self.made_before = num_steps, self.index["parts"]
        self.part_steps = steps_per_call * max(1, PART_BYTES // (row_bytes * steps_per_call))
        self.index |= {"part_steps": self.part_steps}
        needed, available = (num_steps - self.index["steps"]) * row_bytes, free_bytes(self.directory)
        if available is not None and available < needed:
            raise ShoalError(
                f"{self.directory} has too little space: the steps that are to come take {needed:,} bytes, and "
                f"{available:,} are free."
            )

    def add(self, chunk: PyTree, start: int, stop: int) -> None:
        """Write the steps `start` to `stop - 1`, which are of one part; see `collect.Record`.

        Raises:
          ShoalError: they cannot be written; or they belong to a part that is complete, and are not the same.
        """
        actions, timesteps = chunk
        part, offset = divmod(start, self.part_steps)
        end = min((part + 1) * self.part_steps, self.num_steps)
        if part < self.made_before and stop < self.index["steps"]:
            return
        leaves = struct.named_leaves(timesteps) | struct.named_leaves({"actions": actions})
        rows = {name: host_rows(x, stop - start) for name, x in leaves.items()}
        if part < self.made_before:
            self._compare(rows, part)
            return
        needed = sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in rows.values()) * (
            end - start + offset
        )
        with report_os_errors(f"part {part} of {self.directory} cannot be written", needed):
            if offset == 0:
                self._open(part, end - start, rows)
            for name, x in rows.items():
                self.files[name].write(_bytes_of(x))
            if stop == end:
                self._part.close()
        if stop == end:
            self.index |= {"parts": part + 1, "steps": end}
            self.index["arrays"] = {
                name: {"shape": list(x.shape[1:]), "dtype": str(x.dtype)} for name, x in rows.items()
            }
            write_json(self.directory / INDEX, self.index)

    def _open(self, part: int, num_steps: int, rows: Mapping[str, np.ndarray]) -> None:
        """Open the files of a part, each with its header, and the start of the first."""
        for name, x in rows.items():
            file = self._part.enter_context(write_whole_file(file_of(self.directory, name, part)))
            first = [self.first_rows[name]] if part == 0 and name in self.first_rows else []
            shape = (num_steps + len(first), *x.shape[1:])
            descr = np.lib.format.dtype_to_descr(x.dtype)
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for row in first:
                file.write(_bytes_of(row))
            self.files[name] = file

    def _compare(self, rows: Mapping[str, np.ndarray], part: int) -> None:
        """Require that the last rows of a part are those that its files have."""
        before = self.data[part]
        for name, x in rows.items():
            if name not in before or before[name][-len(x) :].tobytes() != x.tobytes():
                raise ShoalError(
                    f"{self.directory} holds other data than this rollout makes: {name} differs at the end of part "
                    f"{part}; name another directory, or --force (overwrite=True) to replace it."
                )

    def _check_vacant(self) -> None:
        """Require that the directory is empty, or holds a rollout in parts."""
        others = [path.name for path in self.directory.iterdir() if path.name != LOCK]
        if others and INDEX not in others and not all(name.startswith(".") for name in others):
            raise ShoalError(f"parts={str(self.directory)!r} holds other files; name a new directory.")

    def _continued(self) -> dict[str, Any] | None:
        """Return the index of an interrupted rollout of the same settings; None if a new one begins."""
        if not (self.directory / INDEX).exists():
            return None
        # Read before it is replaced too, since another program may have written it.
        index = RolloutParts(self.directory).index
        if self.overwrite:
            return None
        settings = {name: x for name, x in index.items() if name not in PROGRESS}
        different = [name for name in self.settings if settings.get(name) != self.settings[name]]
        if different or index["steps"] >= index["num_steps"]:
            what = f"another rollout, whose {different[0]} differs" if different else "this rollout, complete"
            raise ShoalError(
                f"parts={str(self.directory)!r} holds {what}; name another directory, or --force (overwrite=True) to "
                "replace it."
            )
        return dict(index)

    def _remove_incomplete(self) -> None:
        """Remove the files of parts that the index does not count, and those that a killed process has left."""
        for path in self.directory.iterdir():
            name, _, number = path.stem.rpartition(".")
            is_part = path.suffix == ".npy" and bool(name) and number.isdecimal()
            if (is_part and int(number) >= self.index["parts"]) or path.match(".*.npy.*.tmp"):
                path.unlink()
        sync_directory(self.directory)


def file_of(directory: Path, name: str, part: int) -> Path:
    """Return the file of an array of a part."""
    return directory / f"{urllib.parse.quote(name, safe='')}.{part:06}.npy"


def host_rows(x: Array, count: int) -> np.ndarray:
    """Return the first rows of an array that is distributed over devices, [count, N, ...]."""
    if len(x.addressable_shards) == 1:
        return np.asarray(x.addressable_shards[0].data)[:count]
    rows = np.empty((count, *x.shape[1:]), x.dtype)
    copy_rows(x, rows)
    return rows


def copy_rows(x: Array, rows: np.ndarray) -> None:
    """Copy the first rows from each device by itself: JAX would first put them together in another array."""
    for shard in x.addressable_shards:
        rows[:, *shard.index[1:]] = np.asarray(shard.data)[: len(rows)]


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return the bytes of an array of any dtype; a contiguous one is not copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
