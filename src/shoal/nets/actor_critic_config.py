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
from shoal.nets.torso_choice import Kind, TorsoSettings
from shoal.nets.torso_config import MAX_LAYERS, CoreConfig, TorsoConfig, check_torso
from shoal.nets.value_heads import CategoricalValueHead, ScalarValueHead

DistributionName = Literal["auto", "categorical", "normal", "tanh_normal", "beta"]
_CATEGORICAL = Needs("value_head", ("categorical",))
_APART = Needs("shared_torso", (False,))
_CONTINUOUS = Needs("action_space", kinds=("Box",))
_NORMAL = Needs("distribution", ("auto", "normal", "tanh_normal"))


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
    critic_gradient_scale: float = parameter(1.0, low=0.0, static=True, needs=Needs("shared_torso", (True,)))
    """Multiplies the gradient of the value in a torso that actor and critic share by this; 0 trains it by the policy
    alone."""
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
    """Sets the lowest value that a categorical critic can predict; it has no default."""
    value_high: float | None = parameter(None, static=True, needs=_CATEGORICAL)
    """Sets the highest value that a categorical critic can predict; it has no default."""
    value_atoms: int = parameter(51, low=2, high=LARGEST_INDEX, needs=_CATEGORICAL)
    """Lets a categorical critic predict a distribution over this many numbers from value_low to value_high."""
    distribution: DistributionName = parameter("auto", group="actions")
    """Chooses the policy's distribution; auto uses what fits the action space: categorical, or normal for a Box."""
    state_dependent_std: bool = parameter(False, group="actions", needs=(_CONTINUOUS, _NORMAL))
    """Makes the standard deviation an output of the network instead of a free parameter."""
    # Its logarithm is rounded from a float64 once; traced, it would differ in a bit.
    initial_std: float = parameter(1.0, above=0.0, static=True, group="actions", needs=(_CONTINUOUS, _NORMAL))
    """Starts a continuous policy with this standard deviation; static, since it shapes the network."""

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
        return dataclasses.replace(self, encoder=self.of_critic, hidden_sizes=self.critic_sizes)

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
