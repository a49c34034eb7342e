"""The gradient steps of a rollout with a KL stop: once no actor takes any, only the critic's gradient is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp

from shoal.algos.learning import optimisers
from shoal.algos.learning.minibatches import Minibatch, Rows
from shoal.types import Array, PyTree
from shoal.xla import loops

if TYPE_CHECKING:
    from shoal.algos.ppo import GradientState, LossParts, Shared
    from shoal.algos.ppo_config import PPOConfig

    Loss = Callable[..., tuple[Array, LossParts]]


def scan_steps(
    config: PPOConfig,
    loss: Loss,
    step: Callable[..., tuple[GradientState, Array]],
    state: GradientState,
    batches: Minibatch,
) -> tuple[GradientState, Array]:
    """Make gradient steps on minibatches [K, ...] as `jax.lax.scan` does, by `critic_loss` from the actor's last on.

    Args:
      loss: PPO's.
      step: of a state and a minibatch; a loss to use in the place of PPO's is its argument `of_critic`.
    """

    def is_running(state: GradientState, minibatch: Minibatch) -> Array:
        return (minibatch.epoch < config.update_epochs) & ~state.stopped

    of_critic = functools.partial(step, of_critic=functools.partial(critic_loss, loss))
    return loops.scan_while(is_running, step, of_critic, state, batches)


def critic_loss(
    loss: Loss,
    config: PPOConfig,
    axis: tuple[str, ...],
    shared: Shared,
    update_actor: Array,
    network: PyTree,
    batch: Rows,
) -> tuple[Array, LossParts]:
    """Compute the loss where the actor is not updated: without its gradient, and its parts that nobody reads are 0."""
    total, parts = loss(config, axis, shared, update_actor, optimisers.with_fixed_actor(network), batch)
    zeros = jnp.zeros_like(parts.value_loss)
    kl = parts.approx_kl if config.adapts_to_kl else zeros
    return total, parts._replace(policy_loss=zeros, entropy=zeros, approx_kl=kl, clip_fraction=zeros)
