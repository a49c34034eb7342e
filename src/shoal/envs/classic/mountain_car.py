"""MountainCar-v0: swing an underpowered car up a hill."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.config.struct import struct
from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.classic import scenes
from shoal.envs.classic.bounds import bound_of
from shoal.types.spaces import Box, Discrete

STEEPNESS = 3.0  # the hill is sin(3 x)


class MountainCarState(NamedTuple):
    """Position and velocity of the car."""

    position: jax.Array
    velocity: jax.Array  # per step


def observe(state: MountainCarState) -> jax.Array:
    """Return the whole state as a vector, [2]."""
    return jnp.stack(state)


@struct
class Hill:
    """What both mountain cars share: the hill, its ends, and the goal."""

    gravity: float = parameter(default=0.0025)
    goal_position: float = parameter(default=0.5)
    goal_velocity: float = parameter(default=0.0)  # the smallest velocity that counts at the goal
    min_position: float = parameter(default=-1.2)  # where the wall is
    max_position: float = parameter(default=0.6)
    max_speed: float = parameter(default=0.07, above=0)  # per step
    lowest_start: float = parameter(default=-0.6)  # position; the valley's bottom is at -π/6
    highest_start: float = parameter(default=-0.4)

    frames_per_second = 30

    @property
    def observation_space(self) -> Box:
        """Position and velocity."""
        speed, lowest = bound_of(self.max_speed), bound_of(self.min_position, -np.inf)
        return Box(low=(lowest, -speed), high=(bound_of(self.max_position), speed))

    def reset(self, key: jax.Array) -> tuple[MountainCarState, TimeStep]:
        """Start at rest, near the bottom of the valley."""
        position = jax.random.uniform(key, minval=self.lowest_start, maxval=self.highest_start)
        state = MountainCarState(position, velocity=jnp.zeros_like(position))
        return state, restart(observe(state))

    def render(self, state: MountainCarState) -> np.ndarray:
        """Draw the car on the hill and the goal's flag, uint8 [height, width, 3]."""
        ends = float(self.min_position), float(self.max_position)
        return scenes.car_on_a_hill(float(state.position), float(self.goal_position), *ends, STEEPNESS)

    def _drive(self, state: MountainCarState, push: jax.Array) -> MountainCarState:
        """Make one step: the push and the slope change the velocity; the left wall stops the car."""
        velocity = state.velocity + push - jnp.cos(STEEPNESS * state.position) * self.gravity
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + velocity, self.min_position, self.max_position)
        hits_wall = (position <= self.min_position) & (velocity < 0)
        return MountainCarState(position, jnp.where(hits_wall, 0.0, velocity))

    def _is_at_goal(self, state: MountainCarState) -> jax.Array:
        return (state.position >= self.goal_position) & (state.velocity >= self.goal_velocity)


@environment
class MountainCar(Hill):
    """A car too weak for the slope reaches the goal by swinging back and forth.

    Every step gives reward -1; the episode terminates at the goal. The same as Gymnasium's MountainCar-v0.

    Source: Moore 1990, "Efficient Memory-based Learning for Robot Control".
    """

    force: float = parameter(default=0.001)  # change of velocity in one step by a push
    # The first so many of push left, coast, push right.
    num_actions: int = parameter(default=3, low=1, high=3)

    score_bounds = (-200.0, -98.0)  # mean returns of random actions, and of the best policies of the preset

    @property
    def action_space(self) -> Discrete:
        """Push left, coast, push right, or the first of these."""
        return Discrete(self.num_actions)

    def step(
        self, state: MountainCarState, action: jax.Array, key: jax.Array
    ) -> tuple[MountainCarState, TimeStep]:
        """Drive one step; deterministic, the key is not used."""
        state = self._drive(state, (action - 1) * self.force)
        return state, transition(observe(state), reward=-1.0, terminated=self._is_at_goal(state))
