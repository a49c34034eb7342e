"""The checkpoints of a run directory: named arrays and a record, safe against kills and damage.

    checkpoints/<environment steps>/    a checkpoint (see `checkpoint_folder`)
    checkpoints/<steps>.damaged/        one that was found damaged, renamed; also `.damaged-2` and so on
    checkpoints/.<steps>.tmp/           one that is being written
    checkpoints/.<steps>.old/           a whole one that is being replaced
    checkpoints/.<steps>.deleted/       one that is being deleted

A name without a dot at its start is given by a rename, once all files are flushed. So a checkpoint is complete or
absent at any instant, and a folder that is half deleted is never taken for one. One process at a time may write.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.files import free_bytes, report_os_errors, sync_directory
from shoal.disk import checkpoint_folder
from shoal.disk.arrays import OrbaxError, check_storable, to_numpy
from shoal.disk.checkpoint_folder import DamageError, NewerSchemaError, UnusableError
from shoal.disk.json_files import json_text

CHECKPOINTS = "checkpoints"
SET_ASIDE = re.compile(r"[0-9]+\.damaged(-[0-9]+)?")
HIDDEN = re.compile(r"\.([0-9]+)\.(tmp|old|deleted)")


@dataclasses.dataclass(frozen=True)
class Info:
    """The entry of a checkpoint in a list.

    Attributes:
      seconds: since it was written.
      record: what the host saved with it; empty where it is damaged.
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
        return sorted(int(name) for name in self._names() if name == _canonical(name))

    def names_set_aside(self) -> list[str]:
        """List the folders of damaged checkpoints that `set_aside` has renamed.

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
        try:
            checkpoint_folder.verify(self._existing(steps), steps)
        except UnusableError as error:
            return str(error)
        return ""

    def newest_sound(self, candidates: Iterable[int] | None = None) -> int | None:
        """Return the newest checkpoint that is sound, of some or of all; None where there is none."""
        existing = sorted(self.steps() if candidates is None else candidates, reverse=True)
        return next((steps for steps in existing if not self.problem(steps)), None)

    def info(self, steps: int) -> Info:
        """Verify a checkpoint and read its record.

        Raises:
          ShoalError: there is no such checkpoint.
        """
        folder = self._existing(steps)
        written_time, record = _modified_time(folder), dict[str, Any]()
        error: UnusableError | None = None
        try:
            written_time = checkpoint_folder.verify(folder, steps)["written_time"]
            record = checkpoint_folder.read_record(folder)
        except UnusableError as unusable:
            error = unusable
        seconds = max(0.0, time.time() - written_time)
        length = checkpoint_folder.folder_bytes(folder)
        kinds = isinstance(error, DamageError), isinstance(error, NewerSchemaError)
        return Info(steps, folder, length, seconds, record, str(error or ""), *kinds)

    def load(
        self, steps: int, expected: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Load the leaves of a checkpoint (sorted by name), and its record.

        A leaf is a NumPy array, or an array of typed PRNG keys where keys were saved. Numbers of the record that
        are not finite are the strings that `float` reads.

        Args:
          expected: the leaves that it must have, by name: arrays, or shapes and dtypes as `jax.eval_shape` returns.
        Raises:
          MisfitError: a leaf is missing, additional, or of another shape or dtype than expected.
          ShoalError: there is no such checkpoint, or it is not sound.
        """
        folder = self._existing(steps)
        what = f"the checkpoint at {steps} of run directory {str(self.run_path)!r}"
        try:
            saved = checkpoint_folder.verify(folder, steps)["leaves"]
            if expected is not None and (misfit := checkpoint_folder.find_misfit(saved, expected)):
                raise MisfitError(
                    f"{what} does not fit: {misfit}; it was made with other settings or by another version.",
                    misfit,
                )
            return checkpoint_folder.read_leaves(folder, saved), checkpoint_folder.read_record(folder)
        except UnusableError as error:
            raise ShoalError(f"{what} cannot be used: {error}.") from error

    # ---- writing

    def save(self, steps: int, arrays: Mapping[str, Any], record: Mapping[str, Any]) -> int:
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
        leaves = {name: to_numpy(leaf) for name, leaf in sorted(arrays.items())}
        text = json_text(record, not_finite=str)
        needed = sum(array.nbytes for array, _ in leaves.values()) + len(text.encode())
        try:
            with self._report_errors(steps, needed):
                self._make_folder()
                self._recover(steps)
                written = checkpoint_folder.write_folder(self._hidden(steps, "tmp"), steps, leaves, text)
                self._put_in_place(steps)
        except Exception:
            self._clean_up(steps)
            raise
        return written

    def set_aside(self, steps: int, reason: str) -> Path:
        """Rename a damaged checkpoint to `<steps>.damaged`, so that it is not listed and never overwritten;
        the reason is written beside it where that is possible.

        Returns:
          its new path.
        Raises:
          ShoalError: there is no such checkpoint, or it cannot be renamed.
        """
        folder = self._existing(steps)
        with report_os_errors(f"{folder} cannot be renamed"):
            aside, number = self.path / f"{steps}.damaged", 1
            while os.path.lexists(aside):
                number += 1
                aside = self.path / f"{steps}.damaged-{number}"
            os.rename(folder, aside)
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
                self._delete(steps, self.path / str(steps))

    def recover(self) -> None:
        """Complete or undo what a killed process began; to be called before the first save.

        Raises:
          ShoalError: that is not possible.
        """
        hidden = {match[1] for name in self._names() if (match := HIDDEN.fullmatch(name))}
        with report_os_errors(f"{self.path} cannot be written to"):
            for steps in sorted(int(name) for name in hidden if name == _canonical(name)):
                self._recover(steps)

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
        path = self.path / str(steps)
        if os.path.lexists(path):
            return path
        existing = self.steps()
        if not existing:
            raise ShoalError(f"run directory {str(self.run_path)!r} holds no checkpoint.")
        nearest = min(existing, key=lambda other: abs(other - steps))
        raise ShoalError(f"there is no checkpoint at {steps}; the nearest is {nearest}.")

    def _hidden(self, steps: int, kind: str) -> Path:
        return self.path / f".{steps}.{kind}"

    @contextlib.contextmanager
    def _report_errors(self, steps: int, needed: int) -> Iterator[None]:
        """Convert errors of the system and of Orbax while a checkpoint is saved to one sentence."""
        what = f"the checkpoint at {steps} cannot be written to {self.path}"
        available = free_bytes(self.run_path)
        space = "" if available is None else f" and {available:,} were free"
        try:
            with report_os_errors(what, needed):
                yield
        except OrbaxError as error:
            raise ShoalError(f"{what}: {error}; it takes {needed:,} bytes{space}.") from None

    def _make_folder(self) -> None:
        if not self.path.is_dir():
            self.path.mkdir()
            sync_directory(self.run_path)

    def _put_in_place(self, steps: int) -> None:
        """Give a complete folder its name; a sound checkpoint of that name exists under either name until then."""
        final = self.path / str(steps)
        if os.path.lexists(final):
            if problem := self.problem(steps):
                self.set_aside(steps, problem)
            else:
                os.rename(final, self._hidden(steps, "old"))
        os.rename(self._hidden(steps, "tmp"), final)
        sync_directory(self.path)
        with contextlib.suppress(OSError):  # the new one counts; `recover` deletes the rest of the old one
            self._delete(steps, self._hidden(steps, "old"))

    def _recover(self, steps: int) -> None:
        """Complete or undo what was started with one checkpoint.

        Raises:
          OSError, ShoalError: that is not possible.
        """
        final, old = self.path / str(steps), self._hidden(steps, "old")
        _remove(self._hidden(steps, "tmp"))
        _remove(self._hidden(steps, "deleted"))
        if os.path.lexists(old):
            if os.path.lexists(final) and (info := self.info(steps)).is_damaged:
                self.set_aside(steps, info.problem)
            if os.path.lexists(final):
                if not self.problem(steps):
                    self._delete(steps, old)
            else:
                os.rename(old, final)
                sync_directory(self.path)

    def _clean_up(self, steps: int) -> None:
        """Undo a save that failed, as far as the disk allows; `recover` does the rest."""
        with contextlib.suppress(OSError, ShoalError):
            self._recover(steps)
        with contextlib.suppress(OSError):
            self.path.rmdir()  # only where it is empty

    def _delete(self, steps: int, path: Path) -> None:
        if os.path.lexists(path):
            deleted = self._hidden(steps, "deleted")
            _remove(deleted)
            os.rename(path, deleted)
            sync_directory(self.path)  # or a power failure might undo the name, and not what follows
            _remove(deleted)


def _canonical(name: str) -> str | None:
    """Return the name that a number of steps has as a folder, or None where the name is no number."""
    return str(int(name)) if re.fullmatch("[0-9]+", name) else None


def _remove(path: Path) -> None:
    """Delete a file or a folder with all that it holds, where it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _modified_time(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()
