"""Queries find what they ask for, wherever it lies, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.nets.memory.queries import CellQueries
from shoal.types.spaces import Box, Dict, Discrete

TILES, COLOURS = 5, 4
GRID = Box(0, (TILES - 1, COLOURS - 1), (3, 4, 2), np.uint8)
POCKET = Box(0, (TILES - 1, COLOURS - 1), (2,), np.uint8)


def asking(tile, colour, space=GRID):
    """A query that wants one tile of one colour, and both: it finds what has the two, and no more."""
    queries = CellQueries(space, 1, 1, key=jax.random.key(0))
    wanted = jnp.full(1 + TILES + COLOURS, 0.0).at[0].set(-28.0)  # with the -2 of its own: -30
    wanted = wanted.at[1 + tile].set(20.0).at[1 + TILES + colour].set(20.0)
    (layer,) = queries.wanted.projection
    layer.kernel, layer.bias = jnp.zeros_like(layer.kernel), wanted
    return queries


def cells_of(rng, *batch_shape):
    return np.stack(
        [rng.integers(0, TILES, (*batch_shape, 3, 4)), rng.integers(0, COLOURS, (*batch_shape, 3, 4))],
        axis=-1,
    ).astype(np.uint8)


@pytest.mark.parametrize("batch_shape", [(), (6,), (5, 6)])
@pytest.mark.quick("batch_shape0", "batch_shape2")
def test_a_query_finds_the_cells_of_both_kinds(batch_shape):
    cells = cells_of(np.random.default_rng(0), *batch_shape)
    found = asking(3, 1)(jnp.zeros((*batch_shape, 1)), cells)
    expected = (cells[..., 0] == 3) & (cells[..., 1] == 1)
    assert found.shape == (*batch_shape, 12)
    assert expected.any() or not batch_shape
    np.testing.assert_allclose(found, expected.reshape(*batch_shape, 12), atol=1e-4)


def test_what_stands_beside_the_grid_is_asked_too_and_other_integers_are_not():
    space = Dict(
        {"cells": GRID, "pocket": POCKET, "direction": Discrete(4), "rule": Box(0, 7, (5,), np.uint8)}
    )
    cells = np.zeros((3, 4, 2), np.uint8)
    observation = {
        "cells": cells,
        "pocket": np.array([3, 1], np.uint8),
        "direction": np.array(1),
        "rule": np.zeros(5, np.uint8),
    }
    queries = asking(3, 1, space)
    assert queries.num_cells == queries.out_features == 13
    np.testing.assert_allclose(queries(jnp.zeros(1), observation), [0.0] * 12 + [1.0], atol=1e-4)


@pytest.mark.full
def test_queries_are_linear_in_what_is_remembered_and_learned_by_gradient():
    """Scores against sums that are written out cell by cell; the gradient by differences."""
    rng = np.random.default_rng(1)
    queries = CellQueries(GRID, 3, 2, key=jax.random.key(1))
    cells, features = cells_of(rng, 7), rng.normal(size=(7, 3)).astype(np.float32)
    (layer,) = queries.wanted.projection
    wanted = (features @ np.asarray(layer.kernel).T).reshape(7, 2, 1 + TILES + COLOURS)
    expected = np.zeros((7, 2, 3, 4))
    for n, q, i, j in np.ndindex(expected.shape):
        tile, colour = cells[n, i, j]
        score = wanted[n, q, 0] - 2.0 + wanted[n, q, 1 + tile] + wanted[n, q, 1 + TILES + colour]
        expected[n, q, i, j] = 1.0 / (1.0 + np.exp(-score))
    np.testing.assert_allclose(queries(features, cells), expected.reshape(7, -1), rtol=2e-5)

    def total(features):
        return jnp.sum(queries(features, cells) ** 2)

    direction = rng.normal(size=features.shape).astype(np.float32)
    slope = (total(features + 1e-2 * direction) - total(features - 1e-2 * direction)) / 2e-2
    np.testing.assert_allclose(jnp.sum(jax.grad(total)(features) * direction), slope, rtol=1e-2)


@pytest.mark.parametrize("space", [Box(-1.0, 1.0, (3, 4, 2)), POCKET, Box(0, 255, (8, 8, 3), np.uint8)])
def test_a_space_without_cells_is_one_sentence(space):
    with pytest.raises(ShoalError, match=r"^queries=2 needs an observation \[height, width, k\] of integers"):
        CellQueries(space, 4, 2, key=jax.random.key(0))
