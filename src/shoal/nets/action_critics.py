"""An actor, and critics of its actions: the networks of algorithms that learn a policy from a replay.

Such a network has two attributes. `actor` has the method `policy(observation, action_mask)` of an actor-critic
(`shoal.nets.actor_critic`). `critic` has the method

    values(observation, action)     of a Box: the actions are flat numbers in [-1, 1], [..., size] -> [critics, ...]
    values(observation)             of a Discrete: values of all n actions                         -> [critics, ..., n]

for observations with leading axes [...]; for Shoal's own the result may be distributions with these axes, or quantiles
with an axis more. The first axis is of the critics, also where there is one. Every array is a parameter.
"""

import dataclasses
import math
from typing import ClassVar, Literal

import jax
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs, Table
from shoal.config.struct import parameter
from shoal.nets import networks, torsos
from shoal.nets.actor_critic import Actor
from shoal.nets.actor_critic_config import CONTINUOUS, ActorAndCriticsConfig, ActorCriticConfig
from shoal.nets.ensembles import Ensemble
from shoal.nets.headed import Headed
from shoal.nets.network_check import Builder, check_network, check_torsos
from shoal.nets.networks import ClassOfNetworks, NetworkSettings
from shoal.nets.outputs import Value
from shoal.nets.q_heads import ContinuousQ
from shoal.nets.q_networks import PredictionConfig
from shoal.nets.torso_choice import Kind, torsos_of
from shoal.types import Array, EnvSpec, PyTree
from shoal.types.spaces import Box, Space

_STOCHASTIC = (CONTINUOUS, Needs("distribution", ("auto", "tanh_normal")))


