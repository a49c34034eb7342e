"""Prevention of repeated computation by XLA in batches of grid worlds on the CPU."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.envs.sparse_updates import with_batch_rule
from shoal.types import Array, PyTree


def compute_once(always_true: Array, function: Callable[..., Any], *arguments: PyTree) -> Any:
    """Return a function's result so that XLA does not compute it again for each of its readers.

    XLA on the CPU fuses cheap operations into all of their readers. It does not fuse into a branch that it
    cannot decide: `always_true` are booleans that are always true, [N], which XLA does not know.
    """
    shapes = jax.eval_shape(function, *arguments)

    def unreachable(*arguments: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(always_true.reshape(-1)[0], function, unreachable, *arguments)


def compute_once_in_batch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of one environment, with `always_true` as first argument, that uses `compute_once` in a batch."""

    def for_one(always_true: Array, *arguments: PyTree) -> PyTree:
        return function(*arguments)

    def for_batch(always_true: Array, *arguments: PyTree) -> PyTree:
        return compute_once(always_true, jax.vmap(function), *arguments)

    return with_batch_rule(for_one, for_batch)
