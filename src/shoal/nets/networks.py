"""The settings of a network: those of Shoal's own, and how another is chosen by a name.

What `network` names is a struct whose fields are the network's settings and whose `build(spec, key)` makes it. A
class of networks without settings, built as `Class(spec, key=key)`, stands within `NetworkClass`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

import jax

from shoal.base import registers
from shoal.base.errors import ShoalError
from shoal.base.imports import import_name
from shoal.config import settings, struct
from shoal.nets import linen, stateful, torso_choice
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.actor_critic_config import ActorCriticConfig, DistributionName
from shoal.nets.joint import JointNetwork
from shoal.nets.memory.recurrent import RecurrentActorCritic, SharedRecurrentActorCritic
from shoal.nets.network_check import Builder, check_head, check_network, check_own_parts, check_torsos
from shoal.nets.torso_choice import PartClass, imported
from shoal.nets.torso_config import TorsoConfig
from shoal.ops import statistics
from shoal.ops.statistics import RunningMoments
from shoal.types import Array, EnvSpec, PyTree

# The last layer of the value in each of Shoal's own networks, by the name of its leaves.
VALUE_LAYER = "critic/mlp/projection/0/"


class NetworkSettings(Protocol):
    """A struct whose fields are the settings of a network."""

    def build(self, spec: EnvSpec, key: Array) -> PyTree:
        """Build a new network with `policy` and `value` (see `shoal.nets.actor_critic`)."""
        ...


def declares(network: object, name: str, default: bool) -> bool:
    """Report what a class of networks or their settings declare by an attribute, which a user's may lack."""
    return bool(getattr(network, name, default))


@struct.struct
class NetworkConfig(ActorCriticConfig):
    """The settings of Shoal's own actor and critic, with memory or without."""

    def build(
        self, spec: EnvSpec, key: Array
    ) -> ActorCritic | RecurrentActorCritic | SharedRecurrentActorCritic:
        """Build a new network with `policy`, `value` and `policy_and_value`, or with a memory."""
        if self.core == "none":
            return ActorCritic(spec, self, key=key)
        recurrent = SharedRecurrentActorCritic if self.shared_torso else RecurrentActorCritic
        return recurrent(spec, self, key=key)


@struct.struct
class ClassOfNetworks:
    """A class of networks without settings, built as `Class(spec, key=key)`."""

    network_class: str | Callable[..., PyTree] = settings.hidden()  # or its module:Name

    def imported(self) -> Callable[..., PyTree]:
        """Return the class.

        Raises:
          ShoalError: it cannot be imported.
        """
        return imported(self.network_class)

    @property
    def has_memory(self) -> bool:
        """Whether the class declares that its networks have a memory."""
        return declares(self.imported(), "has_memory", False)

    @property
    def previous_action(self) -> bool:
        """Whether a network with memory is shown the previous action."""
        return declares(self.imported(), "previous_action", True)

    @property
    def previous_reward(self) -> bool:
        """Whether a network with memory is shown the previous reward."""
        return declares(self.imported(), "previous_reward", True)

    def build(self, spec: EnvSpec, key: Array) -> PyTree:
        """Build a new network of the class; a module of flax.linen is held with its parameters."""
        return linen.build(self.imported(), spec, key)


@struct.struct
class NetworkClass(ClassOfNetworks):
    """A class of actor-critics without settings of its own."""

    group: ClassVar[str] = "actions"

    distribution: DistributionName = "auto"
    """Says in which form the network's policy samples actions for the environment; auto uses what fits the
    action space: categorical, or normal for a Box."""


# Names by which Shoal's own networks are chosen, besides their structs.
OWN: dict[str, type[NetworkSettings]] = {
    "shoal.nets.actor_critic:ActorCritic": NetworkConfig,
    "shoal.nets.joint:JointActorCritic": JointNetwork,
}


def choose(
    network: object,
    own: Mapping[str, type[NetworkSettings]] = OWN,
    holder: type[NetworkSettings] = NetworkClass,
) -> NetworkSettings:
    """Return the settings of a network, given by its name or its class, or themselves.

    Args:
      own: the settings of Shoal's own, by the names of their classes of networks.
      holder: settings of any other class.
    Raises:
      ShoalError: it cannot be imported, or is a dataclass that is not a struct.
    """
    network = registers.resolved("network", network, "network")
    value = imported(network) if isinstance(network, str) and network not in own else network
    name = import_name(value) if isinstance(value, type) else value
    if isinstance(name, str) and name in own:
        return own[name]()
    return torso_choice.struct_or_class("network", network, holder, "network", "spec, key")


def name_of(network: object, own: Mapping[str, type[NetworkSettings]] = OWN) -> object:
    """Return the name by which `choose` finds a network's settings again; for a class given itself, the class."""
    if isinstance(network, ClassOfNetworks):
        return network.network_class
    return next((name for name, x in own.items() if x is type(network)), import_name(type(network)))


def has_memory(network: NetworkSettings) -> bool:
    """Report whether a network carries a memory: Shoal's own with a core, another if it declares so."""
    return declares(network, "has_memory", False)


def sees_all_agents(network: NetworkSettings) -> bool:
    """Report whether a network is shown all agents of a world at once, [..., A]: one that declares so."""
    return declares(network, "sees_all_agents", False)


def shows(network: NetworkSettings, name: str) -> bool:
    """Report whether a network with memory is shown the `previous_action` or the `previous_reward`; the default."""
    return declares(network, name, True)


def widest_layer(network: NetworkSettings) -> int:
    """Return the width of the widest hidden layer, where it is known, else 1."""
    return max(network.hidden_sizes, default=1) if isinstance(network, TorsoConfig) else 1


