"""The MLP against plain NumPy, its initial scale, its gradients, and what makes it compile again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_modules import drawn_module
from jax.test_util import check_grads

from shoal.base.errors import ShoalError
from shoal.config.struct import named_leaves
from shoal.nets.mlp import MLP


def in_numpy(mlp, x, layer_norm):
    """The same network row by row in float64."""
    leaves = {name: np.asarray(leaf, np.float64) for name, leaf in named_leaves(mlp).items()}
    x = np.asarray(x, np.float64)
    for i in range(len(mlp.layers)):
        x = x @ leaves[f"layers/{i}/kernel"].T + leaves[f"layers/{i}/bias"]
        if layer_norm:
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
            x = x * leaves[f"norms/{i}/scale"] + leaves[f"norms/{i}/bias"]
        x = np.tanh(x)
    if len(mlp.projection):
        x = x @ leaves["projection/0/kernel"].T + leaves["projection/0/bias"]
    return x


# Inputs, sizes, outputs and batch axes; sums for few rows (20 among them), products for many.
CASES = [
    (5, (8, 6), 3, ()),
    (11, (8, 6), None, (7,)),
    (5, (), 2, (2, 3)),
    (11, (8,), 2, (10, 4)),
    (5, (8, 6), 3, (10, 2)),
]


@pytest.mark.full
@pytest.mark.parametrize("layer_norm", [False, True])
def test_equals_numpy(layer_norm):
    rng = np.random.default_rng(2)
    mlps = [
        drawn_module(lambda key, case=case: MLP(*case[:3], layer_norm=layer_norm, key=key)) for case in CASES
    ]
    inputs = [rng.normal(size=(*batch_shape, size)).astype(np.float32) for size, *_, batch_shape in CASES]
    outputs = jax.jit(lambda mlps, inputs: [mlp(x) for mlp, x in zip(mlps, inputs, strict=True)])(
        mlps, inputs
    )
    for case, mlp, x, y in zip(CASES, mlps, inputs, outputs, strict=True):
        assert y.shape == (*case[3], mlp.out_features), case
        np.testing.assert_allclose(y, in_numpy(mlp, x, layer_norm), atol=1e-5, err_msg=str(case))


@pytest.mark.full
def test_features_are_the_last_hidden_layer():
    mlp = MLP(5, (8, 6), 3, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(2), (2, 4, 5))
    out, features = mlp.with_features(x)
    assert features.shape == (2, 4, mlp.num_features) == (2, 4, 6)
    np.testing.assert_allclose(out, features @ mlp.projection[0].kernel.T, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("layer_norm", [False, True])
def test_few_rows_are_computed_as_many_are(layer_norm):
    """Gradients of the mean: by sums and single rows (2 and 8), and by products of all rows (20 and 40)."""
    mlp = drawn_module(lambda key: MLP(5, (64, 8), 2, layer_norm=layer_norm, key=key))

    @jax.jit
    def gradients(mlp, x):
        def of(rows):
            parts = jax.lax.map(
                lambda x: jax.grad(lambda mlp: jnp.mean(mlp(x) ** 2))(mlp), x.reshape(-1, rows, 5)
            )
            return jax.tree.map(lambda leaf: leaf.mean(0), parts)

        return [of(rows) for rows in (40, 20, 8, 2)]

    whole, *others = gradients(mlp, np.random.default_rng(2).normal(size=(40, 5)).astype(np.float32))
    for other in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole, other)


def test_an_empty_batch_and_no_layers():
    assert MLP(5, (4,), 3, key=jax.random.key(0))(jnp.zeros((0, 5))).shape == (0, 3)
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(MLP(3, (), key=jax.random.key(0))(x), x)


def test_initial_weights_are_of_the_stated_scale():
    mlp = MLP(4, (64, 32), 2, scale=2.0, out_scale=0.01, key=jax.random.key(0))
    for layer, scale in [*((layer, 2.0) for layer in mlp.layers), (mlp.projection[0], 0.01)]:
        singular = np.linalg.svd(np.asarray(layer.kernel, np.float64), compute_uv=False)
        np.testing.assert_allclose(singular, scale, rtol=1e-5)
        np.testing.assert_array_equal(layer.bias, 0.0)


@pytest.mark.full
@pytest.mark.parametrize(("rows", "layer_norm"), [(6, True), (40, False)])
def test_gradients_by_finite_differences_and_second_ones_both_ways(layer_norm, rows):
    mlp = drawn_module(lambda key: MLP(3, (4, 4), 2, layer_norm=layer_norm, key=key))
    x = jnp.asarray(np.random.default_rng(2).normal(size=(rows, 3)), jnp.float32)
    loss = jax.jit(lambda mlp, x: jnp.sum(mlp(x) ** 2))
    check_grads(loss, (mlp, x), order=1, modes=["rev"], atol=2e-2, rtol=2e-2)
    slope = jax.grad(loss, argnums=1)
    hessian, backwards = jax.jit(lambda *a: [kind(slope, 1)(*a) for kind in (jax.jacfwd, jax.jacrev)])(
        mlp, x[0]
    )
    np.testing.assert_allclose(hessian, backwards, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_bad_input_is_named():
    key = jax.random.key(0)
    with pytest.raises(ShoalError, match=r"x of shape \(2, 4\) .* in_features=5"):
        MLP(5, (8,), key=key)(jnp.zeros((2, 4)))
    with pytest.raises(ShoalError, match="in_features=5"):
        MLP(5, (8,), key=key)(jnp.zeros(()))
    with pytest.raises(ShoalError, match=r"sizes=\(8, 0\).*at least 1"):
        MLP(5, (8, 0), key=key)
    with pytest.raises(ShoalError, match=r"activation='rleu'.*'relu'"):
        MLP(5, (8,), activation="rleu", key=key)
