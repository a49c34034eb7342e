"""Cross play: the policies of one run in some roles of a world against those of another run in the others.

What roles that were trained together reach says little, since a return is as good as the other role is bad. A matrix of
each seed against each other seed, or one opponent for all, is a score.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.imports import import_name, import_object
from shoal.config import arguments, struct
from shoal.config.traced import on_host
from shoal.engine.players import RandomPlayer, ScriptedPlayer, Side, play_pairs
from shoal.envs.describing import describe
from shoal.monitor.progress import ignore_text
from shoal.records import scores
from shoal.records.checkpoint_record import Choice
from shoal.records.directory import RunDirectory
from shoal.runs.plan.decide import decide
from shoal.runs.policies.load import (
    check_which,
    environment_for,
    load_policies,
    read_policies,
    training_experiment,
)
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.runs.train import memory_limits
from shoal.types import Environment, spec_of
from shoal.xla import backend, machine

RANDOM = "random"

Opponent = str | Path | TrainedPolicy | Sequence[TrainedPolicy] | Callable[[Any, jax.Array], Any]


Player = TrainedPolicy | RandomPlayer | ScriptedPlayer


class _Given(NamedTuple):
    """One side as the caller named it."""

    name: str
    seeds: list[int | str]  # the seeds of the run's policies, or numbers
    players: list[Player]  # policies, or one of another kind
    which: str = ""  # "best" or "last", for a run
    run: RunDirectory | None = None
    failed: Sequence[int | str] = ()  # the seeds of the run that were not trained to the end, left out

    def as_json(self) -> dict[str, object]:
        """Return the entries of the result that name the side."""
        return {"name": self.name, "which": self.which, "seeds": self.seeds, "failed": list(self.failed)}


@on_host
def cross_play(
    first: Opponent,
    second: Opponent,
    environment: str | Environment | None = None,
    *,
    role: int = 0,
    which: str = "best",
    checkpoint: int | str | Choice | None = None,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool | None = None,
    max_steps: int = 10_000,
    tell: Callable[[str], None] = ignore_text,
    environment_parameters: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Let each policy of one side, which acts for the agents of `role`, play against each of the other.

    A side is a run's directory (the policies of all its seeds that were trained to the end), a policy from `load` or
    several, "random" (uniform over the legal actions), or a function `(observation, key) -> action` of all agents of
    one world, given itself or as `module:name`. With the same run on both sides the diagonal is what `evaluate` finds
    with the same `seed`.

    Args:
      checkpoint: as in `load`, of the first run.
      greedy: whether policies take their mode or sample; None does as the evaluations of the first run did.
      max_steps: the number of steps after which an episode is cut.
      environment_parameters: those parameters of the environment whose names are also arguments here.
      **parameters: of the environment; those not given are the run's own.
    Returns:
      `environment`, `mode`, `episodes`, `max_steps` and the share of `unfinished` episodes; `first` and `second`, each
      with its `name`, `which`, `seeds`, those that `failed` (were not trained to the end) and are left out, and
      `roles`; and `returns`, by role: `matrix` [seeds of first][seeds of second], each the mean over the role's agents
      and the episodes, their `iqm`, and its 95% `interval`, by a bootstrap over the seeds of both sides (None for too
      few).
    Raises:
      ShoalError: a side is none of these, or a run whose seeds all failed; its spaces are not the environment's, or
        the world has only one role.
    """
    machine.prepare()
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, parameters)
    sizes = {"episodes": episodes, "max_steps": max_steps}
    sizes = {name: arguments.whole_number(name, x, 1, arguments.LARGEST_INDEX) for name, x in sizes.items()}
    key = jax.random.key(arguments.seed("seed", seed))
    chosen = check_which(which), parameters
    given = [_side("first", first, checkpoint, *chosen), _side("second", second, None, *chosen)]
    name, world, mode = _world(given, environment, parameters)
    of_first = _agents_of(world, arguments.whole_number("role", role))
    greedy = mode != "sampled" if greedy is None else arguments.boolean("greedy", greedy)
    agents, unfinished = _play(given, world, key, tell, of_first=of_first, greedy=greedy, **sizes)
    others = sorted(set(world.roles) - {role})
    return {
        "environment": name,
        "mode": "greedy" if greedy else "sampled",
        **sizes,
        "unfinished": float(unfinished.mean()),
        "first": given[0].as_json() | {"roles": [role]},
        "second": given[1].as_json() | {"roles": others},
        "returns": {k: _statistics(agents[..., np.equal(world.roles, k)]) for k in [role, *others]},
    }


