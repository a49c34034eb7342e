"""Rows that are equal are computed once.

In small worlds much is seen again and again: many actions change nothing that the agent sees, and a small room has
few views. A function of what is seen need then run over the different ones only.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.types import PyTree

Array = jax.Array
Function = Callable[[PyTree, PyTree], Array]

SHARES = (4, 2)  # a quarter of the rows, or a half, is computed in place of all
LEAST = 16  # rows for which it is worth looking


class Distinct(NamedTuple):
    """Which of N rows differ."""

    rows: Array  # one of each kind, [N]; the first `kinds` of these count
    kind: Array  # of every row, [N]: rows[kind[i]] equals row i
    kinds: Array  # how many there are


def distinct(tree: PyTree) -> Distinct:
    """Tells the rows of integer arrays [N, ...] apart.

    They are sorted by a hash, and neighbours compared: rows of the same kind are always equal. Equal rows are of the
    same kind unless others with their very hash (one of 2^32) come between them, which costs time and nothing else.
    """
    leaves = jax.tree.leaves(tree)
    size = leaves[0].shape[0]
    rows = jnp.concatenate([leaf.reshape(size, -1).astype(jnp.uint32) for leaf in leaves], axis=-1)
    factors = np.random.default_rng(0).integers(2**32, size=rows.shape[-1], dtype=np.uint32) | np.uint32(1)
    order = jnp.argsort(jnp.sum(rows * factors, axis=-1, dtype=jnp.uint32))
    ordered = rows[order]
    fresh = jnp.any(ordered[1:] != ordered[:-1], axis=-1)
    number = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(fresh, dtype=jnp.int32)])
    one_of_each = jnp.zeros(size, jnp.int32).at[number].set(order)
    return Distinct(one_of_each, jnp.zeros(size, jnp.int32).at[order].set(number), number[-1] + 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def once_for_each(function: Function, parameters: PyTree, rows: PyTree) -> Array:
    """`function(parameters, rows)`, computed for each kind of row once where there are few.

    If the kinds fill at most a quarter of the rows, the function runs over a quarter of them, or else a half, or all.
    Its gradient sums what rows of a kind are to pass back, and computes the function again for them in place of
    keeping what it has computed. There is no forward-mode derivative.

    Args:
      function: one of a module, of parameters and rows [N, ...] -> [N, F], each of which depends on its own row alone.
      parameters: floating arrays.
      rows: integer arrays [N, ...].
    """
    return _forward(function, parameters, rows)[0]


def _forward(function: Function, parameters: PyTree, rows: PyTree) -> tuple[Array, tuple]:
    found = distinct(rows)

    def over(size: int) -> Callable[[PyTree], Array]:
        return lambda parameters: function(parameters, _some(rows, found, size))[found.kind]

    branches = [*map(over, _sizes(found)), lambda parameters: function(parameters, rows)]
    return jax.lax.switch(_branch(found), branches, parameters), (parameters, rows, found)


def _backward(function: Function, saved: tuple, gradient: Array) -> tuple[PyTree, None]:
    parameters, rows, found = saved

    def pulled(parameters: PyTree, rows: PyTree, gradient: Array) -> PyTree:
        return jax.vjp(lambda parameters: function(parameters, rows), parameters)[1](gradient)[0]

    def over(size: int) -> Callable[[PyTree, Array], PyTree]:
        def branch(parameters: PyTree, gradient: Array) -> PyTree:
            summed = jnp.zeros((size, gradient.shape[-1])).at[found.kind].add(gradient)
            return pulled(parameters, _some(rows, found, size), summed)

        return branch

    branches = [*map(over, _sizes(found)), lambda parameters, gradient: pulled(parameters, rows, gradient)]
    return jax.lax.switch(_branch(found), branches, parameters, gradient), None


once_for_each.defvjp(_forward, _backward)


def _sizes(found: Distinct) -> list[int]:
    return [len(found.kind) // share for share in SHARES if len(found.kind) >= LEAST]


def _branch(found: Distinct) -> Array:
    """The smallest size that holds all kinds."""
    return sum((found.kinds > size for size in _sizes(found)), jnp.int32(0))


def _some(rows: PyTree, found: Distinct, size: int) -> PyTree:
    return jax.tree.map(lambda x: x[found.rows[:size]], rows)
