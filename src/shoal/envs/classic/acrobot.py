"""Acrobot-v1: swing a two-link robot above a bar."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.classic import scenes
from shoal.envs.classic.bounds import bound_of
from shoal.types.spaces import Box, Discrete

RUNGE_KUTTA_STAGES = ((0, 1 / 6), (1 / 2, 1 / 3), (1 / 2, 1 / 3), (1, 1 / 6))  # times and weights


class AcrobotState(NamedTuple):
    """The angles and angular velocities of two links, the first of which hangs from a fixed pivot."""

    angle_1: jax.Array  # of the first link, radians from hanging down
    angle_2: jax.Array  # of the second link, relative to the first
    velocity_1: jax.Array  # radians per second
    velocity_2: jax.Array


def observe(state: AcrobotState) -> jax.Array:
    """Return cosine and sine of both angles and the two velocities, [6]."""
    angle_1, angle_2, *velocities = state
    return jnp.stack((jnp.cos(angle_1), jnp.sin(angle_1), jnp.cos(angle_2), jnp.sin(angle_2), *velocities))


def wrap(angle: jax.Array) -> jax.Array:
    """Return the same direction within [-π, π]; an angle in this range is returned unchanged."""
    turns = jnp.round(angle / (2 * jnp.pi))
    return jnp.where(jnp.abs(angle) <= jnp.pi, angle, angle - 2 * jnp.pi * turns)


@environment
class Acrobot:
    """A gymnast on the high bar: torque at the middle joint alone swings the tip above the bar.

    Every step gives reward -1, except the one that reaches the height, which gives 0 and terminates. The
    equations of motion are the book's, integrated by one Runge-Kutta step of fourth order, as in Gymnasium's
    Acrobot-v1.

    Source: Sutton 1996, "Generalization in Reinforcement Learning: Successful Examples Using Sparse
    Coarse Coding"; Sutton and Barto 1998, "Reinforcement Learning: An Introduction", sec. 11.3.
    """

    gravity: float = parameter(default=9.8)
    length_1: float = parameter(default=1.0, above=0)  # of the first link
    mass_1: float = parameter(default=1.0, above=0)
    mass_2: float = parameter(default=1.0, above=0)
    centre_1: float = parameter(default=0.5, above=0)  # from a link's upper end to its centre of mass
    centre_2: float = parameter(default=0.5, above=0)
    inertia: float = parameter(default=1.0, above=0)  # of either link about its centre of mass
    torque: float = parameter(default=1.0)
    time_step: float = parameter(default=0.2, above=0)  # seconds
    max_velocity_1: float = parameter(default=4 * np.pi, above=0)  # radians per second
    max_velocity_2: float = parameter(default=9 * np.pi, above=0)
    target_height: float = parameter(default=1.0)  # metres above the pivot
    start_range: float = parameter(
        default=0.1, low=0
    )  # largest magnitude of each coordinate of the first state

    action_space = Discrete(3)  # torque -1, 0, +1
    score_bounds = (-499.0, -64.0)  # mean returns of random actions, and of the best policies of the preset
    frames_per_second = 15

    @property
    def observation_space(self) -> Box:
        """Cosine and sine of both angles, and the two velocities."""
        high = np.asarray([1, 1, 1, 1, bound_of(self.max_velocity_1), bound_of(self.max_velocity_2)])
        return Box(-high, high)

    def reset(self, key: jax.Array) -> tuple[AcrobotState, TimeStep]:
        """Start hanging down, nearly at rest."""
        state = AcrobotState(
            *jax.random.uniform(key, (4,), minval=-self.start_range, maxval=self.start_range)
        )
        return state, restart(observe(state))

    def step(self, state: AcrobotState, action: jax.Array, key: jax.Array) -> tuple[AcrobotState, TimeStep]:
        """Apply a torque for one time step; deterministic, the key is not used."""
        integrated = self._integrate(state, (action - 1) * self.torque)
        state = AcrobotState(
            wrap(integrated.angle_1),
            wrap(integrated.angle_2),
            jnp.clip(integrated.velocity_1, -self.max_velocity_1, self.max_velocity_1),
            jnp.clip(integrated.velocity_2, -self.max_velocity_2, self.max_velocity_2),
        )
        height = -jnp.cos(state.angle_1) - jnp.cos(state.angle_1 + state.angle_2)
        # Computed once for the reward and the termination: XLA may compute it twice and round differently
        # near the height.
        is_above = jax.lax.optimization_barrier(height > self.target_height)
        return state, transition(observe(state), jnp.where(is_above, 0.0, -1.0), terminated=is_above)

    def _integrate(self, state: AcrobotState, torque: jax.Array) -> AcrobotState:
        """Make one Runge-Kutta step of fourth order."""

        def advance(slope: AcrobotState, duration: jax.Array | float) -> AcrobotState:
            return AcrobotState(*(x + duration * dx for x, dx in zip(state, slope, strict=True)))

        def stage(carry: tuple, coefficients: jax.Array) -> tuple[tuple, None]:
            slope, total = carry
            fraction, weight = coefficients
            slope = self._slope(advance(slope, fraction * self.time_step), torque)
            return (slope, AcrobotState(*(t + weight * dx for t, dx in zip(total, slope, strict=True)))), None

        # A loop, since XLA on the CPU would otherwise compute the early stages again for every later one.
        zeros = AcrobotState(*(jnp.zeros_like(x) for x in state))
        (_, total), _ = jax.lax.scan(stage, (zeros, zeros), jnp.asarray(RUNGE_KUTTA_STAGES, jnp.float32))
        return advance(total, self.time_step)

    def _slope(self, state: AcrobotState, torque: jax.Array) -> AcrobotState:
        """Compute the state's derivative in time; the names d1, d2, φ1, φ2 are the book's."""
        angle_1, angle_2, velocity_1, velocity_2 = state
        m1, m2, l1, lc1, lc2 = self.mass_1, self.mass_2, self.length_1, self.centre_1, self.centre_2
        cos_2, sin_2 = jnp.cos(angle_2), jnp.sin(angle_2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos_2) + 2 * self.inertia
        d2 = m2 * (lc2**2 + l1 * lc2 * cos_2) + self.inertia
        phi2 = m2 * lc2 * self.gravity * jnp.sin(angle_1 + angle_2)
        phi1 = (
            -m2 * l1 * lc2 * velocity_2 * (velocity_2 + 2 * velocity_1) * sin_2
            + (m1 * lc1 + m2 * l1) * self.gravity * jnp.sin(angle_1)
            + phi2
        )
        acceleration_2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * velocity_1**2 * sin_2 - phi2) / (
            m2 * lc2**2 + self.inertia - d2**2 / d1
        )
        acceleration_1 = -(d2 * acceleration_2 + phi1) / d1
        return AcrobotState(velocity_1, velocity_2, acceleration_1, acceleration_2)

    def render(self, state: AcrobotState) -> np.ndarray:
        """Draw the two links and the height that the tip has to reach."""
        return scenes.two_links(float(state.angle_1), float(state.angle_2), float(self.target_height))
