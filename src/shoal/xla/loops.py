"""Sums that are added up one by one, in a loop."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.xla import backend
from shoal.xla.plain import uses_plain_form

Array = jax.Array


def sum_by_loop(function: Callable[..., Array], *arrays: Array) -> Array:
    """Compute the sum of a function over the entries of the last axis of some arrays.

        sum(function(*(x[..., j:j+1] for x in arrays)) for j in range(m)),   within float32's rounding

    On a CPU they are added up one after the other, and so is the gradient: each pass is over all results, which the
    compiler makes vector instructions of, as it does not of a sum over the last axis of all pairs.

    Gain: the gradient of a quantile regression of 128 rows of 200 quantiles and 200 samples took 3 ms instead of 40.

    Args:
      function: of one entry of each array, [..., 1].
      arrays: [..., m] each.
    Returns:
      of the shape of the function's results.
    """
    if uses_plain_form("sum_by_loop") or not backend.is_cpu():
        return sum_by_loop_plain(function, *arrays)

    @jax.checkpoint  # so that nothing of the passes is kept for the gradient
    def add(total: Array, entries: tuple[Array, ...]) -> tuple[Array, None]:
        return total + function(*(x[..., None] for x in entries)), None

    entries = tuple(jnp.moveaxis(x, -1, 0) for x in arrays)
    result = jax.eval_shape(function, *(jax.ShapeDtypeStruct((*x.shape[:-1], 1), x.dtype) for x in arrays))
    return jax.lax.scan(add, jnp.zeros(result.shape, result.dtype), entries)[0]


def sum_by_loop_plain(function: Callable[..., Array], *arrays: Array) -> Array:
    """Compute the results of all entries at once, and their sum: the plain form of `sum_by_loop`."""
    entries = tuple(x[..., None] for x in arrays)
    return jnp.sum(jax.vmap(function, in_axes=-2, out_axes=-1)(*entries), axis=-1)
