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
from shoal.algos.learning.replay import StoredSteps, Window
from shoal.algos.replayed_steps import Following, Rules
from shoal.nets.ensembles import lowest
from shoal.nets.q_networks import values_of
from shoal.ops import off_policy
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
    takes_mean = config.target_critics is not None or values_of(config.network) == "quantile"

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

    if values_of(config.network) == "expected":
        return value_and_entropy(distribution, outputs, pessimistic, key)
    action, surprise = sample(distribution, key)
    entropy = distribution.entropy() if isinstance(distribution, Categorical) else surprise
    return pessimistic(outputs(action)), entropy


def explore(config: SACConfig, distribution: Any, noise: PyTree, key: Array) -> Array:
    """Sample a raw action, with noise that is given where it is correlated."""
    if isinstance(noise, tuple):
        return actions.sample(distribution, key)
    return distribution.loc + distribution.scale * noise


def target_entropy(config: SACConfig, mask: Array, is_discrete: bool) -> Array:
    """Return the entropy that a learned temperature aims at, [B]: of the numbers that an action has, in [-1, 1], or a
    share of the greatest that the legal actions of a Discrete allow."""
    count = jnp.sum(mask, axis=-1)
    if is_discrete:
        return config.target_entropy_share * jnp.log(jnp.maximum(count, 1).astype(jnp.float32))
    return config.target_entropy * count


def corrected_return(
    config: SACConfig, window: Window, steps: StoredSteps, there: Following, members_key: Array
) -> Array:
    """Compute the target of the first action of each window, [B], from the TD errors of all its steps, [n * B].

    `multistep` retrace multiplies each by the clipped ratios of the policy to what acted; uncorrected does not (Munos
    et al. 2016, "Safe and Efficient Off-Policy Reinforcement Learning"; Harutyunyan et al. 2016, "Q(λ) with Off-Policy
    Corrections"). Entropies of the steps count in their values.
    """
    taken = action_critics.pessimistic(config, there.taken(), members_key)
    log_ratio = actions.log_prob(there.distribution, steps.extras.raw) - steps.extras.log_prob
    is_retrace = config.multistep == "retrace"
    trace = log_ratio if is_retrace else jnp.ones_like(log_ratio)
    values = (x.reshape(window.reward.shape) for x in (taken, there.predicted + there.bonus, trace))
    function: Callable[..., Array] = off_policy.general_off_policy_returns_from_q_and_v
    if is_retrace:
        function = off_policy.retrace_continuous

    def of_stream(weight: Array, *arguments: Array) -> Array:
        return function(*arguments, lambda_=config.q_lambda, w_tm1=weight)

    arguments = (window.weight, window.reward, config.gamma * window.discount, window.last, *values)
    return jax.vmap(of_stream, in_axes=1, out_axes=1)(*arguments)[0]


SAC = Rules(
    actor_value,
    target_value,
    explore,
    target_actor=False,
    target_entropy=target_entropy,
    corrected_return=corrected_return,
)
