"""Initial weights: orthogonal to rounding, uniform among orthogonal matrices, of the stated variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from shoal.base.errors import ShoalError
from shoal.nets.initialisers import INITIALISERS, kernels, orthogonal, orthogonals, variance_scaling
from shoal.nets.mlp import MLP

pytestmark = pytest.mark.usefixtures("own_kernels")

SHAPES = [(64, 64), (64, 64), (64, 4), (2, 64), (1, 64), (64, 1), (1, 1), (8, 3, 5), (256, 256), (300, 100)]


def departure(kernel):
    """How far the shorter side's products are from the identity, in float64."""
    matrix = np.asarray(kernel, np.float64).reshape(kernel.shape[0], -1)
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return np.abs(gram - np.eye(len(gram))).max()


def test_is_orthogonal_for_every_shape_alone_and_together():
    kernels = jax.jit(lambda key: orthogonals(key, SHAPES))(jax.random.key(0))
    for shape, kernel in zip(SHAPES, kernels, strict=True):
        assert kernel.shape == shape
        assert kernel.dtype == jnp.float32
        assert departure(kernel) < 1e-5, shape
    assert not np.allclose(kernels[0], kernels[1], atol=0.1)  # independent


@pytest.mark.parametrize("shape", [(3, 3), (2, 5)])
def test_is_uniform_among_orthogonal_matrices(shape):
    """A column of a Haar-distributed matrix is uniform on the sphere, where (1 + x) / 2 is a Beta."""
    draws = jax.jit(jax.vmap(lambda key: orthogonal(key, shape, scale=3.0) / 3.0))(
        jax.random.split(jax.random.key(3), 4000)
    )
    draws = np.asarray(draws, np.float64)
    half = (max(shape) - 1) / 2
    for i, j in np.ndindex(shape):
        entry = scipy.stats.kstest((1 + draws[:, i, j]) / 2, scipy.stats.beta(half, half).cdf)
        assert entry.pvalue > 1e-4, (i, j)
    if shape[0] == shape[1]:
        # The trace tells a sign convention that is not undone: moments of Diaconis and Shahshahani 1994.
        trace = np.trace(draws, axis1=1, axis2=2)
        square = np.trace(draws @ draws, axis1=1, axis2=2)
        for sample, mean in [(trace, 0.0), (trace**2, 1.0), (square, 1.0), (np.linalg.det(draws), 0.0)]:
            assert abs(sample.mean() - mean) < 4 * sample.std() / np.sqrt(len(sample))


def test_mapped_over_keys_gives_what_each_key_gives():
    keys = jax.random.split(jax.random.key(5), 3)
    one = jax.jit(lambda key: orthogonal(key, (6, 4)))
    mapped, alone = jax.jit(jax.vmap(one))(keys), np.stack([one(key) for key in keys])
    np.testing.assert_allclose(mapped, alone, atol=1e-6)


def test_calls_no_library_routine():
    """LAPACK calls under vmap can block every thread of the CPU backend; so there must be none."""
    members = jax.vmap(lambda key: orthogonal(key, (8, 8)))
    text = jax.jit(members).lower(jax.random.split(jax.random.key(0), 2)).as_text().lower()
    assert "dot_general" in text
    assert not any(word in text for word in ("lapack", "householder", "qr_", "geqrf", "custom_call"))


@pytest.mark.parametrize(
    "mode, fan, distribution",
    [("fan_in", 50, "normal"), ("fan_out", 400, "truncated_normal"), ("fan_avg", 225, "uniform")],
)
def test_variance_scaling_has_the_stated_distribution(mode, fan, distribution):
    kernel = variance_scaling(jax.random.key(1), (400, 10, 5), 2.0, mode=mode, distribution=distribution)
    std = np.sqrt(2.0 / fan)
    sample = np.asarray(kernel, np.float64).ravel() / std
    edge = 1 / scipy.stats.truncnorm(-2, 2).std()
    cdf = {
        "normal": scipy.stats.norm.cdf,
        "truncated_normal": scipy.stats.truncnorm(-2, 2, scale=edge).cdf,
        "uniform": scipy.stats.uniform(-np.sqrt(3), 2 * np.sqrt(3)).cdf,
    }[distribution]
    assert kernel.shape == (400, 10, 5)
    assert scipy.stats.kstest(sample, cdf).pvalue > 1e-3
    np.testing.assert_allclose(sample.std(), 1.0, rtol=0.02)


@pytest.mark.parametrize("shape", [(3,), (), (0, 4)])
def test_a_shape_that_is_no_matrix_is_named(shape):
    for initialise in (orthogonal, variance_scaling):
        with pytest.raises(ShoalError, match=r"shape=\(.*must have two axes"):
            initialise(jax.random.key(0), shape)


def test_unknown_mode_and_distribution_are_named():
    with pytest.raises(ValueError, match=r"mode .* fan"):
        variance_scaling(jax.random.key(0), (2, 2), mode="fan")
    with pytest.raises(ValueError, match=r"distribution .* cauchy"):
        variance_scaling(jax.random.key(0), (2, 2), distribution="cauchy")


@pytest.mark.parametrize("name", [name for name in INITIALISERS if name != "orthogonal"])
@pytest.mark.quick("lecun_normal", "glorot_uniform", "he_uniform")
def test_by_name_they_have_the_moments_of_jaxs(name):
    """Of JAX's own initialiser of that name, whose kernels are [in, out], and independent of each other."""
    first, second = kernels(jax.random.key(0), [(300, 200), (300, 200)], name)
    theirs = getattr(jax.nn.initializers, name)()(jax.random.key(1), (200, 300))
    np.testing.assert_allclose(first.std(), theirs.std(), rtol=0.01)
    np.testing.assert_allclose(jnp.abs(first).max(), jnp.abs(theirs).max(), rtol=0.01)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02


def test_by_name_orthogonal_is_orthogonals():
    shapes = [(8, 4), (3, 8)]
    for ours, theirs in zip(
        kernels(jax.random.key(0), shapes), orthogonals(jax.random.key(0), shapes), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(
        ShoalError, match=r"initialiser='othogonal' is none of orthogonal, .* mean 'orthogonal'\?"
    ):
        kernels(jax.random.key(0), shapes, "othogonal")


def test_an_mlp_takes_an_initialiser_and_its_scale():
    mlp = MLP(200, (300,), 100, initialiser="he_uniform", scale=2.0, out_scale=0.5, key=jax.random.key(0))
    for layer, std in ((mlp.layers[0], 2.0 * np.sqrt(2 / 200)), (mlp.projection[0], 0.5 * np.sqrt(2 / 300))):
        np.testing.assert_allclose(layer.kernel.std(), std, rtol=0.02)
        np.testing.assert_allclose(jnp.abs(layer.kernel).max(), std * np.sqrt(3), rtol=0.01)
