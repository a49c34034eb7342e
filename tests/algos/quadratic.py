"""A task of one step whose reward is minus the squared distance of the action from the best one."""

import jax.numpy as jnp

from shoal import envs
from shoal.envs.base import restart, transition
from shoal.types.spaces import Box

LOW, HIGH = (-2.0, 0.0), (6.0, 0.5)


@envs.environment
class Quadratic:
    """In the units of a range [-1, 1] for each number, though the bounds are neither alike nor symmetric."""

    best: tuple[float, float] = (0.25, -0.5)
    low: tuple[float, float] = LOW
    high: tuple[float, float] = HIGH
    scale: float = 1.0

    observation_space = Box(0.0, 1.0, (1,))

    @property
    def action_space(self):
        return Box(self.low, self.high, (2,))

    def reset(self, key):
        return (), restart(jnp.ones(1))

    def step(self, state, action, key):
        low, high = jnp.asarray(self.low), jnp.asarray(self.high)
        unit = 2.0 * (action - low) / (high - low) - 1.0
        reward = -self.scale * jnp.sum((unit - jnp.asarray(self.best)) ** 2)
        return (), transition(jnp.ones(1), reward, terminated=True)
