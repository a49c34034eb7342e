"""The training loop: K updates of one run as one compiled loop."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import Literal
from jax.sharding import NamedSharding, PartitionSpec

from shoal.config import struct
from shoal.engine.contract import checked_update
from shoal.engine.metrics import checked_means, checked_numbers
from shoal.engine.nonfinite import NOWHERE, FirstFaults, find_faults, has_fault, locate, no_faults
from shoal.engine.rollout import RolloutState, episode_metrics, no_ended_episodes, random_rollout, rollout
from shoal.engine.run import (
    Best,
    ProgramSettings,
    Run,
    Stream,
    batch_of,
    clock_of,
    group_key,
    policy_of,
    start,
    stream_key,
)
from shoal.types import AlgorithmConfig, Array, Environment, Keys, Learner, Metrics, State, TimeStep, spec_of
from shoal.types.metrics import joined
from shoal.xla.loops import any_member

# Bytes of an array in `learner.local` that is not selected where a member trains no further; a replay has more.
MAX_SELECTED = 2**20


def start_training(
    member: tuple[Array, Environment, AlgorithmConfig, Array | int], settings: ProgramSettings
) -> Run:
    """Make a new run as `run.start` does, warmed up, with the sums of its metrics at zero.

    Args:
      member: the key, the environment, the config and the number of updates.
      settings: what all members have in common.
    """
    run = warm_up(start(*member, settings))
    # Of the mesh that `shard_map` runs this for, which belongs to the types of arrays: so training finds this trace.
    mesh = jax.sharding.get_abstract_mesh()
    sharding = None if mesh.empty else NamedSharding(mesh, PartitionSpec())
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), run)
    metrics = jax.eval_shape(_update_traced_once, shapes)[1]
    return dataclasses.replace(run, metrics=jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics))


def warm_up(run: Run) -> Run:
    """Show a new run's learner rollouts of random actions, if its algorithm asks for any.

    They are as many whole rollouts as make `warm_up_steps` or more. Training starts from the environments' first states
    all the same.
    """
    settings = run.settings
    algorithm = run.config.algorithm(spec_of(run.environment), settings.axis)
    if algorithm.warm_up is None:
        return run
    batch, see = batch_of(run.environment, settings), algorithm.warm_up

    def one(
        carry: tuple[Learner, State, TimeStep], number: Array
    ) -> tuple[tuple[Learner, State, TimeStep], None]:
        learner, state, timestep = carry
        key = group_key(stream_key(run.key, Stream.WARM_UP, number), settings)
        state, trajectory = random_rollout(batch, state, timestep, key, settings.num_steps)
        last = jax.tree.map(lambda x: x[-1], trajectory.timesteps)
        return (see(learner, trajectory), state, last), None

    count = -(-algorithm.warm_up_steps // (settings.num_envs * settings.num_steps))
    (learner, *_), _ = jax.lax.scan(one, (run.learner, run.state, run.timestep), jnp.arange(count))
    best = run.best._replace(policy=algorithm.policy(learner, clock_of(run)))
    return dataclasses.replace(run, learner=learner, best=best)


def train(run: Run, num_updates: Array | int, begins_interval: Array | bool = True) -> tuple[Run, Metrics]:
    """Make `num_updates` updates; their number is data, so that any number is one program.

    The sums of the metrics are a part of the run, so that an interval between two log points may be cut into several
    calls and gives the same numbers. A run with a fault (see `faults`) makes no further update. Under `vmap` all
    members loop together, and those with a fault keep all but the large arrays of `learner.local`: no replay is
    selected, and nothing reads theirs any more.

    Args:
      begins_interval: whether the sums begin at zero here.
    Returns:
      the run, and the sums of its metrics since the interval began.
    """
    end = run.updates + num_updates

    def is_running(run: Run) -> Array:
        return (run.updates < end) & (run.fault == NOWHERE)

    def body(run: Run) -> Run:
        # Without the sums, as the start of a run traces it, so that both share one trace.
        new, metrics, *_ = _update_traced_once(dataclasses.replace(run, metrics=()))
        if run.settings.keeps_last:
            newest = Best(policy_of(new), new.best.score, new.updates)
            new = dataclasses.replace(new, best=struct.where(new.fault == NOWHERE, newest, new.best))
        new = dataclasses.replace(new, metrics=joined(run.metrics, metrics))
        return _where(_is_selected(is_running(run)), new, run)

    metrics = jax.tree.map(lambda x: jnp.where(begins_interval, jnp.zeros_like(x), x), run.metrics)
    run = dataclasses.replace(run, metrics=metrics)
    run = jax.lax.while_loop(lambda run: any_member(is_running(run)), body, run)
    return run, run.metrics


def _where(is_selected: Array, new: Run, old: Run) -> Run:
    """Select the new state, but that large leaves of `learner.local` are the new ones in any case."""

    def select(new: Array, old: Array) -> Array:
        is_large = new.size * new.dtype.itemsize > MAX_SELECTED
        return new if is_large else struct.where(is_selected, new, old)

    local = jax.tree.map(select, new.learner.local, old.learner.local)
    new, old = (dataclasses.replace(x, learner=x.learner._replace(local=())) for x in (new, old))
    selected = struct.where(is_selected, new, old)
    return dataclasses.replace(selected, learner=selected.learner._replace(local=local))


@custom_vmap
def _is_selected(is_running: Array) -> Array:
    """Return True for a run by itself, whose loop has ended where it does not run; under `vmap` the argument."""
    return jnp.ones_like(is_running)


@_is_selected.def_vmap
def _(_: int, is_batched: list[bool], is_running: Array) -> tuple[Array, bool]:
    return is_running if is_batched[0] else _is_selected(is_running), is_batched[0]


def update_once(
    run: Run, faults: FirstFaults | tuple[()] = ()
) -> tuple[Run, Metrics, dict[str, Array], FirstFaults | tuple[()]]:
    """Make one rollout and one update from it.

    Args:
      faults: the environments' faults so far, where the rollout is to note them.

    Returns:
      the run, the sums of its metrics, flags of the quantities that are not finite, and the environments' faults.
    """
    settings = run.settings
    algorithm = run.config.algorithm(spec_of(run.environment), settings.axis)
    clock = clock_of(run)
    rollout_key = group_key(stream_key(run.key, Stream.ROLLOUT, run.updates), settings)
    rollout_state, trajectory = rollout(
        batch_of(run.environment, settings),
        algorithm,
        (algorithm.behaviour or algorithm.policy)(run.learner, clock),
        RolloutState(
            run.state,
            run.timestep,
            run.memory,
            run.episodes,
            no_ended_episodes(run.environment.num_agents),
            faults,
        ),
        rollout_key,
        settings.num_steps,
    )
    # Every key is of the update's number and not of a key before it: a resumed run draws what this one would have.
    update_key = stream_key(run.key, Stream.UPDATE, run.updates)
    keys = Keys(shared=update_key, local=group_key(update_key, settings))
    result = algorithm.update(run.learner, trajectory, keys, clock)
    learner, metrics, checks = checked_update(algorithm, result, run.learner)
    own_metrics = episode_metrics(rollout_state, trajectory.timesteps, settings.axis)
    metrics = {**checked_means(algorithm.update, metrics, own_metrics), **own_metrics}
    found = find_faults(trajectory, learner, checked_numbers(algorithm.update, checks, metrics, "check"))
    updates = run.updates + 1
    run = dataclasses.replace(
        run,
        learner=learner,
        state=rollout_state.state,
        timestep=rollout_state.timestep,
        memory=rollout_state.memory,
        episodes=rollout_state.episodes,
        updates=updates,
        fault=jnp.where(has_fault(found, settings.axis), updates, run.fault),
    )
    return run, metrics, found, rollout_state.faults


def leaves_read(run: Run) -> set[str]:
    """Name the leaves of a run, given as shapes, that its updates read; the others matter only where it starts."""
    jaxpr = jax.make_jaxpr(update_once)(run).jaxpr
    read = {x for equation in jaxpr.eqns for x in equation.invars if not isinstance(x, Literal)}
    return {name for name, x in zip(struct.named_leaves(run), jaxpr.invars, strict=True) if x in read}


# Tracing an update takes half a second. The start of a run, its memory bound and its training share one trace.
_update_traced_once = jax.jit(update_once, inline=True)


def locate_fault(run: Run) -> tuple[Run, dict[str, tuple[Array, Array]]]:
    """Make one update, and report which of its quantities are not finite, and where (see `faults.locate`).

    Where the environment explains faults, the run has of each environment at fault the state of that moment.
    """
    run, _, found, faults = update_once(run, no_faults(run.environment, run.state.env))
    if isinstance(faults, FirstFaults):
        run = dataclasses.replace(run, state=run.state._replace(env=faults.state))
    return run, locate(found, run.settings.axis)
