"""From a rollout to minibatches: shuffled rows, for recurrent networks contiguous chunks of time.

A chunk is K steps of one environment with the memory from before the first of them; a network without memory has
chunks of one step, and no axis for it. Leading axes of rows: [C] without memory, [C, K] with it. Where advantages are
computed within the loss, rows are whole streams for every network, [N, T+1] (`shoal.algos.learning.recomputation`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from shoal.algos.acting import memories
from shoal.algos.learning import metric_means, surrogates
from shoal.config import struct
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.outputs import ActionDistribution, Value
from shoal.ops import permutations, statistics
from shoal.ops.distributions import Foreign
from shoal.types import Array, PyTree

if TYPE_CHECKING:
    from shoal.algos.ppo_config import PPOConfig

T = TypeVar("T")


class ChunkStart(NamedTuple):
    """The start of each chunk's replay; all entries are () without memory."""

    memory: PyTree = ()  # [C, ...], from before the burn-in where there is one, else before the chunk
    burn_in: PyTree = ()  # the steps before the chunk, [C, B, ...]
    has_burn_in: PyTree = ()  # whether there are any, [C]: the rollout's first chunks have none


class Rows(NamedTuple):
    """The transitions of a rollout, one array for each quantity; those of weight 0 are none, and are ignored.

    As they were collected these are [T, N]; then they are laid out as independent rows. A column is () where nothing
    reads it.
    """

    inputs: PyTree = ()  # `NetworkInputs`
    raw_action: PyTree = ()
    log_prob: PyTree = ()
    distribution: PyTree = ()
    value: PyTree = ()  # the critic's output, as the value loss compares it
    advantage: PyTree = ()
    target: PyTree = ()  # as the value loss compares it
    following: PyTree = ()  # the logits of the critic's distribution at the next step
    weight: PyTree = ()  # 1, or 0 where there is no transition
    reward: PyTree = ()  # divided as configured
    discount: PyTree = ()  # gamma times the environment's
    last: PyTree = ()  # whether the transition led to the end of its episode
    learned: PyTree = ()  # `metric_means.learned_moments` of the minibatch, where the loss computes advantages
    start: ChunkStart = ChunkStart()


def to_rows(config: memories.WithMemory, tree: PyTree) -> PyTree:
    """Reshape arrays of a rollout [T, N, ...] to rows [T * N, ...], or to chunks of K steps [T / K * N, K, ...]."""
    if not memories.is_recurrent(config):
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)

    def to_chunks(x: Array) -> Array:
        steps, envs, *rest = x.shape
        length = config.chunk_length or steps
        x = x.reshape(steps // length, length, envs, *rest)
        return jnp.swapaxes(x, 1, 2).reshape(-1, length, *rest)

    return jax.tree.map(to_chunks, tree)


def masked(config: memories.WithMemory, rows: Rows) -> Rows:
    """Replace what is not a transition by zeros before the network, since 0 times NaN is NaN in a gradient.

    Inputs stay where a memory passes through them across the ends of episodes, and the flag that clears it everywhere.
    """
    weight = rows.weight

    def replace(tree: PyTree) -> PyTree:
        return struct.where(weight > 0, tree, jax.tree.map(jnp.zeros_like, tree))

    inputs = rows.inputs
    if not memories.crosses_ends(config):
        inputs = replace(inputs)._replace(first=inputs.first, action_mask=inputs.action_mask)
    replaced = replace(rows._replace(inputs=(), distribution=(), weight=()))
    return replaced._replace(inputs=inputs, distribution=rows.distribution, weight=weight)


def start_steps(config: memories.WithMemory, num_steps: int) -> tuple[int, ...]:
    """Return the steps before which each chunk's replay starts, its burn-in included; () without memory."""
    if not memories.is_recurrent(config):
        return ()
    length = config.chunk_length or num_steps
    return tuple(max(step - config.burn_in, 0) for step in range(0, num_steps, length))


def chunk_starts(config: memories.WithMemory, inputs: NetworkInputs, starts: PyTree) -> ChunkStart:
    """Build the start of each chunk's replay.

    Args:
      config: whose `chunk_length` and `burn_in` count.
      inputs: of the network at the rollout's T steps, [T, N, ...].
      starts: the memories from before each of `start_steps`, [len(start_steps), N, ...]; () for none.
    """
    if not memories.is_recurrent(config):
        return ChunkStart()
    steps, envs = inputs.first.shape  # type: ignore[union-attr]
    length, burn_in = config.chunk_length or steps, config.burn_in
    first_steps = jnp.arange(0, steps, length)
    memory = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), starts)
    if burn_in == 0 or steps == length:
        return ChunkStart(memory)
    window = jnp.maximum(first_steps[:, None] + jnp.arange(-burn_in, 0), 0)

    def preceding(x: Array) -> Array:
        return jnp.swapaxes(x[window], 1, 2).reshape(-1, burn_in, *x.shape[2:])

    return ChunkStart(memory, jax.tree.map(preceding, inputs), jnp.repeat(first_steps > 0, envs))


