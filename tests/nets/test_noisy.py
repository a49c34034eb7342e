"""Noisy layers: the statistics of their noise, the network of one draw, and what is deterministic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.config.struct import named_leaves
from shoal.nets.mlp import MLP
from shoal.nets.noisy import NoisyMLP, factorised_noise

KEY = jax.random.key(0)


def network(**options):
    return NoisyMLP(9, (7,), 4, key=KEY, **options)


@pytest.mark.full
def test_initial_means_and_deviations_are_fortunatos():
    noisy = NoisyMLP(400, (100,), 50, sigma=0.4, scale=2.0, key=KEY)
    means = named_leaves(noisy.mean)
    for name, deviation, limit in (
        ("layers/0", noisy.deviations[0], 2.0 / np.sqrt(400)),
        ("projection/0", noisy.deviations[1], 1.0 / np.sqrt(100)),
    ):
        for part in ("kernel", "bias"):
            mean = np.asarray(means[f"{name}/{part}"])
            assert np.abs(mean).max() <= limit * (1 + 1e-6)
            assert np.abs(mean).max() > 0.9 * limit
            np.testing.assert_allclose(
                mean.std(), limit / np.sqrt(3), rtol=0.05 if part == "kernel" else 0.25
            )
            np.testing.assert_allclose(getattr(deviation, part), 0.4 * limit, rtol=1e-6)


def test_noise_is_factorised_with_the_stated_moments():
    """f(ε) has mean 0 and variance E|ε| = √(2/π), fourth moment E ε² = 1; the product's variance is 2/π."""
    out, inputs = map(
        np.asarray,
        jax.jit(jax.vmap(lambda key: factorised_noise(key, (3, 5))))(jax.random.split(KEY, 20_000)),
    )
    variance = np.sqrt(2 / np.pi)
    for noise in (out, inputs):
        assert abs(float(noise.mean())) < 5 * np.sqrt(variance / noise.size)
        np.testing.assert_allclose(np.var(np.asarray(noise)), variance, atol=5 * 0.6 / np.sqrt(noise.size))
        np.testing.assert_allclose(np.mean(np.asarray(noise) ** 4), 1.0, atol=5 * 1.5 / np.sqrt(noise.size))
    product = np.asarray(out[:, :, None] * inputs[:, None, :])
    np.testing.assert_allclose(product.var(axis=0), 2 / np.pi, rtol=0.06)
    assert np.abs(np.corrcoef(np.concatenate([out, inputs], axis=1).T) - np.eye(8)).max() < 0.05


def test_a_draw_is_the_mean_and_a_product_of_two_vectors():
    """`sample` is a plain MLP, its weights off the means by σ times a matrix of rank one."""
    noisy = network(sigma=0.7)
    sample = noisy.sample(jax.random.key(3))
    assert isinstance(sample, MLP)
    assert jax.tree.structure(sample) == jax.tree.structure(noisy.mean)
    for layer, mean, deviation in (
        (sample.layers[0], noisy.mean.layers[0], noisy.deviations[0]),
        (sample.projection[0], noisy.mean.projection[0], noisy.deviations[1]),
    ):
        noise = np.asarray((layer.kernel - mean.kernel) / deviation.kernel, np.float64)
        singular = np.linalg.svd(noise, compute_uv=False)
        assert singular[1] < 1e-5 * singular[0]
        bias = np.asarray((layer.bias - mean.bias) / deviation.bias)  # the noise of the outputs itself
        ratio = noise / bias[:, None]
        np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:1], ratio.shape), rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_the_key_decides_and_without_one_the_means_do():
    noisy = network(layer_norm=True)
    x = jax.random.normal(KEY, (5, 9))
    call = jax.jit(NoisyMLP.__call__)
    first, again, other = (call(noisy, x, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-2
    np.testing.assert_allclose(noisy.sample(jax.random.key(1))(x), first, atol=1e-6)
    np.testing.assert_array_equal(noisy(x), noisy.mean(x))
    each = jax.vmap(noisy)(x, jax.random.split(KEY, 5))  # a draw for each element
    np.testing.assert_allclose(each[3], noisy(x[3], jax.random.split(KEY, 5)[3]), atol=1e-5)


@pytest.mark.full
def test_without_deviations_it_is_its_mean_and_the_deviations_learn():
    quiet = network(sigma=0.0)
    x = jax.random.normal(KEY, (5, 9))
    np.testing.assert_allclose(quiet(x, KEY), quiet.mean(x), atol=1e-6)
    gradient = jax.jit(jax.grad(lambda noisy: jnp.sum(noisy(x, KEY) ** 2)))(network())
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient))
    for deviation, mean, noise_key in zip(
        gradient.deviations,
        (gradient.mean.layers[0], gradient.mean.projection[0]),
        jax.random.split(KEY, 2),
        strict=True,
    ):
        out, inputs = factorised_noise(noise_key, mean.kernel.shape)
        np.testing.assert_allclose(
            deviation.kernel, mean.kernel * jnp.outer(out, inputs), rtol=1e-4, atol=1e-5
        )


@pytest.mark.full
def test_bad_input_is_named():
    with pytest.raises(ShoalError, match=r"sizes=\(-1,\)"):
        NoisyMLP(9, (-1,), key=KEY)
    with pytest.raises(ShoalError, match=r"x of shape \(3,\)"):
        network()(jnp.zeros(3), KEY)
