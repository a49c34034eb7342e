"""Advantages and targets, computed once for a rollout, again for each epoch, or for each minibatch.

PPO computes them once, with the parameters that acted. Computed again with the current parameters they follow the
critic (Andrychowicz et al. 2021, "What Matters for On-Policy Deep Actor-Critic Methods?", section 3.5), and V-trace has
ratios other than 1 to correct with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from shoal.algos.acting import actions, memories
from shoal.algos.learning import advantages, metric_means, minibatches, value_normalisation
from shoal.algos.learning.minibatches import Minibatch, Rows
from shoal.config import struct
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import Memories, NetworkInputs
from shoal.nets.value_heads import expectation
from shoal.ops import statistics
from shoal.ops.statistics import RunningMoments
from shoal.types import Array, PyTree

if TYPE_CHECKING:
    from shoal.algos.ppo_config import PPOConfig

S = TypeVar("S")


class Rollout(NamedTuple):
    """What estimates with another network need of a rollout: its T+1 steps, of which T are transitions."""

    inputs: NetworkInputs  # the network's inputs at all T+1 steps, [T+1, N, ...]
    memories: Memories  # the memories before the first step, [N, ...]
    transitions: Rows  # [T, N]


def rows_of_streams(config: PPOConfig, rows: Rows, inputs: NetworkInputs) -> Rows:
    """Lay out each environment's steps as one row, [N, T+1, ...], whose advantages and targets the loss computes.

    The last step is not a transition and has weight 0; its inputs serve for its value, as do those of an episode's
    last step if it was truncated. Inputs whose value is not used are replaced by zeros, unless a memory lasts across
    them.

    Args:
      rows: the transitions, [T, N].
      inputs: of the network at all T+1 steps.
    """
    is_acted = extend(rows.weight > 0).at[-1].set(False)
    is_bootstrapped = (rows.weight > 0) & (rows.discount != 0)
    is_read = is_acted.at[1:].set(is_acted[1:] | is_bootstrapped) | memories.crosses_ends(config)
    read = struct.where(is_read, inputs, jax.tree.map(jnp.zeros_like, inputs))
    # The inputs have T+1 steps already, and are put in their place below.
    rows = jax.tree.map(extend, rows._replace(inputs=(), advantage=(), target=()))._replace(
        inputs=read._replace(first=inputs.first, action_mask=inputs.action_mask),
        weight=is_acted.astype(rows.weight.dtype),
    )
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)


def extend(x: Array) -> Array:
    """Repeat the last of T entries, so that there are T+1."""
    return jnp.concatenate([x, x[-1:]])


def estimate(
    config: PPOConfig,
    axis: tuple[str, ...],
    rollout: Rollout,
    moments: RunningMoments | None,
    network: PyTree,
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
    acted, weight = rollout.transitions, rollout.transitions.weight
    # An action is added to the distributions' T+1 steps, since those need not have one axis of time in each array.
    log_prob = actions.log_prob(distribution, extend(acted.raw_action))[:-1]
    value = value_normalisation.denormalise(moments, expectation(output))
    advantage, target = advantages.estimate(config, acted, value, log_prob - acted.log_prob)
    if config.norm_adv == "batch":
        advantage = statistics.standardise(advantage, weight, axis_name=axis)
    target = jnp.where(weight > 0, value_normalisation.normalise(moments, target), 0.0)
    return minibatches.to_rows(config, (advantage, target))


def scan_epochs(
    config: PPOConfig,
    axis: tuple[str, ...],
    rows: Rows,
    orders: Array,
    estimate: Callable[[S], tuple[Array, Array]],
    step: Callable[[Rows, S, Minibatch], tuple[S, Array]],
    state: S,
    scan: Callable[..., tuple[S, Array]] = jax.lax.scan,
) -> tuple[S, Array, list[Array]]:
    """Make gradient steps on all minibatches, with new advantages and targets before each epoch but the first.

    The first begins with the parameters that acted, whose estimates the rows have.

    Args:
      orders: the rows of each minibatch of each epoch, [epochs, minibatches, size].
      estimate: from the state of the gradient steps to the rows' advantages and targets.
      step: from rows, state and minibatch to the next state and the metrics of the step.
      scan: `jax.lax.scan`, or a function that makes the steps of an epoch as it does.

    Returns:
      the state, the metrics of all steps, [epochs * minibatches, ...], and `minibatches.learned_moments`, [epochs].
    """

    def steps_of_epoch(state: S, order: tuple[Array, Array]) -> tuple[S, tuple[Array, list[Array]]]:
        epoch, index = order
        old = rows.advantage, rows.target
        advantage, target = jax.lax.cond(epoch > 0, estimate, lambda _: old, state)
        current = rows._replace(advantage=advantage, target=target)
        batches = minibatches.with_statistics(config, axis, current, index, epoch)
        state, history = scan(functools.partial(step, current), state, batches)
        return state, (history, minibatches.learned_moments(config, axis, current, batches))

    state, (history, learned) = jax.lax.scan(steps_of_epoch, state, (jnp.arange(len(orders)), orders))
    return state, history.reshape(-1, *history.shape[2:]), learned


def with_estimates(
    config: PPOConfig,
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
    columns = batch.reward, batch.discount, batch.last, batch.weight
    reward, discount, last, weight = (time_first(x)[:-1] for x in columns)
    steps = Rows(reward=reward, discount=discount, last=last, weight=weight)
    value = value_normalisation.denormalise(moments, output)
    advantage, target = advantages.estimate(config, steps, value, log_ratio[:-1])
    target = value_normalisation.normalise(moments, target)
    advantage, target = time_first(extend(advantage)), time_first(extend(target))
    if config.norm_adv == "minibatch":
        advantage = statistics.standardise(advantage, batch.weight, axis_name=axis)
    # Of each row those of the minibatch, whose mean over the rows they are again.
    of_minibatch = metric_means.learned_moments(axis, (target, batch.weight), (advantage, batch.weight))
    learned = [jnp.broadcast_to(x, batch.weight.shape) for x in of_minibatch]
    return batch._replace(advantage=advantage, target=target, learned=learned)
