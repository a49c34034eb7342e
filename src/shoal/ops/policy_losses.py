"""Policy losses, elementwise and unreduced: the caller weighs and averages. All are to be minimised.

`log_ratio` is log π(a) - log μ(a), of the policy being learned over the one that acted, and
`advantage` carries no gradient; both of the same shape [...], and so is every result.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def policy_gradient(log_prob: Array, advantage: Array) -> Array:
    """The policy gradient's loss (REINFORCE, A2C): `-A log π(a)`.

    Source: Williams 1992, "Simple Statistical Gradient-Following Algorithms for Connectionist
    Reinforcement Learning"; Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning".
    """
    return -log_prob * jax.lax.stop_gradient(advantage)


def clip_surrogate(log_ratio: Array, advantage: Array, clip_coef: Array | float) -> Array:
    """PPO's clipped surrogate: `-min(r A, clip(r, 1 - ε, 1 + ε) A)`, r = exp(log_ratio), ε = clip_coef.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 7.
    """
    advantage = jax.lax.stop_gradient(advantage)
    ratio = jnp.exp(_bounded(log_ratio))
    clipped = jnp.clip(ratio, 1.0 - clip_coef, 1.0 + clip_coef)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def kl_penalty_surrogate(log_ratio: Array, advantage: Array, kl: Array, kl_coef: Array | float) -> Array:
    """PPO with a KL penalty: `-(r A - β kl)`, r = exp(log_ratio), β = kl_coef.

    Args:
      log_ratio: log π(a) - log μ(a), [...].
      advantage: [...].
      kl: KL(μ || π) of the two distributions at the same observation, or an estimate of it, [...].
      kl_coef: β; `adapt_kl_coef` moves it.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", eq. 8.
    """
    ratio = jnp.exp(_bounded(log_ratio))
    return kl_coef * kl - ratio * jax.lax.stop_gradient(advantage)


def adapt_kl_coef(kl_coef: Array | float, kl: Array, target: Array | float) -> Array:
    """The KL coefficient for the next update: halved where kl < target / 1.5, doubled where kl > 1.5 target.

    Unchanged where `kl` is not finite; kept in [1e-6, 1e6], so that it can find its way back.

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

    Source: Lu et al. 2022, "Discovered Policy Optimisation", section 5.3 (arXiv:2210.05639).
    """
    advantage = jax.lax.stop_gradient(advantage)
    log_ratio = _bounded(log_ratio)
    upward = jnp.expm1(log_ratio) * advantage
    downward = log_ratio * advantage
    drift = jnp.where(
        advantage >= 0,
        jax.nn.relu(upward - alpha * jnp.tanh(upward / alpha)),
        jax.nn.relu(downward - beta * jnp.tanh(downward / beta)),
    )
    return drift - jnp.exp(log_ratio) * advantage


def kl_k1(log_ratio: Array) -> Array:
    """The estimator k1 of KL(μ || π) from actions of μ: `-log r`; unbiased, can be negative.

    Source: Schulman 2020, "Approximating KL Divergence".
    """
    return -log_ratio


def kl_k3(log_ratio: Array) -> Array:
    """The estimator k3 of KL(μ || π) from actions of μ: `(r - 1) - log r`; unbiased and never negative.

    Source: Schulman 2020, "Approximating KL Divergence".
    """
    # expm1(x) - x loses its digits near 0, where PPO lives: there the series x²/2 + x³/6 + x⁴/24 is exact.
    series = jnp.square(log_ratio) * (0.5 + log_ratio * (1.0 / 6.0 + log_ratio / 24.0))
    return jnp.where(jnp.abs(log_ratio) < 0.03, series, jnp.expm1(_bounded(log_ratio)) - log_ratio)


_MAX_LOG_RATIO = 60.0  # exp(60) = 1e26: far beyond any use, and its square still fits


def _bounded(log_ratio: Array) -> Array:
    """Cuts a log-ratio where its exponential would overflow; infinity times a gradient of 0 is NaN."""
    return jnp.minimum(log_ratio, _MAX_LOG_RATIO)
