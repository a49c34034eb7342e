"""Actors and critics with a memory: encoder, layers, recurrent core, queries, layers, head.

They unroll over T steps of N sequences, [T, N, ...], from the memory before the first of them; acting is the same
with T = 1. The layers before and after the core take all steps at once.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.nets import torsos
from shoal.nets.actor_critic_config import ActorCriticConfig, built
from shoal.nets.gradients import scale_gradient
from shoal.nets.headed import Headed
from shoal.nets.inputs import action_features, num_action_features
from shoal.nets.memory import cores
from shoal.nets.memory.cores import Carry, RecurrentCore
from shoal.nets.memory.queries import CellQueries
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.mlp import MLP
from shoal.nets.outputs import ActionDistribution, Value
from shoal.nets.torso_config import CoreConfig
from shoal.nets.torsos import Torso
from shoal.types import EnvSpec, PyTree, without_entries
from shoal.types.spaces import zeros
from shoal.xla import backend
from shoal.xla.plain import uses_plain_form
from shoal.xla.repeats import apply_to_distinct

Array = jax.Array


def initial(config: CoreConfig, batch_shape: tuple[int, ...]) -> Carry:
    """Make a torso's memory before the first step: its core's, and the features of the step before if shown."""
    carry = cores.initial(config.core, config.core_size, config.core_layers, batch_shape)
    return _with_features(carry, config.hidden_sizes[-1]) if config.previous_observation else carry


def _with_features(carry: Carry, width: int) -> Carry:
    """Append the features of the step before the first, zeros, to a core's memory."""
    return (*carry, (jnp.zeros((*carry[0][0].shape[:-1], width)),))


