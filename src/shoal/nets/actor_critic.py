"""Actors, critics, and both: the interface that an algorithm requires of a network, and the default one.

An algorithm needs two methods of a network, `policy` and `value` (`Network`, below), and builds it as
`Class(spec, key=key)`. `ActorCritic` is Shoal's own; any class with these two methods takes its place.
A network is a plain pytree of arrays: every array in it is a parameter and is trained.
"""

from typing import Protocol, runtime_checkable

import jax
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets import torsos
from shoal.nets.actor_critic_config import ActorCriticConfig
from shoal.nets.headed import Headed
from shoal.nets.outputs import ActionDistribution, Value
from shoal.types import EnvSpec, PyTree

Array = jax.Array


@runtime_checkable
class Network(Protocol):
    """A network as an algorithm uses it; it is built as `Class(spec, key=key)`.

    It must be a pytree (an `nnx.Module` is one) whose structure is the same at every construction, and
    pure: no stored random state, nothing assigned in a call. Leading axes are free in both methods.

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
        return network.policy_and_value(observation, action_mask)
    return network.policy(observation, action_mask), network.value(observation)


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
        encoder_key, mlp_key = jax.random.split(key)
        self.encoder = torsos.build(spec.observation_space, config.encoder, config, key=encoder_key)
        width, sizes = self.encoder.num_features, config.hidden_sizes
        head = config.head_of_policy(spec.action_space, (width, *sizes)[-1])
        super().__init__(head, width, sizes, scale=config.policy_scale, key=mlp_key, **config.head_style)

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> ActionDistribution:
        """Return the same as a call, so that an actor can replace the network for acting."""
        return self(observation, action_mask)

    def features(self, observation: PyTree) -> Array:
        """Compute the last hidden layer: observations [...] -> [..., mlp.num_features]."""
        # The output is computed as well; XLA removes what nothing reads.
        return self.mlp.with_features(self.encoder(observation))[1]

    def with_features(  # type: ignore[override]
        self, observation: PyTree, action_mask: Array | None = None
    ) -> tuple[ActionDistribution, Array]:
        """Compute the distribution and the last hidden layer, [..., mlp.num_features]."""
        return super().with_features(self.encoder(observation), action_mask)


class Critic(Headed):
    """Encoder, MLP and head: observations to values; `config` is as an `Actor`'s."""

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig, *, key: Array):
        encoder_key, mlp_key = jax.random.split(key)
        self.encoder = torsos.build(
            spec.observation_space, config.of_critic, config.as_critic, key=encoder_key
        )
        head, width, sizes = config.head_of_value(), self.encoder.num_features, config.critic_sizes
        super().__init__(head, width, sizes, scale=config.value_scale, key=mlp_key, **config.head_style)

    def __call__(self, observation: PyTree) -> Value:  # type: ignore[override]
        """Map observations with leading axes [...] to values [...]."""
        return super().__call__(self.encoder(observation))


class ActorCritic(nnx.Module):
    """An actor and a critic, apart or with one torso. The defaults are CleanRL's.

    `network.actor` is an `Actor` in both cases, complete by itself, and all that acting needs. With
    `shared_torso=True` it holds the torso, and `critic` is one layer on its last hidden features; so the
    torso belongs to the actor's parameters, and its gradient comes from both losses.

    Args:
      config: the settings, such as a `shoal.nets.networks.NetworkConfig`; None for the defaults.
    Raises:
      ShoalError: a space, a size or a name that does not fit; `critic_hidden_sizes` that differ from
        `hidden_sizes` although the torso is shared.
    """

    def __init__(self, spec: EnvSpec, config: ActorCriticConfig | None = None, *, key: Array):
        config = config or ActorCriticConfig()
        if config.shared_torso and config.critic_sizes != config.hidden_sizes:
            raise ShoalError(
                f"critic_hidden_sizes={config.critic_sizes} must be None or hidden_sizes={config.hidden_sizes} with "
                "shared_torso=True, where one torso serves both."
            )
        # Also where a torso is shared, so that the actor's weights are the same.
        actor_key, critic_key = jax.random.split(key)
        self.shared = config.shared_torso
        self.actor = Actor(spec.of_actor, config, key=actor_key)
        if self.shared:
            # With no hidden layer before it, this layer alone is drawn, and by the initialiser of last layers.
            self.critic: Headed = Headed(
                config.head_of_value(),
                self.actor.mlp.num_features,
                scale=config.value_scale,
                initialiser=config.head_initialiser,
                key=critic_key,
            )
        else:
            self.critic = Critic(spec.of_critic, config, key=critic_key)

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> ActionDistribution:
        """Map observations with leading axes [...] to a distribution with batch axes [...]."""
        return self.actor(observation, action_mask)

    def value(self, observation: PyTree) -> Value:
        """Map observations with leading axes [...] to values [...]."""
        return self.critic(self.actor.features(observation) if self.shared else observation)

    def policy_and_value(
        self, observation: PyTree, action_mask: Array | None = None
    ) -> tuple[ActionDistribution, Value]:
        """Compute both; with a shared torso, in one pass through it."""
        if not self.shared:
            return self.policy(observation, action_mask), self.value(observation)
        distribution, features = self.actor.with_features(observation, action_mask)
        return distribution, self.critic(features)
