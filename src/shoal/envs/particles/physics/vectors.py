"""Vectors with their components along the first axis, [D, ...], in two and three dimensions.

All further axes are free: [D] is one vector, [D, N] one for each particle, [D, S, N] one for each contact, and a
batch of worlds may be the last axis. Angular quantities have S = 1 component in the plane, out of which it points,
and S = 3 in space. No function has an infinite or undefined gradient, also at zero.
"""

import jax.numpy as jnp

from shoal.types import Array
from shoal.xla.batch_last import add_up

SMALLEST_SQUARE = 1e-30  # below which a length counts as 0
MAX_TERMS = 32  # of a sum that is written out


def dot(a: Array, b: Array) -> Array:
    """Return the scalar product of vectors [D, ...], as [...]."""
    total = a[0] * b[0]
    for i in range(1, len(a)):
        total = total + a[i] * b[i]
    return total


def square_root(x: Array) -> Array:
    """Return the square root of numbers that are not negative; at 0 it is 1e-15 and its gradient 0.

    The guard is a maximum. Where a condition stands in two places instead, as in `where(x > 0, sqrt(where(x > 0,
    x, 1)), 0)`, a compiler that computes x twice, with and without a fused multiplication and addition, may find
    one of them true and the other false.
    """
    return jnp.sqrt(jnp.maximum(x, SMALLEST_SQUARE))


def length(a: Array) -> Array:
    """Return the length of vectors [D, ...], as [...]; for the zero vector it is 0, and so is its gradient.

    With a NaN it is NaN, which no comparison takes for a short way.
    """
    squared = dot(a, a)
    return jnp.where(squared <= 0, 0.0, square_root(squared))


def unit(a: Array) -> tuple[Array, Array]:
    """Return the direction of vectors, [D, ...], and their length, [...]; the direction of a zero vector is 0."""
    size = length(a)
    return a / jnp.where(size > 0, size, 1.0), size


def tangential(a: Array, normal: Array) -> Array:
    """Return the part of vectors [D, ...] that is perpendicular to unit vectors [D, ...]."""
    return a - normal * dot(a, normal)


def shortened(a: Array, longest: Array) -> Array:
    """Scale vectors [D, ...] that are longer than `longest` [...] down to it."""
    return a * jnp.minimum(longest / square_root(dot(a, a)), 1.0)


def turned(a: Array, normal: Array) -> Array:
    """Turn vectors [D, ...] into the planes perpendicular to unit vectors [D, ...]; their lengths stay.

    This is the rotation about the axis that is perpendicular to both, for a vector whose plane has turned by less than
    a right angle.

    Source: Luding 2008, "Cohesive, frictional powders: contact models for tension", sec. 2.3.
    """
    projected = tangential(a, normal)
    before, after = dot(a, a), dot(projected, projected)
    return projected * (square_root(before) / square_root(after))


def velocity_by_spin(spin: Array, arm: Array) -> Array:
    """Return the velocity ω x a of the points `arm` [D, ...] of bodies that rotate with `spin` [S, ...]."""
    return jnp.stack([-spin[0] * arm[1], spin[0] * arm[0]]) if len(arm) == 2 else _cross(spin, arm)


def torque_of(arm: Array, force: Array) -> Array:
    """Return the torque a x f of forces [D, ...] at the points `arm` [D, ...], as [S, ...]."""
    return (arm[0] * force[1] - arm[1] * force[0])[None] if len(arm) == 2 else _cross(arm, force)


def sum_rows(x: Array) -> Array:
    """Return the sum over the second axis, [C, rows, N, ...] to [C, N, ...]."""
    return add_up(x, axis=1) if 0 < x.shape[1] <= MAX_TERMS else jnp.sum(x, axis=1)


def _cross(a: Array, b: Array) -> Array:
    return jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])
