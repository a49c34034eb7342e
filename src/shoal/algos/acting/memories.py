"""Carry a policy's memory from step to step, and run its network over time, with a memory or without.

A network without one sees each step by itself. It is the case of empty memories `()`, which hold no arrays, so
that nothing is computed, stored or shuffled for them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.algos.acting import networks
from shoal.config import struct
from shoal.nets.actor_critic import policy_and_value
from shoal.nets.inputs import action_features, num_action_features
from shoal.nets.memory import sequences
from shoal.nets.memory.recurrent import initial as initial_carry
from shoal.nets.memory.sequences import Memories, NetworkInputs
from shoal.types import EPISODE_ENDED, Array, EnvSpec, PyTree, TimeStep, spaces


class Memory(NamedTuple):
    """A recurrent policy's memory, [N, ...]; each entry is () where the policy has none."""

    carry: PyTree  # of the actor, or of a joint network
    action: PyTree  # the previous one as numbers, zeros for none
    noise: PyTree  # of correlated exploration


class Local(NamedTuple):
    """The learner's data of each environment, [N, ...], if the critic has a memory of its own."""

    discounted: Array  # the running discounted return
    critic: PyTree  # the critic's memory from before the next rollout


def is_recurrent(config: Any) -> bool:
    """Report whether a config's network has a memory."""
    return networks.has_memory(config.network)


def initial(config: Any, spec: EnvSpec, batch_shape: tuple[int, ...]) -> PyTree:
    """Make the memory before the first step; () if the policy has none, and the noise alone if it has only that."""
    noise: PyTree = ()
    if config.correlated_noise:
        noise = jnp.zeros((*batch_shape, spaces.zeros(spec.action_space).size))
    if not is_recurrent(config):
        return pack(Memory((), (), noise))
    action: PyTree = ()
    if networks.shows(config.network, "previous_action"):
        action = jnp.zeros((*batch_shape, num_action_features(spec.action_space)))
    return pack(Memory(_initial_memories(config.network, spec, batch_shape).actor, action, noise))


def unpack(memory: PyTree) -> Memory:
    """Return a policy's memory with all its parts."""
    return memory if isinstance(memory, Memory) else Memory((), (), memory)


def pack(memory: Memory) -> PyTree:
    """The reverse of `unpack`."""
    return memory if jax.tree.leaves(memory.carry) else memory.noise


def initial_local(config: Any, spec: EnvSpec, batch_shape: tuple[int, ...]) -> Array | Local:
    """Make the learner's data of each environment before its first step."""
    discounted = jnp.zeros(batch_shape)
    if not is_recurrent(config):
        return discounted
    return pack_local(Local(discounted, _initial_memories(config.network, spec, batch_shape).critic))


def unpack_local(local: Array | Local) -> Local:
    """Return the learner's data of each environment, with all its parts."""
    return local if isinstance(local, Local) else Local(local, ())


def pack_local(local: Local) -> Array | Local:
    """The reverse of `unpack_local`."""
    return local if jax.tree.leaves(local.critic) else local.discounted


def _initial_memories(
    network: networks.NetworkSettings, spec: EnvSpec, batch_shape: tuple[int, ...]
) -> Memories:
    """Make a network's memories before the first step; the network is built as shapes only."""
    if not isinstance(network, networks.NetworkConfig):
        shapes = jax.eval_shape(lambda key: network.build(spec, key), jax.random.key(0))
        return sequences.initial(shapes, batch_shape)
    options, shared = network.core_options(spec), network.shared_torso

    def carry(sizes: tuple[int, ...]) -> PyTree:
        width = sizes[-1] if sizes else 0  # of use only where it shows the step before, which takes a layer
        return initial_carry(options, width, batch_shape)

    return Memories(carry(network.hidden_sizes), () if shared else carry(network.critic_sizes))


def network_inputs(config: Any, timestep: TimeStep, observation: PyTree, previous: PyTree) -> NetworkInputs:
    """Collect the network's inputs: the normalised observation, and what else the config names.

    The previous action and the reward of the step that a memory begins with are none: zeros.
    """
    if not is_recurrent(config):
        return NetworkInputs(observation, timestep.action_mask)
    starts = memory_starts(config, timestep)
    action = struct.where(starts, jax.tree.map(jnp.zeros_like, previous), previous)
    reward = (
        jnp.where(starts, 0.0, timestep.reward) if networks.shows(config.network, "previous_reward") else ()
    )
    return NetworkInputs(observation, timestep.action_mask, starts, action, reward)


def memory_starts(config: Any, timestep: TimeStep) -> Array:
    """Tell where the memory is cleared: at the first step, or also at that of each episode of a trial."""
    observation = timestep.observation
    if config.memory_lasts == "trial" or not (isinstance(observation, dict) and EPISODE_ENDED in observation):
        return timestep.first
    return timestep.first | (observation[EPISODE_ENDED] == 1)


def previous_actions(spec: EnvSpec, memory_action: PyTree, raw: Array) -> PyTree:
    """The actions from before each of T+1 steps as numbers, [T+1, N, A]: the memory's, then those of the rollout."""
    if isinstance(memory_action, tuple):
        return ()
    return jnp.concatenate([memory_action[None], action_features(spec.action_space, raw)])


def policy_step(actor: PyTree, carry: PyTree, inputs: NetworkInputs) -> tuple[PyTree, Any]:
    """One step of N sequences: the new carry, and the distribution of the next action [N]."""
    if isinstance(inputs.first, tuple):
        return (), actor.policy(inputs.observation, inputs.action_mask)
    return sequences.policy_step(actor, carry, inputs)


def replay(
    network: PyTree, carries: Memories, after: PyTree, inputs: NetworkInputs, steps: Sequence[int]
) -> sequences.Replayed:
    """Compute the values of T+1 steps, [T+1, N], and the memories from before some of them; () without memory.

    Args:
      network: whose parameters acted.
      carries: from before the first step.
      after: the actor's memories from after each of the T steps that it acted at, or () (`sequences.replay`).
      inputs: at all T+1 steps.
      steps: numbers of those whose memories are asked for.
    """
    if isinstance(inputs.first, tuple):
        return sequences.Replayed(network.value(inputs.observation), Memories(()), ())
    return sequences.replay(network, carries, after, inputs, steps)


def unroll(network: PyTree, carries: Memories, inputs: NetworkInputs) -> tuple[Any, Array]:
    """Compute the distributions and the values of T steps with any parameters, from the memories before the first."""
    if isinstance(inputs.first, tuple):
        return policy_and_value(network, inputs.observation, inputs.action_mask)
    unrolled = sequences.unroll(network, carries, inputs)
    return unrolled.distribution, unrolled.value


def before_rollout(memory: PyTree, local: Array | Local) -> Memories:
    """Collect a network's memories from before a rollout's first step: the policy's, and a critic's own."""
    return Memories(unpack(memory).carry, unpack_local(local).critic)
