"""A Run: one pytree with everything that is needed to continue training.

One Run is one member of a population, one checkpoint, and one value that `vmap` or a mesh can distribute. Its
key never changes: each use of randomness is `fold_in(fold_in(key, stream), counter)`, so evaluation cannot
change training, and continuing a run needs no history.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.config import struct
from shoal.engine import team
from shoal.engine.contract import checked_algorithm, checked_learner
from shoal.engine.nonfinite import NOWHERE
from shoal.envs.batch import Batch
from shoal.envs.trials import consecutive
from shoal.types import (
    AlgorithmConfig,
    Array,
    Clock,
    Environment,
    Learner,
    Memory,
    Policy,
    PyTree,
    State,
    TimeStep,
    contract,
    spec_of,
)

ENV_AXIS = "env"  # the name of the axis over groups of environments


class Stream(enum.IntEnum):
    """The purposes of random numbers; their streams are disjoint."""

    INIT = 0
    RESET = 1
    ROLLOUT = 2
    UPDATE = 3
    EVALUATION = 4
    ABSOLUTE = 5
    EXCHANGE = 6
    WARM_UP = 7


class ProgramSettings(NamedTuple):
    """The part of a run's configuration that its compiled program depends on; static."""

    num_envs: int  # over all groups together
    num_steps: int
    groups: int = 1  # the environments are split into this many groups, which a mesh may place on devices
    reset_policy: str = "fresh"
    pool_size: int = 0
    pool_refresh: int = 0
    reset_ratio: int = 16
    eval_episodes: int = 32
    eval_max_steps: int = 10_000
    eval_mode: str = "greedy"  # "greedy", "sampled" or "both"; the score is computed from the first
    eval_seed: int = -1  # the seed of the episodes of all evaluations; -1 where each has its own
    eval_consecutive: int = 1  # the episodes that are played in a row, as one
    keeps_last: bool = False  # whether the newest policy counts as the best, since none is evaluated
    score: str | Callable = "return_mean"  # a metric of an evaluation, or a function of all of them
    eval_metrics: Callable | None = None  # (Episodes) -> further metrics of an evaluation
    changing: tuple[str, ...] = ()  # leaves of a Run's config that change while it trains, as `config/gamma`

    @property
    def axis(self) -> tuple[str, ...]:
        """The axis names that an algorithm reduces over."""
        return (ENV_AXIS,) if self.groups > 1 else ()


class Episodes(NamedTuple):
    """Running return and length of each environment's current episode."""

    returned: Array  # [N], or of each of several agents, [N, A]
    length: Array  # [N]
    life: PyTree = ()  # return of each agent's current life, [N, A]; () where no agent restarts within its world


class Best(NamedTuple):
    """The best policy so far by its evaluation score."""

    policy: Policy
    score: Array  # -inf before the first evaluation; not finite until a score is
    updates: Array  # the number of updates of the policy


class Evaluated(NamedTuple):
    """The state of learning at the last evaluation, to which a run returns when a number is not finite."""

    shared: PyTree  # `learner.shared`
    updates: Array  # the number of updates at that evaluation


@struct.struct
class Run:
    """The state of a run; every function of the runtime maps a Run to a Run."""

    environment: Environment  # its parameters are data
    config: AlgorithmConfig  # the algorithm's config; floats are data
    learner: Learner
    state: State  # the state of the batch of environments
    timestep: TimeStep
    memory: Memory
    episodes: Episodes
    key: jax.Array
    updates: jax.Array  # number of updates made
    total_updates: jax.Array  # data, so that a run can be extended without compiling again
    best: Best
    evaluated: Evaluated
    metrics: PyTree  # sums since the last log point; () before `loop.start_training` fills them in
    fault: jax.Array  # the number of the update in which something was not finite; -1 for none
    evaluation: PyTree  # the episodes of a running evaluation; () between evaluations
    evaluation_environment: PyTree  # () where evaluations use the environment itself
    settings: ProgramSettings = struct.static()


