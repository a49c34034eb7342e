"""The checkpoints of a run directory: named arrays and a record, safe against kills and damage.

    checkpoints/<environment steps>.safetensors     a checkpoint (see `array_file`)
    checkpoints/<steps>.damaged                     one that was found damaged, renamed; also `.damaged-2` and so on

A checkpoint is written under another name and renamed once it is flushed, so that it is complete or absent at any
instant. One process at a time may write.
"""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors, sync_directory, temporary_name
from shoal.records import array_file
from shoal.records.array_file import SUFFIX, DamageError, NewerSchemaError, UnusableError
from shoal.records.arrays import Leaf, check_storable, to_numpy
from shoal.records.episodes_file import EVALUATIONS

CHECKPOINTS = "checkpoints"
CHECKPOINT = re.compile(rf"(0|[1-9][0-9]*){re.escape(SUFFIX)}")
SET_ASIDE = re.compile(r"[0-9]+\.damaged(-[0-9]+)?")


@dataclasses.dataclass(frozen=True)
class Info:
    """The entry of a checkpoint in a list.

    Attributes:
      seconds: since it was written.
      record: the host's data that was saved with it; empty where it is damaged.
      problem: one clause that says why it cannot be used; empty where it is sound.
      is_damaged: whether the problem is that its bytes are not those that were written.
      is_newer: whether the problem is that a newer version of Shoal wrote it.
    """

    steps: int
    path: Path
    bytes: int
    seconds: float
    record: dict[str, Any]
    problem: str
    is_damaged: bool
    is_newer: bool


