"""Packing of several arrays into one vector."""

from collections.abc import Callable
from typing import Any

from jax.flatten_util import ravel_pytree

from shoal.xla.plain import uses_plain_form

PyTree = Any

# Size of a leaf from which it is faster not to copy it into a vector and out of it.
MIN_UNPACKED_SIZE = 65_536


def pack(leaves: tuple) -> tuple[Any, Callable[[Any], tuple]]:
    """Pack small arrays into one vector, and keep large arrays next to it.

        packed, unpack = leaves, lambda packed: packed

    An elementwise function gives the same bits for the vector. A norm, whose sum has another order, is the same within
    float32's rounding. XLA compiles a step of Adam on a dozen small arrays to as many kernels, which cost several times
    as much as one kernel on a vector.

    Gain: the optimiser's steps in an update of 4 x 128 steps took 0.1 ms instead of 0.9.

    Returns:
      the vector, or a tuple of it and the large arrays, if there are any; and the function that unpacks it.
    """
    if uses_plain_form("pack"):
        return pack_plain(leaves)
    large = [leaf.size >= MIN_UNPACKED_SIZE for leaf in leaves]
    small, restore = ravel_pytree(
        tuple(leaf for leaf, is_large in zip(leaves, large, strict=True) if not is_large)
    )
    if not any(large):
        return small, restore

    def unpack(part: tuple) -> tuple:
        small_leaves, large_leaves = iter(restore(part[0])), iter(part[1:])
        return tuple(next(large_leaves if is_large else small_leaves) for is_large in large)

    return (small, *(leaf for leaf, is_large in zip(leaves, large, strict=True) if is_large)), unpack


def pack_plain(leaves: tuple) -> tuple[tuple, Callable[[tuple], tuple]]:
    """Return the arrays: the plain form of `pack`."""
    return leaves, lambda leaves: leaves
