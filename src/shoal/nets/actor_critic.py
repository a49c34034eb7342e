"""Actors, critics, and both: the interface that an algorithm requires of a network, and the default one.

An algorithm needs two methods of a network, `policy` and `value` (`Network`, below), and builds it as
`Class(spec, key=key)`. `ActorCritic` is Shoal's own; any class with these two methods takes its place.
A network is a plain pytree of arrays: every array in it is a parameter and is trained.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets import torsos
from shoal.nets.encoders import DEFAULT_LAYERS, EncoderLayers
from shoal.nets.heads import GSDEHead, head_for
from shoal.nets.mlp import MLP
from shoal.nets.value_heads import ScalarValueHead
from shoal.types import EnvSpec, PyTree

Array = jax.Array
Distribution = Any  # one of shoal.ops.distributions


@runtime_checkable
class Network(Protocol):
    """A network as an algorithm uses it; it is built as `Class(spec, key=key)`.

    It must be a pytree (an `nnx.Module` is one) whose structure is the same at every construction, and
    pure: no stored random state, nothing assigned in a call. Leading axes are free in both methods.

    Two more are used if they are there: `policy_and_value(observation, action_mask)`, where one pass
    gives both, and an attribute `actor` with a `policy` method of its own, which is then all that is
    kept of the network in order to act.
    """

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> Distribution:
        """Map observations with leading axes [...] to a distribution over actions with batch axes [...]."""
        ...

    def value(self, observation: PyTree) -> Any:
        """Map observations with leading axes [...] to values [...], a number or a distribution over numbers each."""
        ...


def policy_and_value(
    network: Any, observation: PyTree, action_mask: Array | None = None
) -> tuple[Distribution, Any]:
    """Compute a network's policy and value, in one pass where it can."""
    if hasattr(network, "policy_and_value"):
        return network.policy_and_value(observation, action_mask)
    return network.policy(observation, action_mask), network.value(observation)


def acting_part(network: Any) -> Any:
    """Return the part of a network that acting needs: its `actor` if that can act (`policy` or `apply`), or all."""
    actor = getattr(network, "actor", None)
    return actor if hasattr(actor, "policy") or hasattr(actor, "apply") else network


class Actor(nnx.Module):
    """Encoder, MLP and head: observations to a distribution over actions.

    Args:
      distribution: "auto", "categorical", "normal", "tanh_normal", "beta" or "gsde"; see `head_for`.
      state_dependent_std: of "normal" and "tanh_normal".
      initial_std: of these and "gsde".
      minimum_std: of the same; a Python number.
      encoder: one torso or several, as `shoal.nets.torsos.choose` takes them: "flatten", "one_hot", "mlp", "mlp_each",
        "cnn", "resnet", "set", a class of your own or its module:Name, "cnn,mlp".
      out_scale: of the initial weights of the last layer; small, so that all actions begin about equally likely.
      out_initialiser: of the same; None takes `initialiser`.
      style: `activation`, `layer_norm`, `scale` and `initialiser` of encoder and hidden layers, as an `MLP` takes them.
    Raises:
      ShoalError: a space, a size or a name that does not fit.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        sizes: Sequence[int] = (64, 64),
        distribution: str = "auto",
        state_dependent_std: bool = False,
        initial_std: float = 1.0,
        minimum_std: float = 1e-3,
        encoder: Any = "flatten",
        encoder_layers: EncoderLayers = DEFAULT_LAYERS,
        out_scale: float = 0.01,
        out_initialiser: str | None = None,
        key: Array,
        **style: Any,
    ):
        encoder_key, mlp_key = jax.random.split(key)
        self.encoder = torsos.build(spec.observation_space, encoder, encoder_layers, key=encoder_key, **style)
        num_features = sizes[-1] if sizes else self.encoder.num_features
        self.head = head_for(
            spec.action_space,
            distribution,
            state_dependent_std=state_dependent_std,
            initial_std=initial_std,
            minimum_std=minimum_std,
            num_features=num_features,
        )
        style |= dict(out_scale=out_scale, out_initialiser=out_initialiser, key=mlp_key)
        self.mlp = MLP(self.encoder.num_features, sizes, self.head.num_inputs, **style)

    def __call__(self, observation: PyTree, action_mask: Array | None = None) -> Distribution:
        """Map observations with leading axes [...] to a distribution with batch axes [...]."""
        return self.with_features(observation, action_mask)[0]

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> Distribution:
        """Return the same as a call, so that an actor can replace the network for acting."""
        return self(observation, action_mask)

    def features(self, observation: PyTree) -> Array:
        """Compute the last hidden layer: observations [...] -> [..., mlp.num_features]."""
        return self.mlp.with_features(self.encoder(observation))[1]

    def with_features(
        self, observation: PyTree, action_mask: Array | None = None
    ) -> tuple[Distribution, Array]:
        """Compute the distribution and the last hidden layer, [..., mlp.num_features]."""
        x, features = self.mlp.with_features(self.encoder(observation))
        if isinstance(self.head, GSDEHead):
            return self.head(x, features, action_mask), features
        return self.head(x, action_mask), features


class Critic(nnx.Module):
    """Encoder, MLP and head: observations to values. The other arguments are `Actor`'s.

    Args:
      value_head: one of `shoal.nets.value_heads`; None for numbers.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        sizes: Sequence[int] = (64, 64),
        encoder: Any = "flatten",
        encoder_layers: EncoderLayers = DEFAULT_LAYERS,
        out_scale: float = 1.0,
        value_head: Any = None,
        out_initialiser: str | None = None,
        key: Array,
        **style: Any,
    ):
        encoder_key, mlp_key = jax.random.split(key)
        self.encoder = torsos.build(spec.observation_space, encoder, encoder_layers, key=encoder_key, **style)
        style |= dict(out_scale=out_scale, out_initialiser=out_initialiser, key=mlp_key)
        self.head = value_head or ScalarValueHead()
        self.mlp = MLP(self.encoder.num_features, sizes, self.head.num_inputs, **style)

    def __call__(self, observation: PyTree) -> Any:
        """Map observations with leading axes [...] to values [...]."""
        return self.head(self.mlp(self.encoder(observation)))


