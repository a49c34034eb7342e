"""MountainCarContinuous-v0: the mountain car with a continuous force."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, transition
from shoal.envs.classic.mountain_car import (
    MAX_POSITION,
    MAX_SPEED,
    MIN_POSITION,
    MountainCarState,
    drive,
    observe,
    picture,
    start,
)
from shoal.types.spaces import Box

MAX_THROTTLE = 1.0


@environment
class MountainCarContinuous:
    """The mountain car with a continuous force, which costs fuel.

    Every step costs 0.1 times the action squared, and the goal gives 100. An action beyond [-1, 1] is
    clipped, but its cost is computed before clipping. The episode terminates at the goal. The same as
    Gymnasium's MountainCarContinuous-v0.

    Source: Moore 1990, "Efficient Memory-based Learning for Robot Control"; the continuous
    version is that of de Broissia and Sigaud in Gymnasium.
    """

    power: float = parameter(default=0.0015)  # the change of velocity in one step by the action 1
    gravity: float = parameter(default=0.0025)
    goal_position: float = parameter(default=0.45)
    goal_velocity: float = parameter(default=0.0)  # the smallest velocity that counts at the goal
    goal_reward: float = parameter(default=100.0, in_reward=True)
    fuel_cost: float = parameter(default=0.1)

    observation_space = Box(low=(MIN_POSITION, -MAX_SPEED), high=(MAX_POSITION, MAX_SPEED))
    action_space = Box(low=-MAX_THROTTLE, high=MAX_THROTTLE, shape=(1,))
    score_bounds = (-33.0, 95.0)  # mean returns of random actions, and of the best policies of the preset
    frames_per_second = 30

    def reset(self, key: jax.Array) -> tuple[MountainCarState, TimeStep]:
        """Start at rest, near the bottom of the valley."""
        return start(key)

    def step(
        self, state: MountainCarState, action: jax.Array, key: jax.Array
    ) -> tuple[MountainCarState, TimeStep]:
        """Drive one step; deterministic, the key is not used."""
        (requested,) = action
        throttle = jnp.clip(requested, -MAX_THROTTLE, MAX_THROTTLE)
        state = drive(state, throttle * self.power, self.gravity)
        is_at_goal = (state.position >= self.goal_position) & (state.velocity >= self.goal_velocity)
        reward = jnp.where(is_at_goal, self.goal_reward, 0.0) - self.fuel_cost * requested**2
        return state, transition(observe(state), reward, terminated=is_at_goal)

    def render(self, state: MountainCarState) -> np.ndarray:
        """Draw the car on the hill."""
        return picture(state, self.goal_position)
