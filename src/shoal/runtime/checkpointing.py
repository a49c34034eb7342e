"""Checkpoints of a run in progress, written between two pieces of training, and the end of a run by a signal."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal import interruption, trees
from shoal.envs.base import explain_fault
from shoal.errors import ResumableError, ShoalError
from shoal.runtime import population as populations
from shoal.runtime.config import RunConfig
from shoal.runtime.disk import records
from shoal.runtime.disk.arrays import copy_of_keys, is_key
from shoal.runtime.disk.checkpoint_writer import Writer
from shoal.runtime.disk.checkpoints import Checkpoints
from shoal.runtime.disk.directory import RunDirectory
from shoal.runtime.disk.lock import Lock
from shoal.runtime.faults import NOWHERE
from shoal.runtime.history import History
from shoal.runtime.loop import locate_fault
from shoal.runtime.members import Members
from shoal.runtime.run import Run
from shoal.runtime.show.reports import Reporter
from shoal.runtime.trainer import CompiledRun, compiler_options

# The parts of a Run that are not saved: the directory's config makes them again, or they are empty between evaluations.
# Leaves of the config that change while the run trains are saved all the same (`Settings.changing`).
NOT_SAVED = ("environment", "config", "total_updates", "evaluation", "evaluation_environment")
FIRST_PAUSE = (
    2.0  # seconds before the first is written: imports for that would delay the first updates and their row
)
REST = 30  # the pause between two checkpoints is so many times what the last write took, at least
ACTIVITIES = {
    "training": interruption.Phase.TRAINING,
    "evaluating": interruption.Phase.EVALUATING,
    "saving": interruption.Phase.SAVING,
}


def saved_leaves(population: Run) -> dict[str, Any]:
    """Return the leaves of a population (or of its shapes) that a checkpoint holds, by name."""
    leaves = trees.named_leaves(population)
    changing = population.settings.changing
    return {
        name: leaf
        for name, leaf in leaves.items()
        if name in changing or name.split("/", 1)[0] not in NOT_SAVED
    }


def copy_to_host(population: Run) -> dict[str, Any]:
    """Copy the leaves that a checkpoint holds, so that training may go on in their buffers."""
    leaves = saved_leaves(population)
    return {
        name: copy_of_keys(leaf) if is_key(leaf) else np.array(leaf, copy=True)
        for name, leaf in leaves.items()
    }


def restored(population: Run, leaves: Mapping[str, Any]) -> Run:
    """Replace the saved parts of a population by the leaves of a checkpoint.

    Args:
      population: arrays for the parts that are not saved, and shapes with placements for the others.
      leaves: by name; they have the shapes and dtypes of the population.
    """
    templates = trees.named_leaves(population)
    placed = {
        name: jax.device_put(leaves[name], leaf.sharding, may_alias=False) if name in leaves else leaf
        for name, leaf in templates.items()
    }
    return jax.block_until_ready(trees.with_named_leaves(population, placed))


def _copy_on_device(x: jax.Array) -> jax.Array:
    return jax.device_put(x, x.sharding, may_alias=False)


class _Fault(NamedTuple):
    """A quantity that is not finite, and the environment's explanation, which may be empty."""

    name: str
    explanation: str = ""


def _locate(compiled_run: CompiledRun, population: Run, update: int, member: int) -> _Fault:
    """Make the updates up to one in which a member has a fault, and name its first quantity that is not finite."""
    before = update - 1 - int(np.asarray(population.updates)[member])
    population, _ = compiled_run.train(population, np.int32(before), np.bool_(True))
    program = populations.run_program(locate_fault, compiled_run.settings, compiled_run.layout)
    compiled = program.lower(population).compile(compiler_options(compiled_run.layout))
    population, located = compiled(population)
    for numbered, (at_fault, indices) in sorted(jax.device_get(located).items()):
        if at_fault[member]:
            name, index = f"the {numbered.partition(' ')[2]}", indices[member]
            if index == NOWHERE:
                return _Fault(name)
            environment = populations.take_member(population.environment, member)
            state = populations.take_member(populations.take_member(population.state.env, member), index)
            return _Fault(f"{name} of environment {index}", explain_fault(environment, state) or "")
    return _Fault("something that is finite when the update is made again")


def _take_members(members: np.ndarray, saved: Any, current: Any, name: str) -> Any:
    """Take some members from a checkpoint; their mark of the fault stays, and their sums of metrics are empty."""
    if name == "fault":
        return current
    if is_key(current):
        return current  # a run's key never changes; those of environments are of no use to a frozen member
    mask = members.reshape(-1, *[1] * (current.ndim - 1))
    return np.where(mask, np.zeros_like(current) if name.startswith("metrics/") else saved, current)


