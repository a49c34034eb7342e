"""A materialised array is the array."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.xla.barriers import materialise, materialise_plain


def test_both_forms_are_the_same_arrays_and_gradients():
    """Bit for bit."""
    tree = {"x": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "n": jnp.arange(2)}

    def results(form):
        def loss(x):
            return jnp.sum(jnp.sin(form(x).T) * form(x).T)

        return jax.jit(form)(tree), jax.jit(jax.grad(loss))(tree["x"])

    jax.tree.map(np.testing.assert_array_equal, results(materialise), results(materialise_plain))
