"""Grid worlds in a batch on the CPU: how XLA is kept from computing a thing several times."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.envs.batching import on_batch
from shoal.types import Array, PyTree


def once(certain: Array, function: Callable[..., Any], *arguments: PyTree) -> Any:
    """What a function returns, not computed again by each of those that read it.

    XLA on the CPU fuses what is cheap into all that read it. It does not look into a branch that it cannot
    decide: `certain` are booleans that are always true, [N], without XLA's knowledge.
    """
    shapes = jax.eval_shape(function, *arguments)

    def never(*arguments: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(certain.reshape(-1)[0], function, never, *arguments)


def computed_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one environment, which takes `certain` first, so that in a batch it is as `once` says."""

    def single(certain: Array, *arguments: PyTree) -> PyTree:
        return function(*arguments)

    def batched(certain: Array, *arguments: PyTree) -> PyTree:
        return once(certain, jax.vmap(function), *arguments)

    return on_batch(single, batched)
