"""Losses and targets of K critics of actions, which predict numbers, distributions of the return, or its quantiles.

Outputs of critics for the actions taken are [K, B]: numbers, a `DiscreteValued` each, or quantiles [K, B, m].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from shoal.algos.learning import metric_means
from shoal.nets.ensembles import drawn
from shoal.nets.q_networks import expected_values, values_of
from shoal.ops import distributional, value_losses
from shoal.types import Array, Mean, PyTree

if TYPE_CHECKING:
    from shoal.algos.replayed_config import ReplayedConfig


class Target(NamedTuple):
    """What follows each transition of a batch: reward + discount (bonus + what is predicted)."""

    reward: Array  # of all steps, discounted, [B]
    discount: Array  # of what is bootstrapped: 0 where the episode terminated, [B]
    bonus: Array  # the scaled entropy of the policy there, [B]
    predicted: Array  # by the target's critics: numbers [B], logits [B, n] or quantiles [B, n]
    weight: Array  # 0 where there is no transition, [B]


def of_action(output: PyTree, action: Array) -> PyTree:
    """Pick each critic's output for one action, [K, B, ...], from those for all actions, [K, B, A, ...]."""

    def pick(x: Array) -> Array:
        index = action[None, :, None].reshape(1, -1, 1, *(1,) * (x.ndim - 3))
        return jnp.take_along_axis(x, index, axis=2)[:, :, 0]

    return jax.tree.map(pick, output)


def pessimistic(config: ReplayedConfig, output: PyTree, key: Array) -> Array:
    """Combine the target critics' outputs [K, B] into one that is low: the least number, the distribution of the least
    mean, or the quantiles of all without the greatest `drop_quantiles` of each.

    Sources: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods"; of some that are
    drawn, Chen et al. 2021, "Randomized Ensembled Double Q-Learning"; of quantiles, Kuznetsov et al. 2020,
    "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional Quantile Critics".
    """
    kind = values_of(config.network)
    if config.target_critics is not None:
        output = drawn(output, key, config.target_critics)
    if kind == "expected":
        return jnp.min(output, axis=0)
    if kind == "categorical":
        least = jnp.argmin(output.mean(), axis=0)
        return jnp.take_along_axis(output.logits, least[None, :, None], axis=0)[0]
    num_critics, _, size = output.shape
    pooled = jnp.sort(jnp.moveaxis(output, 0, 1).reshape(-1, num_critics * size), axis=-1)
    return pooled[:, : num_critics * (size - config.drop_quantiles)]


def loss(config: ReplayedConfig, output: PyTree, target: Target) -> Array:
    """Compute the loss of each critic for each transition, [K, B]; 0 where the weight is 0.

    Half the squared TD error; the cross-entropy with the projected distribution (C51, D4PG); or the regression of
    quantiles with Huber's loss (QR-DQN, TQC).
    """
    is_transition, bootstraps = target.weight > 0, target.discount > 0
    reward = jnp.where(is_transition, target.reward + target.discount * target.bonus, 0.0)
    discount = jnp.where(is_transition, target.discount, 0.0)
    if values_of(config.network) == "categorical":
        atoms = jax.lax.stop_gradient(output.atoms[0, 0])

        def cross_entropy(logits: Array) -> Array:
            following = (atoms, target.predicted, target.weight)
            return distributional.categorical_td_learning(atoms, logits, reward, discount, *following)

        return jax.vmap(cross_entropy)(output.logits)
    if values_of(config.network) == "quantile":
        following = jnp.where(bootstraps[:, None], target.predicted, 0.0)
        samples = reward[:, None] + discount[:, None] * following
        fractions = distributional.quantile_fractions(output.shape[-1])
        losses = jax.vmap(lambda x: distributional.quantile_regression(x, fractions, samples))(output)
        return jnp.where(is_transition, losses, 0.0)
    number = reward + jnp.where(bootstraps, discount * target.predicted, 0.0)
    return value_losses.squared(jnp.where(is_transition, output - number, 0.0))


def error(config: ReplayedConfig, losses: Array) -> Array:
    """Return how far off the critics are, by which transitions are drawn again, [B]: the mean of their TD errors, or of
    their losses where distributions or quantiles have no one error."""
    return jnp.mean(jnp.sqrt(2.0 * losses) if values_of(config.network) == "expected" else losses, axis=0)


def clipping(
    config: ReplayedConfig, output: PyTree, target: Target, axis: tuple[str, ...]
) -> dict[str, Mean]:
    """Measure the mass of categorical targets beyond their atoms (`metric_means.clipping_metrics`); else empty."""
    if values_of(config.network) != "categorical":
        return {}
    atoms = output.atoms[0, 0]
    reward = target.reward + target.discount * target.bonus
    x = reward[:, None] + target.discount[:, None] * atoms
    needed = reward / (1.0 - target.discount)
    mass = jax.nn.softmax(target.predicted)
    return metric_means.clipping_metrics(x, mass, needed, atoms, target.weight, axis)


def number_of(config: ReplayedConfig, output: PyTree) -> Array:
    """Return each critic's expected return, [K, B] (or [K, B, A] of all actions)."""
    return expected_values(config.network, output)
