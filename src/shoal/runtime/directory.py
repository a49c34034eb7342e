"""The run directory: what a run leaves on disk, and how it is read again.

    config.json         what was asked for, complete: running it again gives the same run
    metrics.jsonl       one line per log point and seed
    summary.json        scores, speed, checksums, versions
    learning_curve.png
    best/, last/        policies with their normalisers

Every file is whole or absent at any instant, and reading runs no code: JSON and named arrays only.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError, nearest
from shoal.files import one_sentence, sync_directory
from shoal.runtime.files import null, plain, read_json, write_json

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
LEARNING_CURVE = "learning_curve.png"
POLICY = "policy.json"  # beside the arrays: their names, dtypes, shapes and checksum


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """A directory that holds one run; made by `create` or `open`, never directly."""

    path: Path

    @classmethod
    def create(cls, path: Path | str | None, environment: str, algorithm: str) -> "RunDirectory":
        """Makes the directory of a new run, and makes sure that it can be written to.

        Args:
          path: where; None makes a new one under `runs/`, named after the environment, the algorithm
            and the time, such as `runs/CartPole-v1-ppo-20260131-093000`.
          environment: the environment's name; only used for the directory's name.
          algorithm: the algorithm's name; likewise.

        Raises:
          ShoalError: the directory cannot be written to, or holds another run already.
        """
        if path is None:
            return cls(_fresh_directory(Path("runs"), environment, algorithm))
        path = Path(path).expanduser()
        if (path / CONFIG).exists():
            raise ShoalError(f"run directory {str(path)!r} already holds another run; name a new one.")
        with one_sentence(f"run directory {str(path)!r} cannot be written to"):
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".probe.{os.getpid()}"
            probe.touch()  # permission bits do not tell: a file system may be read-only or full
            probe.unlink()
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> "RunDirectory":
        """The directory of a run that exists.

        Raises:
          ShoalError: there is no such directory, or it holds no run.
        """
        path = Path(path).expanduser()
        if (path / CONFIG).is_file():
            return cls(path)
        if path.is_dir():
            raise ShoalError(f"{str(path)!r} is not a run directory: it has no {CONFIG}.")
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        runs = [str(sibling) for sibling in siblings if (sibling / CONFIG).is_file()]
        raise ShoalError(f"there is no run directory {str(path)!r}{nearest(str(path), runs) or '.'}")

    @property
    def learning_curve(self) -> Path:
        """Where the picture of the learning curve goes."""
        return self.path / LEARNING_CURVE

    def save_config(self, config: Mapping[str, Any]) -> None:
        """Writes `config.json`; infinities become the strings that `float` reads."""
        write_json(self.path / CONFIG, config, not_finite=str)

    def load_config(self) -> dict[str, Any]:
        """Reads `config.json`.

        Raises:
          ShoalError: it is missing or damaged.
        """
        return read_json(self.path / CONFIG)

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`; a number that is not finite becomes null."""
        write_json(self.path / SUMMARY, summary)

    def load_summary(self) -> dict[str, Any]:
        """Reads `summary.json`.

        Raises:
          ShoalError: it is missing (the run did not end) or damaged.
        """
        return read_json(self.path / SUMMARY)

    def append_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds lines to `metrics.jsonl`, one per row; numbers that are not finite become null."""
        lines = [json.dumps(plain(row, not_finite=null), allow_nan=False) for row in rows]
        path = self.path / METRICS
        with one_sentence(f"{path} cannot be written"), open(path, "ab+") as file:
            _drop_torn_line(file)
            file.write("".join(line + "\n" for line in lines).encode())

    def load_metrics(self) -> list[dict[str, Any]]:
        """Reads `metrics.jsonl`; a last line that a crash cut short is left out.

        Raises:
          ShoalError: it is missing, or damaged before its last line.
        """
        path = self.path / METRICS
        with one_sentence(f"{path} cannot be read"):
            lines = path.read_bytes().split(b"\n")[:-1]
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise ShoalError(f"{path} is damaged: line {number} is not JSON.") from None
        return rows

    def save_policy(self, name: str, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Saves the leaves of a policy under their names; the one before is there until this one is.

        Args:
          name: "best" or "last".
          arrays: the leaves by name, such as `actor/layers/0/kernel`; numbers of any kind, no keys.
          metadata: what else is to be known of it, as JSON can hold it.

        Raises:
          ShoalError: it cannot be written.
        """
        directory = self.path / name
        leaves = {leaf: np.asarray(array) for leaf, array in sorted(arrays.items())}
        version = _next_version(directory)
        with one_sentence(f"{directory} cannot be written"):
            directory.mkdir(exist_ok=True)
            _write_arrays(directory / version, leaves)
            sync_directory(directory)
        manifest = {
            "arrays": version,
            "files": _checksums(directory / version),
            "leaves": {leaf: {"dtype": x.dtype.name, "shape": x.shape} for leaf, x in leaves.items()},
            "sha256": parameters_sha256(leaves),
            "metadata": metadata,
        }
        write_json(directory / POLICY, manifest)  # from here on the new arrays are the policy
        for leftover in directory.iterdir():
            if leftover.name not in (POLICY, version):
                shutil.rmtree(leftover, ignore_errors=True)

    def load_policy(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Loads the leaves of a policy by name (sorted), and its metadata.

        Raises:
          ShoalError: it is missing or damaged.
        """
        directory = self.path / name
        if not (directory / POLICY).is_file():
            raise ShoalError(f"{str(self.path)!r} holds no policy {name!r}.")
        manifest = read_json(directory / POLICY)
        try:
            arrays = directory / Path(manifest["arrays"]).name
            # Known before Orbax reads: of damaged files its tasks go on complaining after the first has failed.
            if "files" in manifest and manifest["files"] != _checksums(arrays):
                raise ValueError("a file is not the one that was saved")
            leaves = _read_arrays(arrays, manifest["leaves"])
            shapes = {leaf: list(array.shape) for leaf, array in leaves.items()}
            intact = shapes == {leaf: told["shape"] for leaf, told in manifest["leaves"].items()}
            intact = intact and parameters_sha256(leaves) == manifest["sha256"]
            metadata = manifest["metadata"]
        except Exception as error:  # whatever a damaged file makes Orbax and NumPy raise
            raise ShoalError(f"{directory} is damaged: its arrays cannot be read.") from error
        if not intact:
            raise ShoalError(f"{directory} is damaged: its arrays are not those that were saved.")
        return leaves, metadata


def parameters_sha256(leaves: Mapping[str, Any]) -> str:
    """A checksum of named arrays: equal exactly if names, dtypes, shapes and every bit are."""
    digest = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{name}\0{array.dtype.name}\0{np.shape(leaf)}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _fresh_directory(parent: Path, environment: str, algorithm: str) -> Path:
    """A new directory with a readable name; a number is added where the name is taken."""
    stem = re.sub(r"[^\w.-]+", "-", f"{environment}-{algorithm}-{time.strftime('%Y%m%d-%H%M%S')}")
    with one_sentence(f"run directory {str(parent / stem)!r} cannot be written to"):
        parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = parent / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir()  # fails where another process was faster
                return path
            except FileExistsError:
                number += 1


def _drop_torn_line(file: Any) -> None:
    """Cuts off what stands after the last newline: a line that a crash left half written."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)


def _next_version(directory: Path) -> str:
    """A name for new arrays that no earlier save, even an unfinished one, has used."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    numbers = [int(match[1]) for name in names if (match := re.match(r"arrays-(\d+)", name))]
    return f"arrays-{max(numbers, default=0) + 1}"


def _checksums(path: Path) -> dict[str, str]:
    """The checksum of each file below a directory, by its path within."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {
        file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


# Orbax takes no empty tree and no array of size zero: those are rebuilt from the manifest.


def _write_arrays(path: Path, leaves: dict[str, np.ndarray]) -> None:
    from orbax.checkpoint import v1 as orbax  # noqa: PLC0415 (takes a third of a second)

    stored = {name: array for name, array in leaves.items() if array.size}
    if stored:
        orbax.save(path.absolute(), stored, overwrite=True)


def _read_arrays(path: Path, manifest: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    from orbax.checkpoint import v1 as orbax  # noqa: PLC0415 (takes a third of a second)

    leaves = {name: np.zeros(leaf["shape"], np.dtype(leaf["dtype"])) for name, leaf in manifest.items()}
    stored = {name: array for name, array in leaves.items() if array.size}
    if stored:  # naming what is expected leaves Orbax no choice of types
        leaves |= orbax.load(path.absolute(), stored)
    return {name: np.asarray(leaves[name]) for name in sorted(leaves)}
