"""Boundaries of a world: along each axis periodic, two walls, a floor alone, or none.

The box has one corner at the origin and sides [D], in m. A boundary of an axis is one of

- "periodic": what leaves at one side enters at the other; distances are those to the nearest image;
- "walls": a wall at 0 and one at the side's length, with which bodies are in contact as with other bodies;
- "floor": a wall at 0 alone;
- "open": nothing.

Of the two walls of an axis a body touches at most one, so that each axis needs one contact, with the nearer wall.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.types import Array

BOUNDARIES = ("periodic", "walls", "floor", "open")


def walled_axes(boundaries: tuple[str, ...]) -> tuple[int, ...]:
    """Return the axes that have a wall."""
    return tuple(axis for axis, kind in enumerate(boundaries) if kind in ("walls", "floor"))


def nearest_image(offset: Array, box: Array, boundaries: tuple[str, ...]) -> Array:
    """Return the offsets [D, ...] to the nearest periodic image."""
    return _without_sides(jnp.round, offset, box, boundaries)


def holds_one_image(box: Array, radius: Array, boundaries: tuple[str, ...]) -> Array:
    """Return whether particles of radii [N, ...] touch at most by their nearest images, the only ones that
    are looked at, [...].

    Along a periodic axis shorter than two diameters (of the two largest particles) they may touch on both sides.

    Raises:
      ShoalError: they may touch by two images, if the numbers are not traced.
    """
    least = 2 * jnp.sum(jnp.sort(radius, axis=0)[-2:], axis=0)
    sides = jnp.stack([side for side, kind in zip(box, boundaries, strict=True) if kind == "periodic"])
    holds = jnp.all(sides >= least, axis=0)
    if not isinstance(holds, jax.core.Tracer) and not jnp.all(holds):
        raise ShoalError(
            f"box={jnp.min(sides):g} is too short for a periodic axis, along which two particles would touch on both "
            f"sides; give {jnp.max(least):g} or more, two of the largest diameters."
        )
    return holds


def into_box(position: Array, box: Array, boundaries: tuple[str, ...]) -> Array:
    """Return positions [D, ...], those along a periodic axis moved into [0, side)."""
    return _without_sides(jnp.floor, position, box, boundaries)


def _without_sides(
    rounded: Callable[[Array], Array], vector: Array, box: Array, boundaries: tuple[str, ...]
) -> Array:
    """Subtract, along periodic axes, the whole number of sides to which x / side is rounded."""
    if "periodic" not in boundaries:
        return vector
    parts = [
        x - side * rounded(x / side) if kind == "periodic" else x
        for x, side, kind in zip(vector, box, boundaries, strict=True)
    ]
    return jnp.stack(parts)


def wall_directions(position: Array, box: Array, boundaries: tuple[str, ...]) -> tuple[Array, Array]:
    """Return the direction to the nearer wall of each walled axis, [D, W, ...], and its distance, [W, ...]."""
    directions, distances = [], []
    for axis in walled_axes(boundaries):
        x, side = position[axis], box[axis]
        is_far = (x > side / 2) if boundaries[axis] == "walls" else jnp.zeros(x.shape, bool)
        sign = jnp.where(is_far, 1.0, -1.0).astype(x.dtype)
        zero = jnp.zeros_like(sign)
        directions.append(jnp.stack([sign if i == axis else zero for i in range(len(position))]))
        distances.append(jnp.where(is_far, side - x, x))
    return jnp.stack(directions, axis=1), jnp.stack(distances)
