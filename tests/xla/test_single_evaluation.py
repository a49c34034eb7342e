"""What is computed once is the same as what is computed wherever it is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla import single_evaluation


@pytest.mark.parametrize("form", ["compute_once", "compute_once_plain"])
def test_a_function_computed_once_is_the_function(form):
    """Bit for bit, for trees of any dtype."""

    def function(x, tree):
        return {"sum": x + tree["a"], "count": jnp.int32(3), "is_large": x > 0.5}

    x, tree = jnp.linspace(0.0, 1.0, 7), {"a": jnp.float32(0.1)}
    compute = getattr(single_evaluation, form)
    found = jax.jit(lambda holds, *arguments: compute(holds, function, *arguments))(
        jnp.ones(4, bool), x, tree
    )
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(function)(x, tree))


def test_in_a_batch_a_function_computed_once_is_the_function_of_each():
    keys = jax.random.split(jax.random.key(0), 20)

    def function(key, scale):
        return jax.random.uniform(key, (3,)) * scale

    once = single_evaluation.compute_once_in_batch(function)
    found = jax.jit(jax.vmap(lambda key: once(jnp.asarray(key is not None), key, 2.0)))(keys)
    np.testing.assert_array_equal(found, jax.jit(jax.vmap(lambda key: function(key, 2.0)))(keys))
    np.testing.assert_array_equal(once(jnp.asarray(True), keys[0], 2.0), function(keys[0], 2.0))
