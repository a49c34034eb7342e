"""The settings of a torso: how an observation becomes features, the hidden layers after it, and a recurrent core."""

import math
from typing import Any, ClassVar, Literal

from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs, Table
from shoal.config.struct import parameter
from shoal.nets import torsos
from shoal.nets.activations import activation
from shoal.nets.encoders import EncoderLayers
from shoal.nets.initialisers import check_initialiser
from shoal.nets.inputs import num_action_features
from shoal.nets.memory.cores import check_latches
from shoal.nets.memory.recurrent import CoreOptions
from shoal.nets.torsos import Kind, TorsoSettings
from shoal.types import EnvSpec

MAX_LAYERS = 64  # deeper networks take long to trace and compile, and have been of no use here
CORE_SETTINGS = (
    *("core_size", "core_layers", "core_outputs", "head_sizes", "latches", "queries"),
    *("previous_action", "action_embedding", "previous_reward", "previous_observation", "first_flag"),
)
CORE_NEEDS: Table = dict.fromkeys(CORE_SETTINGS, (Needs("core", other_than=("none",), such_as="gru"),))


def encoder_needs(*encoders: str) -> Table:
    """Return the conditions of the settings of encoders: one of those named is of a kind that has the setting."""

    def one_of(*kinds: str) -> tuple[Needs, ...]:
        return tuple(Needs(name, kinds) for name in encoders)

    return {
        **dict.fromkeys(
            ("encoder_kernels", "encoder_strides", "encoder_padding", "encoder_embedding"), (one_of("cnn"),)
        ),
        **dict.fromkeys(("encoder_channels", "channels_first"), (one_of("cnn", "resnet"),)),
        "encoder_blocks": (one_of("resnet"),),
        **dict.fromkeys(
            ("encoder_features", "encoder_activation"),
            (one_of("cnn", "resnet", "mlp", "mlp_each", "set"),),
        ),
        "encoder_layer_norm": (one_of("cnn", "mlp", "mlp_each", "set"),),
        "encoder_heads": (one_of("set"),),
    }


def _layers() -> Any:
    """Declare one number for each of some layers; None for what fits."""
    return parameter(None, low=1, high=LARGEST_INDEX, longest=MAX_LAYERS)


