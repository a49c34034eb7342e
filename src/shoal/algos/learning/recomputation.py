"""Advantages and targets, computed once for a rollout, again for each epoch, or for each minibatch.

PPO computes them once, with the parameters that acted. Computed again with the current parameters they follow the
critic (Andrychowicz et al. 2021, "What Matters for On-Policy Deep Actor-Critic Methods?", section 3.5), and V-trace has
ratios other than 1 to correct with.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.algos.acting import actions, memories
from shoal.algos.learning import advantages, minibatches, value_normalisation
from shoal.algos.learning.advantages import ReturnInputs
from shoal.algos.learning.minibatches import Rows
from shoal.config import struct
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import Memories, NetworkInputs
from shoal.nets.value_heads import expectation
from shoal.ops import statistics
from shoal.ops.statistics import RunningMoments
from shoal.types import Array, PyTree


class Rollout(NamedTuple):
    """A rollout, as the inputs of its values, ratios and returns."""

    inputs: NetworkInputs  # the network's inputs at all T+1 steps, [T+1, N, ...]
    memories: Memories  # the memories before the first step, [N, ...]
    raw_action: Array  # [T, N, ...]
    log_prob: Array  # under the policy that acted, [T, N]
    returns: ReturnInputs  # [T, N]


def rows_of_streams(config: Any, rows: Rows, rollout: Rollout) -> Rows:
    """Lay out each environment's steps as one row, [N, T+1, ...], with the inputs of returns.

    The last step is not a transition and has weight 0; its inputs serve for its value, as do those of an episode's
    last step if it was truncated. Inputs whose value is not used are replaced by zeros, unless a memory lasts across
    them.
    """
    returns, inputs = rollout.returns, rollout.inputs
    is_acted = extend(returns.weight > 0).at[-1].set(False)
    is_bootstrapped = (returns.weight > 0) & (returns.discount != 0)
    is_read = is_acted.at[1:].set(is_acted[1:] | is_bootstrapped) | memories.crosses_ends(config)
    read = struct.where(is_read, inputs, jax.tree.map(jnp.zeros_like, inputs))
    # The inputs have T+1 steps already, and are put in their place below.
    rows = rows._replace(inputs=NetworkInputs(()), advantage=(), target=(), returns=returns)
    rows = jax.tree.map(extend, rows)._replace(
        inputs=read._replace(first=inputs.first, action_mask=inputs.action_mask),
        weight=is_acted.astype(returns.weight.dtype),
    )
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)


def extend(x: Array) -> Array:
    """Repeat the last of T entries, so that there are T+1."""
    return jnp.concatenate([x, x[-1:]])


def estimate(
    config: Any, axis: tuple[str, ...], rollout: Rollout, moments: RunningMoments | None, network: PyTree
) -> tuple[Array, Array]:
    """Compute advantages and targets by rows, from the values and ratios of another network than the acting one.

    A network with memory runs over the whole rollout, from the memory that acting began it with.

    Args:
      rollout: acted with other parameters than those of `network`.
      moments: by which the critic's outputs are denormalised and targets normalised; None for neither.

    Returns:
      advantages, standardised if this is done over the rollout, and targets as the value loss compares them.
    """
    _, distribution, output = sequences.unroll(network, rollout.memories, rollout.inputs)
    # An action is added to the distributions' T+1 steps, since those need not have one axis of time in each array.
    log_prob = actions.log_prob(distribution, extend(rollout.raw_action))[:-1]
    value = value_normalisation.denormalise(moments, expectation(output))
    advantage, target = advantages.estimate(config, rollout.returns, value, log_prob - rollout.log_prob)
    weight = rollout.returns.weight
    if config.norm_adv == "batch":
        advantage = statistics.standardise(advantage, weight, axis_name=axis)
    target = jnp.where(weight > 0, value_normalisation.normalise(moments, target), 0.0)
    return minibatches.to_rows(config, (advantage, target))


def with_estimates(
    config: Any,
    axis: tuple[str, ...],
    moments: RunningMoments | None,
    batch: Rows,
    log_ratio: Array,
    output: Array,
) -> Rows:
    """Compute a minibatch's advantages and targets from the loss's own ratios and values, without gradient.

    Args:
      moments: of the value's targets; None without normalisation.
      batch: whole streams (`rows_of_streams`), [n, T+1], with memory [T+1, n]; all rows of the minibatch.
      log_ratio: log π(a) - log μ(a), of the same shape.
      output: of the critic, of the same shape.
    """

    def time_first(x: Array) -> Array:  # and back
        return x if memories.is_recurrent(config) else jnp.swapaxes(x, 0, 1)

    log_ratio, output = jax.lax.stop_gradient((time_first(log_ratio), time_first(output)))
    returns = jax.tree.map(lambda x: time_first(x)[:-1], batch.returns)
    value = value_normalisation.denormalise(moments, output)
    advantage, target = advantages.estimate(config, returns, value, log_ratio[:-1])
    target = value_normalisation.normalise(moments, target)
    advantage, target = time_first(extend(advantage)), time_first(extend(target))
    if config.norm_adv == "minibatch":
        advantage = statistics.standardise(advantage, batch.weight, axis_name=axis)
    return batch._replace(advantage=advantage, target=target)
