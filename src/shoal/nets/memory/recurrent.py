"""Actors and critics with a memory: encoder, layers, recurrent core, queries, layers, head.

They unroll over T steps of N sequences, [T, N, ...], from the memory before the first of them; acting is the same
with T = 1. The layers before and after the core take all steps at once.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.nets import torsos
from shoal.nets.actor_critic import Distribution
from shoal.nets.encoders import DEFAULT_LAYERS, Encoder, EncoderLayers
from shoal.nets.heads import head_for
from shoal.nets.memory import cores
from shoal.nets.memory.cores import Carry, RecurrentCore
from shoal.nets.memory.queries import CellQueries
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.mlp import MLP
from shoal.nets.value_heads import ScalarValueHead
from shoal.types import EnvSpec, PyTree, without_entries
from shoal.xla import backend
from shoal.xla.plain import uses_plain_form
from shoal.xla.repeats import apply_to_distinct

Array = jax.Array


class CoreOptions(NamedTuple):
    """The core of a network, and its inputs besides the observation; static.

    Attributes:
      kind, size, layers, outputs: of `shoal.nets.memory.cores.RecurrentCore`.
      latches: units that begin as a memory of what led to the last reward (ibid.); they need `reward`.
      action_size: numbers in the previous action; 0 if it is not shown.
      action_embedding: features of its learned linear embedding; 0 shows the numbers as they are.
      reward: whether the previous reward is shown.
      first: whether the flag of an episode's first step is shown.
      previous: whether the features of the step before are shown: with the previous action and reward, a whole
        transition.
      queries: the number of queries of the observation's cells (`CellQueries`); 0 for none.
    """

    kind: str = "gru"
    size: int = 128
    layers: int = 1
    outputs: str = "last"
    latches: int = 0
    action_size: int = 0
    action_embedding: int = 0
    reward: bool = False
    first: bool = False
    previous: bool = False
    queries: int = 0


def initial(core: CoreOptions, width: int, batch_shape: tuple[int, ...]) -> Carry:
    """Make a torso's memory before the first step: its core's, and the step before's `width` features if shown."""
    carry = cores.initial(core.kind, core.size, core.layers, batch_shape)
    return (*carry, (jnp.zeros((*batch_shape, width)),)) if core.previous else carry


class RecurrentTorso(nnx.Module):
    """Encoder, MLP, core and queries: features that depend on the inputs up to the step.

    Raises:
      ShoalError: a space, a size or a name that does not fit.
    """

    def __init__(
        self,
        spec: EnvSpec,
        core: CoreOptions,
        *,
        sizes: Sequence[int] = (64,),
        encoder: Any = "flatten",
        encoder_layers: EncoderLayers = DEFAULT_LAYERS,
        key: Array,
        **style: Any,
    ):
        encoder_key, mlp_key, action_key, core_key = jax.random.split(key, 4)
        queries_key = jax.random.fold_in(key, 4)
        self.encoder = torsos.build(spec.observation_space, encoder, encoder_layers, key=encoder_key, **style)
        self.mlp = MLP(self.encoder.num_features, sizes, key=mlp_key, **style)
        has_embedding = core.action_size and core.action_embedding
        self.embedding = nnx.List(
            [MLP(core.action_size, (), core.action_embedding, key=action_key)] if has_embedding else []
        )
        reward_index = self.mlp.out_features * (2 if core.previous else 1)
        reward_index += core.action_embedding if has_embedding else core.action_size
        self.core = RecurrentCore(
            reward_index + int(core.reward) + int(core.first),
            core.size,
            core.kind,
            layers=core.layers,
            outputs=core.outputs,
            latches=core.latches,
            latch_input=reward_index,
            key=core_key,
        )
        self.options = core
        space, num_queries = spec.observation_space, core.queries
        self.queries = nnx.List(
            [CellQueries(space, core.size, num_queries, key=queries_key)] if num_queries else []
        )
        self.out_features = core.size + sum(queries.out_features for queries in self.queries)

    def unroll(self, carry: Carry, inputs: NetworkInputs) -> tuple[Carry, Array, Carry]:
        """Return the carry after the last step, features [T, N, out_features], and the carries before each step."""
        unroll = self._unroll_with_previous if self.options.previous else self._unroll
        after, outputs, before = unroll(carry, inputs, self._extra_inputs(inputs))
        return after, self._with_query_results(outputs, inputs.observation), before

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return initial(self.options, self.mlp.out_features, batch_shape)

    def features_of(self, after: Carry, observation: PyTree) -> Array:
        """Return the features of steps after which the memory is `after`; any leading axes."""
        return self._with_query_results(self.core.outputs_of(after[: self.options.layers]), observation)

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
        parts = []
        if not isinstance(inputs.action, tuple):
            parts.append(self.embedding[0](inputs.action) if self.embedding else inputs.action)
        flags = [inputs.reward] if not isinstance(inputs.reward, tuple) else []
        flags += [inputs.first] if self.options.first else []
        return parts + [flag.astype(jnp.float32)[..., None] for flag in flags]

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


