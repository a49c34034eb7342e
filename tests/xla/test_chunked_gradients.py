"""The gradient of a sum over rows, by chunks and at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla.chunked_gradients import chunked_gradient, chunked_gradient_plain


def merge(parts):
    return {"w": parts[:6].reshape(2, 3), "b": parts[6:]}


def loss(network, rows):
    """A sum over rows, with values of each row and one that is summed."""
    y = jnp.tanh(rows["x"] @ network["w"] + network["b"])
    each = jnp.sum((y - rows["target"]) ** 2, axis=-1)
    return jnp.sum(each), (each, jnp.sum(y))


@pytest.mark.parametrize("num_chunks", [1, 2, 12, 48])
def test_chunks_do_not_change_the_gradient(num_chunks):
    """Within the rounding of a sum of 48 rows; bit for bit if all rows are one chunk."""
    keys = jax.random.split(jax.random.key(0), 3)
    rows = {"x": jax.random.normal(keys[0], (48, 2)), "target": jax.random.normal(keys[1], (48, 3))}
    parts = jax.random.normal(keys[2], (9,))

    def results(form):
        return jax.jit(lambda parts: form(loss, merge, parts, rows, num_chunks))(parts)

    gradient, (each, total) = results(chunked_gradient)
    plain_gradient, (plain_each, plain_total) = results(chunked_gradient_plain)
    assert gradient.shape == plain_gradient.shape == (9,)
    assert each.shape == (48 // num_chunks,) and plain_each.shape == (48,)
    tolerance = 0.0 if num_chunks == 1 else 1e-5
    np.testing.assert_allclose(gradient, plain_gradient, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(each.sum(), plain_each.sum(), rtol=1e-5)
    np.testing.assert_allclose(
        each, plain_each.reshape(num_chunks, -1).sum(0), rtol=tolerance, atol=tolerance
    )
    np.testing.assert_allclose(total, plain_total, rtol=1e-5)
