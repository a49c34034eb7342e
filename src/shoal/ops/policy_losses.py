"""Policy losses, elementwise and unreduced: the caller weighs and averages. All are to be minimised.

`log_prob` is log π(a) of the policy being learned, and `log_ratio` is log π(a) - log μ(a), over the one that acted.
An advantage above 0 says that the action was better than expected, and carries no gradient. All arrays of a call
have one shape [...] and one floating dtype, and so has the result; a coefficient is a number or of that shape. A
disagreement of shapes raises a ValueError while tracing, one of dtypes a TypeError, each with the names and what
they are.

A ratio is exp(log_ratio) for log-ratios up to 60 (10 in float16): above, it stays at exp(60) = 1e26, and a loss of
the ratio has no gradient there. Neither overflows.
"""

import math

import jax
import jax.numpy as jnp

from shoal.ops import _checks
from shoal.ops._selects import clip_by_select

Array = jax.Array


def policy_gradient(log_prob: Array, advantage: Array) -> Array:
    """The policy gradient's loss (REINFORCE, A2C): `-A log π(a)`; with a baseline b of the observation, A = G - b.

    Source: Williams 1992, "Simple Statistical Gradient-Following Algorithms for Connectionist
    Reinforcement Learning"; Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning".
    """
    _check(log_prob=log_prob, advantage=advantage)
    return -log_prob * jax.lax.stop_gradient(advantage)


def vtrace_policy_gradient(
    log_prob: Array, log_ratio: Array, advantage: Array, clip_pg_rho: Array | float = 1.0
) -> Array:
    """V-trace's policy gradient (IMPALA): `-ρ A log π(a)`, ρ = min(ρ̄, exp(log_ratio)) without a gradient.

    Args:
      advantage: A without its ratio, r + γ v - V, [...], as of `shoal.ops.vtrace.vtrace_advantages`.
      clip_pg_rho: ρ̄; `jnp.inf` does not clip.
    Source: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
    Actor-Learner Architectures", section 4.2.
    """
    _check(log_prob=log_prob, log_ratio=log_ratio, advantage=advantage)
    _checks.broadcastable(jnp.shape(log_prob), clip_pg_rho=clip_pg_rho)
    ratio = jnp.minimum(clip_pg_rho, jnp.exp(_clip_log_ratio(log_ratio)))
    return policy_gradient(log_prob, jax.lax.stop_gradient(ratio) * advantage)


def sampled_entropy_loss(log_prob: Array) -> Array:
    """The entropy's loss from actions of π itself: its value is `log π(a)`, its gradient `log π(a) ∇log π(a)`.

    Both are unbiased estimates of those of -H, for policies whose `entropy` has no closed form. The gradient of
    log π(a) alone is not: its mean is 0.
    """
    _check(log_prob=log_prob)
    constant = jax.lax.stop_gradient(log_prob)
    return constant + constant * (log_prob - constant)


def clip_surrogate(log_ratio: Array, advantage: Array, clip_coef: Array | float) -> Array:
    """PPO's clipped surrogate: `-min(r A, clip(r, 1 - ε, 1 + ε) A)`, r = exp(log_ratio), ε = clip_coef.

    For log-ratios above 60 there is no gradient, also where the advantage is negative and the clip leaves it.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7.
    """
    _check(log_ratio=log_ratio, advantage=advantage)
    _checks.broadcastable(jnp.shape(log_ratio), clip_coef=clip_coef)
    advantage = jax.lax.stop_gradient(advantage)
    ratio = jnp.exp(_clip_log_ratio(log_ratio))
    gain = ratio * advantage
    clipped_gain = clip_by_select(ratio, 1.0 - clip_coef, 1.0 + clip_coef) * advantage
    # A select: the gradient of `jnp.minimum` at a tie, where the ratio is within its bounds, would be half of each.
    return -jnp.where(gain <= clipped_gain, gain, clipped_gain)


def kl_penalty_surrogate(log_ratio: Array, advantage: Array, kl: Array, kl_coef: Array | float) -> Array:
    """PPO with a KL penalty: `-(r A - β kl)`, r = exp(log_ratio), β = kl_coef.

    Args:
      kl: KL(μ || π) of the two distributions at the same observation, or an estimate of it, [...].
      kl_coef: β, a number for a fixed penalty; for an adaptive one `adapt_kl_coef` moves it.
    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 8.
    """
    _check(log_ratio=log_ratio, advantage=advantage, kl=kl)
    _checks.broadcastable(jnp.shape(log_ratio), kl_coef=kl_coef)
    ratio = jnp.exp(_clip_log_ratio(log_ratio))
    return kl_coef * kl - ratio * jax.lax.stop_gradient(advantage)