@struct.struct
class ActionCriticsConfig(PredictionConfig, ActorAndCriticsConfig):
    """The settings of Shoal's own actor and critics of actions."""

    group: ClassVar[str] = "network"
    needs: ClassVar[Table] = {
        **ActorAndCriticsConfig.needs,
        "initial_std": _STOCHASTIC,
        "minimum_std": _STOCHASTIC,
    }

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Gives actor and critics hidden layers of these widths."""
    activation: str = "relu"
    """Applies this activation, by its name, after each hidden layer."""
    num_critics: int = parameter(2, low=1, high=LARGEST_INDEX)
    """Trains this many critics, whose initial weights differ."""
    distribution: Literal["auto", "tanh_normal", "deterministic"] = parameter(
        "auto", group="actions", needs=CONTINUOUS
    )
    """Chooses the policy's distribution in a Box: a normal squashed to the bounds, whose deviation depends on the state
    (tanh_normal), or one action (deterministic); auto is tanh_normal, and categorical where actions are discrete."""

    def build(self, spec: EnvSpec, key: Array) -> "ActionCritics":
        """Build a new network for an environment whose actions are a bounded Box, or discrete."""
        return ActionCritics(spec, self, key=key)

    def for_space(self, space: Space) -> ActorCriticConfig:
        """Return the same settings as those of an actor-critic for a space of actions, of which there is an `Actor`."""
        names = {x.name for x in dataclasses.fields(ActorAndCriticsConfig)}
        squashed = "tanh_normal" if isinstance(space, Box) else "auto"
        kind = squashed if self.distribution == "auto" else self.distribution
        own = {name: getattr(self, name) for name in names}
        # An actor-critic's own setting has no deterministic policy, which cannot be trained as one.
        return ActorCriticConfig(**own, distribution=kind, state_dependent_std=True)  # type: ignore[arg-type]

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        super().validate()
        self.check_atoms()


class ActionCritic(nnx.Module):
    """Encoder, layers and head of one critic: of the action that it is given in a Box, else of all actions."""

    def __init__(self, spec: EnvSpec, config: ActionCriticsConfig, *, key: Array):
        settings, space = config.for_space(spec.action_space).as_critic, spec.action_space
        self.encoder, sizes, style = torsos.before_head(spec.observation_space, settings, key=key)
        width, scale, layers_key = self.encoder.num_features, config.value_scale, jax.random.split(key)[1]
        if isinstance(space, Box):
            size, head = math.prod(space.shape), config.head_of_one_action()
            self.layers: nnx.Module = ContinuousQ(
                width, size, sizes, head=head, scale=scale, key=layers_key, **style
            )
        else:
            head = config.head_of_actions(space.n)  # type: ignore[union-attr]
            self.layers = Headed(head, width, sizes, scale=scale, key=layers_key, **style)

    def __call__(self, observation: PyTree, *action: Array) -> Value:
        """Map observations with leading axes [...], and in a Box actions [..., size], to values of actions."""
        return self.layers(self.encoder(observation), *action)


class Critics(Ensemble):
    """Critics of actions, whose results have a first axis of critics."""

    def __init__(self, spec: EnvSpec, config: ActionCriticsConfig, *, key: Array):
        super().__init__(lambda key: ActionCritic(spec, config, key=key), config.num_critics, key=key)
        # An encoder of one's own may have convolutions too.
        parts = torsos_of(config.of_critic)
        self.maps = all(isinstance(x, Kind) and x.name not in ("cnn", "resnet") for x in parts)

    @property
    def first(self) -> "Critics":
        """The first critic alone, as an ensemble of one."""
        return jax.tree.map(lambda x: x[:1], self)

    def values(self, observation: PyTree, action: Array | None = None) -> Value:
        """Return each critic's value of actions [..., size] in [-1, 1], [critics, ...], or without them of all.

        Of discrete actions the values are those of all, [critics, ..., n].
        """
        apply = self if self.maps else self.one_by_one
        return apply(observation) if action is None else apply(observation, action)


class ActionCritics(nnx.Module):
    """An actor, and an ensemble of critics of its actions, each with an encoder of its own.

    Args:
      config: the settings; None for the defaults.
    Raises:
      ShoalError: a space, a size or a name that does not fit.
    Source: Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods"; Haarnoja et al.
    2018, "Soft Actor-Critic Algorithms and Applications".
    """

    def __init__(self, spec: EnvSpec, config: ActionCriticsConfig | None = None, *, key: Array):
        config = config or ActionCriticsConfig()
        actor_key, critic_key = jax.random.split(key)
        self.actor = Actor(spec.of_actor, config.for_space(spec.action_space), key=actor_key)
        self.critic = Critics(spec.of_critic, config, key=critic_key)


OWN: dict[str, type[NetworkSettings]] = {"shoal.nets.action_critics:ActionCritics": ActionCriticsConfig}


def choose(network: object) -> NetworkSettings:
    """Return the settings of an actor and critics of actions, as `shoal.nets.networks.choose`."""
    return networks.choose(network, OWN, ClassOfNetworks)


def name_of(network: object) -> object:
    """Return the name by which `choose` finds a network's settings again; for a class given itself, the class."""
    return networks.name_of(network, OWN)


def check(network: NetworkSettings, spec: EnvSpec) -> None:
    """Require that a network can be an actor and critics of actions; of Shoal's own, only an encoder could be wrong.

    Raises:
      ShoalError: it cannot; the sentence says why.
    """
    if isinstance(network, ActionCriticsConfig):
        check_torsos(spec.of_actor.observation_space, network.encoder, network)
        name = "encoder" if network.critic_encoder is None else "critic_encoder"
        check_torsos(spec.of_critic.observation_space, network.of_critic, network, name)
        networks.require_stateless(network, spec, name_of(network))
        return
    if networks.has_memory(network):
        raise ShoalError(
            f"network={name_of(network)!r} has a memory, which needs sequences of steps, and an actor with critics of "
            "its actions learns from single ones; choose one whose actor has policy and whose critic has values."
        )
    check_network(Builder(network), spec, of_action_critics=True)
    networks.require_stateless(network, spec, name_of(network))
