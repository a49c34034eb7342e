"""The settings of a network: those of Shoal's own, and how another is chosen by a name.

What `network` names is a struct whose fields are the network's settings and whose `build(spec, key)` makes it. A
class of networks without settings, built as `Class(spec, key=key)`, stands within `NetworkClass`.
"""

import functools
from typing import Any, ClassVar, Literal, Protocol

import jax

from shoal.base.errors import ShoalError
from shoal.base.imports import import_name
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs, Table
from shoal.config.struct import parameter
from shoal.nets import torsos
from shoal.nets.activations import activation
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.joint import JointActorCritic
from shoal.nets.memory.recurrent import RecurrentActorCritic, SharedRecurrentActorCritic
from shoal.nets.network_check import Builder, check_network, check_torsos
from shoal.nets.torso_config import (
    CORE_NEEDS,
    CORE_SETTINGS,
    MAX_LAYERS,
    CoreConfig,
    check_torso,
    encoder_needs,
)
from shoal.nets.torsos import Kind, TorsoSettings, imported
from shoal.nets.value_heads import CategoricalValueHead, ScalarValueHead
from shoal.ops import statistics
from shoal.ops.statistics import RunningMoments
from shoal.types import Array, EnvSpec, PyTree

# The last layer of the value in each of Shoal's own networks, by the name of its leaves.
VALUE_LAYER = "critic/mlp/projection/0/"

Distribution = Literal["auto", "categorical", "normal", "tanh_normal", "beta"]
_CONTINUOUS = Needs("action_space", kinds=("Box",))
_NORMAL = Needs("distribution", ("auto", "normal", "tanh_normal"))


class NetworkSettings(Protocol):
    """A struct whose fields are the settings of a network."""

    def build(self, spec: EnvSpec, key: Array) -> PyTree:
        """Build a new network with `policy` and `value` (see `shoal.nets.actor_critic`)."""
        ...


