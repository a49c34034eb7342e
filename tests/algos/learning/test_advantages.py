"""Every estimator of advantages keeps the promises that the table of ends makes, and those by returns their loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.learning.advantages import ESTIMATORS
from shoal.algos.learning.minibatches import Rows
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings

T, N = 12, 40


def rollout(seed):
    """Returns' inputs and values with ends of every kind; what may not be read is NaN."""
    rng = np.random.default_rng(seed)
    last = rng.uniform(size=(T + 1, N)) < 0.2
    for t in range(1, T + 1):
        last[t] &= ~last[t - 1]
    terminal = last & (rng.uniform(size=last.shape) < 0.5)
    weight = np.where(last[:-1], 0.0, 1.0).astype(np.float32)
    value = rng.normal(size=(T + 1, N)).astype(np.float32)
    value[terminal] = np.nan
    reward = np.where(weight > 0, rng.normal(size=(T, N)), np.nan).astype(np.float32)
    discount = np.where(terminal[1:], 0.0, 0.9).astype(np.float32)
    return Rows(reward=reward, discount=discount, last=last[1:], weight=weight), value


def config_of(name, **settings):
    return with_settings(PPOConfig(), advantage=name, recompute="epoch", **settings)


def estimated(name, inputs, value, log_ratio=None, **settings):
    config = config_of(name, **settings)
    log_ratio = np.full_like(inputs.reward, 0.1) if log_ratio is None else log_ratio
    return jax.jit(lambda *x: ESTIMATORS[name](config, *x))(inputs, value, log_ratio)


def looped(inputs, value, lambda_):
    """The targets as sums over all that follows: for each step, over each length of its return."""
    columns = inputs.reward, inputs.discount, inputs.last, inputs.weight
    reward, discount, last, weight = (np.asarray(x, np.float64) for x in columns)
    target = np.array(value[:-1], np.float64)
    for n in range(N):
        for t in range(T):
            if not weight[t, n]:
                continue
            total, factor, mixture = (
                0.0,
                1.0,
                1.0,
            )  # the product of discounts, and what is left of the mixture
            target[t, n] = 0.0
            for k in range(t, T):
                total += factor * reward[k, n]
                factor *= discount[k, n]
                is_end = last[k, n] or k == T - 1
                bootstrapped = total + (factor * value[k + 1, n] if discount[k, n] else 0.0)
                share = mixture if is_end else mixture * (1 - lambda_)
                target[t, n] += share * bootstrapped if share else 0.0
                mixture *= lambda_
                if is_end:
                    break
    return target


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name, lambda_", [("lambda_returns", 0.0), ("lambda_returns", 0.7), ("gae", 0.7),
                                           ("lambda_returns", 1.0), ("discounted_returns", 1.0)])  # fmt: skip
def test_returns_are_those_of_a_double_loop(name, lambda_, seed):
    inputs, value = rollout(seed)
    settings = {} if name == "discounted_returns" else {"gae_lambda": lambda_}
    advantage, target = estimated(name, inputs, value, **settings)
    expected = looped(inputs, value, lambda_)
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)
    is_transition = inputs.weight > 0
    np.testing.assert_allclose(
        advantage[is_transition], (expected - value[:-1])[is_transition], rtol=1e-5, atol=1e-5
    )


