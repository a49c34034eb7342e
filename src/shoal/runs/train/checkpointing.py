"""Checkpoints of a run in progress, written between two pieces of training, and the end of a run by a signal."""

import contextlib
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shoal.base import signals
from shoal.base.errors import ResumableError, ShoalError
from shoal.config import struct
from shoal.engine.loop import locate_fault
from shoal.engine.nonfinite import NOWHERE, failed_members
from shoal.engine.population import member_layout as populations
from shoal.engine.run import Run, without_replay
from shoal.envs.base import explain_fault
from shoal.monitor.run_report import Reporter
from shoal.records import checkpoint_record
from shoal.records.arrays import copy_of_keys, is_key
from shoal.records.checkpoint_writer import Writer
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.records.history import History, Numbers
from shoal.records.members import Members
from shoal.records.run_config import RunConfig
from shoal.runs.policies.policy_files import leaves_below
from shoal.runs.train.compiled_trainer import CompiledRun
from shoal.runs.train.memory_limits import format_bytes, nbytes

# The parts of a Run that are not saved: the directory's config makes them again, or they are empty between evaluations.
# Leaves of the config that change while the run trains are saved all the same (`ProgramSettings.changing`).
NOT_SAVED = ("environment", "config", "total_updates", "evaluation", "evaluation_environment")
EVALUATED = "evaluated/"  # the prefix of the names of the leaves of `Run.evaluated`
FIRST_PAUSE = 2.0  # seconds before the first is written, which would delay the first updates and their row
REST = 30  # the pause between two checkpoints is at least this many times the duration of the last write
Fault = tuple[str, str]  # a quantity that is not finite, and why: the environment's explanation, or ""
ENDS = "the run ends there, and "  # in a sentence about a fault, before that about a checkpoint


def saved_leaves(population: Run, left_out: Container[str] = ()) -> dict[str, Any]:
    """Return the leaves of a population (or of its shapes) that a checkpoint holds, by name, but for some names."""
    leaves = struct.named_leaves(population)
    changing = population.settings.changing
    return {
        name: leaf
        for name, leaf in leaves.items()
        if (name in changing or name.split("/", 1)[0] not in NOT_SAVED) and name not in left_out
    }


def replay_of(population: Run) -> dict[str, Any]:
    """Return the shapes of the replay of all members by the names of its leaves; empty where there is none."""
    learner = jax.eval_shape(jax.vmap(without_replay), population)
    return {} if learner is None else struct.named_leaves({"learner": learner._replace(shared=())})


def copy_to_host(population: Run, left_out: Container[str] = ()) -> dict[str, Any]:
    """Copy the leaves that a checkpoint holds, but for some names, so that training may continue in their buffers."""
    leaves = saved_leaves(population, left_out)
    return {
        name: copy_of_keys(leaf) if is_key(leaf) else np.array(leaf, copy=True)
        for name, leaf in leaves.items()
    }


def restored(population: Run, leaves: Mapping[str, Any]) -> Run:
    """Replace the saved parts of a population by the leaves of a checkpoint."""
    templates = struct.named_leaves(population)
    placed = {
        name: jax.device_put(leaves[name], leaf.sharding, may_alias=False) if name in leaves else leaf
        for name, leaf in templates.items()
    }
    return jax.block_until_ready(struct.with_named_leaves(population, placed))


def _locate(compiled_run: CompiledRun, population: Run, updates: Mapping[int, int]) -> dict[int, Fault]:
    """Make updates again in which members have a fault, from before them, and name the first quantity of each
    that is not finite.
    """
    program = populations.run_program(locate_fault, compiled_run.settings, compiled_run.layout)
    compiled = program.lower(compiled_run.shapes).compile(compiled_run.layout.compiler_options)
    faults, made = {}, int(np.max(np.asarray(population.updates)))
    for update in sorted(set(updates.values())):
        population, _ = compiled_run.train(population, np.int32(update - 1 - made), np.bool_(True))
        # A copy, since the program donates the population from which training continues to the next fault.
        copy = jax.tree.map(lambda x: jax.device_put(x, x.sharding, may_alias=False), population)
        after, located = compiled(copy)
        made, quantities = update - 1, sorted(jax.device_get(located).items())
        for member in (k for k, own in updates.items() if own == update):
            faults[member] = _first_fault(after, quantities, member)
    return faults


