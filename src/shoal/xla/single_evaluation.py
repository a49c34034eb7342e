"""Grid worlds in a batch on the CPU: how XLA is kept from computing a thing several times."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.xla.sparse_updates import with_batch_rule

Array = jax.Array
PyTree = Any


def compute_once(always_true: Array, function: Callable[..., Any], *arguments: PyTree) -> Any:
    """What a function returns, not computed again by each of those that read it.

    XLA on the CPU fuses what is cheap into all that read it. It does not look into a branch that it cannot
    decide: `always_true` are booleans that are always true, [N], without XLA's knowledge.
    """
    shapes = jax.eval_shape(function, *arguments)

    def unreachable(*arguments: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(always_true.reshape(-1)[0], function, unreachable, *arguments)


def compute_once_in_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one environment, which takes `always_true` first: in a batch it is as `compute_once` says."""

    def for_one(always_true: Array, *arguments: PyTree) -> PyTree:
        return function(*arguments)

    def for_batch(always_true: Array, *arguments: PyTree) -> PyTree:
        return compute_once(always_true, jax.vmap(function), *arguments)

    return with_batch_rule(for_one, for_batch)
