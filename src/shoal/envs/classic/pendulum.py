"""Pendulum-v1: swing a pendulum up and hold it there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.classic import scenes
from shoal.envs.classic.bounds import bound_of
from shoal.types.spaces import Box


class PendulumState(NamedTuple):
    """Angle and angular velocity of the pendulum."""

    angle: jax.Array  # radians from upright; not wrapped to one turn
    velocity: jax.Array  # radians per second


def observe(state: PendulumState) -> jax.Array:
    """Return the tip's position and the angular velocity, [3]."""
    return jnp.stack((jnp.cos(state.angle), jnp.sin(state.angle), state.velocity))


def normalise_angle(angle: jax.Array) -> jax.Array:
    """Return the same direction as an angle in [-π, π)."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi


@environment
class Pendulum:
    """Swing a pendulum up and keep it upright, with a torque too weak to lift it at once.

    The reward is `-(angle² + 0.1 velocity² + 0.001 torque²)`, of the state before the step and the clipped
    torque. Episodes end only by the time limit. The rod is uniform; its moment of inertia about the pivot is
    `m l² / 3`. The same as Gymnasium's Pendulum-v1.

    Source: Brockman et al. 2016, "OpenAI Gym".
    """

    gravity: float = parameter(default=10.0)
    mass: float = parameter(default=1.0, above=0)
    length: float = parameter(default=1.0, above=0)
    time_step: float = parameter(default=0.05, above=0)  # seconds
    velocity_cost: float = parameter(default=0.1)
    torque_cost: float = parameter(default=0.001)
    max_speed: float = parameter(default=8.0, above=0)  # radians per second
    max_torque: float = parameter(default=2.0, above=0, static=True)  # the bound of the action space
    start_speed: float = parameter(default=1.0, low=0)  # the largest one at the start

    score_bounds = (-1226.0, -147.0)  # mean returns of random actions, and of the best policies of the preset
    frames_per_second = 20

    @property
    def observation_space(self) -> Box:
        """The tip's position and the angular velocity."""
        high = np.asarray([1, 1, bound_of(self.max_speed)])
        return Box(-high, high)

    @property
    def action_space(self) -> Box:
        """The torque."""
        return Box(-self.max_torque, self.max_torque, (1,))

    def reset(self, key: jax.Array) -> tuple[PendulumState, TimeStep]:
        """Start at any angle, turning slowly."""
        limits = jnp.stack((jnp.pi, self.start_speed))
        angle, velocity = jax.random.uniform(key, (2,), minval=-limits, maxval=limits)
        state = PendulumState(angle, velocity)
        return state, restart(observe(state))

    def step(self, state: PendulumState, action: jax.Array, key: jax.Array) -> tuple[PendulumState, TimeStep]:
        """Apply a torque for one time step; deterministic, the key is not used."""
        angle, velocity = state
        torque = jnp.clip(action[0], -self.max_torque, self.max_torque)
        cost = normalise_angle(angle) ** 2 + self.velocity_cost * velocity**2 + self.torque_cost * torque**2
        gravity_acceleration = 3 * self.gravity / (2 * self.length) * jnp.sin(angle)
        torque_acceleration = 3 / (self.mass * self.length**2) * torque
        velocity = jnp.clip(
            velocity + (gravity_acceleration + torque_acceleration) * self.time_step,
            -self.max_speed,
            self.max_speed,
        )
        state = PendulumState(angle + velocity * self.time_step, velocity)
        return state, transition(observe(state), -cost)

    def render(self, state: PendulumState) -> np.ndarray:
        """Draw the rod on its pivot."""
        return scenes.pendulum(float(state.angle), float(self.length))
