"""Clipping and indexing by selects, whose gradients cost less than those of `jnp.clip` and gathers.

The gradient of `jnp.clip` compares for ties as well, and that of a gather is a scatter: on a CPU those are
separate kernels in the middle of a minibatch's loss.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def clip_by_select(x: Array, low: Array | float, high: Array | float) -> Array:
    """Clip x to [low, high], where low <= high; the gradient is 1 at the bounds and within, 0 outside."""
    return jnp.where(x > high, high, jnp.where(x < low, low, x))


def in_range(index: Array, n: int) -> Array:
    """Report whether each index is one of 0..n-1; negative indices are not, they do not count from the end."""
    # One comparison: negative numbers are large as unsigned ones. At least 32 bits, so that n fits.
    return index.astype(f"uint{max(32, jnp.iinfo(index.dtype).bits)}") < n


def take_entry(x: Array, index: Array, axis: int = -1) -> Array:
    """Return the entry of `x` at an index along an axis, whose preceding axes are the index's; NaN for no entry.

    The other entries are not read and get no gradient; an index without an entry gives no gradient at all.
    """
    trailing = (1,) * (-1 - axis)
    x, index = jnp.asarray(x), jnp.asarray(index)
    index = index.reshape(*index.shape, 1, *trailing)
    is_index = jnp.arange(x.shape[axis]).reshape(-1, *trailing) == index
    entry = jnp.sum(jnp.where(is_index, x, jnp.zeros((), x.dtype)), axis=axis)
    return jnp.where(jnp.squeeze(in_range(index, x.shape[axis]), axis), entry, jnp.asarray(jnp.nan, x.dtype))
