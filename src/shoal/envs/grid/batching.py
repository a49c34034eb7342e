"""What a batch on the CPU does in another way than each of its environments would.

The code of a world is of one environment; under `vmap` these functions see the whole batch. Elsewhere than
on the CPU, and without `vmap`, they are the plain functions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from shoal.types import Array, PyTree


def on_batch(single: Callable, batched: Callable) -> Callable:
    """A function that is another one for a batch on the CPU: `batched(*arguments)` with a leading axis."""

    @custom_vmap
    def function(*arguments: PyTree) -> PyTree:
        return single(*arguments)

    @function.def_vmap
    def rule(axis_size: int, in_batched: list, *arguments: PyTree) -> tuple[PyTree, PyTree]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)

        def everywhere(*arguments: PyTree) -> PyTree:
            return jax.vmap(single, tuple(axes), axis_size=axis_size)(*arguments)

        def on_cpu(*arguments: PyTree) -> PyTree:
            def broadcast(x: Array, is_batched: bool) -> Array:
                return x if is_batched else jnp.broadcast_to(x, (axis_size, *jnp.shape(x)))

            return batched(*jax.tree.map(broadcast, list(arguments), in_batched))

        outcome = jax.lax.platform_dependent(*arguments, cpu=on_cpu, default=everywhere)
        return outcome, jax.tree.map(lambda _: True, outcome)

    return function


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
