"""What is computed once is the same as what is computed wherever it is read, and so is its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nets.mlp import MLP
from shoal.ops.value_losses import clipped_value
from shoal.xla import single_evaluation
from shoal.xla.single_evaluation import compute_gradient_once


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


def test_the_plain_form_hands_the_tree_on():
    tree = {"x": jnp.ones(2), "name": "a"}
    assert single_evaluation.compute_gradient_once_plain(tree, jnp.asarray(True)) is tree


def test_what_is_computed_once_is_the_same_and_its_gradient_is():
    """Floating arrays of a tree, beside leaves that have no gradient; under `vmap`; nothing where it does not hold."""
    tree = {"x": jnp.array([0.3, -1.2, 2.0]), "legal": jnp.array([True, False]), "name": "a", "n": 3}

    def loss(x, holds):
        seen = compute_gradient_once({**tree, "x": x}, holds)
        assert (seen["legal"] is tree["legal"], seen["name"], seen["n"]) == (True, "a", 3)
        return jnp.sum(jnp.sin(seen["x"]) * x)

    value, gradient = jax.jit(jax.value_and_grad(loss))(tree["x"], jnp.asarray(True))
    expected = jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x) * x)))(tree["x"])
    np.testing.assert_array_equal(value, expected[0])
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-6)
    both = jax.vmap(jax.grad(loss), in_axes=(None, 0))(tree["x"], jnp.array([True, False]))
    np.testing.assert_allclose(both, [gradient, jnp.sin(tree["x"])], rtol=1e-6)


def test_the_gradient_of_a_loss_is_computed_once_and_not_for_every_feature():
    """An MLP's gradient with the loss costs what it costs without, and the loss: XLA 0.10 fuses it into 64 rows."""
    mlp, rows = MLP(4, (64,), 1, key=jax.random.key(0)), jnp.linspace(-1.0, 1.0, 512)
    x = jnp.stack([rows, rows**2, -rows, rows**3], axis=-1)

    def loss(value, old, target):
        return jnp.sum(jnp.where(target > -1.0, clipped_value(value, old, target, 0.2), 0.0))

    def of_mlp(mlp, old, target):
        return loss(compute_gradient_once(mlp(x)[:, 0], old[0] < jnp.inf), old, target)

    def given(mlp, gradient):
        value, pull_back = jax.vjp(lambda mlp: mlp(x)[:, 0], mlp)
        return value, pull_back(gradient)

    def flops(function, *arguments):
        return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]

    own = flops(jax.grad(loss), rows, rows, 2 * rows)
    without = flops(given, mlp, rows)
    assert own > 5 * len(rows)
    assert flops(jax.grad(of_mlp), mlp, rows, 2 * rows) < without + 2 * own
