"""The settings of a torso: how an observation becomes features, the hidden layers after it, and a recurrent core."""

import math
from typing import Any, ClassVar, Literal

from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs
from shoal.config.schema import schema_of
from shoal.config.struct import parameter
from shoal.nets import torso_choice
from shoal.nets.activations import activation
from shoal.nets.headed import HeadStyle
from shoal.nets.initialisers import CORE_INITIALISERS, check_initialiser
from shoal.nets.memory.cores import check_latches
from shoal.nets.mlp import LayerStyle
from shoal.nets.torso_choice import Kind, PartSettings

MAX_LAYERS = 64  # deeper networks take long to trace and compile, and have been of no use here
MAX_CHANNELS = 2**24  # of more, XLA could not index the numbers of a small image
_CORE = Needs("core", other_than=("none",), such_as="gru")
_HEAD_LAYERS = Needs("head_sizes", other_than=((),), such_as=(64,))
SOME_LAYERS = (Needs("hidden_sizes", other_than=((),), such_as=(64,)), _HEAD_LAYERS)
NORMALISED = tuple(  # of some layers
    Needs(f"{layers}layer_norm", (True,)) for layers in ("", "encoder_", "head_")
)


def _kinds(*kinds: str) -> Needs:
    """Say that a setting of encoders is of these kinds of them alone."""
    return Needs("encoder", kinds)


def _layers(*kinds: str, high: int = LARGEST_INDEX) -> Any:
    """Declare one number for each of some layers of an encoder of these kinds; None for what fits."""
    return parameter(None, low=1, high=high, longest=MAX_LAYERS, needs=_kinds(*kinds))