def _first_fault(population: Run, quantities: Sequence[tuple[str, Any]], member: int) -> Fault:
    """Return the first quantity of a member's update that is not finite.

    Args:
      quantities: by numbered names, in order, whether each is at fault and in which environment, [members] both.
    """
    for numbered, (at_fault, indices) in quantities:
        if at_fault[member]:
            name, index = f"the {numbered.partition(' ')[2]}", indices[member]
            if index == NOWHERE:
                return name, ""
            environment = populations.take_member(population.environment, member)
            state = populations.take_member(populations.take_member(population.state.env, member), index)
            return f"{name} of environment {index}", explain_fault(environment, state) or ""
    return "something that is finite when the update is made again", ""


def frozen(population: Run, members: Sequence[int], replay: Container[str] = ()) -> Run:
    """Reset what members learned to their last evaluation; their best policies and their faults are kept.

    The rest of them, such as the states of their environments, is of no further use: NaN in it becomes 0, so that no
    checkpoint holds any. Only a replay stays as it is, since nothing reads it any more.
    """
    leaves = copy_to_host(population, replay)
    is_frozen = np.isin(np.arange(len(population.fault)), members)
    evaluated = {f"learner/{name}": x for name, x in leaves_below(leaves, EVALUATED).items()}
    evaluated["updates"] = evaluated.pop("learner/updates")  # which are of the Run, and not of its learner

    def of_frozen(name: str, x: Any) -> Any:
        mask = is_frozen.reshape(-1, *[1] * (x.ndim - 1))
        if name in evaluated:
            return (jax.numpy if is_key(x) else np).where(mask, evaluated[name], x)
        if name.startswith("best/") or is_key(x) or not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
            return x
        return np.where(mask & np.isnan(x), np.zeros_like(x), x)

    return restored(population, {name: of_frozen(name, x) for name, x in leaves.items()})


def _so_far(steps: int, leaves: Mapping[str, Any]) -> tuple[int, Numbers, list[int]]:
    """Return the results of a run so far: its steps, the best scores with their updates, and the failed members."""
    best = {name: leaves[f"best/{name}"] for name in ("score", "updates")}
    return steps, best, failed_members(leaves["fault"])