def adapt_kl_coef(kl_coef: Array | float, kl: Array, target: Array | float) -> Array:
    """The KL coefficient for the next update: halved where kl < target / 1.5, doubled where kl > 1.5 target.

    Unchanged where `kl` is not finite; kept in [1e-6, 1e6], so that it can find its way back. float32.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", section 4.
    """
    kl_coef = jnp.asarray(kl_coef, jnp.float32)
    factor = jnp.where(kl < target / 1.5, 0.5, jnp.where(kl > target * 1.5, 2.0, 1.0))
    return jnp.where(jnp.isfinite(kl), jnp.clip(kl_coef * factor, 1e-6, 1e6), kl_coef)


def dpo_surrogate(
    log_ratio: Array, advantage: Array, alpha: Array | float = 2.0, beta: Array | float = 0.6
) -> Array:
    """Discovered Policy Optimisation: `-(r A - drift)`, r = exp(log_ratio).

        drift = relu((r - 1) A - α tanh((r - 1) A / α))   where A >= 0
                relu(A log r - β tanh(A log r / β))       where A < 0

    Exact to rounding for every ratio: where A >= 0 and r > 1 the loss is -A - α tanh((r - 1) A / α).

    Source: Lu et al. 2022, "Discovered Policy Optimisation", section 5.3 (arXiv:2210.05639).
    """
    _check(log_ratio=log_ratio, advantage=advantage)
    _checks.broadcastable(jnp.shape(log_ratio), alpha=alpha, beta=beta)
    advantage = jax.lax.stop_gradient(advantage)
    log_ratio = _clip_log_ratio(log_ratio)
    upward = jnp.expm1(log_ratio) * advantage
    downward = log_ratio * advantage
    # Where the drift is not 0 upwards, r A is in it too: taken out, so that the two do not cancel at large ratios.
    gain_less_drift = advantage + alpha * _tanh(jnp.where(upward > 0, upward, 0.0) / alpha)
    drift = jnp.where(downward > 0, beta * _x_minus_tanh(jnp.where(downward > 0, downward, 0.0) / beta), 0.0)
    gain = jnp.exp(log_ratio) * advantage
    return jnp.where(advantage >= 0, jnp.where(upward > 0, -gain_less_drift, -gain), drift - gain)


def kl_k3(log_ratio: Array) -> Array:
    """The estimator k3 of KL(μ || π) from actions of μ: `(r - 1) - log r`; unbiased and never negative.

    Its other unbiased estimator, k1, is `-log r`, which can be negative.

    Source: Schulman 2020, "Approximating KL Divergence".
    """
    _check(log_ratio=log_ratio)
    # exp(x) - 1 - x loses its digits near 0, where PPO's log-ratios are: x² (1/2! + x/3! + x²/4! + ...) is exact there.
    log_ratio = _clip_log_ratio(log_ratio)
    is_small = jnp.abs(log_ratio) < 0.3
    small = jnp.where(is_small, log_ratio, 0.0)
    series = jnp.zeros_like(small)
    for k in range(8, 1, -1):
        series = series * small + 1.0 / math.factorial(k)
    return jnp.where(is_small, series * jnp.square(small), jnp.exp(log_ratio) - 1.0 - log_ratio)


_MAX_LOG_RATIO = 60.0  # exp(60) = 1e26: far beyond any use, and times an advantage it still fits


def _clip_log_ratio(log_ratio: Array) -> Array:
    """Clip a log-ratio where its exponential would overflow; infinity times a gradient of 0 is NaN."""
    highest = min(_MAX_LOG_RATIO, math.log(float(jnp.finfo(jnp.result_type(log_ratio)).max)) - 1.0)
    return jnp.where(log_ratio > highest, highest, log_ratio)


@jax.custom_jvp
def _tanh(x: Array) -> Array:
    """Compute tanh(x) with a gradient that stays accurate where 1 - tanh(x)² would cancel."""
    return jnp.tanh(x)


@_tanh.defjvp
def _tanh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    decay = jnp.exp(-2.0 * jnp.abs(x))
    return jnp.tanh(x), 4.0 * decay / jnp.square(1.0 + decay) * dx


@jax.custom_jvp
def _x_minus_tanh(x: Array) -> Array:
    """Compute x - tanh(x), near 0 by Lambert's continued fraction tanh(x) = x / (1 + x² / (3 + x² / (5 + ...)))."""
    is_small = jnp.abs(x) < 1.0
    small = jnp.where(is_small, x, 0.0)
    squared, rest = jnp.square(small), jnp.zeros_like(small)
    for odd in range(19, 1, -2):
        rest = squared / (odd + rest)
    return jnp.where(is_small, small * rest / (1.0 + rest), x - jnp.tanh(x))


@_x_minus_tanh.defjvp
def _x_minus_tanh_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return _x_minus_tanh(x), jnp.square(jnp.tanh(x)) * dx


def _check(**arrays: Array) -> None:
    _checks.same_shape("", **arrays)
    _checks.floating(**arrays)
