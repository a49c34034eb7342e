"""PPO's loss in two further uses: of the critic alone after a KL stop, and of a whole rollout after an update."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from shoal.algos.learning import metric_means, minibatches
from shoal.algos.learning.minibatches import Minibatch, Rows
from shoal.types import Array, Metrics, PyTree
from shoal.xla import loops
from shoal.xla.chunked_gradients import mean_gradient, num_chunks

if TYPE_CHECKING:
    from shoal.algos.ppo import GradientState, LossParts
    from shoal.algos.ppo_config import PPOConfig

Loss = Callable[..., "tuple[Array, LossParts]"]
Step = Callable[..., "tuple[GradientState, Array]"]


def scan_until_stop(
    config: PPOConfig, loss: Loss, step: Step, state: GradientState, batches: Minibatch
) -> tuple[GradientState, Array]:
    """Make gradient steps on minibatches [K, ...] as `jax.lax.scan` does, by `critic_loss` from the actor's last on.

    Args:
      loss: PPO's.
      step: of a state and a minibatch; a loss to use in the place of PPO's is its argument `of_critic`.
    """
    of_critic = functools.partial(step, of_critic=functools.partial(critic_loss, loss))
    return loops.scan_while(
        lambda state, minibatch: (minibatch.epoch < config.update_epochs) & ~state.stopped,
        *(step, of_critic, state, batches),
    )


def critic_loss(loss: Loss, config: PPOConfig, *arguments: PyTree) -> tuple[Array, LossParts]:
    """Compute the loss where the actor is not updated, without its parts: those that nobody reads are 0.

    A torso that actor and critic share has a gradient of the value as before, which counts in the gradient's norm.
    """
    _, parts = loss(config, *arguments)
    zeros = jnp.zeros_like(parts.value_loss)
    reads_kl = config.adapts_kl_coef or config.optimization.lr_schedule == "adaptive"
    kl = parts.approx_kl if reads_kl else zeros
    of_critic = parts._replace(policy_loss=zeros, entropy=zeros, approx_kl=kl, clip_fraction=zeros)
    return config.vf_coef * parts.value_loss, of_critic


def rollout_metrics(
    config: PPOConfig,
    axis: tuple[str, ...],
    loss: Callable[[PyTree, Rows], tuple[Array, LossParts]],
    estimate: Callable[[PyTree], tuple[Array, Array]],
    network: PyTree,
    rows: Rows,
) -> Metrics:
    """Compute the loss and its parts over all rows as one minibatch, as `rollout_NAME`.

    Args:
      loss: of a network and rows.
      estimate: of a network to advantages and targets of the rows, by which a further epoch would replace them.
    """
    if config.recompute == "epoch":
        advantage, target = estimate(network)
        rows = rows._replace(advantage=advantage, target=target)
    index = jnp.arange(len(rows.weight), dtype=jnp.uint32)[None]
    minibatch = minibatches.with_statistics(config, axis, rows, index, jnp.int32(0))
    advantage, weight = jax.tree.map(lambda x: x[0], (minibatch.advantage, minibatch.weight))
    batch, chunks = rows._replace(advantage=advantage), num_chunks(rows.weight.shape, config.gradient_chunk)

    def fixed_loss(network: PyTree, rows: Rows) -> tuple[Array, LossParts]:
        return loss(jax.lax.stop_gradient(network), rows)  # so that no gradient is computed

    sizes = {"weight": weight, "num_chunks": chunks, "axis": axis}
    _, means = mean_gradient(fixed_loss, lambda network: network, network, batch, **sizes)
    total = means.policy_loss - config.ent_coef * means.entropy + config.vf_coef * means.value_loss
    numbers = {"total_loss": total, **means._asdict()}
    numbers.pop("learned")  # the moments of another minibatch
    return {f"rollout_{name}": metric_means.scalar_mean(x) for name, x in numbers.items()}
