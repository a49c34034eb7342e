"""Actors, critics, and both: the interface that an algorithm requires of a network, and the default one.

An algorithm needs two methods of a network, `policy` and `value` (`Network`, below), and builds it as
`Class(spec, key=key)`. `ActorCritic` is Shoal's own; any class with these two methods takes its place.
A network is a plain pytree of arrays: every array in it is a parameter and is trained, but for statistics
(`stateful.py`).
"""

from typing import Any, Protocol, runtime_checkable

import jax
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets import torsos
from shoal.nets.actor_critic_config import ActorCriticConfig, built
from shoal.nets.gradients import scale_gradient
from shoal.nets.headed import Headed, HeadStyle
from shoal.nets.outputs import ActionDistribution, Value
from shoal.ops.distributions import adapted
from shoal.types import EnvSpec, PyTree

Array = jax.Array


@runtime_checkable
class Network(Protocol):
    """A network as an algorithm uses it; it is built as `Class(spec, key=key)`.

    It must be a pytree (an `nnx.Module` is one) whose structure is the same at every construction, and
    pure: nothing assigned in a call, but what `stateful.py` knows. Leading axes are free in both methods.

    Two more are used if they are there: `policy_and_value(observation, action_mask)`, where one pass
    gives both, and an attribute `actor` with a `policy` method of its own, which is then all that is
    kept of the network in order to act.
    """

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> ActionDistribution:
        """Map observations with leading axes [...] to a distribution over actions with batch axes [...]."""
        ...

    def value(self, observation: PyTree) -> Value:
        """Map observations with leading axes [...] to values [...], a number or a distribution over numbers each."""
        ...


def policy_and_value(
    network: Network, observation: PyTree, action_mask: Array | None = None
) -> tuple[ActionDistribution, Value]:
    """Compute a network's policy and value, in one pass where it can."""
    if hasattr(network, "policy_and_value"):
        distribution, value = network.policy_and_value(observation, action_mask)
        return adapted(distribution), value
    return adapted(network.policy(observation, action_mask)), network.value(observation)


def acting_part(network: object) -> PyTree:
    """Return the part of a network that acting needs: its `actor` if that can act (`policy` or `apply`), or all."""
    # What is kept as the best policy then holds no critic.
    actor = getattr(network, "actor", None)
    return actor if hasattr(actor, "policy") or hasattr(actor, "apply") else network


class Actor(Headed):
    """Encoder, MLP and head: observations to a distribution over actions.

    Args:
      config: the settings.
    Raises:
      ShoalError: a space, a size or a name that does not fit.
    """

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, *, key: Array):
        self.encoder, sizes, style = torsos.before_head(spec.observation_space, config, key=key)
        self.has_layers_of_head = bool(config.head_sizes)
        width, mlp_key = self.encoder.num_features, jax.random.split(key)[1]
        head = config.head_of_policy(spec.action_space, (width, *sizes)[-1], key)
        super().__init__(head, width, sizes, scale=config.policy_scale, key=mlp_key, **style)

    @property
    def num_features(self) -> int:
        """Length of the features that a critic may share."""
        return self.encoder.num_features if self.has_layers_of_head else self.mlp.num_features

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> ActionDistribution:
        """Return the same as a call, so that an actor can replace the network for acting."""
        return self(observation, action_mask)

    def features(self, observation: PyTree) -> Array:
        """Compute the last layer before those of `head_sizes`: observations [...] -> [..., num_features]."""
        # The output is computed as well; XLA removes what nothing reads.
        encoded = self.encoder(observation)
        return encoded if self.has_layers_of_head else self.mlp.with_features(encoded)[1]

    def with_features(  # type: ignore[override]
        self, observation: PyTree, action_mask: Array | None = None
    ) -> tuple[ActionDistribution, Array]:
        """Compute the distribution and the features that a critic may share, [..., num_features]."""
        encoded = self.encoder(observation)
        distribution, hidden = super().with_features(encoded, action_mask)
        return distribution, encoded if self.has_layers_of_head else hidden


class Critic(Headed):
    """Encoder, MLP and head: observations to values; `config` is as an `Actor`'s."""

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, *, key: Array):
        config = config.as_critic
        self.encoder, sizes, style = torsos.before_head(spec.observation_space, config, key=key)
        head, width = config.head_of_value(spec.action_space, key), self.encoder.num_features
        mlp_key = jax.random.split(key)[1]
        super().__init__(head, width, sizes, scale=config.value_scale, key=mlp_key, **style)

    def value(self, observation: PyTree) -> Value:
        """Map observations with leading axes [...] to values [...]."""
        return self(self.encoder(observation))


class ActorCritic(nnx.Module):
    """An actor and a critic, apart or with one torso. The defaults are CleanRL's.

    `network.actor` is complete by itself, and all that acting needs. With `shared_torso=True` it holds the torso, and
    `critic` is one layer on its last hidden features, or those of `head_sizes` and one; so the torso belongs to the
    actor's parameters, and its gradient comes from both losses. Apart, each may be the user's own (`actor_network`,
    `critic_network`): an actor with a method `policy`, a critic with `value`.

    Args:
      config: the settings, such as a `shoal.nets.networks.NetworkConfig`; None for the defaults.
    Raises:
      ShoalError: a space, a size or a name that does not fit; `critic_hidden_sizes` that differ from
        `hidden_sizes` although the torso is shared.
    """

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig | None = None, *, key: Array):
        config = config or ActorCriticConfig()
        if config.shared_torso and config.critic_hidden_sizes not in (None, config.hidden_sizes):
            raise ShoalError(
                f"critic_hidden_sizes={config.critic_hidden_sizes} must be None or hidden_sizes={config.hidden_sizes} "
                "with shared_torso=True, where one torso serves both."
            )
        # Also where a torso is shared, so that the actor's weights are the same.
        actor_key, critic_key = jax.random.split(key)
        self.shared = config.shared_torso
        self.gradient_scale = config.critic_gradient_scale
        of_actor, of_critic = spec.of_actor, spec.of_critic
        self.actor = built(config.actor_network, of_actor, actor_key, Actor, of_actor, config)
        if self.shared:
            head, sizes = config.head_of_value(spec.action_space, critic_key), config.head_sizes
            # With no hidden layer before it, the last one alone is drawn, and by the initialiser of last layers.
            plain: HeadStyle = {"initialiser": config.head_initialiser}
            width, style = self.actor.num_features, config.style_after_torso if sizes else plain
            self.critic: Any = Headed(head, width, sizes, scale=config.value_scale, key=critic_key, **style)
        else:
            self.critic = built(config.critic_network, of_critic, critic_key, Critic, of_critic, config)

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> ActionDistribution:
        """Map observations with leading axes [...] to a distribution with batch axes [...]."""
        return self.actor.policy(observation, action_mask)

    def value(self, observation: PyTree) -> Value:
        """Map observations with leading axes [...] to values [...]."""
        if self.shared:
            return self._value_of(self.actor.features(observation))
        return self.critic.value(observation)

    def policy_and_value(
        self, observation: PyTree, action_mask: Array | None = None
    ) -> tuple[ActionDistribution, Value]:
        """Compute both; with a shared torso, in one pass through it."""
        if not self.shared:
            return self.policy(observation, action_mask), self.value(observation)
        distribution, features = self.actor.with_features(observation, action_mask)
        return distribution, self._value_of(features)

    def _value_of(self, features: Array) -> Value:
        """Compute the values of features that the actor has too."""
        return self.critic(scale_gradient(features, self.gradient_scale))
