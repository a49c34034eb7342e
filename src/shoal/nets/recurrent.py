"""Actors and critics with a memory: encoder, layers, recurrent core, layers, head.

They unroll over T steps of N sequences, [T, N, ...], from the memory before the first of them; acting is the same
with T = 1. The layers before and after the core take all steps at once.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.nets.actor_critic import Distribution
from shoal.nets.cores import Carry, RecurrentCore
from shoal.nets.encoders import Encoder
from shoal.nets.heads import head_for
from shoal.nets.mlp import MLP
from shoal.nets.repeats import once_for_each
from shoal.types import EnvSpec, PyTree

Array = jax.Array


class Seen(NamedTuple):
    """What a network sees at each step, with leading axes [T, N] where it has a memory; () for what it is not shown."""

    observation: PyTree
    action_mask: Array | None = None
    first: PyTree = ()  # whether the memory is cleared before the step: one that begins an episode or a trial
    action: PyTree = ()  # the previous action as numbers [..., A], zeros for none
    reward: PyTree = ()  # of the step that led here


class Memories(NamedTuple):
    """The memory of an actor and, unless it shares the actor's, of a critic."""

    actor: Carry
    critic: Carry | tuple = ()


class Unrolled(NamedTuple):
    """What a network with memory gives for T steps."""

    distribution: Distribution  # [T, N]
    value: Array  # [T, N]
    before: Memories  # from before each step, [T, N, ...]
    after: Memories  # from after the last one, [N, ...]


class CoreOptions(NamedTuple):
    """What a network remembers by, and what it is shown beside the observation; static.

    Attributes:
      kind, size, layers, outputs: of `shoal.nets.cores.RecurrentCore`.
      action_size: numbers in the previous action; 0 if it is not shown.
      action_embedding: features of its learned linear embedding; 0 shows the numbers as they are.
      reward: whether the previous reward is shown.
      first: whether the flag of an episode's first step is shown.
    """

    kind: str = "gru"
    size: int = 128
    layers: int = 1
    outputs: str = "last"
    action_size: int = 0
    action_embedding: int = 0
    reward: bool = False
    first: bool = False


class RecurrentTorso(nnx.Module):
    """Encoder, MLP and core: what is seen becomes features that depend on what was seen before.

    Args:
      spec: of the environment.
      core: see `CoreOptions`.
      sizes: hidden layers before the core; may be empty.
      activation, layer_norm, encoder, encoder_sizes, scale: see `shoal.nets.actor_critic.Actor`.
      key: a JAX key.

    Raises:
      ShoalError: a space, a size or a name that does not fit.
    """

    def __init__(
        self,
        spec: EnvSpec,
        core: CoreOptions,
        *,
        sizes: Sequence[int] = (64,),
        activation: str = "tanh",
        layer_norm: bool = False,
        encoder: str = "flatten",
        encoder_sizes: Sequence[int] = (64,),
        scale: float = math.sqrt(2),
        key: Array,
    ):
        encoder_key, mlp_key, action_key, core_key = jax.random.split(key, 4)
        style: dict[str, Any] = dict(activation=activation, layer_norm=layer_norm, scale=scale)
        self.encoder = Encoder(spec.observation_space, encoder, encoder_sizes, key=encoder_key, **style)
        self.mlp = MLP(self.encoder.num_features, sizes, key=mlp_key, **style)
        embeds = core.action_size and core.action_embedding
        self.embedding = nnx.List(
            [MLP(core.action_size, (), core.action_embedding, key=action_key)] if embeds else []
        )
        shown = core.action_embedding if embeds else core.action_size
        self.core = RecurrentCore(
            self.mlp.out_features + shown + int(core.reward) + int(core.first),
            core.size,
            core.kind,
            layers=core.layers,
            outputs=core.outputs,
            key=core_key,
        )
        self.shows_first = core.first
        self.out_features = core.size

    def unroll(self, carry: Carry, seen: Seen) -> tuple[Carry, Array, Carry]:
        """The carry after the last step, features [T, N, out_features], and the carries before each step."""
        parts = self._beside(seen)
        if self.encoder.repeats and jax.default_backend() == "cpu":
            return self.core.unroll_projected(carry, self._projected(seen, parts), seen.first)
        parts = [self.mlp(self.encoder(seen.observation)), *parts]
        x = jnp.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        return self.core.unroll(carry, x, seen.first)

    def _beside(self, seen: Seen) -> list[Array]:
        """What the core is shown beside the observation, each [T, N, ...]."""
        parts = []
        if not isinstance(seen.action, tuple):
            parts.append(self.embedding[0](seen.action) if self.embedding else seen.action)
        flags = [seen.reward] if not isinstance(seen.reward, tuple) else []
        flags += [seen.first] if self.shows_first else []
        return parts + [flag.astype(jnp.float32)[..., None] for flag in flags]

    def _projected(self, seen: Seen, parts: list[Array]) -> Array:
        """What the core's first layer makes of its input, where equal observations are encoded and projected once."""
        layer, width = self.core.layers[0], self.mlp.out_features
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[seen.first.ndim :]), seen.observation)
        observed = once_for_each(encoded, (self.encoder, self.mlp, layer.kernel), rows)
        projected = observed.T + layer.bias[:, None]
        if parts:
            beside = jnp.concatenate([part.reshape(-1, part.shape[-1]) for part in parts], axis=-1)
            projected += layer.kernel[:, width:] @ beside.T
        return projected


