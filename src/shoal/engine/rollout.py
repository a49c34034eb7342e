"""Rollout of a policy in a batch of environments."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.engine import team
from shoal.engine.contract import checked_act
from shoal.engine.nonfinite import keep_first_faults
from shoal.engine.run import Episodes
from shoal.envs.base import counted_reward
from shoal.envs.batch import Batch
from shoal.types import (
    Algorithm,
    Array,
    Environment,
    Memory,
    Policy,
    PyTree,
    TimeStep,
    Trajectory,
    for_actor,
    spec_of,
)
from shoal.types.agent_axis import alive_of, ends_of_lives, for_each
from shoal.types.metrics import Deviation, Greatest, Least, Mean, Metric
from shoal.xla.hoisting import split_by_key


class RolloutState(NamedTuple):
    """State of a rollout, and the statistics of the episodes that have ended."""

    state: PyTree
    timestep: TimeStep
    memory: Memory
    episodes: Episodes
    ended: "EndedEpisodes"
    faults: PyTree = ()  # the states at fault, if requested and explained by the environment
    played: PyTree = ()  # after a rollout, `Episodes` of the team after each step, [T, N]


class EndedEpisodes(NamedTuple):
    """Sums over the episodes that ended, of all environments together."""

    episodes: Array
    returned: Array  # returns; the team's, where there are several agents
    length: Array
    terminated: Array
    agents: PyTree = ()  # returns of each of several agents, [A]; () for one


def no_ended_episodes(num_agents: int = 1) -> EndedEpisodes:
    """Return the sums before any episode has ended."""
    agents = jnp.zeros(num_agents) if num_agents > 1 else ()
    zero = jnp.zeros(())
    return EndedEpisodes(zero, zero, zero, zero, agents)


def rollout(
    batch: Batch,
    algorithm: Algorithm,
    policy: Policy,
    rollout_state: RolloutState,
    key: Array,
    num_steps: int,
    *,
    greedy: bool = False,
) -> tuple[RolloutState, Trajectory]:
    """Make T steps of N environments; each rollout has a key of its own.

    Returns:
      the state at the end of the rollout, and the trajectory with T+1 time-steps.
    """

    act_key, env_key = jax.random.split(key)
    spec = spec_of(batch.env)

    def act(key: Array, policy: Policy, memory: Memory, timestep: TimeStep) -> tuple[Memory, PyTree, PyTree]:
        result = algorithm.act(policy, memory, for_actor(timestep, spec), key, greedy=greedy)
        return checked_act(algorithm, result, memory, batch)

    draw, finish = split_by_key(act, act_key, policy, rollout_state.memory, rollout_state.timestep)

    def step(
        rollout_state: RolloutState, randomness: tuple
    ) -> tuple[RolloutState, tuple[TimeStep, PyTree, PyTree, Episodes]]:
        draws, env_key = randomness
        memory, action, extras = finish(draws, policy, rollout_state.memory, rollout_state.timestep)
        state, timestep = batch.step(rollout_state.state, action, env_key)
        episodes, ended = count_episodes(
            batch.env, rollout_state.episodes, rollout_state.ended, timestep, rollout_state.timestep
        )
        faults = keep_first_faults(rollout_state.faults, state.env, timestep)
        played = episodes._replace(returned=team.of_team(batch.env, episodes.returned))
        recorded = timestep, action, extras, played
        return RolloutState(state, timestep, memory, episodes, ended, faults), recorded

    rollout_state = rollout_state._replace(state=batch.refresh(rollout_state.state, key), played=())
    memory = rollout_state.memory
    draws = jax.vmap(draw)(jax.random.split(act_key, num_steps))
    randomness = (draws, jax.random.split(env_key, num_steps))
    first = rollout_state.timestep
    rollout_state, (timesteps, actions, extras, played) = jax.lax.scan(step, rollout_state, randomness)
    timesteps = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, timesteps)
    return rollout_state._replace(played=played), Trajectory(timesteps, actions, extras, memory)


def random_rollout(
    batch: Batch, state: PyTree, timestep: TimeStep, key: Array, num_steps: int
) -> tuple[PyTree, Trajectory]:
    """Make T steps of N environments by uniform legal actions; the trajectory has no extras and no memory."""

    def step(carry: tuple[PyTree, TimeStep], key: Array) -> tuple[tuple[PyTree, TimeStep], tuple]:
        action_key, env_key = jax.random.split(key)
        action = batch.sample_actions(carry[1], action_key)
        after = batch.step(carry[0], action, env_key)
        return after, (after[1], action)

    (state, _), (timesteps, actions) = jax.lax.scan(step, (state, timestep), jax.random.split(key, num_steps))
    timesteps = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), timestep, timesteps)
    return state, Trajectory(timesteps, actions, (), ())


def count_episodes(
    environment: Environment, episodes: Episodes, ended: EndedEpisodes, timestep: TimeStep, before: TimeStep
) -> tuple[Episodes, EndedEpisodes]:
    """Add a time-step to the running episodes, and those that end with it to the sums; `before` is one step earlier.

    The step from a last to a first time-step belongs to no episode: it starts the next one at zero.
    """
    first, last = for_each(timestep.first, timestep), for_each(timestep.last, timestep)
    reward = counted_reward(environment, timestep.reward, before.alive)
    returned = jnp.where(first, 0.0, episodes.returned + reward)
    life = episodes.life
    if not isinstance(life, tuple):  # of one that ended with the step before, until here
        begins = jnp.asarray(before.restarted) | ~alive_of(before)
        life = jnp.where(first, 0.0, jnp.where(begins, 0.0, life) + reward)
    length = jnp.where(timestep.first, 0.0, episodes.length + 1.0)

    def total(x: Array) -> Array:
        return jnp.sum(jnp.where(timestep.last, x, 0.0))

    ended = EndedEpisodes(
        episodes=ended.episodes + total(jnp.ones_like(length)),
        returned=ended.returned + total(team.of_team(environment, returned)),
        length=ended.length + total(length),
        terminated=ended.terminated + total(timestep.terminated.astype(jnp.float32)),
        agents=ended.agents + jnp.sum(jnp.where(last, returned, 0.0), axis=0) if timestep.has_agents else (),
    )
    return Episodes(returned, length, life), ended


def episode_metrics(
    rollout_state: RolloutState, timesteps: TimeStep, axis: tuple[str, ...] = ()
) -> dict[str, Metric]:
    """Return the metrics of the episodes that ended in a rollout, over all groups together.

    Args:
      rollout_state: after it.
      timesteps: of it, [T+1, N].
    """
    ended, played, last = rollout_state.ended, rollout_state.played, timesteps.last[1:]
    if axis:
        ended = jax.lax.psum(ended, axis)
    metrics = _spread("episode_return", played.returned, last, axis)
    metrics |= _spread("episode_length", played.length, last, axis)
    if not isinstance(played.life, tuple):
        metrics |= _spread("life_return", played.life, ends_of_lives(timesteps), axis)
        metrics["lives"] = Mean(metrics["life_return"].weight, jnp.ones(()))
    for i, x in enumerate(tuple(ended.agents)):
        metrics[f"episode_return_agent_{i}"] = Mean(x, ended.episodes)
    return metrics | {
        "episode_return": Mean(ended.returned, ended.episodes),
        "episode_length": Mean(ended.length, ended.episodes),
        "episode_terminated": Mean(ended.terminated, ended.episodes),
        "episodes": Mean(ended.episodes, jnp.ones(())),
    }


def _spread(name: str, x: Array, counts: Array, axis: tuple[str, ...]) -> dict[str, Metric]:
    """Return mean, deviation, minimum and maximum of the numbers that count, over all groups together.

    They are taken once for the whole rollout, since reductions in each of its steps would cost more.
    """
    sums = jnp.sum(jnp.where(counts, x, 0.0)), jnp.sum(counts, dtype=jnp.float32)
    total, number = jax.lax.psum(sums, axis) if axis else sums
    mean = total / jnp.maximum(number, 1.0)
    squares = jnp.sum(jnp.where(counts, jnp.square(x - mean), 0.0))
    least, greatest = jnp.min(jnp.where(counts, x, jnp.inf)), jnp.max(jnp.where(counts, x, -jnp.inf))
    if axis:
        squares = jax.lax.psum(squares, axis)
        least, greatest = jax.lax.pmin(least, axis), jax.lax.pmax(greatest, axis)
    return {
        name: Mean(total, number),
        f"{name}_std": Deviation(number, mean, squares),
        f"{name}_min": Least(jnp.where(number > 0, least, 0.0), number),
        f"{name}_max": Greatest(jnp.where(number > 0, greatest, 0.0), number),
    }
