"""Values that XLA computes once, and not again in every operation that reads them.

XLA on the CPU fuses cheap operations into all operations that read them. It removes optimisation barriers before it
fuses, but it does not fuse across a conditional whose condition it does not know.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.xla.plain import uses_plain_form
from shoal.xla.sparse_updates import with_batch_rule

Array = jax.Array
PyTree = Any


def compute_once(always_true: Array, function: Callable[..., object], *arguments: PyTree) -> Any:
    """Call a function, and keep XLA from computing its result again in each operation that reads it.

        function(*arguments),   bit for bit

    Args:
      always_true: booleans that are True, which the compiler does not know, [N]; if they were False, the result would
        be zeros.
    """
    if uses_plain_form("compute_once"):
        return compute_once_plain(always_true, function, *arguments)
    shapes = jax.eval_shape(function, *arguments)

    def unreachable(*arguments: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(always_true.reshape(-1)[0], function, unreachable, *arguments)


def compute_once_plain(always_true: Array, function: Callable[..., object], *arguments: PyTree) -> Any:
    """Compute `function(*arguments)`: the plain form of `compute_once`."""
    return function(*arguments)


def compute_once_in_batch(function: Callable[..., object]) -> Callable[..., Any]:
    """Make a function of one environment, with `always_true` before its arguments, that a batch computes once.

        lambda always_true, *arguments: function(*arguments),   bit for bit

    A batch calls the function by `compute_once`.
    """

    def for_one(always_true: Array, *arguments: PyTree) -> PyTree:
        return function(*arguments)

    def for_batch(always_true: Array, *arguments: PyTree) -> PyTree:
        return compute_once(always_true, jax.vmap(function), *arguments)

    return with_batch_rule(for_one, for_batch)
