"""Rows by their numbers: both forms bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.xla import gathering

ROWS = {"x": jnp.arange(30.0).reshape(10, 3), "flag": jnp.arange(10) % 3 == 0}
INDICES = jnp.asarray(np.random.default_rng(0).permutation(10).reshape(5, 2), jnp.uint32)


def test_both_forms_take_the_same_rows():
    for one in INDICES:
        found = gathering.take_rows(ROWS, one), gathering.take_rows_plain(ROWS, one)
        jax.tree.map(np.testing.assert_array_equal, *found)
        np.testing.assert_array_equal(found[0]["x"], np.asarray(ROWS["x"])[np.asarray(one)])


def test_both_forms_take_the_same_rows_of_each_minibatch():
    found = gathering.take_rows_of_each(ROWS, INDICES), gathering.take_rows_of_each_plain(ROWS, INDICES)
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert found[0]["x"].shape == (5, 2, 3)
    np.testing.assert_array_equal(found[0]["x"], np.asarray(ROWS["x"])[np.asarray(INDICES)])
