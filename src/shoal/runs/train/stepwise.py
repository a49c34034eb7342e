"""A trainer's state in the hands of a caller: how it starts, what makes it another trainer's, and how it resumes."""

import dataclasses
import logging
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import io_callback

from shoal.base.errors import ShoalError
from shoal.config import arguments, settings, struct
from shoal.engine import evaluation
from shoal.engine.loop import train
from shoal.engine.run import ProgramSettings, Run, policy_of
from shoal.envs.base import unwrapped
from shoal.records import members
from shoal.records.checkpoint_record import choose_checkpoint
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.runs.plan.config_files import read_config
from shoal.runs.plan.experiment import Experiment
from shoal.runs.policies import policy_files
from shoal.runs.policies.load import read_last
from shoal.runs.train import finetuning, resume
from shoal.runs.train.checkpointing import saved_leaves
from shoal.types import Array, Learner, contract, spec_of
from shoal.xla.barriers import materialise

# The parts of a run that no update changes.
CONSTANT = ("environment", "config", "total_updates")
# Settings of a run that cannot change where it is resumed, and of which its updates and evaluations know nothing.
ELSEWHERE = ("seeds", "seed", "absolute_episodes", "score", "eval_metrics")


def _is_unknown(record: logging.LogRecord) -> bool:
    """Report whether JAX logs an error that no caller receives: not that of a callback from here."""
    frames = traceback.extract_tb(record.exc_info[2]) if record.exc_info else ()
    return all(frame.filename != __file__ for frame in frames)


logging.getLogger("jax._src.callback").addFilter(_is_unknown)


class Evaluation(NamedTuple):
    """An evaluation as the callback `on_evaluation` of `make_train` receives it, in numbers and arrays of NumPy."""

    updates: int  # after which it was made
    steps: int  # environment steps that were made before it
    metrics: Mapping[str, np.ndarray]  # as `trainer.evaluate` returns them, of one member
    key: np.ndarray  # the words of the member's key, as `jax.random.key_data` returns them


class Plan(NamedTuple):
    """What a trainer's programs depend on besides arrays."""

    settings: ProgramSettings
    num_updates: int
    points: tuple[int, ...]  # the numbers of updates after which `trainer(key)` evaluates
    keep_episodes: bool
    on_evaluation: Callable[[Evaluation], object] | None


def update(run: Run, plan: Plan) -> tuple[Run, dict[str, Array]]:
    """Make one update, unless all are made, and return its metrics; the run lacks what is constant."""
    run = _as_data(run)
    # Data, as their number is in the program of `shoal.train`.
    run, sums = train(run, jax.numpy.minimum(run.total_updates - run.updates, 1))
    return without_constants(run), {name: mean.value for name, mean in sums.items()}


def evaluate(run: Run, plan: Plan) -> tuple[Run, dict[str, Array]]:
    """Evaluate the current policy, and return the metrics, with the episodes where they are kept; as `update`."""
    run, metrics = evaluation.evaluate(_as_data(run), keep_episodes=plan.keep_episodes)
    report(run, metrics, True, plan)
    return without_constants(run), metrics


def report(run: Run, metrics: Mapping[str, Array], is_made: Array | bool, plan: Plan) -> None:
    """Give the callback an evaluation, if it was made; a conditional could not hold the callback under `vmap`."""
    function, steps_per_update = plan.on_evaluation, plan.settings.num_envs * plan.settings.num_steps
    if function is None:
        return

    def on_host(is_made: Any, updates: Any, key: Any, metrics: Any) -> None:
        if is_made:
            numbers = {name: np.asarray(x) for name, x in metrics.items()}
            function(Evaluation(int(updates), int(updates) * steps_per_update, numbers, np.asarray(key)))

    # Not in order, since what is ordered cannot be mapped.
    numbers = is_made, run.updates, jax.random.key_data(run.key), dict(metrics)
    io_callback(on_host, None, *numbers, ordered=False)


def _as_data(run: Run) -> Run:
    """Keep the numbers that a caller's program may have as constants data, since divisions by these round otherwise."""
    return dataclasses.replace(run, **materialise({name: getattr(run, name) for name in CONSTANT}))


def without_constants(run: Run) -> Run:
    """Leave out what the caller has, which a program would copy."""
    return dataclasses.replace(run, environment=(), config=(), total_updates=())  # type: ignore[arg-type]


# ---- where a state starts