@struct.struct
class NetworkConfig(CoreConfig):
    """The settings of Shoal's own actor and critic, with memory or without."""

    needs: ClassVar[Table] = {
        **dict.fromkeys(("critic_hidden_sizes", "critic_encoder"), (Needs("shared_torso", (False,)),)),
        **CORE_NEEDS,
        **encoder_needs("encoder", "critic_encoder"),
        **dict.fromkeys(("value_low", "value_high", "value_atoms"), (Needs("value_head", ("categorical",)),)),
        "state_dependent_std": (_CONTINUOUS, _NORMAL),
        "initial_std": (_CONTINUOUS, _NORMAL),
    }
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "most used": ("hidden_sizes", "core"),
        "network": (
            *("critic_hidden_sizes", "activation", "layer_norm", "shared_torso"),
            *("encoder", "critic_encoder", "encoder_channels", "encoder_kernels", "encoder_strides"),
            *("encoder_padding", "encoder_embedding", "encoder_blocks", "encoder_features", "encoder_heads"),
            *("encoder_activation", "encoder_layer_norm", "channels_first"),
            *("initialiser", "hidden_scale", "head_initialiser", "policy_scale", "value_scale"),
            *("value_head", "value_low", "value_high", "value_atoms"),
        ),
        "memory": CORE_SETTINGS,
        "actions": ("distribution", "state_dependent_std", "initial_std"),
    }

    critic_hidden_sizes: tuple[int, ...] | None = parameter(
        None, low=1, high=LARGEST_INDEX, longest=MAX_LAYERS
    )
    """Gives the critic hidden layers of these widths; None uses hidden_sizes."""
    shared_torso: bool = False
    """Shares one torso between actor and critic in place of one each."""
    critic_encoder: TorsoSettings = settings.chosen(
        Kind(""), functools.partial(torsos.choose, setting="critic_encoder"), torsos.name_of
    )
    """Gives the critic another encoder, named as encoder is; None uses encoder."""
    policy_scale: float = parameter(0.01, above=0.0, initial=True)
    """Scales the initial weights of the policy's last layer by this."""
    value_scale: float = parameter(1.0, above=0.0, initial=True)
    """Scales the initial weights of the value's last layer by this."""
    value_head: Literal["scalar", "categorical"] = "scalar"
    """Lets the critic predict a number, or a distribution over numbers at equal distances, whose mean is the value
    (value_loss hl_gauss or two_hot)."""
    # Static, as value_high: the numbers between them are rounded from float64 once; traced, they would differ in a bit.
    value_low: float | None = parameter(None, static=True)
    """Sets the lowest value that a categorical critic can predict; it has no default."""
    value_high: float | None = parameter(None, static=True)
    """Sets the highest value that a categorical critic can predict; it has no default."""
    value_atoms: int = parameter(51, low=2, high=LARGEST_INDEX)
    """Lets a categorical critic predict a distribution over this many numbers from value_low to value_high."""
    distribution: Distribution = "auto"
    """Chooses the policy's distribution; auto uses what fits the action space: categorical, or normal for a Box."""
    state_dependent_std: bool = False
    """Makes the standard deviation an output of the network instead of a free parameter."""
    # Its logarithm is rounded from a float64 once; traced, it would differ in a bit.
    initial_std: float = parameter(1.0, above=0.0, static=True)
    """Starts a continuous policy with this standard deviation; static, since it shapes the network."""

    def __post_init__(self) -> None:
        """Choose the torsos that are given by name."""
        CoreConfig.__post_init__(self)
        self._choose("critic_encoder")
        if torsos.name_of(self.critic_encoder) == torsos.name_of(self.encoder):  # one struct of settings
            object.__setattr__(self, "critic_encoder", Kind(""))

    @property
    def encoder_kinds(self) -> set[str]:
        """The names of Shoal's own torsos among those of actor and critic."""
        return torsos.kinds_of(self.encoder) | torsos.kinds_of(self.critic_encoder)

    @property
    def of_critic(self) -> TorsoSettings:
        """The torso of the critic."""
        return self.encoder if self.critic_encoder == Kind("") else self.critic_encoder

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        """The widths of the critic's hidden layers."""
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes

    def build(self, spec: EnvSpec, key: Array) -> PyTree:
        """Build a new network with `policy`, `value` and `policy_and_value`, or with a memory."""
        common: dict[str, Any] = dict(
            actor_sizes=self.hidden_sizes,
            critic_sizes=self.critic_sizes,
            activation=self.activation,
            layer_norm=self.layer_norm,
            distribution=self.distribution,
            state_dependent_std=self.state_dependent_std,
            initial_std=self.initial_std,
            encoder=self.encoder,
            encoder_layers=self.encoder_layers,
            critic_encoder=self.of_critic,
            initialiser=self.initialiser,
            scale=self.hidden_scale,
            out_initialiser=self.head_initialiser,
            policy_scale=self.policy_scale,
            value_scale=self.value_scale,
            value_head=self.head_of_value(),
            key=key,
        )
        if self.core == "none":
            return ActorCritic(spec, shared=self.shared_torso, **common)
        recurrent = SharedRecurrentActorCritic if self.shared_torso else RecurrentActorCritic
        return recurrent(spec, self.core_options(spec), head_sizes=self.head_sizes, **common)

    def head_of_value(self) -> ScalarValueHead | CategoricalValueHead:
        """Make the head of the critic.

        Raises:
          ShoalError: a categorical one lacks its bounds, or they are not in order.
        """
        if self.value_head == "scalar":
            return ScalarValueHead()
        low, high = self.value_low, self.value_high
        if low is None or high is None or not low < high:
            raise ShoalError(
                f"value_head='categorical' cannot have value_low={low} and value_high={high}; it needs two bounds of "
                "the values to be learned, the lower one first, such as value_low=0.0 and value_high=100.0."
            )
        return CategoricalValueHead(low, high, self.value_atoms)

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        CoreConfig.validate(self)
        check_torso(self.critic_encoder)
        self.head_of_value()


@struct.struct
class JointNetwork:
    """The settings of `shoal.nets.joint.JointActorCritic`: attention between the agents of a world."""

    sees_all_agents: ClassVar[bool] = True
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "network": ("hidden_sizes", "attention_heads", "activation"),
        "actions": ("distribution",),
    }

    hidden_sizes: tuple[int, ...] = parameter((64, 64), low=1, high=LARGEST_INDEX, longest=MAX_LAYERS)
    """Gives the torso of each agent hidden layers of these widths."""
    attention_heads: int = parameter(4, low=1, high=LARGEST_INDEX)
    """Lets an agent attend to the others with this many heads, which divide the width of the last hidden layer."""
    activation: str = "tanh"
    """Applies this activation, by its name, after each hidden layer."""
    distribution: Distribution = "auto"
    """Chooses the policy's distribution; auto uses what fits the action space: categorical, or normal for a Box."""

    def build(self, spec: EnvSpec, key: Array) -> JointActorCritic:
        """Build a new network."""
        return JointActorCritic(
            spec,
            sizes=self.hidden_sizes,
            heads=self.attention_heads,
            activation=self.activation,
            distribution=self.distribution,
            key=key,
        )

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        activation(self.activation)
        if not self.hidden_sizes or self.hidden_sizes[-1] % self.attention_heads:
            raise ShoalError(
                f"attention_heads={self.attention_heads} do not divide the width of the last hidden layer, "
                f"hidden_sizes={self.hidden_sizes}."
            )


