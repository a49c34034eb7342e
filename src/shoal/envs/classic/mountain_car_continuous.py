"""MountainCarContinuous-v0: the mountain car with a continuous force."""

import jax
import jax.numpy as jnp

from shoal.envs.base import TimeStep, environment, parameter, transition
from shoal.envs.classic.mountain_car import Hill, MountainCarState, observe
from shoal.types.spaces import Box

MAX_THROTTLE = 1.0


@environment
class MountainCarContinuous(Hill):
    """The mountain car with a continuous force, which costs fuel.

    Every step costs 0.1 times the action squared, and the goal gives 100. An action beyond [-1, 1] is
    clipped, but its cost is computed before clipping. The episode terminates at the goal. The same as
    Gymnasium's MountainCarContinuous-v0.

    Source: Moore 1990, "Efficient Memory-based Learning for Robot Control"; the continuous
    version is that of de Broissia and Sigaud in Gymnasium.
    """

    power: float = parameter(default=0.0015)  # the change of velocity in one step by the action 1
    goal_position: float = parameter(default=0.45)
    goal_reward: float = parameter(default=100.0, in_reward=True)
    fuel_cost: float = parameter(default=0.1)

    action_space = Box(low=-MAX_THROTTLE, high=MAX_THROTTLE, shape=(1,))
    score_bounds = (-33.0, 95.0)  # mean returns of random actions, and of the best policies of the preset

    def step(
        self, state: MountainCarState, action: jax.Array, key: jax.Array
    ) -> tuple[MountainCarState, TimeStep]:
        """Drive one step; deterministic, the key is not used."""
        (requested,) = action
        throttle = jnp.clip(requested, -MAX_THROTTLE, MAX_THROTTLE)
        state = self._drive(state, throttle * self.power)
        is_at_goal = self._is_at_goal(state)
        reward = jnp.where(is_at_goal, self.goal_reward, 0.0) - self.fuel_cost * requested**2
        return state, transition(observe(state), reward, terminated=is_at_goal)
