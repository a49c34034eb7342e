"""The loss of a whole rollout with the parameters that an update has reached (`rollout_loss`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from shoal.algos.learning import metric_means, minibatches
from shoal.algos.learning.minibatches import Rows
from shoal.types import Array, Metric, PyTree
from shoal.xla.chunked_gradients import mean_of_rows, num_chunks

if TYPE_CHECKING:
    from shoal.algos.ppo import LossParts
    from shoal.algos.ppo_config import PPOConfig


def loss_metrics(
    config: PPOConfig,
    axis: tuple[str, ...],
    loss: Callable[[PyTree, Rows], tuple[Array, LossParts]],
    estimate: Callable[[PyTree], tuple[Array, Array]],
    network: PyTree,
    rows: Rows,
) -> dict[str, Metric]:
    """Compute the loss and its parts over all rows as one minibatch, without gradient, as `rollout_NAME`.

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

    def of_rows(network: PyTree, rows: Rows) -> dict[str, Array]:
        total, parts = loss(network, rows)
        return {"total_loss": total, **parts._replace(learned=())._asdict()}

    chunks = num_chunks(rows.weight.shape, config.gradient_chunk)
    batch = rows._replace(advantage=advantage)
    means = mean_of_rows(of_rows, network, batch, weight=weight, num_chunks=chunks, axis=axis)
    return {f"rollout_{name}": metric_means.scalar_mean(x) for name, x in means.items() if name != "learned"}
