"""The policy's objective as a choice: functions with one signature, by name.

Each takes the config, log π(a) - log μ(a) and the advantage of each row, the pair of distributions (the one that
acted and the present one), and the coefficient of the KL penalty; it returns the loss of each row.
"""

from typing import Any

from shoal.ops import policy_losses
from shoal.types import Array


def clip(config: Any, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """PPO's clipped ratio."""
    return policy_losses.clip_surrogate(log_ratio, advantage, config.clip_coef)


def penalty(config: Any, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """PPO with a KL penalty, of the distributions themselves and not of a sample."""
    behaviour, current = pair
    return policy_losses.kl_penalty_surrogate(log_ratio, advantage, behaviour.kl(current), kl_coef)


def dpo(config: Any, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """Discovered Policy Optimisation's drift."""
    return policy_losses.dpo_surrogate(log_ratio, advantage, config.dpo_alpha, config.dpo_beta)


def policy_gradient(config: Any, log_ratio: Array, advantage: Array, pair: tuple, kl_coef: Array) -> Array:
    """REINFORCE and A2C: no ratio; the log-probability of acting is a constant."""
    return policy_losses.policy_gradient(log_ratio, advantage)


SURROGATES = {"clip": clip, "penalty": penalty, "dpo": dpo, "policy_gradient": policy_gradient}
