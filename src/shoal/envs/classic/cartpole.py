"""CartPole-v1: balance a pole on a cart."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.classic import scenes
from shoal.envs.classic.bounds import bound_of
from shoal.types.spaces import Box, Discrete


class CartPoleState(NamedTuple):
    """Positions and velocities of the cart and the pole."""

    position: jax.Array  # of the cart, metres
    velocity: jax.Array
    angle: jax.Array  # of the pole, radians from upright, clockwise
    angular_velocity: jax.Array


def observe(state: CartPoleState) -> jax.Array:
    """Return the whole state as a vector, [4]."""
    return jnp.stack(state)


@environment
class CartPole:
    """A pole, hinged to a cart, is kept upright by pushing the cart left or right.

    Every step gives reward 1. The episode terminates when the cart leaves the track or the pole leans
    more than 12 degrees. The equations of motion are those of a cart without friction, integrated by
    Euler's method, as in Gymnasium's CartPole-v1.

    Source: Barto, Sutton and Anderson 1983, "Neuronlike Adaptive Elements That Can Solve Difficult
    Learning Control Problems"; the corrected equations are in Florian 2007, "Correct equations for the
    dynamics of the cart-pole system", eqs. 23 and 24.
    """

    gravity: float = parameter(default=9.8)
    cart_mass: float = parameter(default=1.0, above=0)
    pole_mass: float = parameter(default=0.1, above=0)
    half_length: float = parameter(default=0.5, above=0)  # of the pole: from the hinge to its centre of mass
    force: float = parameter(default=10.0)  # of a push
    time_step: float = parameter(default=0.02, above=0)  # seconds
    position_limit: float = parameter(default=2.4, above=0)  # metres from the middle of the track
    angle_limit: float = parameter(default=12 * 2 * math.pi / 360, above=0)  # radians from upright
    start_range: float = parameter(
        default=0.05, low=0
    )  # largest magnitude of each coordinate of the first state

    action_space = Discrete(2)  # push left, push right
    score_bounds = (22.0, 500.0)  # mean returns of random actions, and of the best policies of the preset
    frames_per_second = 50

    @property
    def observation_space(self) -> Box:
        """The whole state; position and angle end the episode at half of their bounds."""
        position, angle = bound_of(self.position_limit), bound_of(self.angle_limit)
        high = np.asarray([2 * position, np.inf, 2 * angle, np.inf])
        return Box(-high, high)

    def reset(self, key: jax.Array) -> tuple[CartPoleState, TimeStep]:
        """Start nearly upright and nearly at rest, in the middle of the track."""
        start = jax.random.uniform(key, (4,), minval=-self.start_range, maxval=self.start_range)
        state = CartPoleState(*start)
        return state, restart(observe(state))

    def step(self, state: CartPoleState, action: jax.Array, key: jax.Array) -> tuple[CartPoleState, TimeStep]:
        """Push the cart for one time step; deterministic, the key is not used."""
        state = self._move(state, jnp.where(action == 1, self.force, -self.force))
        fallen = (jnp.abs(state.position) > self.position_limit) | (jnp.abs(state.angle) > self.angle_limit)
        return state, transition(observe(state), reward=1.0, terminated=fallen)

    def _move(self, state: CartPoleState, force: jax.Array) -> CartPoleState:
        position, velocity, angle, angular_velocity = state
        total_mass = self.cart_mass + self.pole_mass
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        pole_moment = self.pole_mass * self.half_length
        push = (force + pole_moment * angular_velocity**2 * sin) / total_mass
        angular_acceleration = (self.gravity * sin - cos * push) / (
            self.half_length * (4 / 3 - self.pole_mass * cos**2 / total_mass)
        )
        acceleration = push - pole_moment * angular_acceleration * cos / total_mass
        return CartPoleState(
            position + self.time_step * velocity,
            velocity + self.time_step * acceleration,
            angle + self.time_step * angular_velocity,
            angular_velocity + self.time_step * angular_acceleration,
        )

    def render(self, state: CartPoleState) -> np.ndarray:
        """Draw the cart on its track."""
        return scenes.cart_with_pole(
            float(state.position), float(state.angle), 2 * float(self.half_length), float(self.position_limit)
        )