@struct.struct
class TorsoConfig:
    """The settings of an encoder and of the hidden layers after it."""

    group: ClassVar[str] = "network"

    hidden_sizes: tuple[int, ...] = parameter(
        (64, 64), low=1, high=LARGEST_INDEX, longest=MAX_LAYERS, group="most used"
    )
    """Gives the network, or actor and critic each, hidden layers of these widths."""
    activation: str = "tanh"
    """Applies this activation, by its name, after each hidden layer."""
    layer_norm: bool = False
    """Normalises each hidden layer before its activation."""
    layer_norm_bias: bool = parameter(True, needs=(NORMALISED,))
    """Gives layers that are normalised a bias of their own, besides the normalisation's."""
    torso_final_activation: bool = parameter(
        True,
        needs=(
            (
                Needs("hidden_sizes", other_than=((),), such_as=(64,)),
                _kinds("cnn", "resnet", "mlp", "mlp_each", "set"),
            ),
        ),
    )
    """Applies the activation after the torso's last layer too, which is the last hidden layer, or the encoder's last
    where there are no hidden layers."""
    encoder: PartSettings = settings.chosen(Kind("flatten"), torso_choice.choose, torso_choice.name_of)
    """Encodes an observation as a vector: as it is (flatten), integers of few values one-hot (one_hot), an MLP (mlp),
    an MLP for each entry of a dictionary (mlp_each), convolutions for grids of cells and images (cnn), residual blocks
    for images (resnet), for a set, an entry [rows, features], an MLP for each row and the mean and the maximum over the
    rows (set), or your own as module:Name; several in sequence, with commas, such as cnn,mlp."""
    encoder_channels: tuple[int, ...] | None = _layers("cnn", "resnet", high=MAX_CHANNELS)
    """Gives the encoder's convolutions, or stacks of residual blocks, these numbers of channels; None uses what fits
    the observation."""
    encoder_kernels: tuple[int, ...] | None = _layers("cnn")
    """Gives the encoder's convolutions square windows of these sides; None uses what fits the observation."""
    encoder_strides: tuple[int, ...] | None = _layers("cnn")
    """Moves the windows of the encoder's convolutions by these strides; None uses what fits the observation."""
    encoder_features: tuple[int, ...] | None = _layers("cnn", "resnet", "mlp", "mlp_each", "set")
    """Gives the encoder dense layers of these widths, after its convolutions or as the MLP (of all, of each entry or of
    each row; where mlp follows another encoder, of mlp alone); None uses what fits the observation."""
    encoder_heads: int = parameter(0, low=0, high=LARGEST_INDEX, needs=_kinds("set"))
    """Lets the rows of a set attend to each other with this many heads before they are pooled; 0 disables this."""
    encoder_padding: Literal["auto", "valid", "same"] = parameter("auto", needs=_kinds("cnn"))
    """Pads images with zeros, so that the encoder's convolutions keep their size except for strides (same), or not
    (valid); auto pads where an image is smaller than the windows."""
    encoder_embedding: int = parameter(16, low=0, high=LARGEST_INDEX, needs=_kinds("cnn"))
    """Embeds each integer of a grid's cells as a vector of this length, before the encoder's convolutions; 0 shows the
    integers to them as numbers."""
    encoder_others: int = parameter(0, low=0, high=LARGEST_INDEX, needs=_kinds("cnn", "resnet"))
    """Shows each entry besides pictures, such as a direction, as this many features of a learned linear layer; 0 shows
    it as it is."""
    encoder_blocks: int = parameter(2, low=0, high=MAX_LAYERS, needs=_kinds("resnet"))
    """Gives each stack of the encoder this many residual blocks."""
    encoder_activation: str = parameter("auto", needs=_kinds("cnn", "resnet", "mlp", "mlp_each", "set"))
    """Applies this activation within the encoder; auto uses relu for convolutions, else activation."""
    encoder_layer_norm: bool = parameter(False, needs=_kinds("cnn", "mlp", "mlp_each", "set"))
    """Normalises each layer of the encoder before its activation; layer_norm does not apply to its convolutions."""
    channels_first: bool = parameter(False, needs=_kinds("cnn", "resnet"))
    """Reads images and grids of cells as [channels, height, width]."""
    initialiser: str = "orthogonal"
    """Draws the initial weights of encoder, hidden layers and core: orthogonal, or lecun, glorot or he with _normal or
    _uniform."""
    hidden_scale: float = parameter(math.sqrt(2), above=0.0, initial=True)
    """Scales the initial weights of encoder and hidden layers by this."""
    head_hidden_scale: float | None = parameter(None, above=0.0, initial=True, needs=(SOME_LAYERS,))
    """Scales the initial weights of the hidden layers of policy and value by this; None uses hidden_scale."""
    head_initialiser: str = "orthogonal"
    """Draws the initial weights of the last layers of policy and value by this initialiser."""

    def __post_init__(self) -> None:
        """Choose the encoder, and other parts, that are given by name."""
        for field in schema_of(type(self)):
            value = getattr(self, field.name)
            if field.choice and value is not None and not settings.is_nested(value):
                object.__setattr__(self, field.name, field.choice.choose(value))

    @property
    def encoder_kinds(self) -> set[str]:
        """The names of Shoal's own torsos among those of the encoder."""
        return torso_choice.kinds_of(self.encoder)

    @property
    def style(self) -> LayerStyle:
        """The style of hidden layers, as an `MLP` takes it."""
        return {
            "activation": self.activation,
            "layer_norm": self.layer_norm,
            "layer_norm_bias": self.layer_norm_bias,
            "final_activation": self.torso_final_activation,
            "scale": self.hidden_scale,
            "initialiser": self.initialiser,
        }

    @property
    def encoder_style(self) -> LayerStyle:
        """The same of an encoder, which is not the torso's last part before hidden layers."""
        return {**self.style, "final_activation": self.torso_final_activation or bool(self.hidden_sizes)}

    def validate(self) -> None:
        """Require that the names are known, and that the settings of an encoder of one's own fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        for name in ("activation", "head_activation", "critic_activation"):
            if (value := getattr(self, name, None)) is not None:
                activation(value, setting=name)
        for name in ("initialiser", "head_initialiser"):
            check_initialiser(getattr(self, name), name)
        check_torso(self.encoder)


@struct.struct
class CoreConfig(TorsoConfig):
    """The settings of a torso, of a recurrent core after it, and of the layers after that."""

    group: ClassVar[str] = "memory"

    core: Literal["none", "gru", "lstm", "rnn", "mgu", "mingru"] = parameter("none", group="most used")
    """Puts a recurrent core after the hidden layers (of actor and critic each, unless a torso is shared), or none."""
    core_size: int = parameter(128, low=1, high=LARGEST_INDEX, needs=_CORE)
    """Gives the core's hidden state this size."""
    core_layers: int = parameter(1, low=1, high=MAX_LAYERS, needs=_CORE)
    """Stacks this many recurrent layers."""
    core_outputs: Literal["last", "sum"] = parameter("last", needs=_CORE)
    """Uses the last recurrent layer's output, or the sum of all layers' outputs."""
    core_initialiser: str | None = parameter(None, needs=_CORE)
    """Draws the core's initial weights by this initialiser, each gate's by themselves, or those of all gates as a whole
    with _whole at its end, such as glorot_normal_whole; None uses initialiser."""
    core_recurrent_initialiser: str | None = parameter(
        None, needs=Needs("core", ("gru", "lstm", "rnn", "mgu"))
    )
    """Draws the core's initial weights on its hidden state by this initialiser, named alike; None uses
    core_initialiser."""
    latches: int = parameter(0, low=0, high=LARGEST_INDEX, needs=_CORE)
    """Initialises this many units of the core as a memory of the last reward: they keep their state until a reward
    comes, and then store what led to it. Helps to use one episode of a trial in the next; needs previous_reward."""
    queries: int = parameter(0, low=0, high=LARGEST_INDEX, needs=_CORE)
    """Attends from the recurrent state to the cells of an observed grid, by this many queries whose scores the layers
    after the core receive; 0 disables this."""
    head_sizes: tuple[int, ...] = parameter(
        (), low=1, high=LARGEST_INDEX, longest=MAX_LAYERS, group="network"
    )
    """Adds hidden layers of these widths after the hidden ones, or after the core: to policy and value each, also where
    they share a torso."""
    head_activation: str | None = parameter(None, group="network", needs=_HEAD_LAYERS)
    """Applies this activation in the layers of head_sizes; None uses activation."""
    head_layer_norm: bool | None = parameter(None, group="network", needs=_HEAD_LAYERS)
    """Normalises each layer of head_sizes before its activation, or not; None uses layer_norm."""
    previous_action: bool = parameter(False, needs=_CORE)
    """Shows the core the previous action: one-hot, or the numbers of a Box."""
    action_embedding: int = parameter(0, low=0, high=LARGEST_INDEX, needs=_CORE)
    """Shows the previous action as this many features of a learned linear embedding; 0 shows it as it is."""
    action_beside_embedding: bool = parameter(
        False, needs=Needs("action_embedding", other_than=(0,), such_as=16)
    )
    """Shows the core the previous action as it is too, besides its embedding."""
    start_action: Literal["none", "first"] = parameter(
        "none",
        needs=(
            Needs("previous_action", (True,)),
            Needs("action_space", kinds=("Discrete", "MultiDiscrete")),
        ),
    )
    """Shows the core at the start of an episode no previous action (zeros, of which an embedding makes a vector of
    their own), or the first of the actions, as where a table of embeddings has no row for none (first)."""
    previous_reward: bool = parameter(False, needs=_CORE)
    """Shows the core the previous reward."""
    previous_observation: bool = parameter(False, needs=_CORE)
    """Shows the core the features of the previous observation; with the previous action and reward, a transition."""
    first_flag: bool = parameter(False, needs=_CORE)
    """Shows the core whether an episode begins."""

    @property
    def has_memory(self) -> bool:
        """Whether the network carries a memory from step to step."""
        return self.core != "none"

    @property
    def head_style(self) -> HeadStyle:
        """The style of hidden layers before a head, and of the plain layer after them, as a `Headed` takes it.

        Without a core they are the last part of the torso.
        """
        scale = self.hidden_scale if self.head_hidden_scale is None else self.head_hidden_scale
        return {
            "activation": self.activation,
            "layer_norm": self.layer_norm,
            "layer_norm_bias": self.layer_norm_bias,
            "final_activation": self.torso_final_activation or self.has_memory,
            "hidden_scale": scale,
            "initialiser": self.initialiser,
            "out_initialiser": self.head_initialiser,
        }

    @property
    def core_initialisers(self) -> tuple[str, str]:
        """The initialisers of the core's weights on its inputs and on its hidden state."""
        of_inputs = self.core_initialiser or self.initialiser
        return of_inputs, self.core_recurrent_initialiser or of_inputs

    @property
    def looks(self) -> bool:
        """Whether the recurrent state attends to the cells of a grid."""
        return self.core != "none" and self.queries > 0

    @property
    def style_after_torso(self) -> HeadStyle:
        """The style of the layers of `head_sizes`, and of the plain layer after them, as a `Headed` takes it."""
        own = {
            "activation": self.head_activation,
            "layer_norm": self.head_layer_norm,
            "final_activation": True,
        }
        return {**self.head_style, **{name: x for name, x in own.items() if x is not None}}  # type: ignore[typeddict-item]

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        TorsoConfig.validate(self)
        if self.core == "none":
            return
        for name, value in zip(
            ("core_initialiser", "core_recurrent_initialiser"), self.core_initialisers, strict=True
        ):
            check_initialiser(value, name, CORE_INITIALISERS)
        check_latches(self.core, self.core_size, self.latches)
        if self.latches and not self.previous_reward:
            raise ShoalError(
                f"latches={self.latches} open their gates at rewards: previous_reward must be True with them."
            )
        if self.previous_observation and not self.hidden_sizes:
            raise ShoalError(
                "previous_observation=True shows the features of the last layer before the core, and hidden_sizes=() "
                "has none; give it a layer, such as (64,)."
            )
        if self.action_embedding and not self.previous_action:
            raise ShoalError(
                f"action_embedding={self.action_embedding} needs previous_action=True, or leave it 0."
            )


def check_torso(torso: PartSettings) -> None:
    """Require that the settings of a torso, or of several in a row, fit each other.

    Raises:
      ShoalError: the first that does not.
    """
    for each in torso_choice.torsos_of(torso):
        # Those of users need none, and Shoal's own kinds are checked against a space.
        if hasattr(each, "validate"):
            each.validate()
