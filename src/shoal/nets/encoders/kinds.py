"""What a kind of encoder is, and the kinds without convolutions."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.activations import activation as activation_named
from shoal.nets.encoders.parts import MAX_CELL_VALUES, Part, Path, entry, observation_parts
from shoal.nets.mlp import MLP, LayerStyle
from shoal.nets.sets import SetTorso
from shoal.nets.torso_config import TorsoConfig
from shoal.types import PyTree
from shoal.types.spaces import Space

Array = jax.Array

PRESENT_SUFFIX = "_present"  # integers of an entry NAME_present [K] say which rows of NAME [K, F] count
MLP_FEATURES = (64,)


class Encoder(nnx.Module):
    """Encodes an observation as one vector: `check` the space, `build` the layers, `apply` them.

    The parts of a Dict follow each other in name order. Where a kind has no layers for a part, a Box is flattened and
    cast to float32 (its values are not scaled: that is the observation normaliser's part), a Discrete becomes one-hot,
    and a MultiDiscrete several one-hots.

    Args:
      config: its settings of encoders and hidden layers; None for the defaults.
    Raises:
      ShoalError: as `check`.
    Attributes:
      num_features: length of the vector.
    """

    kind: ClassVar[str]
    takes_cells: ClassVar[bool] = False  # whether integers of few values become one-hot

    def __init__(self, space: Space, config: TorsoConfig | None = None, *, key: Array):
        config = config or TorsoConfig()
        self.check(space, config)
        self.parts = observation_parts(space, cells=self.takes_cells)
        self.num_features = self.build(space, config, key)

    @classmethod
    def check(cls, space: Space, config: TorsoConfig, setting: str = "encoder") -> None:
        """Require that the encoder can be built for a space; computes no array.

        Args:
          setting: the one that names the kind, for the sentence.
        Raises:
          ShoalError: the space cannot be encoded by this kind, or a setting does not fit it.
        """
        if config.encoder_activation != "auto":
            activation_named(config.encoder_activation)
        observation_parts(space)

    def build(self, space: Space, config: TorsoConfig, key: Array) -> int:
        """Make the layers, and return the length of the vector."""
        raise NotImplementedError

    def apply(self, observation: PyTree) -> list[Array]:
        """Return the vectors [..., n] whose concatenation is the encoded observation."""
        raise NotImplementedError

    def __call__(self, observation: PyTree) -> Array:
        """Encode observations with leading axes [...] as float32 [..., num_features]."""
        return _joined(self.apply(observation))

    @property
    def expects_repeats(self) -> bool:
        """Whether equal observations are so common that searching for them saves time.

        This holds for grids of cells, with nothing besides them but integers of few values.
        """
        return False


class Flatten(Encoder):
    """Every part as it is."""

    kind = "flatten"

    def build(self, space: Space, config: TorsoConfig, key: Array) -> int:
        """Return the length of the vector; there are no layers."""
        return num_features(self.parts)

    def apply(self, observation: PyTree) -> list[Array]:
        """Return each part as a vector."""
        return [part.flatten(observation) for part in self.parts]


class OneHot(Flatten):
    """Integers of few values become one-hot too, such as the tiles and colours of a grid's cells.

    The layer on them then has weights for each value at each place, which on the CPU costs less than convolutions over
    a view of 7 x 7 cells.
    """

    kind = "one_hot"
    takes_cells = True

    @classmethod
    def check(cls, space: Space, config: TorsoConfig, setting: str = "encoder") -> None:
        """Require integers of few values."""
        super().check(space, config, setting)
        if all(part.sizes is None for part in observation_parts(space, cells=True)):
            raise ShoalError(
                f"{setting}='one_hot' needs integers of less than {MAX_CELL_VALUES} values, and "
                f"observation_space={space!r} has none; 'flatten' takes numbers."
            )

    @property
    def expects_repeats(self) -> bool:
        """Whether all is integers of few values."""
        return all(part.sizes is not None for part in self.parts)


class Perceptron(Encoder):
    """All parts together pass an MLP."""

    kind = "mlp"

    @classmethod
    def check(cls, space: Space, config: TorsoConfig, setting: str = "encoder") -> None:
        """Require a layer."""
        super().check(space, config, setting)
        check_features(config, cls.kind, setting)

    def build(self, space: Space, config: TorsoConfig, key: Array) -> int:
        """Make the MLPs, one for each of `widths`."""
        widths = self.widths()
        keys = jax.random.split(key, len(widths))
        sizes, style = features_of(config), style_of(config)
        self.torsos = nnx.List(
            [MLP(width, sizes, key=mlp_key, **style) for width, mlp_key in zip(widths, keys, strict=True)]
        )
        return len(widths) * sizes[-1]

    def widths(self) -> list[int]:
        """Return the length of each MLP's input."""
        return [num_features(self.parts)]

    def apply(self, observation: PyTree) -> list[Array]:
        """Return the features of all parts."""
        return [self.torsos[0](_joined([part.flatten(observation) for part in self.parts]))]


class PerceptronOfEach(Perceptron):
    """Every part passes an MLP of its own, so that one of a thousand numbers does not drown one of three."""

    kind = "mlp_each"

    def widths(self) -> list[int]:
        """Return the length of each part."""
        return [part.num_features for part in self.parts]

    def apply(self, observation: PyTree) -> list[Array]:
        """Return the features of each part."""
        pairs = zip(self.torsos, self.parts, strict=True)
        return [torso(part.flatten(observation)) for torso, part in pairs]


class SetEncoder(Encoder):
    """Every part of two axes, [rows, features], passes a `SetTorso`, which ignores the order of the rows.

    An entry NAME_present [rows] of integers next to an entry NAME says which rows count (not 0).
    """

    kind = "set"

    @classmethod
    def check(cls, space: Space, config: TorsoConfig, setting: str = "encoder") -> None:
        """Require a set and a layer, and heads of the attention that divide the layer's width."""
        super().check(space, config, setting)
        check_features(config, cls.kind, setting)
        if not any(map(_is_set, observation_parts(space))):
            raise ShoalError(
                f"{setting}='set' needs an observation [rows, features] of numbers, and observation_space={space!r} "
                "has none; 'flatten' works."
            )
        heads, width = config.encoder_heads, features_of(config)[-1]
        if heads and width % heads:
            raise ShoalError(
                f"encoder_heads={heads} must divide {width}, the last of encoder_features, which it splits."
            )

    def build(self, space: Space, config: TorsoConfig, key: Array) -> int:
        """Make a torso for each set."""
        sets = [part for part in self.parts if _is_set(part)]
        self.set_parts = tuple(part.path for part in sets)
        # What says which rows count is no feature itself.
        presence = {(*path[:-1], path[-1] + PRESENT_SUFFIX) for path in self.set_parts if path}
        self.parts = tuple(part for part in self.parts if part.path not in presence)
        sizes, heads, style = features_of(config), config.encoder_heads, style_of(config)
        keys = jax.random.split(key, len(sets))
        self.sets = nnx.List(
            [
                SetTorso(part.shape[-1], sizes, heads, key=set_key, **style)
                for part, set_key in zip(sets, keys, strict=True)
            ]
        )
        others = tuple(part for part in self.parts if part.path not in self.set_parts)
        return num_features(others) + sum(torso.num_features for torso in self.sets)

    def apply(self, observation: PyTree) -> list[Array]:
        """Return the features of each set, and the other parts as vectors."""
        sets = dict(zip(self.set_parts, self.sets, strict=True))

        def encode(part: Part) -> Array:
            if part.path not in sets:
                return part.flatten(observation)
            rows = part.extract(observation).astype(jnp.float32)
            return sets[part.path](rows, _counted_rows(observation, part.path))

        return [encode(part) for part in self.parts]


def num_features(parts: tuple[Part, ...]) -> int:
    """Count the numbers of some parts as vectors."""
    return sum(part.num_features for part in parts)


def features_of(config: TorsoConfig) -> tuple[int, ...]:
    """Return the widths of an MLP's layers."""
    return MLP_FEATURES if config.encoder_features is None else config.encoder_features


def style_of(config: TorsoConfig) -> LayerStyle:
    """Return the style of an encoder's MLPs."""
    activation = config.activation if config.encoder_activation == "auto" else config.encoder_activation
    return {
        **config.encoder_style,
        "activation": activation,
        "layer_norm": config.layer_norm or config.encoder_layer_norm,
    }


def check_features(config: TorsoConfig, kind: str, setting: str) -> None:
    """Raise ShoalError if the MLP has no layer."""
    if not features_of(config):
        raise ShoalError(
            f"encoder_features=() leaves {setting}={kind!r} without a layer; give one, such as {MLP_FEATURES}."
        )


def _joined(vectors: list[Array]) -> Array:
    return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)


def _is_set(part: Part) -> bool:
    return len(part.shape) == 2 and part.sizes is None


def _counted_rows(observation: PyTree, path: Path) -> Array | None:
    """Return which rows of a set count, [..., K]; None if the observation does not say it."""
    if not path:  # the set is the whole observation
        return None
    present = entry(observation, path[:-1]).get(path[-1] + PRESENT_SUFFIX)
    return None if present is None else present > 0