def _play(
    given: Sequence[_Given],
    world: Environment,
    key: jax.Array,
    tell: Callable[[str], None],
    *,
    episodes: int,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Play all pairs, and return their results as `play_pairs` does."""
    pairs = len(given[0].players) * len(given[1].players)
    # One after the other on a CPU, where batched matrix products are slower; so only one pair is in memory.
    mapped_by = "map" if backend.is_cpu() else "vmap"
    bytes_each = sum(memory_limits.episode_bytes(world, _config(side.players[0])) for side in given)
    together = pairs if mapped_by == "vmap" else 1
    memory_limits.check_count("episodes", episodes, bytes_each * together, "environments", jax.devices()[0])
    tell(f"playing {episodes:,} episodes of {'one pair' if pairs == 1 else f'each of {pairs} pairs'}")
    sides = [_stacked(side, world) for side in given]
    options |= {"episodes": episodes, "mapped_by": mapped_by}
    with memory_limits.report_out_of_memory():
        return jax.device_get(play_pairs(struct.as_arrays(world), *sides, key, **options))


def _side(
    argument: str,
    value: object,
    checkpoint: int | str | Choice | None,
    which: str,
    parameters: Mapping[str, Any],
) -> _Given:
    """Return the players of one side.

    Raises:
      ShoalError: it is none, or a run has no such policies.
    """
    if isinstance(value, TrainedPolicy):
        value = [value]
    if isinstance(value, list | tuple) and value and all(isinstance(x, TrainedPolicy) for x in value):
        return _Given("policies", list(range(len(value))), list(value))
    if isinstance(value, str) and value == RANDOM:
        return _Given(RANDOM, [0], [RandomPlayer()])
    # A path may have a colon, so that what exists is a run.
    if isinstance(value, str) and ":" in value and not os.path.exists(value):
        value = import_object(value)
    if callable(value) and not isinstance(value, type):
        return _Given(import_name(value), [0], [ScriptedPlayer(value)])
    directory = RunDirectory.open(arguments.path(argument, value))
    stored = read_policies(directory, which, checkpoint, training_experiment(directory, parameters))
    policies = load_policies(stored)
    failed = stored.failed_of(policies)
    policies = {seed: policy for seed, policy in policies.items() if seed not in failed}
    if not policies:
        raise ShoalError(
            f"{argument}={str(value)!r}: each seed had a number that was not finite; none can play."
        )
    return _Given(str(value), list(policies), list(policies.values()), stored.title, directory, failed)


def _world(
    given: Sequence[_Given], environment: str | Environment | None, parameters: Mapping[str, Any]
) -> tuple[str, Environment, str]:
    """Return the environment of the episodes with its name, and the mode of the first run's evaluations.

    Raises:
      ShoalError: there is none, it is not made with such parameters, or its spaces are not a policy's.
    """
    policies = [x for side in given for x in side.players if isinstance(x, TrainedPolicy)]
    runs = [side.run for side in given if side.run is not None]
    mode = "greedy"
    if runs and not (environment is not None and not isinstance(environment, str)):
        experiment = decide(
            environment, environment_parameters=parameters, config_file=runs[0].path, overrides={}
        )
        name, world, mode = experiment.environment_name, experiment.environment, experiment.run.eval_mode
    else:
        world = environment_for(policies[0] if policies else None, environment, parameters)
        name = environment if isinstance(environment, str) else describe(world).name
    for policy in policies:  # of both sides, each of which must be able to act there
        environment_for(policy, world, {})
    return name, world, mode


def _agents_of(world: Environment, role: int) -> tuple[int, ...]:
    """Return the agents of a role."""
    roles = spec_of(world).roles
    if len(set(roles)) < 2:
        raise ShoalError(
            f"cross play is between agents of several roles, and roles={roles} of the world are not."
        )
    if role not in roles:
        raise ShoalError(f"role={role} is not one of the world's: {', '.join(map(str, sorted(set(roles))))}.")
    return tuple(agent for agent, other in enumerate(roles) if other == role)


def _config(player: Player) -> Any:
    return player.config if isinstance(player, TrainedPolicy) else player


def _stacked(side: _Given, world: Environment) -> Side:
    """Return the players of a side with a leading axis.

    Raises:
      ShoalError: they are policies of several kinds.
    """
    parts = [(_config(x), x.parameters if isinstance(x, TrainedPolicy) else ()) for x in side.players]
    forms = {(jax.tree.structure(x), tuple(map(jnp.shape, jax.tree.leaves(x)))) for x in parts}
    if len(forms) > 1:
        raise ShoalError(
            "the policies of one side must be of one algorithm and network; play the others apart."
        )
    config, parameters = jax.tree.map(lambda *xs: jnp.stack(xs), *parts)
    return Side(config, parameters, jnp.arange(len(parts)))


def _statistics(returns: np.ndarray) -> dict[str, Any]:
    """Compute the result of one role from the returns of its agents, [S, R, A]."""
    matrix = np.asarray(returns, np.float64).mean(axis=-1)
    interval = scores.crossed_score_interval(matrix)
    return {
        "matrix": matrix.tolist(),
        "iqm": float(scores.iqm(matrix)),
        "interval": None if interval is None else list(interval),
    }
