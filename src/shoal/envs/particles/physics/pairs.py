"""All pairs of N particles, each once: contact (s, i) is of particle i with particle (i + s) mod N.

With s = 1, ..., floor(N / 2) every pair appears once; if N is even, those of s = N / 2 appear twice and the second half
of that row counts nothing. An array of pairs is [S, N, ...]. Since the force on the second body is the negative of that
on the first, momentum is conserved to rounding; the tangential spring of a pair stays in its place.
"""

import jax.numpy as jnp
import numpy as np

from shoal.envs.particles.physics.vectors import sum_rows
from shoal.types import Array

MAX_ALL_TO_ALL = 1024  # particles


def num_shifts(num_particles: int) -> int:
    """Return S, the number of rows of pairs."""
    return num_particles // 2


def counted_pairs(num_particles: int) -> np.ndarray:
    """Return which pairs count, [S, N]: all but the second appearance of each pair of an even N's last row."""
    counts = np.ones((num_shifts(num_particles), num_particles), bool)
    if num_particles % 2 == 0:
        counts[-1, num_particles // 2 :] = False
    return counts


def of_partners(x: Array) -> Array:
    """Return the values of the second particle of each pair: [C, N, ...] to [C, S, N, ...].

    `x[:, (i + s) % N]`, by slices alone: the endless repetition of a row of N, cut into rows of N + 1, is shifted
    by one more in each.
    """
    components, number, rest = x.shape[0], x.shape[1], x.shape[2:]
    shifts = num_shifts(number)
    repeated = jnp.broadcast_to(x[:, None], (components, shifts + 2, number, *rest))
    flat = repeated.reshape(components, (shifts + 2) * number, *rest)[:, : (shifts + 1) * (number + 1)]
    return flat.reshape(components, shifts + 1, number + 1, *rest)[:, 1:, :number]


def sum_over_pairs(of_first: Array, of_second: Array) -> Array:
    """Return for each particle the sum, [C, N, ...], of its pairs' contributions to their first and second,
    [C, S, N, ...].
    """
    return sum_rows(of_first + _at_partners(of_second))


def _at_partners(x: Array) -> Array:
    """Move the entries of pairs to their second particles: `result[:, s, i] = x[:, s, (i - s) % N]`."""
    components, shifts, number, rest = x.shape[0], x.shape[1], x.shape[2], x.shape[3:]
    doubled = jnp.concatenate([x, x], axis=2).reshape(components, 2 * shifts * number, *rest)
    padding = jnp.zeros((components, max(0, number - 1 - shifts), *rest), x.dtype)
    flat = jnp.concatenate([doubled, padding], axis=1)[:, number - 1 : number - 1 + shifts * (2 * number - 1)]
    return flat.reshape(components, shifts, 2 * number - 1, *rest)[:, :, :number]
