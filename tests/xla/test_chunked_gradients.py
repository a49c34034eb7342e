"""The gradient of a mean over rows, by chunks and at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla import plain
from shoal.xla.chunked_gradients import mean_gradient


def merge(parts):
    return {"w": parts[:6].reshape(2, 3), "b": parts[6:]}


def loss(network, rows):
    """A loss of each row, with two further values of each."""
    y = jnp.tanh(rows["x"] @ network["w"] + network["b"])
    each = jnp.sum((y - rows["target"]) ** 2, axis=-1)
    return each, (each, jnp.sum(y, axis=-1))


@pytest.mark.full
@pytest.mark.parametrize("num_chunks", [1, 2, 12, 48])
def test_chunks_do_not_change_the_gradient(num_chunks, monkeypatch):
    """Within the rounding of a sum of 48 rows; bit for bit if all rows are one chunk."""
    keys = jax.random.split(jax.random.key(0), 3)
    rows = {"x": jax.random.normal(keys[0], (48, 2)), "target": jax.random.normal(keys[1], (48, 3))}
    parts = jax.random.normal(keys[2], (9,))

    def results():
        return jax.jit(
            lambda parts: mean_gradient(
                loss, merge, parts, rows, weight=jnp.float32(40.0), num_chunks=num_chunks, axis=()
            )
        )(parts)

    gradient, means = results()
    monkeypatch.setattr(plain, "PLAIN", ("chunked_gradient",))
    plain_gradient, plain_means = results()
    assert gradient.shape == plain_gradient.shape == (9,)
    tolerance = 0.0 if num_chunks == 1 else 1e-5
    np.testing.assert_allclose(gradient, plain_gradient, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(means, plain_means, rtol=1e-5)
    sums = [x.sum() for x in loss(merge(parts), rows)[1]]
    np.testing.assert_allclose(means, np.array(sums) / 40, rtol=1e-5)