class RecurrentTorso(nnx.Module):
    """Encoder, MLP, core and queries: features that depend on the inputs up to the step.

    Args:
      config: the settings; its `hidden_sizes` and its `encoder` come before the core.
    Raises:
      ShoalError: a space, a size or a name that does not fit.
    """

    def __init__(self, spec: EnvSpec, config: CoreConfig, *, key: Array):
        encoder_key, mlp_key, action_key, core_key = jax.random.split(key, 4)
        queries_key = jax.random.fold_in(key, 4)
        space, size, embedding = spec.observation_space, config.core_size, config.action_embedding
        self.encoder = torsos.build(space, config.encoder, config, key=encoder_key)
        self.mlp = MLP(self.encoder.num_features, config.hidden_sizes, key=mlp_key, **config.style)
        action_size = num_action_features(spec.action_space) if config.previous_action else 0
        # What begins with an action has no vector of its own for none, which is the bias.
        has_none, has_embedding = config.start_action == "none", action_size and embedding
        self.start_space = None if has_none else spec.action_space
        embed = functools.partial(MLP, action_size, (), embedding, out_bias=has_none, key=action_key)
        self.embedding = nnx.List([embed()] if has_embedding else [])
        self.shows_action = config.action_beside_embedding or not has_embedding
        # The reward stands behind the features and the action; it is what opens latches.
        reward_index = self.mlp.out_features * (2 if config.previous_observation else 1)
        reward_index += (embedding if has_embedding else 0) + (action_size if self.shows_action else 0)
        self.core = RecurrentCore(
            reward_index + int(config.previous_reward) + int(config.first_flag),
            size,
            config.core,
            layers=config.core_layers,
            outputs=config.core_outputs,
            latches=config.latches,
            latch_input=reward_index,
            initialisers=config.core_initialisers,
            key=core_key,
        )
        self.shows_first, self.shows_previous = config.first_flag, config.previous_observation
        queries = config.queries
        self.queries = nnx.List([CellQueries(space, size, queries, key=queries_key)] if queries else [])
        self.out_features = size + sum(queries.out_features for queries in self.queries)

    def unroll(self, carry: Carry, inputs: NetworkInputs) -> tuple[Carry, Array, Carry]:
        """Return the carry after the last step, features [T, N, out_features], and the carries before each step."""
        unroll = self._unroll_with_previous if self.shows_previous else self._unroll
        after, outputs, before = unroll(carry, inputs, self._extra_inputs(inputs))
        return after, self._with_query_results(outputs, inputs.observation), before

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        carry = self.core.initial(batch_shape)
        return _with_features(carry, self.mlp.out_features) if self.shows_previous else carry

    def features_of(self, after: Carry, observation: PyTree) -> Array:
        """Return the features of steps after which the memory is `after`; any leading axes."""
        return self._with_query_results(self.core.outputs_of(after[: len(self.core.layers)]), observation)

    @property
    def _deduplicates(self) -> bool:
        """Whether equal observations are searched for, to be encoded once."""
        return not uses_plain_form("project_distinct") and self.encoder.expects_repeats and backend.is_cpu()

    def _unroll(
        self, carry: Carry, inputs: NetworkInputs, extra_inputs: list[Array]
    ) -> tuple[Carry, Array, Carry]:
        """Run the core on the features of each step."""
        if self._deduplicates:
            return self.core.unroll_projected(carry, self._project_inputs(inputs, extra_inputs), inputs.first)
        parts = [self.mlp(self.encoder(inputs.observation)), *extra_inputs]
        x = jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        return self.core.unroll(carry, x, inputs.first)

    def _unroll_with_previous(
        self, carry: Carry, inputs: NetworkInputs, extra_inputs: list[Array]
    ) -> tuple[Carry, Array, Carry]:
        """Run the core on the features of each step and of the one before, the last part of the carry."""
        *layers, (last_features,) = carry
        features = self._features(inputs)
        before = jnp.concatenate([last_features[None], features[:-1]])
        previous = jnp.where(inputs.first[..., None], 0.0, before)
        x = jnp.concatenate([features, previous, *extra_inputs], axis=-1)
        after, outputs, core_before = self.core.unroll(tuple(layers), x, inputs.first)
        return (*after, (features[-1],)), outputs, (*core_before, (before,))

    def _features(self, inputs: NetworkInputs) -> Array:
        """Compute the features of each step, [T, N, mlp.out_features]."""
        if not self._deduplicates:
            return self.mlp(self.encoder(inputs.observation))
        features = apply_to_distinct(encode_observation, (self.encoder, self.mlp), _flat_observations(inputs))
        return features.reshape(*inputs.first.shape, -1)

    def _with_query_results(self, outputs: Array, observation: PyTree) -> Array:
        """Append the scores of the queries to the core's outputs."""
        query_results = [queries(outputs, observation) for queries in self.queries]
        return jnp.concatenate([outputs, *query_results], axis=-1) if query_results else outputs

    def _extra_inputs(self, inputs: NetworkInputs) -> list[Array]:
        """List the core's inputs besides the observation, each [T, N, ...]."""
        # () stands for an input that the core is not shown.
        parts = []
        if not isinstance(inputs.action, tuple):
            action = self._with_start(inputs.action)
            parts = [embedding(action) for embedding in self.embedding]
            parts += [action] if self.shows_action else []
        flags = [inputs.reward] if not isinstance(inputs.reward, tuple) else []
        flags += [inputs.first] if self.shows_first else []
        return parts + [flag.astype(jnp.float32)[..., None] for flag in flags]

    def _with_start(self, action: Array) -> Array:
        """Replace zeros, which stand for no previous action, by the action 0 where an episode is to begin with it."""
        if self.start_space is None:
            return action
        start = action_features(self.start_space, zeros(self.start_space))
        return jnp.where(jnp.any(action != 0.0, axis=-1, keepdims=True), action, start)

    def _project_inputs(self, inputs: NetworkInputs, extra_inputs: list[Array]) -> Array:
        """Project the input by the core's first layer; equal observations are encoded and projected once."""
        layer, width = self.core.layers[0], self.mlp.out_features
        product = apply_to_distinct(
            encode_and_project, (self.encoder, self.mlp, layer.kernel), _flat_observations(inputs)
        )
        projected = product.T + layer.bias[:, None]
        if extra_inputs:
            extra = jnp.concatenate([part.reshape(-1, part.shape[-1]) for part in extra_inputs], axis=-1)
            projected += layer.kernel[:, width:] @ extra.T
        return projected


