"""Advantages and targets, computed once for a rollout, anew for each epoch, or for each minibatch.

PPO computes them once, with the parameters that acted. Computed again with the current parameters they follow the
critic (Andrychowicz et al. 2021, "What Matters for On-Policy Deep Actor-Critic Methods?", section 3.5), and V-trace has
ratios other than 1 to correct with. Each kind, which the setting `recompute` names, is three functions: the layout of a
rollout's rows, the scan over all gradient steps, and what the loss does to a minibatch's advantages and targets.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.algos.acting import actions, memories
from shoal.algos.learning import minibatches, value_normalisation
from shoal.algos.learning.advantages import ESTIMATORS, ReturnInputs, standardise_over_rollout
from shoal.algos.learning.minibatches import Minibatch, Rows
from shoal.config import struct
from shoal.nets.memory.sequences import Memories, NetworkInputs
from shoal.ops import statistics
from shoal.ops.statistics import RunningMoments
from shoal.types import Array, PyTree


class Rollout(NamedTuple):
    """A rollout, as the inputs of its values, ratios and returns."""

    inputs: NetworkInputs  # of the network at all T+1 steps, [T+1, N, ...]
    memories: Memories  # from before the first of them, [N, ...]
    raw_action: Array  # [T, N, ...]
    log_prob: Array  # of the policy that acted, [T, N]
    returns: ReturnInputs  # [T, N]


# (the rows to take them from, the state, a minibatch) -> (the state after a gradient step, its metrics)
Step = Callable[[Rows, Any, Minibatch], tuple[Any, Array]]


class Recomputation(NamedTuple):
    """The functions of one kind."""

    to_rows: Callable[[Any, Rows, Rollout], Rows]  # (config, rows [T, N, ...], rollout) -> rows
    scan_epochs: Callable[..., tuple[Any, Array]]
    # (config, axis, rows, key, step, state, estimate) -> (state, the metrics of each step), where `estimate` maps a
    # state to advantages and targets of the rows
    in_loss: Callable[..., Rows]
    # (minibatch, its log-ratios, the critic's outputs, *, config, axis, moments) -> minibatch


def rows_of_steps(config: Any, rows: Rows, rollout: Rollout) -> Rows:
    """Lay out the rows as they are shuffled: single steps, or chunks for a network with memory."""
    return minibatches.to_rows(config, rows)


def rows_of_streams(config: Any, rows: Rows, rollout: Rollout) -> Rows:
    """Lay out each environment's steps as one row, [N, T+1, ...], with what returns are computed from.

    The last step is no transition and has weight 0; its inputs are there for its value. So are those of an episode's
    last step if it was cut. Other inputs that no value is read from are replaced by zeros.
    """
    returns, inputs = rollout.returns, rollout.inputs
    is_acted = extend(returns.weight > 0).at[-1].set(False)
    is_bootstrapped = (returns.weight > 0) & (returns.discount != 0)
    is_read = is_acted.at[1:].set(is_acted[1:] | is_bootstrapped)
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


def scan_with_one_estimate(
    config: Any, axis: tuple[str, ...], rows: Rows, key: Array, step: Step, state: Any, estimate: Callable
) -> tuple[Any, Array]:
    """Make all gradient steps with the advantages and targets that the rows have, if they have any."""
    order = minibatches.minibatches(config, axis, rows, key)
    return jax.lax.scan(functools.partial(step, rows), state, order)


def scan_with_estimates_of_epochs(
    config: Any, axis: tuple[str, ...], rows: Rows, key: Array, step: Step, state: Any, estimate: Callable
) -> tuple[Any, Array]:
    """Make all gradient steps, and compute advantages and targets again before each epoch but the first.

    The first begins with the parameters that acted, whose advantages and targets the rows have.
    """
    index = minibatches.shuffled_rows(config, rows, key)
    index = index.reshape(-1, config.num_minibatches, index.shape[-1])

    def one_epoch(state: Any, order: tuple[Array, Array]) -> tuple[Any, Array]:
        epoch, index = order
        advantage, target = jax.lax.cond(
            epoch > 0, estimate, lambda state: (rows.advantage, rows.target), state
        )
        current = rows._replace(advantage=advantage, target=target)
        epochs = jnp.broadcast_to(epoch, len(index))
        of_epoch = minibatches.with_statistics(config, axis, current, index, epochs)
        return jax.lax.scan(functools.partial(step, current), state, of_epoch)

    state, history = jax.lax.scan(one_epoch, state, (jnp.arange(len(index)), index))
    return state, history.reshape(-1, history.shape[-1])


def estimate(
    config: Any,
    axis: tuple[str, ...],
    rollout: Rollout,
    moments: RunningMoments | None,
    network: PyTree,
) -> tuple[Array, Array]:
    """Compute advantages and targets by rows from values and ratios of a network that need not have acted.

    A network with memory runs over the whole rollout, from the memory that acting began it with.

    Args:
      config: of PPO.
      axis: over which statistics are reduced.
      rollout: the rollout.
      moments: by which the critic's outputs are denormalised and targets normalised; None for neither.
      network: with the current parameters.

    Returns:
      advantages, standardised if this is done over the rollout, and targets as the value loss compares them.
    """
    distribution, output = memories.unroll(network, rollout.memories, rollout.inputs)
    # An action is added to the distributions' T+1 steps, since those need not have one axis of time in each array.
    log_prob = actions.log_prob(distribution, extend(rollout.raw_action))[:-1]
    value = value_normalisation.denormalise(moments, output)
    advantage, target = ESTIMATORS[config.advantage](
        config, rollout.returns, value, log_prob - rollout.log_prob
    )
    weight = rollout.returns.weight
    advantage = standardise_over_rollout(config, axis, advantage, weight)
    target = jnp.where(weight > 0, value_normalisation.normalise(moments, target), 0.0)
    return minibatches.to_rows(config, (advantage, target))


def as_given(batch: Rows, log_ratio: Array, output: Array, **_: Any) -> Rows:
    """Return the minibatch with the advantages and targets that it has."""
    return batch


def estimate_in_loss(
    batch: Rows,
    log_ratio: Array,
    output: Array,
    *,
    config: Any,
    axis: tuple[str, ...],
    moments: RunningMoments | None,
) -> Rows:
    """Compute a minibatch's advantages and targets from what the loss itself has computed, without gradient.

    Args:
      batch: whole streams (`rows_of_streams`), [n, T+1], with memory [T+1, n]; all rows of the minibatch.
      log_ratio: log π(a) - log μ(a) of its steps.
      output: the critic's, of its steps.
      config: of PPO.
      axis: over which statistics are reduced.
      moments: of the value's targets; None without normalisation.
    """

    def time_first(x: Array) -> Array:  # and back
        return x if memories.is_recurrent(config) else jnp.swapaxes(x, 0, 1)

    log_ratio, output = jax.lax.stop_gradient((time_first(log_ratio), time_first(output)))
    returns = jax.tree.map(lambda x: time_first(x)[:-1], batch.returns)
    value = value_normalisation.denormalise(moments, output)
    advantage, target = ESTIMATORS[config.advantage](config, returns, value, log_ratio[:-1])
    target = value_normalisation.normalise(moments, target)
    advantage, target = time_first(extend(advantage)), time_first(extend(target))
    if config.norm_adv == "minibatch":
        advantage = statistics.standardise(advantage, batch.weight, axis_name=axis)
    return batch._replace(advantage=advantage, target=target)


RECOMPUTATIONS = {
    "never": Recomputation(rows_of_steps, scan_with_one_estimate, as_given),
    "epoch": Recomputation(rows_of_steps, scan_with_estimates_of_epochs, as_given),
    "minibatch": Recomputation(rows_of_streams, scan_with_one_estimate, estimate_in_loss),
}
