"""MountainCar-v0: swing an underpowered car up a hill."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.classic import scenes
from shoal.types.spaces import Box, Discrete

MIN_POSITION, MAX_POSITION = -1.2, 0.6
MAX_SPEED = 0.07  # per step
START_POSITIONS = (-0.6, -0.4)  # the valley's bottom is at -π/6
STEEPNESS = 3.0  # the hill is sin(3 x)


class MountainCarState(NamedTuple):
    """Position and velocity of the car."""

    position: jax.Array
    velocity: jax.Array  # per step


def observe(state: MountainCarState) -> jax.Array:
    """Return the whole state as a vector, [2]."""
    return jnp.stack(state)


def start(key: jax.Array) -> tuple[MountainCarState, TimeStep]:
    """Start at rest, near the bottom of the valley."""
    low, high = START_POSITIONS
    position = jax.random.uniform(key, minval=low, maxval=high)
    state = MountainCarState(position, velocity=jnp.zeros_like(position))
    return state, restart(observe(state))


def drive(state: MountainCarState, push: jax.Array, gravity: jax.Array | float) -> MountainCarState:
    """Make one step: the push and the slope change the velocity; the left wall stops the car."""
    velocity = state.velocity + push - jnp.cos(STEEPNESS * state.position) * gravity
    velocity = jnp.clip(velocity, -MAX_SPEED, MAX_SPEED)
    position = jnp.clip(state.position + velocity, MIN_POSITION, MAX_POSITION)
    hits_wall = (position <= MIN_POSITION) & (velocity < 0)
    return MountainCarState(position, jnp.where(hits_wall, 0.0, velocity))


def picture(state: MountainCarState, goal: jax.Array | float) -> np.ndarray:
    """Draw the car on the hill and the goal's flag, uint8 [height, width, 3]."""
    return scenes.car_on_a_hill(float(state.position), float(goal), MIN_POSITION, MAX_POSITION, STEEPNESS)


@environment
class MountainCar:
    """A car too weak for the slope reaches the goal by swinging back and forth.

    Every step gives reward -1; the episode terminates at the goal. The same as Gymnasium's MountainCar-v0.

    Source: Moore 1990, "Efficient Memory-based Learning for Robot Control".
    """

    force: float = parameter(default=0.001)  # change of velocity in one step by a push
    gravity: float = parameter(default=0.0025)
    goal_position: float = parameter(default=0.5)
    goal_velocity: float = parameter(default=0.0)  # the smallest velocity that counts at the goal

    observation_space = Box(low=(MIN_POSITION, -MAX_SPEED), high=(MAX_POSITION, MAX_SPEED))
    action_space = Discrete(3)  # push left, coast, push right
    score_bounds = (-200.0, -98.0)  # mean returns of random actions, and of the best policies of the preset
    frames_per_second = 30

    def reset(self, key: jax.Array) -> tuple[MountainCarState, TimeStep]:
        """Start at rest, near the bottom of the valley."""
        return start(key)

    def step(
        self, state: MountainCarState, action: jax.Array, key: jax.Array
    ) -> tuple[MountainCarState, TimeStep]:
        """Drive one step; deterministic, the key is not used."""
        state = drive(state, (action - 1) * self.force, self.gravity)
        is_at_goal = (state.position >= self.goal_position) & (state.velocity >= self.goal_velocity)
        return state, transition(observe(state), reward=-1.0, terminated=is_at_goal)

    def render(self, state: MountainCarState) -> np.ndarray:
        """Draw the car on the hill."""
        return picture(state, self.goal_position)