def encode_observation(parameters: tuple[Encoder, MLP], observation: PyTree) -> Array:
    """Encode observations [N, ...] by an encoder and layers, [N, F]."""
    encoder, mlp = parameters
    return mlp(encoder(observation))


def encode_and_project(parameters: tuple[Encoder, MLP, Array], observation: PyTree) -> Array:
    """Multiply encoded observations by the first columns of a kernel [F, ...]."""
    encoder, mlp, kernel = parameters
    features = encode_observation((encoder, mlp), observation)
    # Zeros for the other columns: cut from the kernel, the first would be copied at each step.
    features = jnp.pad(features, ((0, 0), (0, kernel.shape[-1] - features.shape[-1])))
    return features @ kernel.T


def _style(torso: dict[str, Any]) -> dict[str, Any]:
    """Select those of a torso's options that apply to all of its layers."""
    names = ("activation", "layer_norm", "scale", "initialiser")
    return {name: torso[name] for name in names if name in torso}


class RecurrentActor(nnx.Module):
    """A torso with memory, hidden layers, and a head: a distribution over actions at each step."""

    def __init__(
        self,
        spec: EnvSpec,
        core: CoreOptions,
        *,
        head_sizes: Sequence[int] = (),
        distribution: str = "auto",
        state_dependent_std: bool = False,
        initial_std: float = 1.0,
        minimum_std: float = 1e-3,
        out_scale: float = 0.01,
        out_initialiser: str | None = None,
        key: Array,
        **torso: Any,
    ):
        torso_key, head_key = jax.random.split(key)
        self.critic_only = spec.critic_only
        self.torso = RecurrentTorso(spec.of_actor, core, key=torso_key, **torso)
        self.head = head_for(
            spec.action_space,
            distribution,
            state_dependent_std=state_dependent_std,
            initial_std=initial_std,
            minimum_std=minimum_std,
        )
        style = _style(torso) | dict(out_scale=out_scale, out_initialiser=out_initialiser, key=head_key)
        self.mlp = MLP(self.torso.out_features, head_sizes, self.head.num_inputs, **style)

    @property
    def stores_memories(self) -> bool:
        """Whether a rollout keeps the memory of each step: a core's is a few vectors."""
        return True

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return self.torso.initial(batch_shape)

    def apply(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Distribution]:
        """Return the memory after the last step, and a distribution at each."""
        memory, features = self.features(memory, inputs, first)
        return memory, self.distribution(features, inputs.action_mask)

    def features(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Array]:
        """Return the memory after the last step, and the torso's features at each."""
        shown = without_entries(inputs.observation, self.critic_only)
        memory, features, _ = self.torso.unroll(memory, inputs._replace(observation=shown, first=first))
        return memory, features

    def distribution(self, features: Array, action_mask: Array | None) -> Distribution:
        """Map the torso's features [..., out_features] to a distribution with batch axes [...]."""
        return self.head(self.mlp(features), action_mask)


