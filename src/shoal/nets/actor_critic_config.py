"""The settings of an actor and a critic, with memory or without."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Conditions, Needs, Table
from shoal.config.struct import parameter
from shoal.nets import torso_choice
from shoal.nets.headed import Head
from shoal.nets.heads import check_std, head_for
from shoal.nets.part_names import VALUE_HEADS
from shoal.nets.torso_choice import Kind, PartSettings, build_head, part
from shoal.nets.torso_config import MAX_LAYERS, CoreConfig, TorsoConfig, check_torso
from shoal.nets.value_heads import CategoricalValueHead, ScalarValueHead
from shoal.types import Array, EnvSpec
from shoal.types.spaces import Space

DistributionName = Literal["auto", "categorical", "normal", "tanh_normal", "beta"]
PolicyName = Literal[DistributionName, "gsde"]
_CATEGORICAL = Needs("value_head", ("categorical",))
_APART = Needs("shared_torso", (False,))
CONTINUOUS = Needs("action_space", kinds=("Box",))
_NORMAL = Needs("distribution", ("auto", "normal", "tanh_normal"))
_ACTOR, _CRITIC = Needs("actor_network", (None,)), Needs("critic_network", (None,))  # Shoal's own
_OF_DEVIATION = Needs("distribution", ("auto", "normal", "tanh_normal", "gsde"))
_HEAD = (Needs("policy_head", (None,)), _ACTOR)
# Settings that the critic may have of its own, so that what needs the actor's may be met by the critic's.
_OF_CRITIC = {x: f"critic_{x}" for x in ("encoder", "hidden_sizes", "layer_norm")}


def _needs_of_both(setting: settings.Setting) -> Conditions:
    """Return what a setting of both torsos needs: one of them that is Shoal's own, and of an encoder's kind."""
    own = []
    for entry in setting.field.needs:
        alternatives = entry if isinstance(entry, tuple) else (entry,)
        of_critic = [
            # None is the actor's, which does not meet what the actor's own does not.
            dataclasses.replace(x, name=_OF_CRITIC[x.name], other_than=x.other_than and (*x.other_than, None))
            for x in alternatives
            if x.name in _OF_CRITIC
        ]
        own.append((*alternatives, *of_critic))
    return (*own, (_ACTOR, _CRITIC))


def built(
    part: PartSettings | None, spec: EnvSpec, key: Array, default: Callable[..., Any], *arguments: object
) -> Any:
    """Build an actor or a critic of the user's own for its spec, or else Shoal's from its arguments."""
    # It may be a pytree of any class, which NNX would take for static.
    return default(*arguments, key=key) if part is None else nnx.data(part.build(spec, key))


def _needs_of_torsos(config: TorsoConfig) -> Table:
    """Return what the settings of torsos need where the critic may have another."""
    # The critic's encoder has the settings of the encoder. The others say what a user's own actor and critic are given.
    return {
        name: _needs_of_both(setting)
        for name, setting in settings.settings_of(config).items()
        if name not in ("core", "previous_action", "previous_reward")
    }


@struct.struct
class ActorAndCriticsConfig(TorsoConfig):
    """The settings that an actor and a critic of any kind have, a torso each: of states, or of actions."""

    group: ClassVar[str] = "network"
    needs: ClassVar[Table] = _needs_of_torsos(TorsoConfig())

    critic_hidden_sizes: tuple[int, ...] | None = parameter(
        None, low=1, high=LARGEST_INDEX, longest=MAX_LAYERS, needs=(_APART, _CRITIC)
    )
    """Gives the critic hidden layers of these widths; None uses hidden_sizes."""
    critic_activation: str | None = parameter(None, needs=(_APART, _CRITIC))
    """Applies this activation in the critic; None uses activation."""
    critic_layer_norm: bool | None = parameter(None, needs=(_APART, _CRITIC))
    """Normalises each hidden layer of the critic before its activation, or not; None uses layer_norm."""
    critic_encoder: PartSettings | None = settings.chosen(
        None,
        functools.partial(torso_choice.choose, setting="critic_encoder"),
        torso_choice.name_of,
        needs=(_APART, _CRITIC),
    )
    """Gives the critic another encoder, named as encoder is; None uses encoder."""
    policy_scale: float = parameter(0.01, above=0.0, initial=True, needs=_ACTOR)
    """Scales the initial weights of the policy's last layer by this."""
    value_scale: float = parameter(1.0, above=0.0, initial=True, needs=_CRITIC)
    """Scales the initial weights of the value's last layer by this."""
    # Its logarithm is rounded from a float64 once; traced, it would differ in a bit.
    initial_std: float = parameter(
        1.0, above=0.0, static=True, group="actions", needs=(CONTINUOUS, _OF_DEVIATION, *_HEAD)
    )
    """Starts a continuous policy with this standard deviation; static, since it shapes the network."""
    minimum_std: float = parameter(
        1e-3, low=0.0, static=True, group="actions", needs=(CONTINUOUS, _OF_DEVIATION, *_HEAD)
    )
    """Adds this to the standard deviation of a continuous policy, so that it never falls below it."""

    def __post_init__(self) -> None:
        """Choose the parts that are given by name."""
        super().__post_init__()
        if torso_choice.name_of(self.critic_encoder) == torso_choice.name_of(self.encoder):
            object.__setattr__(self, "critic_encoder", None)  # one struct of settings

    @property
    def encoder_kinds(self) -> set[str]:
        """The names of Shoal's own torsos among those of actor and critic."""
        return torso_choice.kinds_of(self.encoder) | torso_choice.kinds_of(self.of_critic)

    @property
    def of_critic(self) -> PartSettings:
        """The torso of the critic."""
        return self.encoder if self.critic_encoder is None else self.critic_encoder

    @property
    def as_critic(self) -> Self:
        """The same settings with the critic's torso and hidden layers in the place of the actor's."""
        values = {x: getattr(self, f"critic_{x}") for x in ("hidden_sizes", "activation", "layer_norm")}
        own: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        return dataclasses.replace(self, encoder=self.of_critic, **own)

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        super().validate()
        check_torso(self.of_critic)
        check_std(self.initial_std, self.minimum_std)