def encoded(parameters: tuple[Encoder, MLP, Array], observation: PyTree) -> Array:
    """Observations [N, ...] through an encoder and layers, times the first columns of a kernel [F, ...]: [N, F]."""
    encoder, mlp, kernel = parameters
    features = mlp(encoder(observation))
    # Zeros for the other columns: cut from the kernel, the first would be copied at each step.
    features = jnp.pad(features, ((0, 0), (0, kernel.shape[-1] - features.shape[-1])))
    return features @ kernel.T


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
        key: Array,
        **torso: Any,
    ):
        torso_key, head_key = jax.random.split(key)
        self.torso = RecurrentTorso(spec, core, key=torso_key, **torso)
        self.head = head_for(
            spec.action_space,
            distribution,
            state_dependent_std=state_dependent_std,
            initial_std=initial_std,
            minimum_std=minimum_std,
        )
        style = {name: torso[name] for name in ("activation", "layer_norm") if name in torso}
        self.mlp = MLP(
            core.size, head_sizes, self.head.num_inputs, out_scale=out_scale, key=head_key, **style
        )

    def policy(self, carry: Carry, seen: Seen) -> tuple[Carry, Distribution]:
        """The carry after the last step, and a distribution at each: all that acting needs."""
        carry, features, _ = self.torso.unroll(carry, seen)
        return carry, self.on(features, seen.action_mask)

    def on(self, features: Array, action_mask: Array | None) -> Distribution:
        """The torso's features [..., out_features] -> a distribution with batch axes [...]."""
        return self.head(self.mlp(features), action_mask)


class RecurrentActorCritic(nnx.Module):
    """An actor and a critic with memories of their own, or with one torso and memory.

    `network.actor` is all that acting needs, as in `shoal.nets.actor_critic.ActorCritic`. If shared, it holds the
    torso, and the critic is the layers upon its features.

    Args:
      spec: of the environment.
      core: the recurrent core, and what is shown to it.
      actor_sizes: hidden layers of the actor before the core.
      critic_sizes: the critic's; None for the actor's.
      head_sizes: hidden layers after the core, of the actor and of the critic.
      shared: one torso and memory for both.
      distribution, state_dependent_std, initial_std, minimum_std: of the actor's head, see `Actor` there.
      policy_scale, value_scale: of the initialisation of the last layers.
      key: a JAX key.
      torso: further options of `RecurrentTorso`.
    """

    def __init__(
        self,
        spec: EnvSpec,
        core: CoreOptions,
        *,
        actor_sizes: Sequence[int] = (64,),
        critic_sizes: Sequence[int] | None = None,
        head_sizes: Sequence[int] = (),
        shared: bool = False,
        policy_scale: float = 0.01,
        value_scale: float = 1.0,
        distribution: str = "auto",
        state_dependent_std: bool = False,
        initial_std: float = 1.0,
        minimum_std: float = 1e-3,
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
        own = dict(torso, sizes=actor_sizes if critic_sizes is None else critic_sizes)
        self.critic = RecurrentCritic(
            spec,
            None if shared else core,
            core.size,
            head_sizes,
            out_scale=value_scale,
            key=critic_key,
            **own,
        )

    def initial(self, batch_shape: tuple[int, ...]) -> Memories:
        """The memories of sequences that have just begun."""
        carries = [torso.core.initial(batch_shape) for torso in (self.actor.torso, *self.critic.torso)]
        return Memories(*carries)

    def unroll(self, memories: Memories, seen: Seen) -> Unrolled:
        """T steps of N sequences from `memories`, [N, ...]."""
        actor_after, features, actor_before = self.actor.torso.unroll(memories.actor, seen)
        distribution = self.actor.on(features, seen.action_mask)
        critic_after: PyTree = ()
        critic_before: PyTree = ()
        for torso in self.critic.torso:
            critic_after, features, critic_before = torso.unroll(memories.critic, seen)
        value = self.critic(features)
        before, after = Memories(actor_before, critic_before), Memories(actor_after, critic_after)
        return Unrolled(distribution, value, before, after)

    def values(self, memories: Memories, after: Carry, seen: Seen) -> tuple[Array, Memories]:
        """The values of T+1 steps and the memories before each, where the actor has run over T of them already.

        A critic that shares the actor's memory has no more to do than its layers upon it, and the last step.

        Args:
          memories: from before the first step, [N, ...].
          after: the actor's from after each of the T steps, [T, N, ...].
          seen: [T+1, N, ...].

        Returns:
          the values [T+1, N], and the memories [T+1, N, ...].
        """
        actor_before = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), memories.actor, after)
        for torso in self.critic.torso:
            _, features, critic_before = torso.unroll(memories.critic, seen)
            return self.critic(features), Memories(actor_before, critic_before)
        latest, last_seen = jax.tree.map(lambda x: x[-1], after), jax.tree.map(lambda x: x[-1:], seen)
        _, features, _ = self.actor.torso.unroll(latest, last_seen)
        features = jnp.concatenate([self.actor.torso.core.outputs_of(after), features])
        return self.critic(features), Memories(actor_before)


class RecurrentCritic(nnx.Module):
    """Layers upon features with memory, and the torso that gives these unless it is the actor's (`core` None)."""

    def __init__(
        self,
        spec: EnvSpec,
        core: CoreOptions | None,
        num_features: int,
        head_sizes: Sequence[int],
        *,
        out_scale: float,
        key: Array,
        **torso: Any,
    ):
        torso_key, head_key = jax.random.split(key)
        self.torso = nnx.List([RecurrentTorso(spec, core, key=torso_key, **torso)] if core else [])
        style = {name: torso[name] for name in ("activation", "layer_norm") if name in torso}
        self.mlp = MLP(num_features, head_sizes, 1, out_scale=out_scale, key=head_key, **style)

    def __call__(self, features: Array) -> Array:
        """The torso's features [..., num_features] -> values [...]."""
        return self.mlp(features)[..., 0]
