"""Losses against their formulas in float64, their gradients by finite differences, and at extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from shoal.ops import policy_losses, value_losses

RNG = np.random.default_rng(0)
LOG_RATIO = RNG.normal(scale=0.4, size=200).astype(np.float32)
ADVANTAGE = RNG.normal(size=200).astype(np.float32)
KL = RNG.uniform(size=200).astype(np.float32)


def clip_by_case(log_ratio: float, advantage: float, epsilon: float) -> float:
    """Figure 1 of the paper, case by case."""
    ratio = np.exp(np.float64(log_ratio))
    if advantage >= 0:
        return -advantage * min(ratio, 1 + epsilon)
    return -advantage * max(ratio, 1 - epsilon)


def dpo_by_case(log_ratio: float, advantage: float, alpha: float, beta: float) -> float:
    ratio = np.exp(np.float64(log_ratio))
    if advantage >= 0:
        drift = (ratio - 1) * advantage - alpha * np.tanh((ratio - 1) * advantage / alpha)
    else:
        drift = np.log(ratio) * advantage - beta * np.tanh(np.log(ratio) * advantage / beta)
    return -(ratio * advantage - max(drift, 0.0))


def test_surrogates_equal_their_papers():
    pairs = list(zip(LOG_RATIO, ADVANTAGE, strict=True))
    expected = [clip_by_case(x, a, 0.2) for x, a in pairs]
    np.testing.assert_allclose(
        policy_losses.clip_surrogate(LOG_RATIO, ADVANTAGE, 0.2), expected, rtol=1e-5, atol=1e-6
    )
    for alpha, beta in ((2.0, 0.6), (0.5, 1.5)):
        expected = [dpo_by_case(x, a, alpha, beta) for x, a in pairs]
        got = policy_losses.dpo_surrogate(LOG_RATIO, ADVANTAGE, alpha, beta)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    expected = -(np.exp(LOG_RATIO.astype(np.float64)) * ADVANTAGE - 3.0 * KL)
    got = policy_losses.kl_penalty_surrogate(LOG_RATIO, ADVANTAGE, KL, 3.0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_discovered_policy_optimisation_defaults_are_the_papers():
    np.testing.assert_array_equal(
        policy_losses.dpo_surrogate(LOG_RATIO, ADVANTAGE),
        policy_losses.dpo_surrogate(LOG_RATIO, ADVANTAGE, 2.0, 0.6),
    )


SURROGATES = {
    "clip": lambda x, a: policy_losses.clip_surrogate(x, a, 0.2),
    "penalty": lambda x, a: policy_losses.kl_penalty_surrogate(x, a, jnp.square(x), 0.7),
    "dpo": policy_losses.dpo_surrogate,
    "policy_gradient": policy_losses.policy_gradient,
}


@pytest.mark.parametrize("name", SURROGATES)
def test_every_surrogate_is_the_policy_gradient_where_the_policies_agree(name):
    zeros = jnp.zeros_like(ADVANTAGE)
    gradient = jax.grad(lambda x: jnp.sum(SURROGATES[name](x, ADVANTAGE)))(zeros)
    np.testing.assert_allclose(gradient, -ADVANTAGE, rtol=1e-6)


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_have_their_own_gradient_and_none_in_the_advantage(name):
    # Away from the clip's corners, where there is no derivative.
    smooth = LOG_RATIO[np.abs(np.abs(np.expm1(LOG_RATIO)) - 0.2) > 0.02][:40]
    advantage = ADVANTAGE[: len(smooth)]
    check_grads(lambda x: SURROGATES[name](x, advantage), (smooth,), order=1, rtol=2e-2, atol=1e-2)
    passed = jax.grad(lambda a: jnp.sum(SURROGATES[name](smooth, a)))(advantage)
    np.testing.assert_array_equal(passed, 0.0)


def test_the_clip_cuts_the_gradient_on_the_good_side_only():
    log_ratio = jnp.log(jnp.asarray([1.5, 1.5, 0.5, 0.5]))
    advantage = jnp.asarray([1.0, -1.0, 1.0, -1.0])
    gradient = jax.grad(lambda x: jnp.sum(policy_losses.clip_surrogate(x, advantage, 0.2)))(log_ratio)
    np.testing.assert_allclose(gradient, [0.0, 1.5, -0.5, 0.0], rtol=1e-6)


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogates_are_finite_at_extremes(name):
    log_ratio, advantage = (
        x.ravel()
        for x in jnp.meshgrid(
            jnp.asarray([-1e4, -100.0, 0.0, 50.0, 100.0, 1e4]), jnp.asarray([-100.0, 0.0, 100.0])
        )
    )
    value, gradient = jax.vmap(jax.value_and_grad(SURROGATES[name]))(log_ratio, advantage)
    assert np.all(np.isfinite(value)) and np.all(np.isfinite(gradient))


def test_kl_estimators_estimate_the_kl():
    """Of two normals one apart: KL = 1/2; and k3 is right where exp(x) - 1 - x loses all its digits."""
    x = np.random.default_rng(1).normal(size=400_000)  # of μ = N(0, 1); π = N(1, 1)
    log_ratio = jnp.asarray((x - 0.5).astype(np.float32))
    k1, k3 = policy_losses.kl_k1(log_ratio), policy_losses.kl_k3(log_ratio)
    for estimate in (k1, k3):
        error = 5 * float(jnp.std(estimate)) / np.sqrt(len(x))
        assert abs(float(jnp.mean(estimate)) - 0.5) < error
    assert jnp.all(k3 >= 0)
    small = np.concatenate([np.geomspace(1e-7, 1.0, 60), -np.geomspace(1e-7, 1.0, 60)]).astype(np.float32)
    exact = np.expm1(small.astype(np.longdouble)) - small.astype(np.longdouble)
    exact = np.where(np.abs(small) < 1e-4, small.astype(np.float64) ** 2 * (0.5 + small / 6.0), exact)
    np.testing.assert_allclose(policy_losses.kl_k3(small), exact.astype(np.float64), rtol=2e-5)
    gradient = jax.vmap(jax.grad(policy_losses.kl_k3))(jnp.asarray([0.0, 0.01, -0.5, 1e4]))
    np.testing.assert_allclose(gradient[:3], np.expm1([0.0, 0.01, -0.5]), rtol=1e-5)
    assert np.all(np.isfinite(gradient))


def test_the_kl_coefficient_follows_the_kl():
    adapted = [
        float(policy_losses.adapt_kl_coef(0.4, jnp.float32(kl), 0.03)) for kl in (0.019, 0.021, 0.044, 0.046)
    ]
    np.testing.assert_allclose(adapted, [0.2, 0.4, 0.4, 0.8], rtol=1e-6)
    assert float(policy_losses.adapt_kl_coef(0.4, jnp.float32(np.nan), 0.03)) == np.float32(0.4)
    assert float(policy_losses.adapt_kl_coef(1e-6, jnp.float32(0.0), 0.03)) == np.float32(1e-6)


def test_value_losses_equal_their_formulas():
    value, old, target = RNG.normal(size=(3, 300)).astype(np.float32) * 2
    np.testing.assert_allclose(value_losses.squared(value, target), (value - target) ** 2 / 2, rtol=1e-6)
    clipped = np.where(value > old + 0.2, old + 0.2, np.where(value < old - 0.2, old - 0.2, value))
    expected = np.maximum((value - target) ** 2, (clipped - target) ** 2) / 2
    np.testing.assert_allclose(
        value_losses.clipped_value(value, old, target, 0.2), expected, rtol=1e-5, atol=1e-6
    )
    for delta in (0.5, 1.0):
        error = np.abs(value - target)
        expected = np.where(error <= delta, error**2 / 2, delta * (error - delta / 2))
        np.testing.assert_allclose(value_losses.huber(value, target, delta), expected, rtol=1e-5, atol=1e-6)


def test_value_losses_have_their_own_gradient_and_none_in_the_target():
    value, old, target = (RNG.normal(size=(3, 30)) * 2).astype(np.float32)
    losses = {
        "squared": value_losses.squared,
        "huber": value_losses.huber,
        "clipped": lambda v, g: value_losses.clipped_value(v, old, g, 0.2),
    }
    for loss in losses.values():
        check_grads(
            lambda v, loss=loss: loss(v, target), (value,), order=1, modes=["rev"], rtol=2e-2, atol=2e-2
        )
        passed = jax.grad(lambda g, loss=loss: jnp.sum(loss(value, g)))(target)
        np.testing.assert_array_equal(passed, 0.0)
    huge = jax.grad(value_losses.huber)(jnp.float32(1e30), jnp.float32(0.0))
    assert huge == 1.0
