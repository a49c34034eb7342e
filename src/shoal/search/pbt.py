"""Population-based training: its options, their checks, and the replay of a schedule that it found.

A population that exchanges is a run of many seeds whose settings change (`evolving`): it has the directory, the
checkpoints and the signals of any run.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.config import arguments, settings
from shoal.config.struct import parameter
from shoal.engine.population.pbt_exchange import PARTS
from shoal.records.pbt_settings import Evolution, Tuned
from shoal.records.run_config import RunConfig, check_at_least
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import Experiment
from shoal.runs.train import pbt_run
from shoal.runs.train.drive import run_experiment
from shoal.runs.train.planning import Caller
from shoal.runs.train.results import TrainedRun
from shoal.search.distributions import Between, Int, read_distribution
from shoal.search.grouping import DEFAULTS, Request

FEWEST_EPISODES = 32  # of an evaluation: a ranking by fewer would select luck
EXAMPLE = "learning_rate=log:1e-5:1e-2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PbtOptions:
    """The options of a population that exchanges: the flags of its command, and the keywords of its function."""

    ready_every: int = parameter(0, low=0, high=arguments.LARGEST_INDEX)
    """Evaluates and exchanges every so many environment steps of a member."""
    members: int = parameter(16, low=PARTS, high=arguments.LARGEST_SEED)
    """Sets the number of members, of which the worst fifth copies the best fifth."""


def run_pbt(
    request: Request, tuned: Sequence[Tuned], options: PbtOptions, call: Caller | None = None
) -> TrainedRun:
    """Train a population that exchanges; a directory that holds it already is resumed.

    Raises:
      ShoalError: a setting cannot work; then nothing is left on disk.
      Interrupted: a signal ended the run, which is saved.
    """
    return run_experiment(decide_pbt(request, tuned, options), call)


def decide_pbt(request: Request, tuned: Sequence[Tuned], options: PbtOptions) -> Experiment:
    """Decide the settings of a population that exchanges.

    Raises:
      ShoalError: one of them cannot work.
    """
    settings.check_fields(options)
    for name in ("num_evals", "eval_every", "seeds"):
        if name in request.overrides:
            instead = "members" if name == "seeds" else "ready_every"
            raise ShoalError(f"{name} has no effect on population-based training; give {instead}.")
    # `_check_run` refuses a time of 0; until then -1 lets other settings be refused first.
    evaluated = {"seeds": options.members, "eval_every": options.ready_every or -1}
    request = dataclasses.replace(request, overrides={**DEFAULTS, **evaluated, **request.overrides})
    experiment = request.decide(evolution=Evolution(tuple(tuned)))
    experiment.run.validate()
    _check_run(experiment.run, options.ready_every)
    return experiment


def _check_run(run: RunConfig, ready_every: int) -> None:
    """Require that there are exchanges, and that evaluations tell members apart."""
    if not ready_every:
        raise ShoalError(
            "no time between exchanges was given; give environment steps of a member (ready_every)."
        )
    each = f"an update of num_envs*num_steps={run.num_envs}*{run.num_steps}={run.steps_per_update} steps"
    if ready_every < run.steps_per_update:
        raise ShoalError(f"ready_every={ready_every} is shorter than {each}; give at least that many.")
    if run.updates_in(ready_every) >= run.total_updates:
        raise ShoalError(
            f"ready_every={ready_every} leaves no exchange before the end of total_steps={run.total_steps}; give "
            f"fewer, such as {max(run.total_steps // 20, run.steps_per_update)}."
        )
    check_at_least("eval_episodes", run.eval_episodes, FEWEST_EPISODES)


def read_tuned(tune: Mapping[str, object], start: Mapping[str, object]) -> tuple[Tuned, ...]:
    """Read the distributions of tuned settings.

    Args:
      tune: the distribution of each: its bounds, its scale, and where new values are drawn.
      start: of some of them, the distribution of the members' first values, within those bounds.
    Raises:
      ShoalError: there is none, one is no range of real numbers, or first values lie outside the bounds.
    """
    if not tune:
        raise ShoalError(f"nothing is tuned; give a setting and its distribution (tune), such as {EXAMPLE}.")
    for name in start:
        if name not in tune:
            raise ShoalError(f"start={name} is not tuned; give its bounds too (tune), such as {EXAMPLE}.")
    found = []
    for name, given in tune.items():
        bounds = _range(name, given)
        first = _range(name, start.get(name, bounds))
        if not (first.scale == bounds.scale and bounds.low <= first.low and first.high <= bounds.high):
            raise ShoalError(
                f"start {name}={first.to_json()} must be of the kind and within the bounds of "
                f"{name}={bounds.to_json()}."
            )
        found.append(
            Tuned(
                name,
                bounds.scale,
                float(bounds.low),
                float(bounds.high),
                (float(first.low), float(first.high)),
            )
        )
    return tuple(found)


def _range(name: str, given: object) -> Between:
    """Read a range of real numbers."""
    distribution = read_distribution(name, given)
    if not isinstance(distribution, Between) or isinstance(distribution, Int):
        raise ShoalError(
            f"{name}={distribution.to_json()} cannot be tuned during training, which needs a range of real numbers; "
            f"give uniform, log or one-minus-log, such as {EXAMPLE}."
        )
    return distribution


def run_replay(path: str | Path, overrides: Mapping[str, object], call: Caller | None = None) -> TrainedRun:
    """Train seeds that were never used with the schedule of a run's best line of descent.

    Raises:
      ShoalError: the run has no schedule, or a setting cannot work.
    """
    schedule = pbt_run.read_schedule(path)
    saved = decide(None, config_file=path, overrides={})
    known = settings.settings_of(RunConfig())
    fresh: dict[str, Any] = {"seeds": known["seeds"].value, "seed": saved.run.seed + saved.run.seeds}
    fresh |= {"devices": 0, "run_dir": ""}
    for name in ("num_evals", "eval_every", "num_envs", "num_steps"):
        if name in overrides:
            raise ShoalError(f"{name} cannot differ in a replay, whose settings change at the same updates.")
    experiment = decide(None, config_file=path, evolution=schedule, overrides={**fresh, **overrides})
    return run_experiment(experiment, call)
