"""The run directory: the files of a run, how they are written, and how they are read again.

    config.json             the complete settings: running it again gives the same run
    metrics.jsonl           one line per log point and member
    summary.json            scores, speed, checksums, versions
    progress.json           scores so far, of a run that has not finished
    learning_curve.png
    evaluations.npz         the episodes of the evaluations, where they are kept
    loggers/, films/        where these were asked for
    {best,last}.safetensors policies with their normalisers

Every file is complete or absent at any instant, and reading executes no code: JSON and named arrays only.
"""

import contextlib
import dataclasses
import hashlib
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from shoal.base.errors import ShoalError, nearest
from shoal.base.files import report_os_errors, user_path
from shoal.records import array_file, new_directory
from shoal.records.array_file import SUFFIX, DamageError, UnusableError
from shoal.records.arrays import Leaf, is_key, to_numpy
from shoal.records.checkpoints import CHECKPOINTS
from shoal.records.episodes_file import EVALUATIONS
from shoal.records.json_files import (
    json_text,
    parse_json,
    read_json,
    report_wrong_types,
    write_json,
    write_text,
)
from shoal.records.lock import LOCK
from shoal.records.metrics_file import METRICS, Mark, MetricsFile

CONFIG = "config.json"
SUMMARY = "summary.json"
PROGRESS = "progress.json"  # in place of a summary, as long as the run has not finished
LEARNING_CURVE = "learning_curve.png"
LOGGERS = "loggers"  # the folder of the states of loggers, and of what they write; their entry in a summary
COMPLETE = "complete"  # in a summary: a logger has all of the run
FILMS = "films"  # that of films of a run that trains, each with the environment steps as its name
POLICIES = ("best", "last")
SCORES = ("final", "absolute", "last_evaluation")  # parts of a summary, and of `progress.json`


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """A directory that holds one run; made by `create` or `open`, never directly."""

    path: Path
    # The outermost first.
    created_directories: tuple[Path, ...] = dataclasses.field(default=(), compare=False)

    @classmethod
    def check(cls, path: Path | str | None, needed: int = 0) -> None:
        """Require that `create` can make the directory of a new run of at least `needed` bytes; leaves
        nothing behind.

        Raises:
          ShoalError: the directory cannot be written to, holds another run or other files, or is on a disk
            with too little space.
        """
        new_directory.check_vacant(
            user_path(path or new_directory.RUNS_DIR, "run directory"), CONFIG if path else None, needed
        )

    @classmethod
    def create(
        cls, path: Path | str | None, environment: str, algorithm: str, config: Mapping[str, object]
    ) -> "RunDirectory":
        """Make the directory of a new run with its `config.json`; if that fails, nothing is left behind.

        Args:
          path: the directory; None makes a new one under `runs/`, named after the environment, the algorithm
            and the time, such as `runs/CartPole-v1-ppo-20260131-093000`.
        Raises:
          ShoalError: the directory cannot be written to, or holds another run or other files; of several
            processes that create the same one, one succeeds.
        """
        text = json_text(config, not_finite=str)
        if path is None:
            directory = cls(*new_directory.make_named_directory(environment, algorithm))
        else:
            path = user_path(path, "run directory")
            directory = cls(path, new_directory.make_directory(path, CONFIG))
        try:
            write_text(directory.path / CONFIG, text, new=True)
        except BaseException:
            new_directory.remove_empty(directory.created_directories)
            new_directory.check_no_run(directory.path, CONFIG)  # another process may have been faster
            raise
        for leftover in new_directory.leftovers(directory.path, CONFIG):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)
        return directory

    def discard(self) -> None:
        """Remove the files of a run, and the directories made for it that hold nothing else."""
        for folder in (CHECKPOINTS, LOGGERS, FILMS):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        policies = [f"{name}{SUFFIX}" for name in POLICIES]
        files = (CONFIG, METRICS, SUMMARY, PROGRESS, LEARNING_CURVE, EVALUATIONS, *policies)
        for name in (*files, LOCK):  # the lock last
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
        new_directory.remove_empty(self.created_directories)

    @classmethod
    def open(cls, path: Path | str, beside: str = CONFIG) -> "RunDirectory":
        """Open the directory of an existing run.

        Args:
          beside: another file by which a directory of the same parent may be the one that was meant.
        Raises:
          ShoalError: there is no such directory, it holds no run, or it cannot be read.
        """
        path = user_path(path, "run directory")
        with report_os_errors(f"run directory {str(path)!r} cannot be read"):
            if (path / CONFIG).is_file():
                return cls(path)
            if path.is_dir():
                raise ShoalError(f"{str(path)!r} is not a run directory: it has no {CONFIG}.")
            if folder := next(
                (x for x in path.parents[:2] if path.is_file() and (x / CONFIG).is_file()), None
            ):
                raise ShoalError(
                    f"{str(path)!r} is a file of a run; give the run's directory, {str(folder)!r}."
                )
            siblings = path.parent.iterdir() if path.parent.is_dir() else ()
            runs = [str(x) for x in siblings if (x / CONFIG).is_file() or (x / beside).is_file()]
        raise ShoalError(f"there is no run directory {str(path)!r}{nearest(str(path), runs) or '.'}")

    @property
    def learning_curve(self) -> Path:
        """The path of the learning curve's image."""
        return self.path / LEARNING_CURVE

    def load_config(self) -> dict[str, Any]:
        """Read `config.json`.

        Raises:
          ShoalError: it is missing or damaged.
        """
        return read_json(self.path / CONFIG)

    def save_progress(self, progress: Mapping[str, object]) -> None:
        """Write `progress.json`; a number that is not finite becomes null."""
        write_json(self.path / PROGRESS, progress)

    def save_summary(self, summary: Mapping[str, object]) -> None:
        """Write `summary.json`, in place of `progress.json`; a number that is not finite becomes null."""
        # First: a summary beside it is that of before, of a run that is made longer. A kill between the two leaves
        # neither, as of a run that was interrupted.
        with report_os_errors(f"{self.path / PROGRESS} cannot be removed"):
            (self.path / PROGRESS).unlink(missing_ok=True)
        write_json(self.path / SUMMARY, summary)

    def save_logger(self, name: str, state: str) -> None:
        """Write into the summary of a finished run what a logger has of it: `COMPLETE`, which stays, or a sentence."""
        # Each logger is a process of its own, and two may end at once.
        with FileLock(self.path / LOGGERS / ".summary.lock", preserve_lock_file=True):
            if not (self.path / SUMMARY).is_file():
                return
            summary = self.load_summary()
            states = summary.setdefault(LOGGERS, {})
            if states.get(name) != COMPLETE:
                states[name] = state
                write_json(self.path / SUMMARY, summary)

    def load_summary(self) -> dict[str, Any]:
        """Read `summary.json`; see `restore_scores`.

        Raises:
          ShoalError: it is missing (the run did not end) or damaged.
        """
        return restore_scores(read_json(self.path / SUMMARY))

    def metrics_file(self, mark: Mark | None = None) -> MetricsFile:
        """Return `metrics.jsonl` for appending; see `MetricsFile`."""
        return MetricsFile(self.path, mark)

    def load_metrics(self, kind: str = "") -> list[dict[str, Any]]:
        """Read `metrics.jsonl`; an incomplete last line, which a crash leaves, is ignored.

        Args:
          kind: of the rows that are read, such as "evaluation"; all where it is empty.
        Raises:
          ShoalError: it is missing, or damaged before its last line.
        """
        path, entry = self.path / METRICS, f'"kind": "{kind}"'.encode() if kind else b""
        with report_os_errors(f"{path} cannot be read"):
            lines = path.read_bytes().split(b"\n")[:-1]
        # Rows of other kinds are not parsed.
        return [
            parse_json(line, f"line {number} of {path}")
            for number, line in enumerate(lines, start=1)
            if entry in line
        ]

    def policy_path(self, name: str) -> Path:
        """Return the path of a policy, "best" or "last"."""
        return self.path / f"{name}{SUFFIX}"

    def save_policy(self, name: str, arrays: Mapping[str, object], metadata: Mapping[str, object]) -> None:
        """Save the leaves of a policy by name; the previous policy exists until the new one is complete.

        Args:
          arrays: the leaves by name, such as `actor/layers/0/kernel`: numbers of any kind, and typed PRNG keys,
            which are saved as words with the name of their implementation (see `arrays.check_storable`).
        Raises:
          ShoalError: it cannot be written; then the previous one stays.
        """
        leaves = {leaf: to_numpy(array) for leaf, array in arrays.items()}
        array_file.write(self.policy_path(name), leaves, {"metadata": metadata})

    def load_policy(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Load the leaves of a policy by name (sorted), and its metadata.

        A leaf is a NumPy array, or an array of typed PRNG keys where keys were saved.

        Raises:
          ShoalError: it is missing or damaged.
        """
        path = self.policy_path(name)
        if not path.exists():
            raise ShoalError(f"{str(self.path)!r} holds no policy {name!r}.")
        try:
            with report_wrong_types(str(path)):
                saved = array_file.verify(path)
                return array_file.read(path, saved["leaves"]), saved["metadata"]
        except UnusableError as error:
            what = "is damaged" if isinstance(error, DamageError) else "cannot be used"
            raise ShoalError(f"{path} {what}: {error}.") from error


def restore_scores(summary: dict[str, Any]) -> dict[str, Any]:
    """Replace null in the scores of a summary, or of `progress.json`, by the minus infinity of seeds that failed.

    Null stays where it is another number: where more seeds than those have none, or none was trained to the end.
    """
    failed, by = summary.get("failed", ()), summary.get("score")

    def worst(number: float | None) -> float:
        return -math.inf if number is None else number

    for part in (whole.get(name) for whole in (summary, by) if isinstance(whole, dict) for name in SCORES):
        if not isinstance(part, dict):
            continue
        name = "returns" if "returns" in part else "values"
        values, interval, iqm = (part.get(x) for x in (name, "interval", "iqm"))
        if isinstance(values, list) and failed and values.count(None) == len(failed):
            part[name], part["interval"] = list(map(worst, values)), interval and list(map(worst, interval))
            part["iqm"] = math.nan if len(failed) == len(values) else worst(iqm)
    return summary


def parameters_sha256(leaves: Mapping[str, Leaf]) -> str:
    """Return a checksum of named arrays and keys: equal exactly if names, dtypes, shapes and every bit are."""
    digest = hashlib.sha256()
    for name, leaf in sorted(leaves.items()):
        array = np.ascontiguousarray(to_numpy(leaf)[0])
        dtype = str(leaf.dtype) if is_key(leaf) else array.dtype.name
        digest.update(f"{name}\0{dtype}\0{np.shape(leaf)}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
