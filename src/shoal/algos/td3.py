"""TD3 (Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods").

A deterministic policy that follows the gradient of its first critic. Targets are by an actor and by critics that follow
slowly, the least of them, and for an action with a little noise; it explores by noise of its actions. With one critic
and without the targets' noise this is DDPG (Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement
Learning").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from shoal.algos.acting import actions
from shoal.algos.learning import action_critics
from shoal.algos.replayed_steps import Rules
from shoal.types import Array, PyTree

if TYPE_CHECKING:
    from shoal.algos.td3_config import TD3Config


def with_noise(distribution: Any, noise: Array) -> Array:
    """Return the policy's actions with noise, in [-1, 1]; 0 where an agent has no such number."""
    return actions.bounded(distribution, jnp.clip(actions.mode(distribution) + noise, -1.0, 1.0))


def actor_value(
    config: TD3Config, distribution: Any, outputs: Callable[..., PyTree], key: Array
) -> tuple[Array, Array]:
    """Value the policy's actions by the first critic."""
    value = action_critics.number_of(config, outputs(actions.mode(distribution), first=True))[0]
    return value, jnp.zeros_like(value)


def target_value(
    config: TD3Config, distribution: Any, outputs: Callable[..., PyTree], key: Array, members_key: Array
) -> tuple[Array, Array]:
    """Value the slow policy's actions with clipped noise by the slow critics."""
    noise = config.policy_noise * jax.random.normal(key, actions.mode(distribution).shape)
    action = with_noise(distribution, jnp.clip(noise, -config.noise_clip, config.noise_clip))
    predicted = action_critics.pessimistic(config, outputs(action), members_key)
    return predicted, jnp.zeros(predicted.shape[:1])


def explore(config: TD3Config, distribution: Any, noise: PyTree, key: Array) -> Array:
    """Return the policy's action with noise; it is drawn unless it is given, where it is correlated."""
    if isinstance(noise, tuple):
        noise = jax.random.normal(key, actions.mode(distribution).shape)
    return with_noise(distribution, config.exploration_noise * noise)


TD3 = Rules(actor_value, target_value, explore, target_actor=True)
