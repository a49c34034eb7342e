"""The physics of the particle worlds: discs in the plane that are driven, slow down and push each other away.

Positions and velocities are arrays [A, 2], x to the right and y upwards, in the units of a field whose corners are
(-1, -1) and (1, 1). An action of an agent that moves is one of `MOVES`.

The functions of physics count axes from the first one, and arrays may have further ones at their end: [A, 2, ...] are
then several worlds, side by side. So a batch can have its axis last (`shoal.xla.batch_last`).

Source: Lowe et al. 2017, "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments"; Mordatch and Abbeel
2018, "Emergence of Grounded Compositional Language in Multi-Agent Populations".
"""

import jax
import jax.numpy as jnp

from shoal.envs.base import parameter
from shoal.types import Array
from shoal.xla.batch_last import add_up

MOVES = STAY, LEFT, RIGHT, DOWN, UP = tuple(range(5))
MAX_BODIES = 1000  # of a kind in one world; each pair of bodies is computed
FIELD = 1.0  # half the side of the square in which agents start


def count(default: int, *, smallest: int) -> int:
    """Declare a field that is a number of agents, landmarks or obstacles: a size of the world."""
    return parameter(default=default, low=smallest, high=MAX_BODIES)


def draw_places(key: Array, number: int) -> Array:
    """Draw places in the field uniformly, [number, 2]."""
    return jax.random.uniform(key, (number, 2), minval=-FIELD, maxval=FIELD)


def drive(action: Array, acceleration: Array | float) -> Array:
    """Return the force, [A, 2, ...], of each agent's action, one of `MOVES`, [A, ...]; the acceleration is a
    number or [A, ...].
    """
    rightwards = jnp.where(action == RIGHT, 1.0, jnp.where(action == LEFT, -1.0, 0.0))
    upwards = jnp.where(action == UP, 1.0, jnp.where(action == DOWN, -1.0, 0.0))
    return jnp.stack([rightwards * acceleration, upwards * acceleration], axis=1)


def offsets(start: Array, end: Array) -> Array:
    """Return the vector from each of the points [A, 2, ...] to each of the points [B, 2, ...], as [A, B, 2, ...]."""
    return end[None] - start[:, None]


def distances(start: Array, end: Array) -> Array:
    """Return the distance of each of the points [A, 2, ...] to each of the points [B, 2, ...], as [A, B, ...]."""
    return _lengths(offsets(start, end))


def _lengths(offset: Array) -> Array:
    """Return the lengths of vectors [A, B, 2, ...]."""
    return jnp.sqrt(offset[:, :, 0] ** 2 + offset[:, :, 1] ** 2)


def repulsion(
    position: Array, bodies: Array, touching: Array | float, strength: Array | float, margin: Array | float
) -> Array:
    """Return the force on each agent by all bodies that it touches.

        f_a = Σ_b c m log(1 + exp((s_ab - d_ab) / m)) (p_a - p_b) / d_ab,   d_ab = |p_a - p_b|

    So bodies that overlap by more than a few margins m are pushed apart as by a spring of strength c; the force between
    others is nearly 0. A body at exactly the place of another has no direction to be pushed to, and the force is 0.

    Args:
      position: p_a of the agents, [A, 2, ...].
      bodies: p_b of all bodies, [B, 2, ...]; the agents themselves may be among them.
      touching: the distance s_ab at which two bodies touch, the sum of their radii: a number or [A, B, ...].
      strength: c, the force per unit of length of the overlap.
      margin: m.
    Returns:
      [A, 2, ...].
    """
    offset = offsets(position, bodies)
    distance = _lengths(offset)
    overlap = margin * jnp.logaddexp((touching - distance) / margin, 0.0)
    per_distance = strength * overlap / jnp.where(distance > 0, distance, 1.0)
    return -add_up(offset * per_distance[:, :, None], axis=1)


def move(
    position: Array, velocity: Array, force: Array, damping: Array | float, time_step: Array | float
) -> tuple[Array, Array]:
    """Advance bodies of mass 1 by one time step; all arrays are [A, 2, ...].

    The position follows the velocity from before the step; the velocity then loses the fraction `damping` and
    gains the force times the time step.
    """
    return position + velocity * time_step, velocity * (1 - damping) + force * time_step


def limit_speed(velocity: Array, max_speed: Array | float) -> Array:
    """Scale velocities [A, 2, ...] that are faster than `max_speed`, a number or [A, ...], down to it."""
    speed = jnp.sqrt(velocity[:, 0] ** 2 + velocity[:, 1] ** 2)
    scale = jnp.where(speed > max_speed, max_speed / jnp.maximum(speed, max_speed), 1.0)
    return velocity * scale[:, None]


def without_own(x: Array) -> Array:
    """Remove each agent's own entry: [A, A, ...] to [A, A-1, ...], the order of the others kept.

    It equals `x[a, [b for b in range(A) if b != a]]` for each agent a, by slices alone, which cost a compiled program
    less than a gather: of the A² entries in a row every (A+1)-th is an own one.
    """
    agents, rest = len(x), x.shape[2:]
    row = x.reshape(agents * agents, *rest)[1:]
    return row.reshape(agents - 1, agents + 1, *rest)[:, :-1].reshape(agents, agents - 1, *rest)


def flat(x: Array) -> Array:
    """Flatten all but the first axis."""
    return x.reshape(len(x), -1)