def evaluate(network: PyTree, batch: Rows) -> tuple[Rows, ActionDistribution, Value]:
    """Run the network over a minibatch: (rows, distributions, critic's outputs), of equal leading axes.

    With memory these are [K, C]: time comes first. No gradient flows through the memory that a chunk starts from, nor
    through its burn-in, which brings that memory up to date with the parameters.
    """

    def unroll(memory: PyTree, inputs: NetworkInputs) -> tuple[PyTree, tuple[ActionDistribution, Value]]:
        after, distribution, value = sequences.unroll(network, memory, inputs)
        return after, (distribution, value)

    batch, (distribution, value) = unrolled(unroll, batch)
    return batch, distribution, value


def unrolled(unroll: Callable[[PyTree, NetworkInputs], tuple[PyTree, T]], batch: Rows) -> tuple[Rows, T]:
    """Run a network over a minibatch as `evaluate` does; `unroll` returns the memory after some steps, and outputs."""
    if not sequences.has_memory(batch.inputs):
        return batch, unroll(sequences.Memories(()), batch.inputs)[1]
    memory, burn_in, has_burn_in = batch.start
    if burn_in:
        burned_in, _ = unroll(memory, jax.tree.map(_time_first, burn_in))
        memory = struct.where(has_burn_in, jax.lax.stop_gradient(burned_in), memory)
    batch = jax.tree.map(_time_first, batch._replace(start=ChunkStart()))
    return batch, unroll(memory, batch.inputs)[1]


def behaviour(
    config: PPOConfig, network: PyTree, rows: Rows, batch: Rows, distribution: ActionDistribution
) -> PyTree:
    """Return the distributions that acted, [...]: as stored, or another package's of the network that acted.

    Args:
      rows: the rows as they are before `evaluate`.
      batch: the same after it, with the current `distribution`.
    """
    if isinstance(distribution, Foreign) and surrogates.has_penalty(config):
        return evaluate(network, rows)[1]
    return batch.distribution


def without_unread(batch: Rows, distribution: ActionDistribution) -> Rows:
    """Replace the distributions that acted by the current ones where there is no transition.

    Those may hold anything there, and a KL divergence of NaN has a gradient of NaN, whatever it is multiplied by. The
    current ones are sound, since their inputs are masked, for any family of distributions.
    """
    if not jax.tree.leaves(batch.distribution):
        return batch
    current = jax.lax.stop_gradient(distribution)
    return batch._replace(distribution=struct.where(batch.weight > 0, batch.distribution, current))


def _time_first(x: Array) -> Array:
    return jnp.swapaxes(x, 0, 1)


class Minibatch(NamedTuple):
    """The rows of one gradient step."""

    rows: Array  # their indices, uint32 [size]
    advantage: PyTree  # of the rows, normalised as configured, [size, ...]; () if the loss computes it
    weight: Array  # the number of transitions among the rows of all devices
    epoch: Array


def shuffled_rows(rows: Rows, epochs: int, num_minibatches: int, key: Array) -> Array:
    """Draw an order of the rows for each epoch, uint32 [epochs, num_minibatches, size of a minibatch]."""
    num_rows = rows.weight.shape[0]
    permutation = jax.vmap(permutations.permutation, in_axes=(0, None))
    index = permutation(jax.random.split(key, epochs), num_rows).astype(jnp.uint32)
    return index.reshape(epochs, num_minibatches, -1)


def with_statistics(
    config: PPOConfig, axis: tuple[str, ...], rows: Rows, index: Array, epochs: Array
) -> Minibatch:
    """Return K minibatches of the rows with these indices [K, size], of the epochs [K] or all of one, [].

    Their statistics are taken here for all at once, so that devices need not wait for each other at every step.
    """
    advantage = jax.tree.map(lambda x: x[index], rows.advantage)
    if config.norm_adv == "minibatch":
        standardise = jax.vmap(functools.partial(statistics.standardise, axis_name=axis))
        advantage = jax.tree.map(lambda x: standardise(x, rows.weight[index]), advantage)  # () in the loss
    return Minibatch(index, advantage, total_weights(axis, rows, index), jnp.broadcast_to(epochs, len(index)))


def learned_moments(config: PPOConfig, axis: tuple[str, ...], rows: Rows, batches: Minibatch) -> list[Array]:
    """Return `metric_means.learned_moments` of minibatches that have each row equally often; [] if the loss does.

    What is not normalised in each minibatch is reduced over the rows as they are, which costs least.
    """
    if config.recompute == "minibatch":
        return []
    advantage = rows.advantage, rows.weight
    if config.norm_adv == "minibatch":
        advantage = batches.advantage, rows.weight[batches.rows]
    return metric_means.learned_moments(axis, (rows.target, rows.weight), advantage)


def total_weights(axis: tuple[str, ...], rows: Rows, index: Array) -> Array:
    """Return the number of transitions of all devices in each of K minibatches of rows, index [K, size] -> [K]."""
    weight = rows.weight[index]
    total = weight.sum(axis=tuple(range(1, weight.ndim)))
    return jax.lax.psum(total, axis) if axis else total