def looped_by_ratios(name, inputs, value, log_ratio, lambda_=0.7, rho_clip=0.9, c_clip=1.2):
    """Advantages and targets [T, N]: for each step a sum over those that follow it in its episode, in float64."""
    columns = inputs.reward, inputs.discount, inputs.last, inputs.weight, np.exp(log_ratio)
    reward, discount, last, weight, ratio = (np.asarray(x, np.float64) for x in columns)
    by_reward = name == "vtrace_rewards"
    rho = np.minimum(ratio, rho_clip) if by_reward else ratio
    trace = np.minimum(ratio, c_clip) if by_reward else ratio
    advantage, target = np.zeros((T, N)), np.array(value[:-1], np.float64)
    for n in range(N):
        for t in range(T):
            if not weight[t, n]:
                continue
            errors, factor = [], 1.0
            for k in range(t, T):
                following = discount[k, n] * value[k + 1, n] if discount[k, n] else 0.0
                if by_reward:
                    errors.append(factor * (rho[k, n] * reward[k, n] + following - value[k, n]))
                else:  # the ratio of step t itself is left to the surrogate
                    ratio_of_step = ratio[k, n] if k > t else 1.0
                    errors.append(factor * ratio_of_step * (reward[k, n] + following - value[k, n]))
                if last[k, n]:
                    break
                factor *= discount[k, n] * lambda_ * (trace[k, n] if by_reward or k > t else 1.0)
            advantage[t, n] = sum(errors)
            target[t, n] += advantage[t, n] * (1.0 if by_reward else ratio[t, n])
    return advantage, target


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["vtrace_rewards", "importance_corrected_td"])
def test_estimates_by_ratios_are_those_of_a_double_loop(name, seed):
    inputs, value = rollout(seed)
    log_ratio = np.random.default_rng(seed).normal(size=(T, N)).astype(np.float32) / 2
    log_ratio[inputs.weight == 0] = np.nan
    clips = {"rho_clip": 0.9, "c_clip": 1.2} if name == "vtrace_rewards" else {}
    got = estimated(name, inputs, value, log_ratio, gae_lambda=0.7, **clips)
    for x, y in zip(got, looped_by_ratios(name, inputs, value, log_ratio), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def test_where_all_ratios_are_1_estimates_by_them_are_gaes_and_without_a_clip_vtraces():
    inputs, value = rollout(5)
    zeros, log_ratio = np.zeros((2, T, N), np.float32)
    log_ratio[:] = np.random.default_rng(5).normal(size=(T, N)) / 2
    by_gae = estimated("gae", inputs, value, zeros, gae_lambda=0.8)
    for name in ("vtrace", "vtrace_rewards", "importance_corrected_td"):
        for x, y in zip(estimated(name, inputs, value, zeros, gae_lambda=0.8), by_gae, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    bare = estimated("vtrace", inputs, value, log_ratio, gae_lambda=0.8, rho_clip=np.inf, c_clip=np.inf)
    corrected = estimated("importance_corrected_td", inputs, value, log_ratio, gae_lambda=0.8)
    for x, y in zip(corrected, bare, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3])
def test_n_step_returns_are_those_of_a_double_loop(n):
    inputs, value = rollout(4)
    _, target = estimated("n_step_returns", inputs, value, gae_lambda=1.0, n_step=n)
    expected = np.array(value[:-1], np.float64)
    for t, k in np.argwhere(inputs.weight > 0):
        total, factor = 0.0, 1.0
        for step in range(t, min(t + n, T)):
            total += factor * inputs.reward[step, k]
            factor *= inputs.discount[step, k]
            if inputs.last[step, k]:
                break
        expected[t, k] = total + (factor * value[step + 1, k] if factor else 0.0)
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


def test_estimators_are_each_other_where_they_must_be():
    inputs, value = rollout(7)
    by_gae = estimated("gae", inputs, value, gae_lambda=0.8)
    for x, y in zip(estimated("lambda_returns", inputs, value, gae_lambda=0.8), by_gae, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    for x, y in zip(
        estimated("n_step_returns", inputs, value, gae_lambda=0.8, n_step=T), by_gae, strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    whole = estimated("lambda_returns", inputs, value, gae_lambda=1.0)
    for x, y in zip(estimated("discounted_returns", inputs, value), whole, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.quick("discounted_returns")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_keeps_the_contract(name):
    """Shapes; advantage 0 and the value as target at weight 0; nothing of what may not be read; no gradient."""
    inputs, value = rollout(3)
    is_transition = inputs.weight > 0
    advantage, target = estimated(name, inputs, value)
    assert advantage.shape == target.shape == (T, N) and advantage.dtype == target.dtype == jnp.float32
    assert np.isfinite(advantage).all() and np.isfinite(np.asarray(target)[is_transition]).all()
    np.testing.assert_array_equal(np.asarray(advantage)[~is_transition], 0.0)
    np.testing.assert_array_equal(np.asarray(target)[~is_transition], value[:-1][~is_transition])
    agents = jax.tree.map(lambda x: np.reshape(x, (len(x), N // 4, 4)), (inputs, value))
    for x, y in zip(estimated(name, *agents), (advantage, target), strict=True):
        np.testing.assert_allclose(np.reshape(x, (T, N)), y, rtol=1e-6)
    slope = jax.grad(lambda v: jnp.sum(jnp.where(is_transition, ESTIMATORS[name](
        config_of(name), inputs, v, inputs.weight)[0], 0.0)))(np.nan_to_num(value))  # fmt: skip
    assert np.isfinite(slope).all()
