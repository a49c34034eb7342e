"""Gathers of rows by their indices."""

import functools
from typing import Any

import jax

from shoal.xla.plain import uses_plain_form

Array = jax.Array
PyTree = Any


def take_rows(rows: PyTree, index: Array) -> PyTree:
    """Gather the rows with these indices.

        x[index]   of each array, bit for bit

    Indices are unsigned and must be in range, so that no code checks for negative indices or those beyond the last row.

    Gain: together with merging the network once (`chunked_gradient`), 0.994 and 0.996 ± 0.006 of an update's time.
    """
    if uses_plain_form("take_rows"):
        return take_rows_plain(rows, index)
    return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), rows)


def take_rows_plain(rows: PyTree, index: Array) -> PyTree:
    """Compute `x[index]` of each array: the plain form of `take_rows`."""
    return jax.tree.map(lambda x: x[index], rows)


def take_rows_of_each(rows: PyTree, indices: Array) -> PyTree:
    """Gather the rows of each minibatch, one minibatch after the other.

        x[indices]   of each array, bit for bit

    A single gather for all minibatches takes several times as long on the CPU.

    Gain: the advantages of an update took 0.5 ms instead of 3.8.

    Args:
      rows: arrays [N, ...].
      indices: unsigned, [K, M].

    Returns:
      arrays [K, M, ...].
    """
    if uses_plain_form("take_rows_of_each"):
        return take_rows_of_each_plain(rows, indices)
    return jax.lax.map(functools.partial(take_rows, rows), indices)


def take_rows_of_each_plain(rows: PyTree, indices: Array) -> PyTree:
    """Compute `x[indices]` of each array: the plain form of `take_rows_of_each`."""
    return take_rows_plain(rows, indices)
