"""The settings of an actor and a critic, with memory or without."""

import dataclasses
import functools
from typing import ClassVar, Literal

from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs, Table
from shoal.config.struct import parameter
from shoal.nets import torso_choice
from shoal.nets.heads import PolicyHead, check_std, head_for
from shoal.nets.torso_choice import Kind, TorsoSettings
from shoal.nets.torso_config import MAX_LAYERS, CoreConfig, TorsoConfig, check_torso
from shoal.nets.value_heads import CategoricalValueHead, ScalarValueHead
from shoal.types.spaces import Space

DistributionName = Literal["auto", "categorical", "normal", "tanh_normal", "beta"]
PolicyName = Literal[DistributionName, "gsde"]
_CATEGORICAL = Needs("value_head", ("categorical",))
_APART = Needs("shared_torso", (False,))
_CONTINUOUS = Needs("action_space", kinds=("Box",))
_NORMAL = Needs("distribution", ("auto", "normal", "tanh_normal"))
_OF_DEVIATION = Needs("distribution", ("auto", "normal", "tanh_normal", "gsde"))


@struct.struct
class ActorCriticConfig(CoreConfig):
    """The settings of Shoal's own actor and critic, with memory or without."""

    group: ClassVar[str] = "network"
    # The critic's encoder has the settings of the encoder.
    needs: ClassVar[Table] = {
        name: (tuple(Needs(encoder, of.values) for encoder in ("encoder", "critic_encoder")),)
        for name, setting in settings.settings_of(TorsoConfig()).items()
        for of in setting.field.needs
        if isinstance(of, Needs)
    }

    critic_hidden_sizes: tuple[int, ...] | None = parameter(
        None, low=1, high=LARGEST_INDEX, longest=MAX_LAYERS, needs=_APART
    )
    """Gives the critic hidden layers of these widths; None uses hidden_sizes."""
    shared_torso: bool = False
    """Shares one torso between actor and critic in place of one each."""
    critic_encoder: TorsoSettings = settings.chosen(
        Kind(""),
        functools.partial(torso_choice.choose, setting="critic_encoder"),
        torso_choice.name_of,
        needs=_APART,
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
    state_dependent_std: bool = parameter(False, group="actions", needs=(_CONTINUOUS, _NORMAL))
    """Makes the standard deviation an output of the network instead of a free parameter."""
    # Its logarithm is rounded from a float64 once; traced, it would differ in a bit.
    initial_std: float = parameter(
        1.0, above=0.0, static=True, group="actions", needs=(_CONTINUOUS, _OF_DEVIATION)
    )
    """Starts a continuous policy with this standard deviation; static, since it shapes the network."""
    minimum_std: float = parameter(
        1e-3, low=0.0, static=True, group="actions", needs=(_CONTINUOUS, _OF_DEVIATION)
    )
    """Adds this to the standard deviation of a continuous policy, so that it never falls below it."""

    def __post_init__(self) -> None:
        """Choose the torsos that are given by name."""
        CoreConfig.__post_init__(self)
        self._choose("critic_encoder")
        if torso_choice.name_of(self.critic_encoder) == torso_choice.name_of(
            self.encoder
        ):  # one struct of settings
            object.__setattr__(self, "critic_encoder", Kind(""))

    @property
    def encoder_kinds(self) -> set[str]:
        """The names of Shoal's own torsos among those of actor and critic."""
        return torso_choice.kinds_of(self.encoder) | torso_choice.kinds_of(self.critic_encoder)

    @property
    def of_critic(self) -> TorsoSettings:
        """The torso of the critic."""
        return self.encoder if self.critic_encoder == Kind("") else self.critic_encoder

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        """The widths of the critic's hidden layers."""
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes

    @property
    def as_critic(self) -> "ActorCriticConfig":
        """The same settings with the critic's torso and hidden layers in the place of the actor's."""
        if self.critic_hidden_sizes is None and self.of_critic is self.encoder:
            return self
        return dataclasses.replace(self, encoder=self.of_critic, hidden_sizes=self.critic_sizes)

    def head_of_policy(self, action_space: Space, num_features: int) -> PolicyHead:
        """Make the head of the actor, on a last hidden layer of this width."""
        return head_for(
            action_space,
            self.distribution,
            state_dependent_std=self.state_dependent_std,
            initial_std=self.initial_std,
            minimum_std=self.minimum_std,
            num_features=num_features,
        )

    def head_of_value(self) -> ScalarValueHead | CategoricalValueHead:
        """Make the head of the critic.

        Raises:
          ShoalError: a categorical one has one bound alone, or they are not in order.
        """
        if self.value_head == "scalar":
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
        CoreConfig.validate(self)
        check_torso(self.critic_encoder)
        check_std(self.initial_std, self.minimum_std)
        self.head_of_value()
