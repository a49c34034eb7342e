"""Products in the form that a CPU computes fast, against the products as they are written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla import products


def drawn(outputs, inputs, batch):
    keys = jax.random.split(jax.random.key(outputs + inputs), 4)
    kernel, x = jax.random.normal(keys[0], (outputs, inputs)), jax.random.normal(keys[1], (inputs, batch))
    return kernel, x, jax.random.normal(keys[2], (outputs, batch)), jax.random.normal(keys[3], (outputs,))


@pytest.mark.quick("33")
@pytest.mark.parametrize("outputs", [1, products.MAX_SUMMED_OUTPUTS, 33])
def test_a_product_and_its_gradient_are_those_of_the_plain_form(outputs):
    """Values bit for bit; gradients within the rounding of sums of 200 products."""
    kernel, x, weights, _ = drawn(outputs, 17, 200)

    def results(form):
        def loss(kernel, x):
            y = form(kernel, x)
            return jnp.sum(weights * y), y

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(kernel, x)

    (gradient, y), (plain_gradient, plain_y) = results(products.product), results(products.product_plain)
    np.testing.assert_array_equal(y, plain_y)
    for ours, plain in zip(gradient, plain_gradient, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("outputs", "inputs", "rows"),
    [(2, 64, 8), (64, 4, 8), (64, 64, 16), (64, 64, 17), (128, 128, 8)],
    ids=["few outputs", "few inputs", "single rows", "many rows", "large"],
)
@pytest.mark.quick("few outputs", "single rows", "many rows")
def test_few_rows_give_what_the_plain_form_gives(outputs, inputs, rows):
    """Values and gradients within the rounding of sums of at most 128 products."""
    kernel, x, weights, bias = drawn(outputs, inputs, rows)

    def results(form):
        def loss(kernel, bias, x):
            y = form(kernel, bias, x)
            return jnp.sum(weights.T * y), y

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(kernel, bias, x.T)

    ours, plain = results(products.affine_of_few_rows), results(products.affine_of_few_rows_plain)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)
