"""The worlds of the founding works that Shoal does not have: jaxagents' hunt, and JaxDEM's reward of one navigator."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import shoal
from shoal.envs.base import environment
from shoal.envs.particles.tasks.navigators import Navigator
from shoal.envs.particles.tasks.particle_task import TaskState
from shoal.types import Array, TimeStep
from shoal.types.spaces import Box

PREY, PREDATOR = 0, 1


class HuntState(NamedTuple):
    """Where the two are, [2, 2], and since when."""

    time: Array
    positions: Array


@shoal.environment
class Hunt:
    """A predator hunts a faster prey in the unit square; both are shown time, positions and directions, [7].

    Each chooses an angle; beyond plus and minus pi it is cut. The prey is paid 1 a step and loses 100 where it is
    caught; the predator the opposite. An episode ends there, or with the first step after `max_time`: to end by time
    is to end, as jaxagents has it.
    """

    prey_speed: float = 3.0
    predator_speed: float = 1.0
    predator_radius: float = 0.2
    max_time: float = 2.0
    time_step: float = 0.01
    caught_reward: float = 100.0

    num_agents = 2
    roles = (PREY, PREDATOR)
    observation_space = Box(-jnp.inf, jnp.inf, (7,))
    action_space = Box(-jnp.pi, jnp.pi, (1,))

    def observe(self, state: HuntState, angles: Array) -> Array:
        """Return the same for both, [2, 7]."""
        shown = jnp.concatenate([state.time[None], state.positions.ravel(), angles])
        return jnp.broadcast_to(shown, (2, 7))

    def reset(self, key: Array) -> tuple[HuntState, TimeStep]:
        """Draw two places."""
        state = HuntState(jnp.zeros(()), jax.random.uniform(key, (2, 2)))
        return state, shoal.restart(self.observe(state, jnp.zeros(2)), num_agents=2)

    def step(self, state: HuntState, action: Array, key: Array) -> tuple[HuntState, TimeStep]:
        """Move both; walls stop them."""
        angles = jnp.clip(action[:, 0], -jnp.pi, jnp.pi)
        way = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        speeds = jnp.stack([jnp.asarray(self.prey_speed), jnp.asarray(self.predator_speed)])
        positions = jnp.clip(state.positions + self.time_step * speeds[:, None] * way, 0.0, 1.0)
        is_caught = jnp.linalg.norm(positions[PREY] - positions[PREDATOR]) <= self.predator_radius
        is_over = state.time >= self.max_time - 0.01 * self.time_step
        reward = jnp.where(is_caught, -self.caught_reward, 1.0) * jnp.array([1.0, -1.0])
        state = HuntState(state.time + self.time_step, positions)
        return state, shoal.transition(self.observe(state, angles), reward, terminated=is_caught | is_over)


@environment
class SingleNavigator(Navigator):
    """JaxDEM's `single_navigator`: exp(-2 d') - exp(-2 d) - 0.1 (K' - K) a step of the physics, and no end but time."""

    def step(self, state: TaskState, action: Array, key: Array) -> tuple[TaskState, TimeStep]:
        """Drive the disc for one step, with JaxDEM's reward."""
        after, timestep = super().step(state, action, key)
        gained = self._potential(after) - self._potential(state)
        return after, timestep._replace(reward=gained)

    def _potential(self, state: TaskState) -> Array:
        kinetic = 0.5 * state.world.mass[0] * jnp.sum(state.particles.velocity**2)
        return jnp.exp(-2 * self.way_to_go(state)[0]) - 0.1 * kinetic