def has_own_policy(network: NetworkSettings) -> bool:
    """Report whether the distribution of a network's policy is made by code of the user's."""
    if type(network) not in OWN.values() or getattr(network, "policy_head", None) is not None:
        return True
    return getattr(network, "actor_network", None) is not None


def distribution_of(network: NetworkSettings) -> str:
    """Return the kind of distribution that a network's policy gives, "auto" included."""
    return getattr(network, "distribution", "auto")


def value_head_of(network: NetworkSettings) -> object:
    """Return the name of the head of a network's critic; "scalar" of a network that does not say."""
    head = getattr(network, "value_head", "scalar")
    return torso_choice.name_of(head) if settings.is_nested(head) else head


def has_state(network: NetworkSettings, spec: EnvSpec) -> bool:
    """Report whether a network has statistics of minibatches or draws keys (`shoal.nets.stateful`)."""
    # None of Shoal's own has, and building one takes time.
    if not _has_code_of_user(network):
        return False
    return stateful.has_state(jax.eval_shape(lambda key: network.build(spec, key), jax.random.key(0)))


def _has_code_of_user(settings_of_part: object) -> bool:
    is_own = type(settings_of_part).__module__.partition(".")[0] == "shoal"
    is_class = isinstance(settings_of_part, ClassOfNetworks | PartClass)
    return not is_own or is_class or bool(_users_parts(settings_of_part))


def _users_parts(settings_of_part: object) -> dict[str, object]:
    """Return the settings that hold parts of a user's own, by name."""
    parts = {x.name: getattr(settings_of_part, x.name) for x in dataclasses.fields(settings_of_part)}  # type: ignore[arg-type]
    return {name: x for name, x in parts.items() if settings.is_nested(x) and _has_code_of_user(x)}


def require_stateless(
    network: NetworkSettings, spec: EnvSpec, name: object, *, may_have_state: bool = False
) -> None:
    """Require that a network has no state, or, of an algorithm that trains networks with state, state or a memory.

    Raises:
      ShoalError: it has; names the user's parts, and the algorithms that can train them.
    """
    if (may_have_state and not has_memory(network)) or not has_state(network, spec):
        return
    own = {x: torso_choice.name_of(part) for x, part in _users_parts(network).items()} or {"network": name}
    why = "ppo, a2c, reinforce, mappo and pqn train, in networks without memory; choose one of these"
    if may_have_state:
        why = "a network with memory cannot have; choose parts without state, or no memory"
    names = ", ".join(f"{x}={(y if isinstance(y, str) else import_name(y))!r}" for x, y in own.items())
    raise ShoalError(
        f"{names} has state (nnx.BatchStat or nnx.Rngs, as nnx.BatchNorm and nnx.Dropout have), which {why}."
    )


def check_settings(network: NetworkSettings) -> None:
    """Require that the settings of a network fit each other, by its method `validate`, if it has one.

    Raises:
      ShoalError: the first that does not.
    """
    if hasattr(network, "validate"):
        network.validate()


def check(network: NetworkSettings, spec: EnvSpec, *, may_have_state: bool = False) -> None:
    """Require that a network can be the network of an algorithm; of Shoal's own, only the encoder could be wrong.

    Args:
      may_have_state: whether the algorithm trains networks with state, which have no memory.
    Raises:
      ShoalError: it cannot; the sentence says why.
    """
    if isinstance(network, NetworkConfig):
        own_actor, own_critic = network.actor_network is not None, network.critic_network is not None
        encoders = [] if own_actor else [("encoder", spec.of_actor, network.encoder)]
        differs = network.of_critic is not network.encoder or spec.critic_only or spec.actor_only
        if not own_critic and (own_actor or differs):
            name = "encoder" if network.of_critic is network.encoder else "critic_encoder"
            encoders.append((name, spec.of_critic, network.of_critic))
        for name, of_whom, encoder in encoders:
            check_torsos(of_whom.observation_space, encoder, network, name)
        check_head("policy_head", network.policy_head, spec)
        check_head("value_head", network.value_head, spec)
        if network.has_own_parts:
            check_own_parts(network, spec)
    # Shoal's own networks give what an algorithm needs; those of users are traced.
    if isinstance(network, NetworkClass):
        check_network(network.imported(), spec)
    elif type(network) not in OWN.values():
        check_network(Builder(network), spec)
    require_stateless(network, spec, name_of(network), may_have_state=may_have_state)


def rescale_value_layer(network: PyTree, old: RunningMoments, new: RunningMoments) -> PyTree:
    """Change the last layer of the value so that its denormalised outputs stay the same under new moments.

        W' = W σ/σ',   b' = (b σ + μ - μ')/σ',   so that   σ' (W' x + b') + μ' = σ (W x + b) + μ

    The optimiser's state stays as it is.

    Args:
      network: one of Shoal's own.
      old: moments with mean μ and standard deviation σ, by which outputs were denormalised.
      new: those of μ' and σ', by which they will be.

    Returns:
      the network with other parameters in that layer.
    """
    deviation = statistics.standard_deviation(new)
    ratio = statistics.standard_deviation(old) / deviation
    # A mean is kept as two float32 words, see `RunningMoments`.
    shift = ((old.mean - new.mean) + (old.residual[1] - new.residual[1])) / deviation

    def rescale(path: tuple, leaf: Array) -> Array:
        name = struct.path_name(path)
        if name == f"{VALUE_LAYER}kernel":
            return leaf * ratio
        return leaf * ratio + shift if name == f"{VALUE_LAYER}bias" else leaf

    return jax.tree_util.tree_map_with_path(rescale, network)
