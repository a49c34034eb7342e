"""Sensing by rays, and by angular bins.

Directions are fixed in space, the k-th of K at the angle 2π k / K from the x axis. Arrays of agents are [A, ...],
with the components of vectors first, and any further axes may follow.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.particles.physics.boxes import nearest_image
from shoal.envs.particles.physics.vectors import dot, square_root
from shoal.types import Array

KINDS = ("rays", "bins")
# Of the offsets to discs, [2, A, B, ...], which of them count, and the numbers of a direction: the distance at which
# one is sensed there, [A, ...].
Sense = Callable[..., Array]
MAX_SLICES = 64  # bodies
MAX_IMAGES = 4  # of a periodic box along each direction of an axis


class Scan(NamedTuple):
    """The nearest disc or wall along each of K rays, for each agent."""

    distance: Array  # from the agent's centre, [A, K, ...]; the range where nothing is
    is_disc: Array  # [A, K, ...]
    is_wall: Array  # [A, K, ...]


def directions(num_rays: int) -> np.ndarray:
    """Return the unit vectors of the rays, [2, K]; those along an axis exactly so."""
    angle = 2 * np.pi * np.arange(num_rays) / num_rays
    return np.round(np.stack([np.cos(angle), np.sin(angle)]), 15)


def offsets_to(position: Array, others: Array, box: Array, boundaries: tuple[str, ...]) -> Array:
    """Return the vectors from agents [2, A, ...] to bodies [2, B, ...], by their nearest image, [2, A, B, ...]."""
    offset = others[:, None] - position[:, :, None]
    return nearest_image(offset, box.reshape(2, 1, 1, *box.shape[1:]), boundaries)


def _each(sense: Sense, numbers: np.ndarray, offset: Array, is_seen: Array) -> Array:
    """Return the measurement in each of K directions, whose numbers are [K, ...]: [A, K, ...]."""
    return jnp.stack([sense(offset, is_seen, *map(float, x)) for x in numbers], axis=1)


def _on_ray(radius: Array, reach: Array | float) -> Sense:
    """Return the function of the smallest distance along one direction."""

    def nearest(offset: Array, is_seen: Array, x: Array, y: Array) -> Array:
        along = x * offset[0] + y * offset[1]
        across = x * offset[1] - y * offset[0]
        half_chord = square_root(radius**2 - across**2)
        hits = is_seen & (along > 0) & (jnp.abs(across) <= radius)
        distance = jnp.where(hits, jnp.maximum(along - half_chord, 0.0), reach)
        return jnp.minimum(_least(distance), reach)

    return nearest


def _least(distance: Array) -> Array:
    """Return the minimum over the second axis; slices of few bodies, which a batch on the CPU is faster with."""
    if distance.shape[1] > MAX_SLICES:
        return jnp.min(distance, axis=1)
    return functools.reduce(jnp.minimum, jnp.unstack(distance, axis=1))


def wall_distances(
    position: Array, box: Array, boundaries: tuple[str, ...], num_rays: int, reach: Array | float
) -> Array:
    """Return the distance at which each ray meets a wall, [A, K, ...]; `reach` where it meets none."""
    found = []
    for direction in directions(num_rays).T:
        nearest = jnp.broadcast_to(jnp.asarray(reach, position.dtype), position.shape[1:])
        for axis in range(2):
            step = float(direction[axis])
            if boundaries[axis] != "walls" or step == 0:
                continue
            gap = box[axis] - position[axis] if step > 0 else position[axis]
            nearest = jnp.minimum(nearest, jnp.maximum(gap, 0.0) / abs(step))
        found.append(nearest)
    return jnp.stack(found, axis=1)


def scan(
    kind: str,
    position: Array,
    radius: Array,
    box: Array,
    boundaries: tuple[str, ...],
    num_rays: int,
    reach: Array | float,
) -> Scan:
    """Return the nearest objects in K directions of all agents, at [2, A, ...]: other agents, images of all across a
    periodic boundary, or walls.

    Args:
      kind: "rays", which meet discs; or "bins", angles that hold their centres, with the walls that the middle of an
        angle meets.
    """
    if kind == "rays":
        sense, numbers = _on_ray(radius, reach), directions(num_rays).T
    else:
        sense, numbers = _in_bin(reach), _bin_ends(num_rays)
    walls = wall_distances(position, box, boundaries, num_rays, reach)
    agents = position.shape[1]
    offset = offsets_to(position, position, box, boundaries)
    if agents == 1:
        discs = jnp.broadcast_to(jnp.asarray(reach, position.dtype), walls.shape)
    else:
        discs = _each(sense, numbers, offset, _others(agents, offset.ndim - 3))
    if "periodic" in boundaries:
        # A ray can meet a disc whose centre is farther than the range.
        beyond = jnp.max(radius, axis=0) if kind == "rays" else 0.0
        discs = _least_of_images(sense, numbers, discs, offset, box, boundaries, reach + beyond)
    return Scan(
        jnp.minimum(discs, walls), (discs < reach) & (discs <= walls), (walls < reach) & (walls < discs)
    )


def _least_of_images(
    sense: Sense,
    numbers: np.ndarray,
    nearest: Array,
    offset: Array,
    box: Array,
    boundaries: tuple[str, ...],
    farthest: Array | float,
) -> Array:
    """Return the least distance of the nearest images and of all others whose centres may be as far as `farthest`.

    How many there are depends on data: none in a box of more than twice that size, which costs nothing. No gradient
    passes through them, since a loop of unknown length has none. A loop over the directions is compiled once for all
    of them, and not again for each.
    """
    nearest_only, offset, box = map(jax.lax.stop_gradient, (nearest, offset, box))
    around = [
        jnp.max(jnp.ceil(jax.lax.stop_gradient(farthest) / side + 0.5)).astype(jnp.int32) - 1
        if kind == "periodic"
        else jnp.zeros((), jnp.int32)
        for side, kind in zip(box, boundaries, strict=True)
    ]
    along_x, along_y = (jnp.minimum(x, MAX_IMAGES) for x in around)
    width = 2 * along_x + 1

    def with_image(i: Array, found: Array) -> Array:
        x, y = i % width - along_x, i // width - along_y
        moved = jnp.stack([offset[0] + x * box[0], offset[1] + y * box[1]])
        is_seen = (x != 0) | (y != 0)
        sensed = jax.lax.map(
            lambda numbers: sense(moved, is_seen, *numbers), jnp.asarray(numbers, moved.dtype)
        )
        return jnp.minimum(found, jax.lax.stop_gradient(jnp.moveaxis(sensed, 0, 1)))

    number = jnp.where((along_x > 0) | (along_y > 0), width * (2 * along_y + 1), 0)
    found = jax.lax.fori_loop(0, number, with_image, nearest_only)
    return jnp.where(found < nearest, found, nearest)


def centre_bins(offset: Array, is_seen: Array, num_rays: int, reach: Array | float) -> Array:
    """Return the distance of the nearest centre in each of K equal angles, [A, K, ...]; `reach` where there is none.

    The k-th angle is centred on the k-th ray, and a centre on the edge of two is in both. JaxDEM's angles begin at -π
    instead.
    """
    return _each(_in_bin(reach), _bin_ends(num_rays), offset, is_seen)


def _bin_ends(num_rays: int) -> np.ndarray:
    """Return the unit vectors of both ends of each angle, [K, 4], which are halfway between two rays; 0 for all."""
    ends = directions(2 * num_rays)[:, 1::2].T * (num_rays > 1)
    return np.concatenate([np.roll(ends, 1, axis=0), ends], axis=1)


def _in_bin(reach: Array | float) -> Sense:
    """Return the function of the distance of the nearest centre between two directions."""

    def nearest(offset: Array, is_seen: Array, x: Array, y: Array, next_x: Array, next_y: Array) -> Array:
        is_left, is_right = x * offset[1] - y * offset[0] >= 0, next_x * offset[1] - next_y * offset[0] <= 0
        squared = jnp.where(is_seen & is_left & is_right, dot(offset, offset), jnp.inf)
        return jnp.minimum(square_root(_least(squared)), reach)

    return nearest


def _others(agents: int, further_axes: int) -> Array:
    """Return True for every agent and another one, [A, A, 1, ...]."""
    return ~jnp.eye(agents, dtype=bool).reshape(agents, agents, *(1,) * further_axes)