def begin_from(run: Run, given: Learner | finetuning.SavedLeaves | None) -> Run:
    """Let a new run start from a learner, or from saved leaves of one; None leaves it as it is.

    Of a learner everything is taken that does not belong to its environments, which start anew: a replay is empty.

    Raises:
      ShoalError: the learner has other leaves than the run's.
    """
    if given is None:
        return run
    if isinstance(given, Learner):
        empty = run.config.algorithm(spec_of(run.environment)).without_replay or (lambda learner: learner)
        saved = struct.named_leaves(given.shared)
        parts = [name.split("/", 1)[0] for name in (*saved, *struct.named_leaves(run.learner.shared))]
        shared = struct.with_saved_parts(run.learner.shared, saved, parts)
        learner = run.learner._replace(shared=empty(given._replace(shared=shared)).shared)
    else:
        learner = finetuning.inherit_learner(run, given)
    run = dataclasses.replace(run, learner=learner)
    return dataclasses.replace(run, best=run.best._replace(policy=policy_of(run)))


class Source(NamedTuple):
    """A member of a run on the disk."""

    path: Path
    from_step: int | str  # the checkpoint; "" for the run's end, or its newest one
    seed: int | None
    label: str | None

    @property
    def place(self) -> int:
        """The place of the member among all; the first without a seed and a label."""
        return members.chosen(members.members_of_config(read_config(self.path)), self.seed, self.label)[0]


def saved_learner(member: Run, experiment: Experiment, source: Source) -> dict[str, np.ndarray]:
    """Read what a member of another run had learned, as `--from` does.

    Raises:
      ShoalError: there is no such run, checkpoint or member, or it does not fit.
    """
    saved = finetuning.learner_leaves(read_last(source.path, str(source.from_step)), str(source.path))
    finetuning.check_inherit(member, saved, experiment.algorithm, str(source.path))
    return {name: x[source.place] for name, x in saved.items()}


def restored(shapes: Run, experiment: Experiment, source: Source) -> Run:
    """Read a member of a run from a checkpoint, whole.

    Args:
      shapes: of the trainer's state; what no update changes are arrays.
    Raises:
      ShoalError: there is no such run, checkpoint or member, or it was trained otherwise.
    """
    directory = RunDirectory.open(source.path)
    checkpoints, config = Checkpoints(directory.path), read_config(directory.path)
    steps = choose_checkpoint(checkpoints, source.from_step, "from_step")
    resume.check_budget(directory, experiment.run, steps)
    leaves, record = checkpoints.load(steps)
    run = dataclasses.replace(experiment.run, **{name: config["run"][name] for name in ELSEWHERE})
    own = dataclasses.replace(experiment, run=run)
    difference = resume.first_difference(record["identity"], resume.identity_of(own, own.as_json()))
    if config.get("evolution"):
        difference = "its settings change while it trains"
    elif record.get("without_replay"):
        difference = "its checkpoint is without its replay, which shoal.resume refills"
    if difference:
        raise ShoalError(
            f"run {str(directory.path)!r} cannot be continued by this trainer: {difference}; trainer.start(key, "
            "start_from=...) takes its parameters alone."
        )
    by_name = {f"run/{name}": x for name, x in leaves.items()}
    found = policy_files.restore(saved_leaves(shapes), by_name, "run", source.place)
    return struct.with_named_leaves(shapes, struct.named_leaves(shapes) | found)


# ---- whose a state is


def require_state(state: object, own: Run) -> None:
    """Require a state of a trainer.

    Args:
      own: the shapes of its states; what no update changes are the trainer's own arrays.
    Raises:
      ShoalError: it is none, or another trainer's. Numbers that are traced are not compared.
    """
    if not isinstance(state, Run):
        raise ShoalError(
            f"state={arguments.short_repr(state)} is not a trainer's state; give what trainer.start(key) returns."
        )
    if difference := _difference(state, own):
        raise ShoalError(
            f"the state is of another trainer: {difference}; trainer.start(key, state.learner) goes on with "
            "what it has learned."
        )


def _difference(state: Run, own: Run) -> str:
    """Return the first difference between a state and one of a trainer, in words; "" where there is none."""
    there, here = map(_settings_of, (state, own))
    for name, value in here.items():
        other = there.get(name, value)
        if value is other or struct.is_traced(*jax.tree.leaves((value, other))):
            continue
        is_alike = getattr(value, "shape", ()) == getattr(other, "shape", ())  # else it is said below
        if is_alike and not np.array_equal(np.asarray(value, object), np.asarray(other, object)):
            shown = [np.asarray(x) if hasattr(x, "shape") else x for x in (other, value)]
            return f"it has {name}={shown[0]!s}, and {shown[1]!s} is here"
    for name, expected, found in contract.differences(own, state):
        return f"its {name!r} is {found or 'missing'}, and {expected or 'none'} here (jax.vmap maps several)"
    return ""


def _settings_of(run: Run) -> dict[str, Any]:
    """Return what tells the state of a trainer from others', by names for people."""
    return {
        "environment": type(unwrapped(run.environment)).__name__,
        "algorithm": type(run.config).__name__,
        **settings.flat(run.config),
        **run.settings._asdict(),
        **struct.named_leaves({"environment": run.environment}),
        "num_updates": run.total_updates,
    }
