"""Surrogate losses of the policy: functions with one signature, by name.

Each takes the config, the log-ratio log π(a) - log μ(a) and the advantage of each row, the pair of distributions (μ,
which acted, and the current π), and the coefficient of the KL penalty. It returns the loss of each row. Of Shoal's own,
`penalty` alone reads the last two, and for the others μ is ().
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.base.imports import chosen_function
from shoal.ops import policy_losses
from shoal.types import Array

if TYPE_CHECKING:
    from shoal.algos.ppo_config import PPOConfig


def clip(config: PPOConfig, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """Compute PPO's loss with a clipped ratio."""
    return policy_losses.clip_surrogate(log_ratio, advantage, config.clip_coef)


def penalty(config: object, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """Compute PPO's loss with a penalty on the KL of the distributions, which is not estimated from samples."""
    behaviour, current = pair
    return policy_losses.kl_penalty_surrogate(log_ratio, advantage, behaviour.kl(current), kl_coef)


def dpo(config: PPOConfig, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """Compute the loss of Discovered Policy Optimisation, with its drift term."""
    return policy_losses.dpo_surrogate(log_ratio, advantage, config.dpo_alpha, config.dpo_beta)


def policy_gradient(config: object, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """Compute the loss of REINFORCE and A2C, without a ratio: log μ(a) is a constant and has no effect."""
    return policy_losses.policy_gradient(log_ratio, advantage)


def vtrace_policy_gradient(
    config: PPOConfig, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array
) -> Array:
    """Compute IMPALA's loss: the policy gradient, times the clipped ratio as a constant."""
    return policy_losses.vtrace_policy_gradient(log_ratio, log_ratio, advantage, config.pg_rho_clip)


SURROGATES = {
    "clip": clip,
    "penalty": penalty,
    "dpo": dpo,
    "policy_gradient": policy_gradient,
    "vtrace_policy_gradient": vtrace_policy_gradient,
}


def chosen(config: PPOConfig) -> Callable[..., Array]:
    """Return the surrogate that a config names."""
    return chosen_function("surrogate", config.surrogate, SURROGATES)


def has_penalty(config: PPOConfig) -> bool:
    """Report whether the chosen surrogate may read the distributions that acted and the coefficient of the penalty."""
    return config.surrogate == "penalty" or config.surrogate not in SURROGATES