@struct.struct
class TorsoConfig:
    """The settings of an encoder and of the hidden layers after it."""

    needs: ClassVar[Table] = encoder_needs("encoder")

    hidden_sizes: tuple[int, ...] = parameter((64, 64), low=1, high=LARGEST_INDEX, longest=MAX_LAYERS)
    """Gives the network, or actor and critic each, hidden layers of these widths."""
    activation: str = "tanh"
    """Applies this activation, by its name, after each hidden layer."""
    layer_norm: bool = False
    """Normalises each hidden layer before its activation."""
    encoder: TorsoSettings = settings.chosen(Kind("flatten"), torsos.choose, torsos.name_of)
    """Encodes an observation as a vector: as it is (flatten), integers of few values one-hot (one_hot), an MLP (mlp),
    an MLP for each entry of a dictionary (mlp_each), convolutions for grids of cells and images (cnn), residual blocks
    for images (resnet), for a set, an entry [rows, features], an MLP for each row and the mean and the maximum over the
    rows (set), or your own as module:Name; several in sequence, with commas, such as cnn,mlp."""
    encoder_channels: tuple[int, ...] | None = _layers()
    """Gives the encoder's convolutions, or stacks of residual blocks, these numbers of channels; None uses what fits
    the observation."""
    encoder_kernels: tuple[int, ...] | None = _layers()
    """Gives the encoder's convolutions square windows of these sides; None uses what fits the observation."""
    encoder_strides: tuple[int, ...] | None = _layers()
    """Moves the windows of the encoder's convolutions by these strides; None uses what fits the observation."""
    encoder_features: tuple[int, ...] | None = _layers()
    """Gives the encoder dense layers of these widths, after its convolutions or as the MLP (of all, of each entry or of
    each row; where mlp follows another encoder, of mlp alone); None uses what fits the observation."""
    encoder_heads: int = parameter(0, low=0, high=LARGEST_INDEX)
    """Lets the rows of a set attend to each other with this many heads before they are pooled; 0 disables this."""
    encoder_padding: Literal["auto", "valid", "same"] = "auto"
    """Pads images with zeros, so that the encoder's convolutions keep their size except for strides (same), or not
    (valid); auto pads where an image is smaller than the windows."""
    encoder_embedding: int = parameter(16, low=1, high=LARGEST_INDEX)
    """Embeds each integer of a grid's cells as a vector of this length, before the encoder's convolutions."""
    encoder_blocks: int = parameter(2, low=0, high=MAX_LAYERS)
    """Gives each stack of the encoder this many residual blocks."""
    encoder_activation: str = "auto"
    """Applies this activation within the encoder; auto uses relu for convolutions, else activation."""
    encoder_layer_norm: bool = False
    """Normalises each layer of the encoder before its activation; layer_norm does not apply to its convolutions."""
    channels_first: bool = False
    """Reads images and grids of cells as [channels, height, width]."""
    initialiser: str = "orthogonal"
    """Draws the initial weights of encoder and hidden layers: orthogonal, or lecun, glorot or he with _normal or
    _uniform."""
    hidden_scale: float = parameter(math.sqrt(2), above=0.0, initial=True)
    """Scales the initial weights of encoder and hidden layers by this."""
    head_initialiser: str = "orthogonal"
    """Draws the initial weights of the last layers of policy and value by this initialiser."""

    def __post_init__(self) -> None:
        """Choose the encoder that is given by name."""
        self._choose("encoder")

    def _choose(self, name: str) -> None:
        if not settings.is_nested(value := getattr(self, name)):
            object.__setattr__(self, name, torsos.choose(value, name))

    @property
    def encoder_kinds(self) -> set[str]:
        """The names of Shoal's own torsos among those of the encoder."""
        return torsos.kinds_of(self.encoder)

    @property
    def encoder_layers(self) -> EncoderLayers:
        """The layers of the encoder, or of the encoders of actor and critic."""
        return EncoderLayers(
            self.encoder_channels,
            self.encoder_kernels,
            self.encoder_strides,
            self.encoder_features,
            self.encoder_heads,
            self.encoder_activation,
            self.encoder_layer_norm,
            self.encoder_padding,
            self.encoder_embedding,
            self.encoder_blocks,
            self.channels_first,
        )

    def validate(self) -> None:
        """Require that the names are known, and that the settings of an encoder of one's own fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        activation(self.activation)
        for name in ("initialiser", "head_initialiser"):
            check_initialiser(getattr(self, name), name)
        check_torso(self.encoder)


@struct.struct
class CoreConfig(TorsoConfig):
    """The settings of a torso, of a recurrent core after it, and of the layers after that."""

    needs: ClassVar[Table] = {**TorsoConfig.needs, **CORE_NEEDS}

    core: Literal["none", "gru", "lstm", "rnn", "mgu", "mingru"] = "none"
    """Puts a recurrent core after the hidden layers (of actor and critic each, unless a torso is shared), or none."""
    core_size: int = parameter(128, low=1, high=LARGEST_INDEX)
    """Gives the core's hidden state this size."""
    core_layers: int = parameter(1, low=1, high=MAX_LAYERS)
    """Stacks this many recurrent layers."""
    core_outputs: Literal["last", "sum"] = "last"
    """Uses the last recurrent layer's output, or the sum of all layers' outputs."""
    latches: int = parameter(0, low=0, high=LARGEST_INDEX)
    """Initialises this many units of the core as a memory of the last reward: they keep their state until a reward
    comes, and then store what led to it. Helps to use one episode of a trial in the next; needs previous_reward."""
    queries: int = parameter(0, low=0, high=LARGEST_INDEX)
    """Attends from the recurrent state to the cells of an observed grid, by this many queries whose scores the layers
    after the core receive; 0 disables this."""
    head_sizes: tuple[int, ...] = parameter((), low=1, high=LARGEST_INDEX, longest=MAX_LAYERS)
    """Adds hidden layers of these widths after the core (to actor and critic each)."""
    previous_action: bool = False
    """Shows the core the previous action: one-hot, or the numbers of a Box."""
    action_embedding: int = parameter(0, low=0, high=LARGEST_INDEX)
    """Shows the previous action as this many features of a learned linear embedding; 0 shows it as it is."""
    previous_reward: bool = False
    """Shows the core the previous reward."""
    previous_observation: bool = False
    """Shows the core the features of the previous observation; with the previous action and reward, a transition."""
    first_flag: bool = False
    """Shows the core whether an episode begins."""

    @property
    def has_memory(self) -> bool:
        """Whether the network carries a memory from step to step."""
        return self.core != "none"

    @property
    def looks(self) -> bool:
        """Whether the recurrent state attends to the cells of a grid."""
        return self.core != "none" and self.queries > 0

    def core_options(self, spec: EnvSpec) -> CoreOptions:
        """Choose the core and its inputs."""
        return CoreOptions(
            self.core,
            self.core_size,
            self.core_layers,
            self.core_outputs,
            self.latches,
            action_size=num_action_features(spec.action_space) if self.previous_action else 0,
            action_embedding=self.action_embedding,
            reward=self.previous_reward,
            first=self.first_flag,
            previous=self.previous_observation,
            queries=self.queries,
        )

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        TorsoConfig.validate(self)
        if self.core == "none":
            return
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


def check_torso(torso: TorsoSettings) -> None:
    """Require that the settings of a torso, or of several in a row, fit each other.

    Raises:
      ShoalError: the first that does not.
    """
    for each in torsos.torsos_of(torso):
        if hasattr(each, "validate"):
            each.validate()
