"""Several agents as streams: each agent of each world as an environment of one agent, [N, A] as N A.

An agent that takes no part at a time-step is a stream whose episode is over: `last` is true where it is not alive, and
`first` one step later. So a rule for one agent (weights, bootstrapping, memories that are cleared) needs no other form
for several, and an agent that comes back restarts.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from shoal.config import struct
from shoal.types import GLOBAL_STATE, Array, PyTree, TimeStep, Trajectory

PRESENT = "present"  # the entry that says who takes part, where a network is shown all agents at once


def fold(tree: PyTree, axis: int = 0) -> PyTree:
    """Join the axes of worlds and agents: [N, A, ...] to [N A, ...], where N is the given axis."""
    return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :]), tree)


def unfold(tree: PyTree, num_agents: int, axis: int = 0) -> PyTree:
    """Split the axis of streams: [N A, ...] to [N, A, ...]."""
    return jax.tree.map(lambda x: x.reshape(*x.shape[:axis], -1, num_agents, *x.shape[axis + 1 :]), tree)


def alive_of(timestep: TimeStep) -> Array:
    """Return which agents take part, of the shape of the rewards; all where there is one agent."""
    return jnp.ones(timestep.reward.shape, bool) if timestep.alive is None else timestep.alive


def for_each(world: Array, timestep: TimeStep) -> Array:
    """Repeat the values of worlds for each of their agents, where there are several."""
    return jnp.broadcast_to(world[..., None], timestep.reward.shape) if timestep.has_agents else world


def ends_of_lives(timesteps: TimeStep) -> Array:
    """Return where the step to a time-step ended an agent's life: [T, N, A] of T+1 time-steps with `restarted`."""
    is_over = for_each(timesteps.last, timesteps) | ~alive_of(timesteps)
    return ~is_over[:-1] & (is_over[1:] | jnp.asarray(timesteps.restarted)[1:])


def observations_of_agents(timestep: TimeStep) -> PyTree:
    """Return the observations with an axis of agents everywhere: the global state is repeated for each."""
    observation = timestep.observation
    if not isinstance(observation, Mapping) or GLOBAL_STATE not in observation:
        return observation
    num_agents, axis = timestep.reward.shape[-1], timestep.last.ndim

    def repeat(x: Array) -> Array:
        shape = (*x.shape[:axis], num_agents, *x.shape[axis:])
        return jnp.broadcast_to(jnp.expand_dims(x, axis), shape)

    return {**observation, GLOBAL_STATE: jax.tree.map(repeat, observation[GLOBAL_STATE])}


def as_streams(timestep: TimeStep, absent: Array | None = None) -> TimeStep:
    """Return the time-step of each agent as one of an environment of its own.

    What nobody may read is replaced, since it may hold anything, NaN included: the observations of who takes no part
    are zeros (unless a value is bootstrapped from them), and all actions are legal.

    Args:
      absent: who took no part at the step before, [..., N, A]; None for nobody.
    Returns:
      the time-step, whose fields all have the axes [..., N, A]; see `fold`.
    """
    first, last = for_each(timestep.first, timestep), for_each(timestep.last, timestep)
    observation, mask, discount = timestep.observation, timestep.action_mask, timestep.discount
    if absent is not None:
        first = first | absent
    if timestep.restarted is not None:  # an observation of the next life has no value for the one that ended
        first, discount = first | timestep.restarted, jnp.where(timestep.restarted, 0.0, discount)
    if timestep.alive is not None:
        is_read = timestep.alive | (last & (timestep.discount != 0))
        observation = struct.where(is_read, observation, jax.tree.map(jnp.zeros_like, observation))
        mask = struct.where(timestep.alive, mask, jax.tree.map(jnp.ones_like, mask))
        last = last | ~timestep.alive
    return TimeStep(observation, timestep.reward, discount, first, last, mask)


def trajectory_of_streams(trajectory: Trajectory, absent: Array | None = None) -> Trajectory:
    """Return a trajectory of N worlds of A agents, [T, N, A, ...], whose time-steps are those of streams; see
    `as_streams`.
    """
    timesteps = trajectory.timesteps
    missing = None
    if timesteps.alive is not None:
        before = jnp.zeros_like(timesteps.alive[0]) if absent is None else absent
        missing = jnp.concatenate([before[None], ~timesteps.alive[:-1]])
    return trajectory._replace(timesteps=as_streams(timesteps, missing))


def fold_trajectory(trajectory: Trajectory) -> Trajectory:
    """Join the axes of worlds and agents: [T, N, A, ...] to [T, N A, ...], and in the memory [N A, ...]."""
    timesteps, actions, extras = fold((trajectory.timesteps, trajectory.actions, trajectory.extras), 1)
    return Trajectory(timesteps, actions, extras, fold(trajectory.memory))
