"""The memory of a policy and of its critic, and the network's inputs that depend on the steps before.

A network without memory is the case of empty fields `()`, which hold no arrays, so that nothing is computed, stored or
shuffled for them.
"""

from typing import ClassVar, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from shoal.algos.acting import actions
from shoal.config import settings, struct
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.nets import networks
from shoal.nets.inputs import action_features, num_action_features
from shoal.nets.memory import sequences
from shoal.nets.memory.recurrent import initial as initial_carry
from shoal.nets.memory.sequences import Memories, NetworkInputs
from shoal.types import EPISODE_ENDED, Array, EnvSpec, PyTree, TimeStep

_CORE = Needs("core", other_than=("none",), such_as="gru")  # of Shoal's own network
_MEMORY = Needs("has_memory", (True,))  # of another


@struct.struct
class MemoryConfig(settings.Nested):
    """Settings of how a network with memory is trained."""

    group: ClassVar[str] = "memory"

    chunk_length: int = parameter(0, low=0, needs=(_CORE, _MEMORY))
    """Propagates the gradient back over this many steps, a divisor of num_steps; 0 is the whole rollout."""
    memory_lasts: Literal["trial", "episode", "run"] = parameter("trial", needs=(_CORE, _MEMORY))
    """Clears the memory at the end of each episode or trial (trial), with every episode of a trial (episode), or never
    while training (run)."""
    burn_in: int = parameter(0, low=0, needs=(_CORE, _MEMORY))
    """Runs this many steps before a chunk, without gradient, to bring its memory up to date with the parameters."""


class WithNetwork(Protocol):
    """The settings of an algorithm that has a network."""

    @property
    def network(self) -> networks.NetworkSettings:
        """The settings of the network."""
        ...


class WithMemory(WithNetwork, Protocol):
    """The settings of an algorithm whose network may have a memory."""

    @property
    def chunk_length(self) -> int:
        """Steps over which the gradient goes back; 0 for the whole rollout."""
        ...

    @property
    def burn_in(self) -> int:
        """Steps before a chunk that bring its memory up to date."""
        ...

    @property
    def memory_lasts(self) -> str:
        """Where the memory is cleared: at the end of a "trial", an "episode" or a "run"."""
        ...


class Memory(NamedTuple):
    """A policy's memory, [N, ...]; a field is () where the policy has none, which costs nothing."""

    carry: PyTree = ()  # the recurrent state of the actor, or of a joint network
    action: PyTree = ()  # the previous action as numbers, zeros for none
    noise: PyTree = ()  # the noise of correlated exploration, or of gsde and its age

    @property
    def of_greedy(self) -> "Memory":
        """What greedy actions read, which is all but the noise; a sample without it is drawn by itself."""
        return self._replace(noise=())


class Local(NamedTuple):
    """The learner's data of each environment, [N, ...]."""

    discounted: Array  # the running discounted return
    critic: PyTree = ()  # the critic's memory from before the next rollout; () if it has none of its own


def is_recurrent(config: WithNetwork) -> bool:
    """Report whether a config's network has a memory."""
    return networks.has_memory(config.network)


def crosses_ends(config: WithMemory) -> bool:
    """Report whether a memory lasts across the ends of episodes, and so depends on the observations there."""
    return is_recurrent(config) and config.memory_lasts == "run"


def initial(config: WithNetwork, spec: EnvSpec, batch_shape: tuple[int, ...]) -> Memory:
    """Make the memory before the first step."""
    memory = Memory()
    if isinstance(config, actions.NoiseConfig):
        memory = memory._replace(noise=actions.initial_noise(config, spec.action_space, batch_shape))
    if networks.distribution_of(config.network) == "gsde":
        shapes = jax.eval_shape(lambda key: config.network.build(spec, key), jax.random.key(0))
        numbers = jnp.zeros((*batch_shape, *shapes.actor.head.noise_shape))
        memory = memory._replace(noise=(numbers, jnp.zeros(batch_shape, jnp.int32)))
    if is_recurrent(config):
        memory = memory._replace(carry=_initial_memories(config.network, spec, batch_shape).actor)
        if networks.shows(config.network, "previous_action"):
            size = num_action_features(spec.action_space)
            memory = memory._replace(action=jnp.zeros((*batch_shape, size)))
    return memory


def initial_local(config: WithNetwork, spec: EnvSpec, batch_shape: tuple[int, ...]) -> Local:
    """Make the learner's data of each environment before its first step."""
    recurrent = is_recurrent(config)
    critic = _initial_memories(config.network, spec, batch_shape).critic if recurrent else ()
    return Local(jnp.zeros(batch_shape), critic)


def _initial_memories(
    network: networks.NetworkSettings, spec: EnvSpec, batch_shape: tuple[int, ...]
) -> Memories:
    """Make a network's memories before the first step; the network is built as shapes only."""
    if not isinstance(network, networks.NetworkConfig) or network.has_own_parts:
        shapes = jax.eval_shape(lambda key: network.build(spec, key), jax.random.key(0))
        return sequences.initial(shapes, batch_shape)
    critic = () if network.shared_torso else initial_carry(network.as_critic, batch_shape)
    return Memories(initial_carry(network, batch_shape), critic)


def network_inputs(
    config: WithMemory, timestep: TimeStep, observation: PyTree, previous: PyTree
) -> NetworkInputs:
    """Collect the network's inputs: the normalised observation, and the others that the config names.

    The previous action and reward are zeros at the step at which a memory begins, and at an
    episode's first step where the memory lasts across episodes.
    """
    if not is_recurrent(config):
        return NetworkInputs(observation, timestep.action_mask)
    starts = memory_starts(config, timestep)
    begins = timestep.first if crosses_ends(config) else starts
    action = struct.where(begins, jax.tree.map(jnp.zeros_like, previous), previous)
    reward = (
        jnp.where(begins, 0.0, timestep.reward) if networks.shows(config.network, "previous_reward") else ()
    )
    return NetworkInputs(observation, timestep.action_mask, starts, action, reward)


def memory_starts(config: WithMemory, timestep: TimeStep) -> Array:
    """Return where the memory is cleared: at first steps, also at those of a trial's episodes, or nowhere."""
    observation = timestep.observation
    if crosses_ends(config):
        return jnp.zeros_like(timestep.first)
    if config.memory_lasts == "trial" or not (isinstance(observation, dict) and EPISODE_ENDED in observation):
        return timestep.first
    # Of stacked frames the last is this step's.
    return timestep.first | (observation[EPISODE_ENDED].reshape(*timestep.first.shape, -1)[..., -1] == 1)


def previous_actions(spec: EnvSpec, memory_action: PyTree, raw: Array) -> PyTree:
    """Return the previous action of each of T+1 steps as numbers, [T+1, N, A]: the memory's, then the rollout's."""
    if isinstance(memory_action, tuple):
        return ()
    return jnp.concatenate([memory_action[None], action_features(spec.action_space, raw)])


def before_rollout(memory: Memory, local: Local) -> Memories:
    """Collect a network's memories from before a rollout's first step: the policy's, and a critic's own."""
    return Memories(memory.carry, local.critic)
