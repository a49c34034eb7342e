"""The MLP against plain NumPy, its initial scale, its gradients, and what makes it compile again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


@jax.jit
def jittered(mlp, key):
    """The network with noise on every parameter, so that biases and norms are not trivial."""
    leaves, structure = jax.tree.flatten(mlp)
    keys = jax.random.split(key, len(leaves))
    noisy = [leaf + 0.3 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("sizes, out", [((8, 6), 3), ((8,), None), ((), 2)])
@pytest.mark.parametrize("batch_shape", [(), (7,), (2, 3), (10, 4)])
@pytest.mark.parametrize("inputs", [5, 11])
@pytest.mark.quick(
    "5-batch_shape0-sizes0-3-False",
    "5-batch_shape1-sizes1-None-True",
    "5-batch_shape2-sizes2-2-True",
    "11-batch_shape2-sizes0-3-True",
    "11-batch_shape1-sizes2-2-False",
)
def test_equals_numpy(layer_norm, sizes, out, batch_shape, inputs):
    mlp = MLP(inputs, sizes, out, layer_norm=layer_norm, key=jax.random.key(0))
    mlp = jittered(mlp, jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (*batch_shape, inputs))
    y = jax.jit(MLP.__call__)(mlp, x)
    assert y.shape == (*batch_shape, mlp.out_features)
    np.testing.assert_allclose(y, in_numpy(mlp, x, layer_norm), atol=1e-5)


def test_features_are_the_last_hidden_layer():
    mlp = MLP(5, (8, 6), 3, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(2), (2, 4, 5))
    out, features = mlp.with_features(x)
    assert features.shape == (2, 4, mlp.num_features) == (2, 4, 6)
    np.testing.assert_allclose(out, features @ mlp.projection[0].kernel.T, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 8, 20])  # sums and single rows; the last, products of all rows
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.quick("False-2", "True-8", "True-20")
def test_few_rows_are_computed_as_many_are(layer_norm, rows):
    mlp = jittered(MLP(5, (64, 8), 2, layer_norm=layer_norm, key=jax.random.key(0)), jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (40, 5))

    gradient = jax.jit(jax.grad(lambda mlp, x: jnp.mean(mlp(x) ** 2)))
    parts = [gradient(mlp, x[i : i + rows]) for i in range(0, 40, rows)]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(parts), *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradient(mlp, x), mean)


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


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("rows", [6, 40])
@pytest.mark.quick("6-True", "40-False")
def test_gradients_by_finite_differences_and_second_ones_both_ways(layer_norm, rows):
    mlp = jittered(MLP(3, (4, 4), 2, layer_norm=layer_norm, key=jax.random.key(0)), jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (rows, 3))
    loss = jax.jit(lambda mlp, x: jnp.sum(mlp(x) ** 2))
    check_grads(loss, (mlp, x), order=1, modes=["rev"], atol=2e-2, rtol=2e-2)
    hessian = jax.jit(jax.hessian(loss, argnums=1))(mlp, x[0])
    backwards = jax.jit(jax.jacobian(jax.grad(loss, argnums=1), argnums=1))(mlp, x[0])
    np.testing.assert_allclose(hessian, backwards, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
@pytest.mark.parametrize("rows", [4, 40])
@pytest.mark.quick("4-tanh-True", "4-relu-False", "40-elu-True", "40-silu-False")
def test_gradients_are_finite_at_extreme_and_at_zero_inputs(activation, layer_norm, rows):
    mlp = MLP(3, (8, 8), 2, activation=activation, layer_norm=layer_norm, key=jax.random.key(0))
    gradient = jax.jit(jax.grad(lambda mlp, x: jnp.mean(mlp(x) ** 2), argnums=(0, 1)))
    for x in (jnp.full((rows, 3), 1e6), jnp.full((rows, 3), -1e6), jnp.zeros((rows, 3))):
        gradients = gradient(mlp, x)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_vmap_over_members_and_scan_over_time_give_the_same_numbers():
    keys = jax.random.split(jax.random.key(0), 3)
    members = jax.jit(jax.vmap(lambda key: MLP(5, (8, 8), 2, key=key)))(keys)
    x = jax.random.normal(jax.random.key(1), (4, 6, 5))
    mapped = jax.jit(jax.vmap(lambda mlp: mlp(x)))(members)
    for i, key in enumerate(keys):
        one = MLP(5, (8, 8), 2, key=key)
        np.testing.assert_allclose(mapped[i], one(x), atol=1e-5)
        _, scanned = jax.lax.scan(lambda mlp, x_t: (mlp, mlp(x_t)), one, x)
        np.testing.assert_allclose(scanned, one(x), atol=1e-5)


def test_a_second_construction_compiles_nothing():
    traces = []

    @jax.jit
    def apply(mlp, x):
        traces.append(x.shape)
        return mlp(x)

    x = jnp.ones((4, 5))
    first, second = (MLP(5, (8,), 2, layer_norm=True, key=jax.random.key(seed)) for seed in (0, 1))
    compiled = jax.jit(lambda key: MLP(5, (8,), 2, layer_norm=True, key=key))(jax.random.key(2))
    outputs = [apply(mlp, x) for mlp in (first, second, compiled)]
    assert len(traces) == 1
    assert not np.allclose(outputs[0], outputs[1])
    assert jax.tree.structure(first) == jax.tree.structure(second) == jax.tree.structure(compiled)


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