def _flat_observations(inputs: NetworkInputs) -> PyTree:
    """Return the observations of all steps, [T * N, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[inputs.first.ndim :]), inputs.observation)


def encode_observation(parameters: tuple[Torso, MLP], observation: PyTree) -> Array:
    """Encode observations [N, ...] by an encoder and layers, [N, F]."""
    encoder, mlp = parameters
    return mlp(encoder(observation))


def encode_and_project(parameters: tuple[Torso, MLP, Array], observation: PyTree) -> Array:
    """Multiply encoded observations by the first columns of a kernel [F, ...]."""
    encoder, mlp, kernel = parameters
    features = encode_observation((encoder, mlp), observation)
    # Zeros for the other columns: cut from the kernel, the first would be copied at each step.
    features = jnp.pad(features, ((0, 0), (0, kernel.shape[-1] - features.shape[-1])))
    return features @ kernel.T


class RecurrentActor(Headed):
    """A torso with memory, hidden layers, and a head: a distribution over actions at each step."""

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, *, key: Array):
        torso_key, head_key = jax.random.split(key)
        self.critic_only = spec.critic_only
        self.torso = RecurrentTorso(spec.of_actor, config, key=torso_key)
        width, sizes, style = self.torso.out_features, config.head_sizes, config.style_after_torso
        head = config.head_of_policy(spec.action_space, (width, *sizes)[-1], key)
        super().__init__(head, width, sizes, scale=config.policy_scale, key=head_key, **style)

    @property
    def stores_memories(self) -> bool:
        """Whether a rollout keeps the memory of each step: a core's is a few vectors."""
        return True

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return self.torso.initial(batch_shape)

    def apply(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, ActionDistribution]:
        """Return the memory after the last step, and a distribution at each."""
        memory, features = self.features(memory, inputs, first)
        return memory, self(features, inputs.action_mask)

    def features(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Array]:
        """Return the memory after the last step, and the torso's features at each."""
        # Both networks are given the same inputs, also where the critic sees more.
        shown = without_entries(inputs.observation, self.critic_only)
        memory, features, _ = self.torso.unroll(memory, inputs._replace(observation=shown, first=first))
        return memory, features


class RecurrentCritic(Headed):
    """Layers on features with memory, and the torso of these unless it is the actor's (`shared_torso`)."""

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, num_features: int = 0, *, key: Array):
        torso_key, head_key = jax.random.split(key)
        config = config if config.shared_torso else config.as_critic
        own = [] if config.shared_torso else [RecurrentTorso(spec.of_critic, config, key=torso_key)]
        self.torso = nnx.List(own)
        self.gradient_scale = config.critic_gradient_scale  # of a torso that is the actor's
        head, sizes = config.head_of_value(spec.action_space, key), config.head_sizes
        width, style = own[0].out_features if own else num_features, config.style_after_torso
        super().__init__(head, width, sizes, scale=config.value_scale, key=head_key, **style)

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return self.torso[0].initial(batch_shape)

    def apply(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Value]:
        """Return the memory after the last step, and a value at each."""
        return self.unroll(memory, inputs, first)[:2]

    def unroll(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Value, Carry]:
        """Return the same as `apply`, and the memories from before each step, [T, N, ...]."""
        after, features, before = self.torso[0].unroll(memory, inputs._replace(first=first))
        return after, self(features), before


class RecurrentActorCritic(nnx.Module):
    """An actor and a critic with memories of their own: two sequence modules (`shoal.nets.memory.sequences`)."""

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, *, key: Array):
        actor_key, critic_key = jax.random.split(key)
        actor, critic = config.actor_network, config.critic_network
        self.actor = built(actor, spec.of_actor, actor_key, RecurrentActor, spec, config)
        width = self.actor.torso.out_features if config.shared_torso else 0
        self.critic = built(critic, spec.of_critic, critic_key, RecurrentCritic, spec, config, width)


class SharedRecurrentActorCritic(RecurrentActorCritic):
    """An actor and a critic with one torso and memory: one sequence module, whose critic is layers on features.

    `network.actor` holds the torso, and is all that acting needs. The settings have `shared_torso=True`.
    """

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return self.actor.initial(batch_shape)

    def apply(
        self, memory: Carry, inputs: NetworkInputs, first: Array
    ) -> tuple[Carry, tuple[ActionDistribution, Value]]:
        """Return the memory after the last step, and a distribution and a value at each."""
        memory, features = self.actor.features(memory, inputs, first)
        scaled = scale_gradient(features, self.critic.gradient_scale)
        return memory, (self.actor(features, inputs.action_mask), self.critic(scaled))

    def values_after(self, memories: Carry, inputs: NetworkInputs) -> Value:
        """Compute the values of T+1 steps from the memories after T of them, by the layers after the core alone.

        Args:
          memories: from after each of the first T steps, [T, N, ...].
          inputs: [T+1, N, ...]; only the last is run.
        """
        last_memory = jax.tree.map(lambda x: x[-1], memories)
        last_inputs = jax.tree.map(lambda x: x[-1:], inputs)
        # The step after the last memory has been acted by nobody: the core runs for it alone.
        _, last_features = self.actor.features(last_memory, last_inputs, last_inputs.first)
        earlier = self.actor.torso.features_of(memories, jax.tree.map(lambda x: x[:-1], inputs.observation))
        return self.critic(jnp.concatenate([earlier, last_features]))
