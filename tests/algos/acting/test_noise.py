"""Correlated noise: each number by itself is standard normal, and random actions made of it are uniform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.acting import actions
from shoal.ops.distributions import Normal
from shoal.types.spaces import Box

N, STEPS, CORRELATION = 4000, 40, 0.9


@pytest.fixture(scope="module")
def noise():
    """Noise of N streams, [T, N, 2], which begin an episode at the first step and, half of them, at step 20."""
    firsts = jnp.zeros((STEPS, N), bool).at[0].set(True).at[20, ::2].set(True)
    keys = jax.random.split(jax.random.key(0), STEPS)

    def step(noise, inputs):
        noise = actions.draw_noise(noise, *inputs, CORRELATION)
        return noise, noise

    config = actions.NoiseConfig(correlated_noise=True)
    start = actions.initial_noise(config, Box(-1.0, 1.0, (1, 2)), (N,))
    assert start.shape == (N, 2)
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, start, (firsts, keys))[1])())


def test_each_number_is_standard_normal(noise):
    np.testing.assert_allclose(noise.mean(axis=(1, 2)), 0.0, atol=0.06)
    np.testing.assert_allclose(noise.std(axis=(1, 2)), 1.0, atol=0.04)


def test_steps_are_correlated_within_an_episode_only(noise):
    ended = noise[:, ::2, 0]
    pairs = ((0, 1), (0, 3), (19, 20), (15, 25))
    correlation = [np.corrcoef(ended[s], ended[t])[0, 1] for s, t in pairs]
    np.testing.assert_allclose(correlation, [0.9, 0.9**3, 0.0, 0.0], atol=0.07)
    goes_on = np.corrcoef(noise[19, 1::2, 0], noise[20, 1::2, 0])[0, 1]
    np.testing.assert_allclose(goes_on, CORRELATION, atol=0.03)
    assert abs(np.corrcoef(noise[5, :, 0], noise[5, :, 1])[0, 1]) < 0.06


def test_a_sample_is_the_distribution_of_the_noise(noise):
    distribution = Normal(jnp.full((N, 2), 3.0), jnp.full((N, 2), 0.5))
    arguments = jnp.asarray(noise[0]), jnp.zeros(N, bool), jax.random.key(3), CORRELATION
    held, raw = actions.sample_correlated(distribution, *arguments)
    np.testing.assert_array_equal(held, actions.draw_noise(*arguments))
    np.testing.assert_allclose(raw, 3.0 + 0.5 * held, rtol=1e-6)


def test_random_actions_of_correlated_noise_are_uniform(noise):
    uniform = np.asarray(actions.uniform_of(jnp.asarray(noise)))
    counts = np.histogram(uniform[[0, 9, 30]], bins=10, range=(-1.0, 1.0))[0]
    assert counts.sum() == 3 * N * 2
    np.testing.assert_allclose(counts / counts.sum(), 0.1, atol=0.012)
    neighbours = np.corrcoef(uniform[8].ravel(), uniform[9].ravel())[0, 1]
    assert neighbours > 0.85
    known = actions.uniform_of(jnp.array([0.0, 1.0, -1.959964, 40.0]))
    np.testing.assert_allclose(known, [0.0, 0.6826895, -0.95, 1.0], atol=1e-6)


def test_without_correlation_nothing_is_held():
    assert actions.initial_noise(actions.NoiseConfig(), Box(-1.0, 1.0, (2,)), (3,)) == ()
