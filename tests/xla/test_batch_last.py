"""Both forms compute the same, and a batch on the CPU has its axis last."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla import batch_last


def paths(origin, points):
    """A function that counts axes from the first one: sums of the distances to points [A, 2, ...], and a tree."""
    away = points - origin["at"][None]
    length = jnp.sqrt(away[:, 0] ** 2 + away[:, 1] ** 2)
    return {"sum": batch_last.add_up(length, axis=0)}, away


def data(*batch):
    rng = np.random.default_rng(0)
    return {"at": rng.normal(size=(*batch, 2)).astype(np.float32)}, rng.normal(size=(*batch, 5, 2)).astype(
        np.float32
    )


@pytest.mark.quick("batch_last_plain")
@pytest.mark.parametrize("form", [batch_last.batch_last, batch_last.batch_last_plain])
def test_both_forms_compute_what_the_function_does(form):
    origin, points = data(7)
    expected = [paths({"at": origin["at"][i]}, points[i]) for i in range(7)]
    (sums, away), (one, _) = (
        jax.vmap(form(paths))(origin, points),
        form(paths)({"at": origin["at"][3]}, points[3]),
    )
    np.testing.assert_allclose(sums["sum"], [x["sum"] for x, _ in expected], rtol=1e-6)
    np.testing.assert_array_equal(away, np.stack([x for _, x in expected]))
    np.testing.assert_allclose(one["sum"], expected[3][0]["sum"], rtol=1e-6)


def test_arguments_without_a_batch_and_batches_of_batches():
    origin, _ = data(3, 4)
    _, fixed = data()
    inner = jax.vmap(batch_last.batch_last(paths), (0, None))
    found = jax.jit(jax.vmap(inner, (0, None)))(origin, fixed)
    expected = jax.vmap(jax.vmap(paths, (0, None)), (0, None))(origin, fixed)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


def test_a_batch_has_its_axis_last():
    shapes = []

    def see(x):
        shapes.append(x.shape)
        return x * 2

    np.testing.assert_array_equal(jax.vmap(batch_last.batch_last(see))(np.ones((6, 3, 2))), 2)
    assert (3, 2, 6) in shapes


@pytest.mark.quick("0")
@pytest.mark.parametrize("axis", [0, 1])
def test_both_forms_add_up(axis):
    x = data(4)[1]
    np.testing.assert_allclose(batch_last.add_up(jnp.asarray(x), axis), x.sum(axis), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(
        batch_last.add_up_plain(jnp.asarray(x), axis), jnp.sum(jnp.asarray(x), axis)
    )
