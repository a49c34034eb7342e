"""What several losses choose by selects: the gradients of `jnp.clip`, gathers and their like cost more.

The gradient of a clip looks for ties as well, and that of a gather is a scatter: on a CPU those are kernels of
their own, in the middle of a minibatch's loss.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def clip_by_select(x: Array, low: Array | float, high: Array | float) -> Array:
    """x kept within [low, high], where low <= high; its gradient is 1 at the bounds and within, 0 beyond."""
    return jnp.where(x > high, high, jnp.where(x < low, low, x))


def in_range(index: Array, n: int) -> Array:
    """Whether each index is one of 0..n-1; negative ones are not, they do not count from the end."""
    # One comparison: negative numbers are large as unsigned ones. No narrower than 32 bits, so that n fits.
    return index.astype(f"uint{max(32, jnp.iinfo(index.dtype).bits)}") < n


def take_entry(x: Array, index: Array, axis: int = -1) -> Array:
    """The entry of `x` at an index along an axis, of which the axes before it are the index's; NaN where there is none.

    The other entries are not read, nor do they get a gradient; where there is none, nothing does.
    """
    trailing = (1,) * (-1 - axis)
    x, index = jnp.asarray(x), jnp.asarray(index)
    index = index.reshape(*index.shape, 1, *trailing)
    is_index = jnp.arange(x.shape[axis]).reshape(-1, *trailing) == index
    entry = jnp.sum(jnp.where(is_index, x, jnp.zeros((), x.dtype)), axis=axis)
    return jnp.where(jnp.squeeze(in_range(index, x.shape[axis]), axis), entry, jnp.asarray(jnp.nan, x.dtype))