class ValueHead(nnx.Module):
    """One plain layer from features to a value: the critic of a shared torso."""

    def __init__(
        self,
        num_features: int,
        *,
        out_scale: float = 1.0,
        out_initialiser: str | None = None,
        value_head: Any = None,
        key: Array,
    ):
        initialiser = out_initialiser or "orthogonal"
        self.head = value_head or ScalarValueHead()
        outputs = self.head.num_inputs
        self.mlp = MLP(num_features, (), outputs, out_scale=out_scale, initialiser=initialiser, key=key)

    def __call__(self, features: Array) -> Any:
        """[..., num_features] -> values [...]."""
        return self.head(self.mlp(features))


class ActorCritic(nnx.Module):
    """An actor and a critic, apart or with one torso. The defaults are CleanRL's.

    `network.actor` is an `Actor` in both cases, complete by itself, and all that acting needs. With
    `shared=True` it holds the torso, and `critic` is one layer on its last hidden features; so the
    torso belongs to the actor's parameters, and its gradient comes from both losses.

    Args:
      actor_sizes: hidden layers of the actor, and of the torso if shared.
      critic_sizes: hidden layers of the critic; None for the actor's.
      value_head: see `Critic`.
      critic_encoder: of the critic; None for the actor's.
      policy_scale, value_scale: of the initial weights of the last layers.
      distribution, state_dependent_std, initial_std, minimum_std, encoder, encoder_layers, out_initialiser, style: see
        `Actor`; the critic has the same of these as it has at all.
    Raises:
      ShoalError: a space, a size or a name that does not fit; `critic_sizes` that differ from
        `actor_sizes` although the torso is shared.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        actor_sizes: Sequence[int] = (64, 64),
        critic_sizes: Sequence[int] | None = None,
        shared: bool = False,
        distribution: str = "auto",
        state_dependent_std: bool = False,
        initial_std: float = 1.0,
        minimum_std: float = 1e-3,
        encoder: Any = "flatten",
        critic_encoder: Any = None,
        policy_scale: float = 0.01,
        value_scale: float = 1.0,
        value_head: Any = None,
        out_initialiser: str | None = None,
        key: Array,
        **style: Any,
    ):
        if critic_sizes is None:
            critic_sizes = actor_sizes
        if shared and tuple(critic_sizes) != tuple(actor_sizes):
            raise ShoalError(
                f"critic_sizes={tuple(critic_sizes)} must be None or actor_sizes={tuple(actor_sizes)} "
                "with shared=True, where one torso serves both."
            )
        actor_key, critic_key = jax.random.split(key)
        self.shared = shared
        self.actor = Actor(
            spec.of_actor,
            sizes=actor_sizes,
            distribution=distribution,
            state_dependent_std=state_dependent_std,
            initial_std=initial_std,
            minimum_std=minimum_std,
            encoder=encoder,
            out_scale=policy_scale,
            out_initialiser=out_initialiser,
            key=actor_key,
            **style,
        )
        self.critic: Critic | ValueHead = (
            ValueHead(
                self.actor.mlp.num_features,
                out_scale=value_scale,
                out_initialiser=out_initialiser or style.get("initialiser"),
                key=critic_key,
                value_head=value_head,
            )
            if shared
            else Critic(
                spec.of_critic,
                sizes=critic_sizes,
                encoder=encoder if critic_encoder is None else critic_encoder,
                out_scale=value_scale,
                value_head=value_head,
                out_initialiser=out_initialiser,
                key=critic_key,
                **style,
            )
        )

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> Distribution:
        """Map observations with leading axes [...] to a distribution with batch axes [...]."""
        return self.actor(observation, action_mask)

    def value(self, observation: PyTree) -> Any:
        """Map observations with leading axes [...] to values [...]."""
        return self.critic(self.actor.features(observation) if self.shared else observation)

    def policy_and_value(
        self, observation: PyTree, action_mask: Array | None = None
    ) -> tuple[Distribution, Any]:
        """Compute both; with a shared torso, in one pass through it."""
        if not self.shared:
            return self.policy(observation, action_mask), self.value(observation)
        distribution, features = self.actor.with_features(observation, action_mask)
        return distribution, self.critic(features)