class RecurrentCritic(nnx.Module):
    """Layers on features with memory, and the torso of these unless it is the actor's (`core` None)."""

    def __init__(
        self,
        spec: EnvSpec,
        core: CoreOptions | None,
        num_features: int,
        head_sizes: Sequence[int],
        *,
        out_scale: float,
        value_head: Any = None,
        out_initialiser: str | None = None,
        key: Array,
        **torso: Any,
    ):
        torso_key, head_key = jax.random.split(key)
        self.torso = nnx.List([RecurrentTorso(spec.of_critic, core, key=torso_key, **torso)] if core else [])
        style = _style(torso) | dict(out_scale=out_scale, out_initialiser=out_initialiser, key=head_key)
        self.head = value_head or ScalarValueHead()
        self.mlp = MLP(num_features, head_sizes, self.head.num_inputs, **style)

    def __call__(self, features: Array) -> Any:
        """Map the torso's features [..., num_features] to values [...]."""
        return self.head(self.mlp(features))

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return self.torso[0].initial(batch_shape)

    def apply(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Any]:
        """Return the memory after the last step, and a value at each."""
        return self.unroll(memory, inputs, first)[:2]

    def unroll(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Any, Carry]:
        """Return the same as `apply`, and the memories from before each step, [T, N, ...]."""
        after, features, before = self.torso[0].unroll(memory, inputs._replace(first=first))
        return after, self(features), before


class RecurrentActorCritic(nnx.Module):
    """An actor and a critic with memories of their own: two sequence modules (`shoal.nets.memory.sequences`).

    Args:
      head_sizes: hidden layers after the core, of the actor and of the critic.
      critic_sizes, critic_encoder: None for the actor's.
      value_head: see `shoal.nets.actor_critic.Critic`.
      torso: further options of `RecurrentTorso`, and `out_initialiser` of the last layers.
    """

    shared: ClassVar[bool] = False  # whether one torso and memory serve both

    def __init__(
        self,
        spec: EnvSpec,
        core: CoreOptions,
        *,
        actor_sizes: Sequence[int] = (64,),
        critic_sizes: Sequence[int] | None = None,
        head_sizes: Sequence[int] = (),
        policy_scale: float = 0.01,
        value_scale: float = 1.0,
        distribution: str = "auto",
        state_dependent_std: bool = False,
        initial_std: float = 1.0,
        minimum_std: float = 1e-3,
        critic_encoder: Any = None,
        value_head: Any = None,
        key: Array,
        **torso: Any,
    ):
        actor_key, critic_key = jax.random.split(key)
        self.actor = RecurrentActor(
            spec,
            core,
            sizes=actor_sizes,
            head_sizes=head_sizes,
            distribution=distribution,
            state_dependent_std=state_dependent_std,
            initial_std=initial_std,
            minimum_std=minimum_std,
            out_scale=policy_scale,
            key=actor_key,
            **torso,
        )
        critic_torso = dict(torso, sizes=actor_sizes if critic_sizes is None else critic_sizes)
        if critic_encoder is not None:
            critic_torso["encoder"] = critic_encoder
        self.critic = RecurrentCritic(
            spec,
            None if self.shared else core,
            self.actor.torso.out_features,
            head_sizes,
            out_scale=value_scale,
            value_head=value_head,
            key=critic_key,
            **critic_torso,
        )


class SharedRecurrentActorCritic(RecurrentActorCritic):
    """An actor and a critic with one torso and memory: one sequence module, whose critic is layers on features.

    `network.actor` holds the torso, and is all that acting needs. The arguments are those of `RecurrentActorCritic`.
    """

    shared: ClassVar[bool] = True

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return self.actor.initial(batch_shape)

    def apply(
        self, memory: Carry, inputs: NetworkInputs, first: Array
    ) -> tuple[Carry, tuple[Distribution, Any]]:
        """Return the memory after the last step, and a distribution and a value at each."""
        memory, features = self.actor.features(memory, inputs, first)
        return memory, (self.actor.distribution(features, inputs.action_mask), self.critic(features))

    def values_after(self, memories: Carry, inputs: NetworkInputs) -> Any:
        """Compute the values of T+1 steps from the memories after T of them, by the layers after the core alone.

        Args:
          memories: from after each of the first T steps, [T, N, ...].
          inputs: [T+1, N, ...]; only the last is run.
        """
        last_memory, last_inputs = (
            jax.tree.map(lambda x: x[-1], memories),
            jax.tree.map(lambda x: x[-1:], inputs),
        )
        _, last_features = self.actor.features(last_memory, last_inputs, last_inputs.first)
        earlier = self.actor.torso.features_of(memories, jax.tree.map(lambda x: x[:-1], inputs.observation))
        return self.critic(jnp.concatenate([earlier, last_features]))