class MisfitError(ShoalError):
    """A sound checkpoint has other leaves than are expected.

    Attributes:
      difference: a clause that names the first leaf which differs.
    """

    def __init__(self, message: str, difference: str):
        super().__init__(message)
        self.difference = difference


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of the run in a directory, by environment steps."""

    run_path: Path

    @property
    def path(self) -> Path:
        """The folder of all checkpoints."""
        return self.run_path / CHECKPOINTS

    # ---- reading

    def steps(self) -> list[int]:
        """List the checkpoints, sound or not, in ascending order.

        Raises:
          ShoalError: they cannot be listed.
        """
        return sorted(int(match[1]) for name in self._names() if (match := CHECKPOINT.fullmatch(name)))

    def names_set_aside(self) -> list[str]:
        """List the damaged checkpoints that `set_aside` has renamed.

        Raises:
          ShoalError: they cannot be listed.
        """
        return sorted(name for name in self._names() if SET_ASIDE.fullmatch(name))

    def problem(self, steps: int) -> str:
        """Verify a checkpoint, byte for byte, before anything in it is read for its content.

        Returns:
          one clause that says why it cannot be used, or "" if it is sound.
        Raises:
          ShoalError: there is no such checkpoint.
        """
        return self.info(steps).problem

    def newest_sound(self, candidates: Iterable[int] | None = None) -> int | None:
        """Return the newest checkpoint that is sound, of some or of all; None where there is none."""
        existing = sorted(self.steps() if candidates is None else candidates, reverse=True)
        return next((steps for steps in existing if not self.problem(steps)), None)

    def info(self, steps: int) -> Info:
        """Verify a checkpoint and read its record.

        Raises:
          ShoalError: there is no such checkpoint.
        """
        path, record = self._existing(steps), dict[str, Any]()
        error: UnusableError | None = None
        try:
            record = self._verify(steps)["record"]
        except UnusableError as unusable:
            error = unusable
        length, written_time = 0, time.time()
        with contextlib.suppress(OSError):
            length, written_time = path.lstat().st_size, path.lstat().st_mtime
        seconds = max(0.0, time.time() - written_time)
        kinds = isinstance(error, DamageError), isinstance(error, NewerSchemaError)
        return Info(steps, path, length, seconds, record, str(error or ""), *kinds)

    def load(
        self, steps: int, expected: Mapping[str, Leaf] | None = None, without: tuple[str, ...] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Load the leaves of a checkpoint (sorted by name), and its record.

        A leaf is a NumPy array, or an array of typed PRNG keys where keys were saved. Numbers of the record that
        are not finite are the strings that `float` reads.

        Args:
          expected: the leaves that it must have, by name: arrays, or shapes and dtypes as `jax.eval_shape` returns.
          without: prefixes of the names of leaves that are not loaded.
        Raises:
          MisfitError: a leaf is missing, additional, or of another shape or dtype than expected.
          ShoalError: there is no such checkpoint, or it is not sound.
        """
        path = self._existing(steps)
        what = f"the checkpoint at {steps} of run directory {str(self.run_path)!r}"
        try:
            saved = self._verify(steps)
            if expected is not None and (misfit := array_file.find_misfit(saved["leaves"], expected)):
                raise MisfitError(
                    f"{what} does not fit: {misfit}; it was made with other settings or by another version.",
                    misfit,
                )
            return array_file.read(path, saved["leaves"], without), saved["record"]
        except UnusableError as error:
            raise ShoalError(f"{what} cannot be used: {error}.") from error

    # ---- writing

    def save(self, steps: int, arrays: Mapping[str, Leaf], record: Mapping[str, object]) -> int:
        """Save a checkpoint; one of the same steps exists until the new one is complete.

        Args:
          arrays: leaves by name: NumPy arrays and typed PRNG keys (see `arrays.check_storable`).
          record: JSON values; numbers that are not finite become the strings that `float` reads.
        Returns:
          the number of bytes written.
        Raises:
          ShoalError: it cannot be saved; then all checkpoints from before are there, and nothing else.
        """
        check_storable(arrays)
        leaves = {name: to_numpy(leaf) for name, leaf in arrays.items()}
        path = self._path(steps)
        try:
            with report_os_errors(f"{path} cannot be written"):
                if not self.path.is_dir():
                    self.path.mkdir()
                    sync_directory(self.run_path)
            # What is damaged is kept for whoever looks for the cause.
            if os.path.lexists(path) and (problem := self.problem(steps)):
                self.set_aside(steps, problem)
            return array_file.write(path, leaves, {"steps": steps, "record": record})
        finally:
            with contextlib.suppress(OSError):
                self.path.rmdir()  # only where it is empty

    def set_aside(self, steps: int, reason: str) -> Path:
        """Rename a damaged checkpoint to `<steps>.damaged`, so that it is not listed and never overwritten;
        the reason is written next to it where that is possible.

        Returns:
          its new path.
        Raises:
          ShoalError: there is no such checkpoint, or it cannot be renamed.
        """
        path = self._existing(steps)
        with report_os_errors(f"{path} cannot be renamed"):
            aside, number = self.path / f"{steps}.damaged", 1
            while os.path.lexists(aside):
                number += 1
                aside = self.path / f"{steps}.damaged-{number}"
            os.rename(path, aside)
            sync_directory(self.path)
        with contextlib.suppress(OSError):
            (self.path / f"{aside.name}.txt").write_text(f"{reason}\n", encoding="utf-8")
        return aside

    def keep(self, kept: Collection[int]) -> None:
        """Delete all checkpoints but some; if none of these is sound, the newest sound one of the others stays too.

        Raises:
          ShoalError: they cannot be deleted.
        """
        existing = self.steps()
        deleted = [steps for steps in existing if steps not in kept]
        if deleted and self.newest_sound(steps for steps in existing if steps in kept) is None:
            spared = self.newest_sound(deleted)
            deleted = [steps for steps in deleted if steps != spared]
        with report_os_errors(f"checkpoints in {self.path} cannot be deleted"):
            for steps in deleted:
                self._path(steps).unlink(missing_ok=True)
            if deleted:
                sync_directory(self.path)

    def recover(self) -> None:
        """Delete what a killed process was writing, results and the curve included; to be called before a first save.

        Raises:
          ShoalError: that is not possible.
        """
        with report_os_errors(f"{self.path} cannot be written to"):
            for folder in (self.run_path, self.path):
                for name in (f"*{SUFFIX}", "*.json", "learning_curve.png", EVALUATIONS):
                    for leftover in folder.glob(temporary_name(name, "*")):
                        leftover.unlink(missing_ok=True)

    # ---- steps of these

    def _names(self) -> list[str]:
        with report_os_errors(f"{self.path} cannot be read"):
            try:
                return os.listdir(self.path)
            except FileNotFoundError:
                return []

    def _existing(self, steps: int) -> Path:
        """Return the path of a checkpoint.

        Raises:
          ShoalError: there is none; the sentence names the nearest.
        """
        path = self._path(steps)
        if os.path.lexists(path):
            return path
        existing = self.steps()
        if not existing:
            raise ShoalError(f"run directory {str(self.run_path)!r} holds no checkpoint.")
        nearest = min(existing, key=lambda other: abs(other - steps))
        raise ShoalError(f"there is no checkpoint at {steps}; the nearest is {nearest}.")

    def _path(self, steps: int) -> Path:
        return self.path / f"{steps}{SUFFIX}"

    def _verify(self, steps: int) -> dict[str, Any]:
        """Verify a checkpoint, byte for byte, and return what `array_file.verify` returns.

        Raises:
          UnusableError: it is not sound, or not that of these steps.
        """
        saved = array_file.verify(self._existing(steps))
        if "steps" not in saved:  # a policy
            raise UnusableError("it holds no checkpoint")
        if saved["steps"] != steps:
            raise UnusableError(f"it is the checkpoint at {saved['steps']}")
        return saved