class Supervisor:
    """Writes the checkpoints of a run, and ends it when a signal asks for that.

    Args:
      directory: of the run.
      run: its settings.
      reporter: of the run; its rows are written before the checkpoint that counts them.
      stop: the signals.
      record: (history, end of the rows) -> the record of a checkpoint.
      compiled_run: the programs that train the run.
      lock: of the directory.
      members: of the population.
      clock: the time in seconds; given by tests.
    """

    def __init__(
        self,
        directory: RunDirectory,
        run: RunConfig,
        reporter: Reporter,
        stop: interruption.Interruption,
        record: Callable[..., dict[str, Any]],
        compiled_run: CompiledRun,
        lock: Lock,
        members: Members,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.directory, self.run, self.reporter, self.stop = directory, run, reporter, stop
        self.members = members
        self.checkpoints = Checkpoints(directory.path)
        self._record, self._compiled_run, self._lock, self._clock = record, compiled_run, lock, clock
        self._writer = Writer(self.checkpoints) if run.checkpoints else None
        self._next_time = clock() + self._interval  # when the next checkpoint may be written
        self._scores = self._recorded_scores()  # by steps, of the checkpoints at evaluations
        self._considered = max(self._scores, default=-1)  # the last evaluation that was looked at, in steps
        self._last_steps = max(self.checkpoints.steps(), default=-1)  # of the last checkpoint
        self._waiting: dict[int, tuple] = {}  # copies of evaluations that are to be written
        self._first: tuple | None = None  # the copy from before the first update, until it is written
        self._first_time = self._next_time  # when that is written
        self.begins("saving")

    # ---- what the trainer calls

    def begins(self, activity: str) -> None:
        """Note what is done from now on: "training", "evaluating" or "saving"."""
        self.stop.phase(ACTIVITIES[activity] if self.run.checkpoints else interruption.Phase.UNSAVED)

    def next_stop(self, updates: int) -> int | None:
        """Return the number of updates of the next checkpoint by steps; None where they are written by time."""
        if self._writer is None or self.run.checkpoint_every == -1:
            return None
        every = self.run.updates_in(self.run.checkpoint_every)
        return (updates // every + 1) * every

    def wants_to_stop(self) -> bool:
        """Report whether a signal asks the run to end."""
        return self.stop.requested

    def note_fault(self, member: int, sentence: str) -> None:
        """Show a sentence about a member on the terminal."""
        self.reporter.progress.note(f"{self.members[member].name}: {sentence}")

    def between_pieces(self, population: Run, history: History) -> None:
        """Write a checkpoint if one is due, and end the run if a signal asks for it.

        Raises:
          Interrupted: the run was saved and ends.
          ResumableError: a checkpoint could not be written, and the run shall end then; or another process has taken
            over the directory.
        """
        self._report_failures()
        if self._lock.lost:
            raise ResumableError(
                f"run directory {str(self.directory.path)!r} was taken over by another process, or its lock was "
                "removed; this process ends."
            )
        if self.stop.requested:
            self.stop.saving()
            raise self._save_and_interrupt(population, history)
        if self._writer is None:
            return
        steps = history.updates * self.run.steps_per_update
        if self._last_steps == -1:
            self._last_steps, self._first_time = steps, self._clock() + FIRST_PAUSE
            self._first = steps, copy_to_host(population), self._record(history, self.reporter.metrics.mark)
        if history.evaluated == history.updates and self._considered < steps:
            self._considered = steps
            self._keep_evaluation(population, history, steps)
        is_early = self._first is not None and self._clock() < self._first_time
        if is_early and not self._waiting and not self._is_due(history, steps):
            return
        self._write_first()
        if self._waiting and self.run.checkpoint_evals:
            self._write_waiting()
        elif self._is_due(history, steps):
            self._submit(steps, copy_to_host(population), self._record(history, self.reporter.metrics.mark))
        elif self._waiting and self._clock() >= self._next_time:
            steps, copied = self._waiting.popitem()
            self._submit(steps, *copied)

    def handle_faults(self, population: Run, history: History, members: Sequence[int]) -> Run:
        """End the run, or put members back to their last checkpoint, where they stay.

        The update at fault is made again from the last checkpoint, to say what was not finite, and where; but not to
        put back members of several settings, some of which are expected to fail: that would train all of them again;
        nor where settings change meanwhile.

        Raises:
          ShoalError: with `on_nan="stop"`; names the member, the update, the environment, and the first quantity.
        """
        faults = np.asarray(population.fault).copy()
        member = min(members, key=lambda k: (faults[k], k))
        where = self.members[member].name
        when = f"update {faults[member]} ({faults[member] * self.run.steps_per_update:,} environment steps)"
        if self._writer is None:
            raise ShoalError(
                f"{where}: a number was not finite in {when}; with checkpoints the message says which one."
            )
        self._write_first()
        self._writer.wait()
        leaves = self._leaves_before(int(faults[list(members)].min()))
        found = _Fault("a number")
        is_located = self.run.on_nan == "stop" or not self.members[member].label
        if is_located and not self._compiled_run.settings.changing:
            copied = jax.tree.map(_copy_on_device, population)
            found = _locate(self._compiled_run, restored(copied, leaves), int(faults[member]), member)
        sentence = f"{where}: {found.name} was not finite in {when}"
        sentence += f", since {found.explanation}" if found.explanation else ""
        if self.run.on_nan == "stop":
            raise ShoalError(
                f"{sentence}; the run ends there, and its last checkpoint is from before (--on-nan freeze goes on "
                "without the seed)."
            )
        self.reporter.progress.note(f"{sentence}; it stays at its last checkpoint, and the others go on.")
        current = copy_to_host(population)
        frozen = np.isin(np.arange(len(faults)), members)
        mixed = {name: _take_members(frozen, leaves[name], x, name) for name, x in current.items()}
        return restored(population, mixed)

    # ---- what the end of a run calls

    def finish(self, population: Run, history: History) -> None:
        """Write what waits, and the checkpoint of the end.

        Raises:
          ShoalError: one of them cannot be written.
        """
        if self._writer is None:
            return
        self.begins("saving")
        self._write_first()
        self._write_waiting()
        steps = history.updates * self.run.steps_per_update
        if self._last_steps != steps:
            self._submit(steps, copy_to_host(population), self._record(history, self.reporter.metrics.mark))
        self._writer.wait()
        if failure := self._writer.take_failure():
            raise failure

    def close(self) -> None:
        """Let the writer end, without waiting for a disk that hangs."""
        if self._writer is not None:
            self._writer.close(timeout=30.0)

    # ---- steps of these

    @property
    def _interval(self) -> float:
        """Seconds between two checkpoints by time."""
        return self.run.checkpoint_seconds if self.run.checkpoint_every == -1 else 0.0

    def _leaves_before(self, update: int) -> dict[str, Any]:
        """Load the newest sound checkpoint from before an update."""
        last = (update - 1) * self.run.steps_per_update
        for steps in reversed([steps for steps in self.checkpoints.steps() if steps <= last]):
            if not self.checkpoints.problem(steps):
                return self.checkpoints.load(steps)[0]
        raise ShoalError(f"a number was not finite in update {update}, and no checkpoint is from before.")

    def _recorded_scores(self) -> dict[int, float]:
        scores = {}
        for steps in self.checkpoints.steps():
            if (iqm := self.checkpoints.info(steps).record.get("iqm")) is not None:
                scores[steps] = float(iqm)
        return scores

    def _is_due(self, history: History, steps: int) -> bool:
        assert self._writer is not None
        if self._writer.busy or steps == self._last_steps:
            return False
        if self._clock() < self._next_time:
            return False
        return self.run.checkpoint_every == -1 or self.next_stop(history.updates - 1) == history.updates

    def _keep_evaluation(self, population: Run, history: History, steps: int) -> None:
        """Copy the run at an evaluation that is the best so far, or at each if all are kept."""
        record = self._record(history, self.reporter.metrics.mark)
        best = max(self._scores.values(), default=-np.inf)
        self._scores[steps] = record["iqm"]
        if self.run.checkpoint_evals or record["iqm"] > best:
            if not self.run.checkpoint_evals:
                self._waiting.clear()
            if steps != self._last_steps:
                self._waiting[steps] = copy_to_host(population), record

    def _write_first(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            self._submit(*first)

    def _write_waiting(self) -> None:
        while self._waiting:
            steps = min(self._waiting)
            copied = self._waiting.pop(steps)
            assert self._writer is not None
            self._writer.wait()
            self._submit(steps, *copied)

    def _submit(self, steps: int, leaves: dict[str, Any], record: dict[str, Any]) -> None:
        """Begin to write a checkpoint, in the background."""
        assert self._writer is not None
        self._writer.wait()
        self._waiting.pop(steps, None)
        self._last_steps = max(steps, self._last_steps)
        self._next_time = self._clock() + max(self._interval, REST * self._writer.last_seconds)
        self._writer.submit(steps, leaves, record, before=self.reporter.metrics.flush, after=self._delete_old)

    def _delete_old(self) -> None:
        """Delete the checkpoints that are not kept; called in the writer's thread."""
        existing = self.checkpoints.steps()
        at_evaluations = {steps: self._scores[steps] for steps in existing if steps in self._scores}
        kept = {0, *existing[-self.run.keep :]}
        if self.run.checkpoint_evals:
            kept |= set(at_evaluations)
        elif at_evaluations:
            kept.add(records.best_steps(at_evaluations))
        self.checkpoints.keep(kept)

    def _report_failures(self) -> None:
        self.reporter.report_failure()
        while self._writer is not None and (failure := self._writer.take_failure()):
            if self.run.on_disk_error == "stop":
                raise ResumableError(f"{failure} The run ends, since on_disk_error='stop'.")
            self.reporter.progress.note(f"{failure} Training goes on.")

    def _save_and_interrupt(self, population: Run, history: History) -> BaseException:
        self.begins("saving")
        try:
            self.finish(population, history)
        except ShoalError as error:
            return ResumableError(f"{error} The run was interrupted; its last checkpoint can be resumed.")
        return self.stop.saved(self.directory.path)