@struct.struct
class ClassOfNetworks:
    """A class of networks without settings, built as `Class(spec, key=key)`."""

    network_class: Any = settings.hidden()  # or its module:Name

    def imported(self) -> Any:
        """Return the class.

        Raises:
          ShoalError: it cannot be imported.
        """
        return imported(self.network_class)

    @property
    def has_memory(self) -> bool:
        """Whether the class declares that its networks have a memory."""
        return bool(getattr(self.imported(), "has_memory", False))

    @property
    def previous_action(self) -> bool:
        """Whether a network with memory is shown the previous action."""
        return bool(getattr(self.imported(), "previous_action", True))

    @property
    def previous_reward(self) -> bool:
        """Whether a network with memory is shown the previous reward."""
        return bool(getattr(self.imported(), "previous_reward", True))

    def build(self, spec: EnvSpec, key: Array) -> PyTree:
        """Build a new network of the class."""
        return self.imported()(spec, key=key)


@struct.struct
class NetworkClass(ClassOfNetworks):
    """A class of actor-critics without settings of its own."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {"actions": ("distribution",)}

    distribution: Distribution = "auto"
    """Says in which form the network's policy samples actions for the environment; auto uses what fits the
    action space: categorical, or normal for a Box."""


# Names by which Shoal's own networks are chosen, besides their structs.
OWN = {
    "shoal.nets.actor_critic:ActorCritic": NetworkConfig,
    "shoal.nets.joint:JointActorCritic": JointNetwork,
}


def choose(network: Any) -> Any:
    """Return the settings of a network, given by its name or its class, or themselves.

    Raises:
      ShoalError: it cannot be imported, or is a dataclass that is not a struct.
    """
    value = imported(network) if isinstance(network, str) and network not in OWN else network
    name = import_name(value) if isinstance(value, type) else value
    if isinstance(name, str) and name in OWN:
        return OWN[name]()
    return torsos.struct_or_class("network", network, NetworkClass, "network", "spec, key")


def name_of(network: Any) -> Any:
    """Return the name by which `choose` finds a network's settings again; for a class given itself, the class."""
    if isinstance(network, NetworkClass):
        return network.network_class
    return next((name for name, x in OWN.items() if x is type(network)), import_name(type(network)))


def has_memory(network: NetworkSettings) -> bool:
    """Report whether a network carries a memory: Shoal's own with a core, another if it declares so."""
    return bool(getattr(network, "has_memory", False))


def sees_all_agents(network: NetworkSettings) -> bool:
    """Report whether a network is shown all agents of a world at once, [..., A]: one that declares so."""
    return bool(getattr(network, "sees_all_agents", False))


def shows(network: NetworkSettings, name: str) -> bool:
    """Report whether a network with memory is shown the `previous_action` or the `previous_reward`; the default."""
    return bool(getattr(network, name, True))


def widest_layer(network: NetworkSettings) -> int:
    """Return the width of the widest hidden layer, where it is known, else 1."""
    return max(network.hidden_sizes, default=1) if isinstance(network, CoreConfig) else 1


def distribution_of(network: NetworkSettings) -> str:
    """Return the kind of distribution that a network's policy gives, "auto" included."""
    return getattr(network, "distribution", "auto")


def check_settings(network: NetworkSettings) -> None:
    """Require that the settings of a network fit each other, by its method `validate`, if it has one.

    Raises:
      ShoalError: the first that does not.
    """
    if hasattr(network, "validate"):
        network.validate()


def check(network: NetworkSettings, spec: EnvSpec) -> None:
    """Require that a network can be the network of an algorithm; of Shoal's own, only the encoder could be wrong.

    Raises:
      ShoalError: it cannot; the sentence says why.
    """
    if isinstance(network, NetworkConfig):
        encoders = [("encoder", spec.of_actor, network.encoder)]
        if network.of_critic is not network.encoder or spec.critic_only or spec.actor_only:
            name = "encoder" if network.of_critic is network.encoder else "critic_encoder"
            encoders.append((name, spec.of_critic, network.of_critic))
        for name, of_whom, encoder in encoders:
            check_torsos(of_whom.observation_space, encoder, network.encoder_layers, name)
    if isinstance(network, NetworkClass):
        check_network(network.imported(), spec)
    elif type(network) not in OWN.values():
        check_network(Builder(network), spec)


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
    shift = ((old.mean - new.mean) + (old.residual[1] - new.residual[1])) / deviation

    def rescale(path: tuple, leaf: Array) -> Array:
        name = struct.path_name(path)
        if name == f"{VALUE_LAYER}kernel":
            return leaf * ratio
        return leaf * ratio + shift if name == f"{VALUE_LAYER}bias" else leaf

    return jax.tree_util.tree_map_with_path(rescale, network)