def start(
    key: Array,
    environment: Environment,
    config: AlgorithmConfig,
    total_updates: Array | int,
    settings: ProgramSettings,
) -> Run:
    """Make a new run of one group of environments, before its first update; the numbers of environment and
    config are arrays.
    """
    algorithm = checked_algorithm(config, spec_of(environment), settings.axis)
    batch = batch_of(environment, settings)
    state, timestep = batch.reset(group_key(stream_key(key, Stream.RESET, 0), settings))
    learner = checked_learner(algorithm, stream_key(key, Stream.INIT, 0), batch.num_envs)
    zeros = team.zeros(environment, batch.num_envs)
    run = Run(
        environment=environment,
        config=config,
        learner=learner,
        state=state,
        timestep=timestep,
        memory=algorithm.memory((batch.num_envs,)),
        episodes=Episodes(zeros, jnp.zeros(batch.num_envs), () if timestep.restarted is None else zeros),
        key=key,
        updates=jnp.zeros((), jnp.int32),
        total_updates=jnp.int32(total_updates),
        best=Best(
            algorithm.policy(learner, Clock.zero()),
            jnp.full((), -jnp.inf, jnp.float32),
            jnp.zeros((), jnp.int32),
        ),
        evaluated=Evaluated(learner.shared, jnp.zeros((), jnp.int32)),
        metrics=(),
        fault=jnp.full((), NOWHERE, jnp.int32),
        evaluation=(),
        evaluation_environment=(),
        settings=settings,
    )
    return jax.tree.map(jnp.asarray, run)


def batch_of(environment: Environment, settings: ProgramSettings) -> Batch:
    """Make the batch of one group's environments."""
    return Batch(
        environment,
        num_envs=settings.num_envs // settings.groups,
        reset_policy=settings.reset_policy,
        pool_size=max(settings.pool_size // settings.groups, 1),
        pool_refresh=-(-settings.pool_refresh // settings.groups),
        reset_ratio=settings.reset_ratio,
    )


def stream_key(key: Array, stream: Stream, counter: Array | int) -> Array:
    """Return the key of the counter-th use of a stream."""
    return jax.random.fold_in(jax.random.fold_in(key, int(stream)), counter)


def group_key(key: Array, settings: ProgramSettings) -> Array:
    """Return a key that differs between groups, where there are several."""
    if settings.groups == 1:
        return key
    return jax.random.fold_in(key, jax.lax.axis_index(ENV_AXIS))


def clock_of(run: Run) -> Clock:
    """Return the clock of a run."""
    settings = run.settings
    return Clock(
        updates=run.updates,
        steps=run.updates.astype(jnp.float32) * (settings.num_envs * settings.num_steps),
        progress=run.updates / jnp.maximum(run.total_updates, 1),
    )


def policy_of(run: Run) -> Policy:
    """Return the policy of one run: the part of its learner that acting needs."""
    return run.config.algorithm(spec_of(run.environment)).policy(run.learner, clock_of(run))


def without_replay(run: Run) -> Learner | None:
    """Return the learner of one run with an empty replay; None where its algorithm keeps no replay.

    Raises:
      ShoalError: the algorithm returns a learner of another structure.
    """
    empty = run.config.algorithm(spec_of(run.environment), run.settings.axis).without_replay
    if empty is None:
        return None
    learner = empty(run.learner)
    contract.require_same(empty, "learner", learner, run.learner)
    return learner


def evaluation_environment_of(run: Run) -> Environment:
    """Return the environment in which a run's policies are evaluated, which is the same for all members."""
    has_own = not isinstance(run.evaluation_environment, tuple)
    environment = run.evaluation_environment if has_own else run.environment
    return consecutive(environment, run.settings.eval_consecutive)


def placement(settings: ProgramSettings, local: Any, shared: Any) -> Run:
    """Return a prefix of a Run that marks each part as local to a group or shared by all."""
    return Run(
        environment=shared,
        config=shared,
        learner=Learner(shared, local),
        state=local,
        timestep=local,
        memory=local,
        episodes=local,
        key=shared,
        updates=shared,
        total_updates=shared,
        best=shared,
        evaluated=shared,
        metrics=shared,
        fault=shared,
        evaluation=shared,
        evaluation_environment=shared,
        settings=settings,
    )