class RunSupervisor:
    """Writes the checkpoints of a run, and ends it when a signal asks for that.

    Args:
      reporter: of the run; its rows are written before the checkpoint that counts them.
      record: (history, end of the rows) -> the record of a checkpoint.
    """

    def __init__(
        self,
        directory: RunDirectory,
        run: RunConfig,
        reporter: Reporter,
        stop: signals.Interruption,
        record: Callable[..., dict[str, Any]],
        compiled_run: CompiledRun,
        members: Members,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.directory, self.run, self.reporter, self.stop = directory, run, reporter, stop
        self.members = members
        self.checkpoints = Checkpoints(directory.path)
        self._record, self._compiled_run, self._clock = record, compiled_run, clock
        self._writer = Writer(self.checkpoints) if run.checkpoints else None
        self._next_time = clock() + self._interval  # when the next checkpoint may be written
        self._scores = self._recorded_scores()  # by steps, of the checkpoints at evaluations
        self._considered = max(self._scores, default=-1)  # the last evaluation that was looked at, in steps
        self._last_steps = max(self.checkpoints.steps(), default=-1)  # of the last checkpoint
        self._waiting: dict[int, tuple] = {}  # copies of evaluations that are to be written
        self._first: tuple | None = None  # the copy from before the first update, until it is written
        self._first_time = self._next_time  # when that is written
        self._replay = replay_of(compiled_run.shapes)
        size, largest = nbytes(self._replay), run.max_replay_bytes
        self._left_out = self._replay if size > largest else {}  # of checkpoints
        if run.checkpoints and self._left_out and largest:
            reporter.progress.note(
                f"checkpoints leave the replay out, whose {format_bytes(size)} are more than "
                f"checkpoint_replay={run.checkpoint_replay!r}; a resumed run refills it by its own policy first."
            )
        self.begins(signals.Phase.SAVING)

    # ---- called by the trainer

    def begins(self, phase: signals.Phase) -> None:
        """Note the phase that begins; without checkpoints a signal finds nothing that it could save in any."""
        self.stop.phase(phase if self.run.checkpoints else signals.Phase.UNSAVED)

    def next_stop(self, updates: int) -> int | None:
        """Return the number of updates of the next checkpoint by steps; None where they are written by time."""
        if self._writer is None or self.run.checkpoint_every == -1:
            return None
        every = self.run.updates_in(self.run.checkpoint_every)
        return (updates // every + 1) * every

    def wants_to_stop(self) -> bool:
        """Report whether a signal asks the run to end, or a listener has failed."""
        return self.stop.requested or self.reporter.listeners.error is not None

    def note_fault(self, member: int, sentence: str) -> None:
        """Show a sentence about a member on the terminal."""
        self.reporter.progress.warn(f"{self.members[member].name}: {sentence}")

    def between_pieces(self, population: Run, history: History) -> None:
        """Write a checkpoint if one is due, and end the run if a signal asks for it or a listener has failed.

        Raises:
          Interrupted: the run was saved and ends.
          Exception: that of the listener; the run was saved.
          ResumableError: a checkpoint could not be written, and the run shall end then.
        """
        self._report_failures()
        if self.stop.requested:
            self.stop.saving()
            raise self._save_and_interrupt(population, history)
        if self.reporter.listeners.error is not None:
            with contextlib.suppress(ShoalError):  # the listener's error is the one to report
                self.finish(population, history)
            self.reporter.listeners.raise_error()
        if self._writer is None:
            return
        steps = history.updates * self.run.steps_per_update
        if self._last_steps == -1:
            self._last_steps, self._first_time = steps, self._clock() + FIRST_PAUSE
            self._first = steps, *self._copied(population, history, self._left_out)
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
            self._submit(steps, *self._copied(population, history, self._left_out))
        elif self._may_write_waiting():
            steps, copied = self._waiting.popitem()
            self._submit(steps, *copied)

    def handle_faults(self, population: Run, history: History, members: Sequence[int]) -> Run:
        """End the run, or reset members to their last evaluation and freeze them.

        Raises:
          ShoalError: with `on_nan="stop"`; names the member, the update, the environment, and the first quantity.
        """
        faults, evaluated = (np.asarray(x) for x in (population.fault, population.evaluated.updates))
        updates = {k: int(faults[k]) for k in sorted(members, key=lambda k: (faults[k], k))}
        if stops := self.run.on_nan == "stop":
            updates = dict([next(iter(updates.items()))])
        found, ending = self._located(population, updates, stops)
        goes_on = "the others continue" if (faults == NOWHERE).any() else "no other continues"
        for k, update in updates.items():
            cause, reason = found.get(k, ("a number", ""))
            when = f"update {update} ({update * self.run.steps_per_update:,} environment steps)"
            sentence = f"{self.members[k].name}: {cause} was not finite in {when}"
            sentence += f", since {reason}" if reason else ""
            if stops:
                raise ShoalError(f"{sentence}; {ending}")
            steps = int(evaluated[k]) * self.run.steps_per_update
            self.reporter.progress.warn(
                f"{sentence}; its last policy is that of its evaluation at {steps:,} steps, and {goes_on}."
            )
        return frozen(population, members, self._replay)

    # ---- called at the end of a run

    def finish(self, population: Run, history: History) -> None:
        """Write what waits, and the checkpoint of the end.

        Raises:
          ShoalError: one of them cannot be written.
        """
        if self._writer is None:
            return
        self.begins(signals.Phase.SAVING)
        self._write_first()
        steps = history.updates * self.run.steps_per_update
        self._waiting.pop(steps, None)  # that of the end holds more
        self._write_waiting()
        if self._last_steps != steps:
            self._submit(steps, *self._copied(population, history, self._left_out))
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

    def _located(
        self, population: Run, updates: Mapping[int, int], stops: bool
    ) -> tuple[dict[int, Fault], str]:
        """Make updates at fault again from the last checkpoint before, to name the quantity that was not finite.

        Not where members of several settings continue without those at fault, as some are expected to fail: that
        would train all of them again; nor where settings change meanwhile.

        Returns:
          the known faults of members; and the end of the sentence about a run that ends there.
        """
        if self._writer is None:
            return {}, "with checkpoints the message says which one."
        self._write_first()
        self._writer.wait()
        leaves = self._leaves_before(min(updates.values()))
        if leaves is None and not self._left_out:
            return {}, f"{ENDS}no checkpoint is from before."
        ending = f"{ENDS}its last checkpoint is from before (--on-nan freeze continues without the seed)."
        is_expected = not stops and bool(self.members[0].label)
        if leaves is None or is_expected or self._compiled_run.settings.changing:
            return {}, ending
        before = restored(population, struct.named_leaves(population) | leaves)
        return _locate(self._compiled_run, before, updates), ending

    def _leaves_before(self, update: int) -> dict[str, Any] | None:
        """Load the newest sound checkpoint with its replay from before an update; None where there is none."""
        last = (update - 1) * self.run.steps_per_update
        for steps in reversed([steps for steps in self.checkpoints.steps() if steps <= last]):
            info = self.checkpoints.info(steps)
            if not info.problem and not info.record.get("without_replay"):
                return self.checkpoints.load(steps)[0]
        return None

    def _recorded_scores(self) -> dict[int, float]:
        iqms = {steps: self.checkpoints.info(steps).record.get("iqm") for steps in self.checkpoints.steps()}
        return {steps: float(iqm) for steps, iqm in iqms.items() if iqm is not None}

    def _is_due(self, history: History, steps: int) -> bool:
        assert self._writer is not None
        if self._writer.busy or steps == self._last_steps:
            return False
        if self._clock() < self._next_time:
            return False
        return self.run.checkpoint_every == -1 or self.next_stop(history.updates - 1) == history.updates

    def _keep_evaluation(self, population: Run, history: History, steps: int) -> None:
        """Copy the run at an evaluation that is the best so far, or at each if all are kept.

        The former waits, and may never be written: it is copied without the replay.
        """
        best = max(self._scores.values(), default=-np.inf)
        self._scores[steps] = iqm = checkpoint_record.iqm_of(history)
        if self.run.checkpoint_evals or iqm > best:
            if not self.run.checkpoint_evals:
                self._waiting.clear()
            if steps != self._last_steps:
                left_out = self._left_out if self.run.checkpoint_evals else self._replay
                self._waiting[steps] = self._copied(population, history, left_out)

    def _copied(
        self, population: Run, history: History, left_out: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a copy of the leaves of a checkpoint but for its replay, where that is left out, and its record."""
        record = self._record(history, self.reporter.metrics.mark)
        return copy_to_host(population, left_out), record | {"without_replay": bool(left_out)}

    def _may_write_waiting(self) -> bool:
        """Whether it is time for a copy that waits; one that lacks what others hold must not be the newest."""
        is_behind = self._left_out == self._replay or min(self._waiting, default=0) < self._last_steps
        return bool(self._waiting) and is_behind and self._clock() >= self._next_time

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
        so_far = _so_far(steps, leaves)
        self._writer.submit(
            steps,
            leaves,
            record,
            before=self.reporter.flush,
            after=lambda: self._after_writing(*so_far),
        )

    def _after_writing(self, steps: int, best: Numbers, failed: Sequence[int]) -> None:
        """Delete checkpoints that are not kept, and show the results so far; called in the writer's thread."""
        self._delete_old()
        is_within = 0 < steps < self.run.total_updates * self.run.steps_per_update
        if is_within and steps == self._last_steps:
            self.reporter.show_so_far(steps, best, failed)

    def _delete_old(self) -> None:
        """Delete the checkpoints that are not kept; called in the writer's thread."""
        existing = self.checkpoints.steps()
        at_evaluations = {steps: self._scores[steps] for steps in existing if steps in self._scores}
        kept = {0, *existing[-self.run.keep :]}
        if self.run.checkpoint_evals:
            kept |= set(at_evaluations)
        elif at_evaluations:
            kept.add(checkpoint_record.best_steps(at_evaluations))
        self.checkpoints.keep(kept)

    def _report_failures(self) -> None:
        self.reporter.report_failure()
        while self._writer is not None and (failure := self._writer.take_failure()):
            if self.run.on_disk_error == "stop":
                raise ResumableError(f"{failure} The run ends, since on_disk_error='stop'.")
            self.reporter.progress.warn(f"{failure} Training continues.")

    def _save_and_interrupt(self, population: Run, history: History) -> BaseException:
        self.begins(signals.Phase.SAVING)
        try:
            self.finish(population, history)
        except ShoalError as error:
            return ResumableError(f"{error} The run was interrupted; its last checkpoint can be resumed.")
        return self.stop.saved(self.directory.path)
