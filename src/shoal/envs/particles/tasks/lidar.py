"""Sensing by rays, and by angular bins.

Directions are fixed in space, the k-th of K at the angle 2π k / K from the x axis. Arrays of agents are [A, ...],
with the components of vectors first, and any further axes may follow.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.envs.particles.physics.boxes import nearest_image
from shoal.envs.particles.physics.vectors import dot, square_root
from shoal.types import Array

KINDS = ("rays", "bins")
MAX_SLICES = 64  # bodies


class Scan(NamedTuple):
    """The nearest disc or wall along each of K rays, for each agent."""

    distance: Array  # from the agent's centre, [A, K, ...]; the range where nothing is
    is_disc: Array  # [A, K, ...]
    is_wall: Array  # [A, K, ...]


def directions(num_rays: int) -> np.ndarray:
    """Return the unit vectors of the rays, [2, K]."""
    angle = 2 * np.pi * np.arange(num_rays) / num_rays
    return np.stack([np.cos(angle), np.sin(angle)])


def offsets_to(position: Array, others: Array, box: Array, boundaries: tuple[str, ...]) -> Array:
    """Return the vectors from agents [2, A, ...] to bodies [2, B, ...], by their nearest image, [2, A, B, ...]."""
    offset = others[:, None] - position[:, :, None]
    return nearest_image(offset, box.reshape(2, 1, 1, *box.shape[1:]), boundaries)


def disc_distances(
    offset: Array, radius: Array, is_seen: Array, num_rays: int, reach: Array | float
) -> Array:
    """Return the distance at which each ray meets the nearest disc, [A, K, ...]; `reach` where it meets none.

    Args:
      offset: to the discs, [2, A, B, ...].
      radius: of the discs, [B, ...].
      is_seen: whether an agent's rays can meet a disc, [A, B, ...]; not its own.
      num_rays: K.
      reach: the range.
    """
    rays = [
        _nearest_on_ray(offset, radius, is_seen, float(x), float(y), reach) for x, y in directions(num_rays).T
    ]
    return jnp.stack(rays, axis=1)


def _nearest_on_ray(
    offset: Array, radius: Array, is_seen: Array, x: float, y: float, reach: Array | float
) -> Array:
    """Return the smallest distance along one direction, [A, ...]."""
    along = x * offset[0] + y * offset[1]
    across = x * offset[1] - y * offset[0]
    half_chord = square_root(radius**2 - across**2)
    hits = is_seen & (along > 0) & (jnp.abs(across) <= radius)
    distance = jnp.where(hits, jnp.maximum(along - half_chord, 0.0), reach)
    return jnp.minimum(_least(distance), reach)


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
            if boundaries[axis] != "walls" or abs(step) < 1e-9:
                continue
            gap = box[axis] - position[axis] if step > 0 else position[axis]
            nearest = jnp.minimum(nearest, jnp.maximum(gap, 0.0) / abs(step))
        found.append(nearest)
    return jnp.stack(found, axis=1)


def scan(
    position: Array,
    radius: Array,
    box: Array,
    boundaries: tuple[str, ...],
    num_rays: int,
    reach: Array | float,
) -> Scan:
    """Return what the rays of all agents meet: other agents' discs and walls, the nearest wins.

    Args:
      position: in the plane, [2, A, ...].
      radius: [A, ...].
      box: sides of the plane, [2, ...].
      boundaries: of the plane's two axes.
      num_rays: K.
      reach: the range, m.
    """
    walls = wall_distances(position, box, boundaries, num_rays, reach)
    agents = position.shape[1]
    if agents == 1:
        discs = jnp.broadcast_to(jnp.asarray(reach, position.dtype), walls.shape)
    else:
        offset = offsets_to(position, position, box, boundaries)
        discs = disc_distances(offset, radius, _others(agents, offset.ndim - 3), num_rays, reach)
    return Scan(
        jnp.minimum(discs, walls), (discs < reach) & (discs <= walls), (walls < reach) & (walls < discs)
    )


def centre_bins(offset: Array, is_seen: Array, num_rays: int, reach: Array | float) -> Array:
    """Return the distance of the nearest centre in each of K equal angles, [A, K, ...]; `reach` where there is none.

    The k-th angle is centred on the k-th ray, and a centre on the edge of two is in both. JaxDEM's angles begin at -π
    instead.
    """
    squared = jnp.where(is_seen, dot(offset, offset), jnp.inf)
    ends = directions(2 * num_rays)[:, 1::2].T  # of the angles; each is halfway between two rays
    left_of = [float(x) * offset[1] - float(y) * offset[0] for x, y in ends]  # positive to the left of an end
    found = []
    for k in range(num_rays):
        is_within = (left_of[k - 1] >= 0) & (left_of[k] <= 0) | (num_rays == 1)
        found.append(_least(jnp.where(is_within, squared, jnp.inf)))
    return jnp.minimum(square_root(jnp.stack(found, axis=1)), reach)


def scan_bins(
    position: Array, box: Array, boundaries: tuple[str, ...], num_rays: int, reach: Array | float
) -> Scan:
    """Return the nearest centres in angular bins, and walls where the middle of a bin meets them; see `scan`."""
    walls = wall_distances(position, box, boundaries, num_rays, reach)
    offset = offsets_to(position, position, box, boundaries)
    discs = centre_bins(offset, _others(position.shape[1], offset.ndim - 3), num_rays, reach)
    return Scan(
        jnp.minimum(discs, walls), (discs < reach) & (discs <= walls), (walls < reach) & (walls < discs)
    )


def _others(agents: int, further_axes: int) -> Array:
    """Return True for every agent and another one, [A, A, 1, ...]."""
    return ~jnp.eye(agents, dtype=bool).reshape(agents, agents, *(1,) * further_axes)
