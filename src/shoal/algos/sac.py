"""Soft Actor-Critic (Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications"), and its discrete form.

The policy maximises rewards and its own entropy. What it is worth, and how random it is, one function says for both
kinds of actions: from a sample of a Box, exactly for a Discrete (Christodoulou 2019, "Soft Actor-Critic for Discrete
Action Settings").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from shoal.algos.acting import actions
from shoal.algos.learning import action_critics
from shoal.algos.replayed_actor_critic import Rules
from shoal.nets.ensembles import lowest
from shoal.ops.distributions import Categorical
from shoal.types import Array, PyTree

if TYPE_CHECKING:
    from shoal.algos.sac_config import SACConfig


def sample(distribution: Any, key: Array) -> tuple[Array, Array]:
    """Draw actions as critics are shown them, [B, ...]; return also minus their log-probability, [B]."""
    raw = actions.sample(distribution, key)
    return actions.bounded(distribution, raw), -actions.log_prob(distribution, raw)


def value_and_entropy(
    distribution: Any, outputs: Callable[..., PyTree], number: Callable[[PyTree], Array], key: Array
) -> tuple[Array, Array]:
    """Compute the expected value of a policy's actions and its entropy, [B] each; `number` makes one of K critics'."""
    if not isinstance(distribution, Categorical):
        action, entropy = sample(distribution, key)
        return number(outputs(action)), entropy
    probability = jax.nn.softmax(distribution.logits)
    # An illegal action has probability 0 and whatever value: 0 times infinity would be NaN, in a gradient too.
    value = jnp.sum(probability * jnp.where(probability > 0, number(outputs()), 0.0), axis=-1)
    return value, distribution.entropy()


def actor_value(
    config: SACConfig, distribution: Any, outputs: Callable[..., PyTree], key: Array
) -> tuple[Array, Array]:
    """Value the policy by the least of its critics, or by their mean where targets are of some or of quantiles."""
    takes_mean = config.target_critics is not None or action_critics.kind_of(config) == "quantile"

    def number(output: PyTree) -> Array:
        values = action_critics.number_of(config, output)
        return jnp.mean(values, axis=0) if takes_mean else lowest(values)

    return value_and_entropy(distribution, outputs, number, key)


def target_value(
    config: SACConfig, distribution: Any, outputs: Callable[..., PyTree], key: Array, members_key: Array
) -> tuple[Array, Array]:
    """Value the policy by the target's critics; distributions and quantiles are those of an action that is drawn."""

    def pessimistic(output: PyTree) -> Array:
        return action_critics.pessimistic(config, output, members_key)

    if action_critics.kind_of(config) == "expected":
        return value_and_entropy(distribution, outputs, pessimistic, key)
    action, surprise = sample(distribution, key)
    entropy = distribution.entropy() if isinstance(distribution, Categorical) else surprise
    return pessimistic(outputs(action)), entropy


def explore(config: SACConfig, distribution: Any, noise: PyTree, key: Array) -> Array:
    """Sample a raw action, with noise that is given where it is correlated."""
    if isinstance(noise, tuple):
        return actions.sample(distribution, key)
    return distribution.loc + distribution.scale * noise


SAC = Rules(actor_value, target_value, explore, has_temperature=True, target_actor=False)