@struct.struct
class ActorCriticConfig(ActorAndCriticsConfig, CoreConfig):
    """The settings of Shoal's own actor and critic, with memory or without."""

    group: ClassVar[str] = "network"
    needs: ClassVar[Table] = _needs_of_torsos(CoreConfig())

    actor_network: PartSettings | None = part("actor_network", "network")
    """Uses this actor, a class or a struct of settings with a method policy, as module:Name; None is Shoal's own."""
    critic_network: PartSettings | None = part("critic_network", "network")
    """Uses this critic, a class or a struct of settings with a method value, as module:Name; None is Shoal's own."""

    shared_torso: bool = False
    """Shares one torso between actor and critic in place of one each."""
    critic_gradient_scale: float = parameter(1.0, low=0.0, static=True, needs=Needs("shared_torso", (True,)))
    """Multiplies the gradient of the value in a torso that actor and critic share by this; 0 trains it by the policy
    alone."""
    value_head: PartSettings = part("value_head", "head", "scalar", VALUE_HEADS, needs=_CRITIC)
    """Lets the critic predict a number (scalar), or a distribution over numbers at equal distances, whose mean is the
    value (categorical; value_loss hl_gauss or two_hot), or what a head of your own makes of its inputs, as
    module:Name."""
    # Static, as value_high: the numbers between them are rounded from float64 once; traced, they would differ in a bit.
    value_low: float | None = parameter(None, static=True, needs=_CATEGORICAL)
    """Sets the lowest value that a categorical critic can predict; None for both leaves a distance of 1 between its
    numbers, with 0 in their middle."""
    value_high: float | None = parameter(None, static=True, needs=_CATEGORICAL)
    """Sets the highest value that a categorical critic can predict, as value_low."""
    value_atoms: int = parameter(51, low=2, high=LARGEST_INDEX, needs=_CATEGORICAL)
    """Lets a categorical critic predict a distribution over this many numbers from value_low to value_high."""
    distribution: PolicyName = parameter("auto", group="actions")
    """Chooses the policy's distribution; auto uses what fits the action space: categorical, or normal for a Box. gsde
    is a normal whose noise is a function of the network's last hidden layer, held for gsde_steps."""
    policy_head: PartSettings | None = part("policy_head", "head", group="actions", needs=_ACTOR)
    """Makes the policy's distribution by this head of your own, as module:Name; distribution then says in which form it
    samples actions. None is the head of distribution."""
    state_dependent_std: bool = parameter(False, group="actions", needs=(CONTINUOUS, _NORMAL, *_HEAD))
    """Makes the standard deviation an output of the network instead of a free parameter."""

    @property
    def has_own_parts(self) -> bool:
        """Whether the actor or the critic is the user's own."""
        return self.actor_network is not None or self.critic_network is not None

    def head_of_policy(self, space: Space, num_features: int, key: Array) -> Head:
        """Make the head of the actor, on layers of which the last has `num_features`; `key` is the network's."""
        if self.policy_head is not None:
            return build_head(self.policy_head, space, key)
        return head_for(
            space,
            self.distribution,
            state_dependent_std=self.state_dependent_std,
            initial_std=self.initial_std,
            minimum_std=self.minimum_std,
            num_features=num_features,
        )

    def head_of_value(self, space: Space, key: Array) -> Head:
        """Make the head of the critic; `space` is that of the actions, and `key` the network's."""
        if isinstance(self.value_head, Kind | None):
            return self.own_head_of_value()
        return build_head(self.value_head, space, key)

    def own_head_of_value(self) -> ScalarValueHead | CategoricalValueHead:
        """Make one of Shoal's own heads of the critic.

        Raises:
          ShoalError: a categorical one has one bound alone, or they are not in order.
        """
        if self.value_head != Kind("categorical"):
            return ScalarValueHead()
        low, high = self.value_low, self.value_high
        if low is None and high is None:
            return CategoricalValueHead(
                (1 - self.value_atoms) / 2, (self.value_atoms - 1) / 2, self.value_atoms
            )
        if low is None or high is None or not low < high:
            raise ShoalError(
                f"value_head='categorical' cannot have value_low={low} and value_high={high}; it needs two bounds of "
                "the values to be learned, the lower one first, such as value_low=0.0 and value_high=100.0, or none."
            )
        return CategoricalValueHead(low, high, self.value_atoms)

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        super().validate()
        self.own_head_of_value()
        own_head = next((x for x in ("policy_head", "actor_network") if getattr(self, x) is not None), None)
        if self.distribution == "gsde" and own_head:
            raise ShoalError(
                f"distribution='gsde' holds the noise of Shoal's own head, in whose place {own_head} puts another; "
                f"choose distribution='normal', or leave {own_head} out."
            )
        if self.shared_torso and self.has_own_parts:
            raise ShoalError(
                "shared_torso=True makes one network of actor and critic, so that neither can be another; "
                "actor_network and critic_network must be None with it."
            )
