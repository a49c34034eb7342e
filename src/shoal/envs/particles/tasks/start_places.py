"""Random places at a minimum distance from each other: in randomly chosen cells of a lattice, moved within them."""

import math

import jax
import jax.numpy as jnp

from shoal.types import Array

SPARE = 2.0  # as many cells as this, for each place, if there is room


def most_along(side: float, apart: float) -> int:
    """Return how many places `apart` from each other lie along a side; 0 if the side is negative."""
    return math.floor(side / apart * (1 + 1e-6)) + 1


def lattice(number: int, sides: tuple[float, ...], apart: float) -> tuple[int, ...]:
    """Return how many cells a lattice has along each axis: enough for `number` places `apart` from each
    other, and more if there is room. As many must fit (`most_along`).
    """
    most = [most_along(side, apart) for side in sides]
    size = (math.prod(side + apart for side in sides) / (SPARE * number)) ** (1 / len(sides))
    wanted = [max(1, math.ceil((side + apart) / size)) for side in sides]
    cells = [min(x, y) for x, y in zip(wanted, most, strict=True)]
    while math.prod(cells) < number:
        axis = max(range(len(sides)), key=lambda i: most[i] - cells[i])
        cells[axis] += 1
    return tuple(cells)


def draw_places(key: Array, number: int, sides: Array, cells: tuple[int, ...], apart: Array | float) -> Array:
    """Draw places in a region [0, side] of each axis that are at least `apart` from each other, [D, number];
    `lattice` gives the cells.
    """
    choice_key, shake_key = jax.random.split(key)
    chosen = jax.random.permutation(choice_key, math.prod(cells))[:number]
    index = jnp.stack(jnp.unravel_index(chosen, cells)).astype(jnp.float32)
    size = (sides + apart) / jnp.asarray(cells, jnp.float32)
    room = jnp.maximum(size - apart, 0.0)[:, None]
    shift = jax.random.uniform(shake_key, (len(cells), number)) * room
    return jnp.minimum(index * size[:, None] + shift, sides[:, None])
