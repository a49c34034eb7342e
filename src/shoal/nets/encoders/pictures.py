"""Encoders of pictures: convolutions for entries [height, width, channels]."""

import functools
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.activations import identity
from shoal.nets.cnn import CNN, GridCNN
from shoal.nets.convolution import Padding, Windows, conv_layers
from shoal.nets.encoders.kinds import Encoder
from shoal.nets.encoders.parts import Part, Path, entry, num_values, observation_parts
from shoal.nets.mlp import MLP, LayerStyle
from shoal.nets.residual import CHANNELS, SIZES, ResidualCNN
from shoal.nets.torso_config import TorsoConfig
from shoal.types import PyTree
from shoal.types.spaces import Box, Space

Array = jax.Array

SMALL_KERNEL = 3  # the window for images below 36 x 36, which are pictures of cells
TILE_SIZE, MIN_TILED_SIZE, ATARI_SIZE = 8, 40, 84  # pixels of the sides of a tile, and of images
MIN_ATARI_SIZE = 36  # the least size for the windows of Mnih et al. 2015


class PictureLayers(NamedTuple):
    """The layers for one array [height, width, channels]; the fields are the settings `encoder_...`."""

    channels: tuple[int, ...]
    kernels: Windows
    strides: Windows
    features: tuple[int, ...]


GRID_CHANNELS, GRID_KERNEL = (16, 32, 64), 2  # as the baselines of XLand-MiniGrid, see `GridCNN`
ATARI_LAYERS = PictureLayers((32, 64, 64), (8, 4, 3), (4, 2, 1), ())  # Mnih et al. 2015
TILED_LAYERS = PictureLayers((16, 32, 32), (TILE_SIZE, 3, 3), (TILE_SIZE, 1, 1), ())
SMALL_LAYERS = PictureLayers((16,), (SMALL_KERNEL,), (1,), (128,))  # MinAtar's


class Pictures(Encoder):
    """Every part of three axes passes convolutions; the others are as they are.

    With `channels_first` these axes are [channels, height, width].
    """

    @classmethod
    def check(cls, space: Space, config: TorsoConfig, setting: str = "encoder") -> None:
        """Require a picture, and layers that fit each."""
        super().check(space, config, setting)
        parts = {part.path: entry(space, part.path) for part in observation_parts(space)}
        pictures = {path: part for path, part in parts.items() if _is_picture(part)}
        if not pictures:
            axes = "[channels, height, width]" if config.channels_first else "[height, width, channels]"
            raise ShoalError(
                f"{setting}={cls.kind!r} needs an observation {axes}, and observation_space={space!r} has none; "
                "'flatten' works."
            )
        for path, picture in pictures.items():
            cls.check_layers("/".join(("observation", *path)), _channels_last(picture, config), config)

    @classmethod
    def check_layers(cls, name: str, space: Box, config: TorsoConfig) -> None:
        """Raise ShoalError unless the layers fit an array [height, width, channels] of a name; by default they do."""

    @staticmethod
    def layers(space: Box, config: TorsoConfig, key: Array) -> CNN | GridCNN | ResidualCNN:
        """Make the layers for an array [height, width, channels]."""
        raise NotImplementedError

    def build(self, space: Space, config: TorsoConfig, key: Array) -> int:
        """Make the layers of each picture."""
        self.channels_first = config.channels_first
        self.pictured_parts: tuple[tuple[Path, float], ...] = ()  # path and divisor of each picture
        pictures = []
        for part, part_key in zip(self.parts, jax.random.split(key, len(self.parts)), strict=True):
            if not _is_picture(subspace := entry(space, part.path)):
                continue
            torso = self.layers(_channels_last(subspace, config), config, part_key)
            is_image = not isinstance(torso, GridCNN) and np.issubdtype(subspace.dtype, np.integer)
            # At least 1, so that a space whose only value is 0 is not divided by it.
            greatest = max(float(np.max(subspace.high)), 1.0) if is_image else 1.0
            self.pictured_parts += ((part.path, greatest),)
            pictures.append(torso)
        self.pictures = nnx.List(pictures)
        others = [part for part in self.parts if part.path not in dict(self.pictured_parts)]
        width = config.encoder_others
        keys = jax.random.split(jax.random.fold_in(key, 1), len(others))
        embed = functools.partial(MLP, sizes=(), out_features=width, initialiser=config.initialiser)
        embedded = zip(others if width else (), keys, strict=False)
        self.others = nnx.List([embed(part.num_features, key=own_key) for part, own_key in embedded])
        lengths = [width or part.num_features for part in others]
        return sum(lengths) + sum(picture.out_features for picture in pictures)

    def apply(self, observation: PyTree) -> list[Array]:
        """Return the features of each picture, and the other parts as vectors, embedded if so configured."""
        others = iter(self.others or [identity] * len(self.parts))
        divisors = dict(self.pictured_parts)
        torsos = dict(zip(divisors, self.pictures, strict=True))

        def encode(part: Part) -> Array:
            if part.path not in torsos:
                return next(others)(part.flatten(observation))
            array = part.extract(observation)
            array = jnp.moveaxis(array, -3, -1) if self.channels_first else array
            torso = torsos[part.path]
            is_grid = isinstance(torso, GridCNN)
            return torso(array if is_grid else array.astype(jnp.float32) / divisors[part.path])

        return [encode(part) for part in self.parts]


class Convolutions(Pictures):
    """A grid of cells passes a `GridCNN`, an image a `CNN`.

    Integers of few values are the cells of a grid, which are embedded; of more values an image, whose brightness is
    divided by its greatest; floats are an image as they are.
    """

    kind = "cnn"

    @staticmethod
    def layers(space: Box, config: TorsoConfig, key: Array) -> CNN | GridCNN:
        """Make a `GridCNN` or a `CNN`."""
        channels, kernels, strides, sizes = picture_layers(space, config)
        style: LayerStyle = {
            **config.encoder_style,
            "activation": _activation(config),
            "layer_norm": config.encoder_layer_norm,
        }
        if (values := num_values(space)) is not None:
            return GridCNN(
                space.shape,
                values if config.encoder_embedding else None,
                embedding=config.encoder_embedding,
                channels=channels,
                kernels=kernels,
                strides=strides,
                sizes=sizes,
                key=key,
                **style,
            )
        padding = _padding(space, config)
        return CNN(space.shape, channels, kernels, strides, padding=padding, sizes=sizes, key=key, **style)

    @classmethod
    def check_layers(cls, name: str, space: Box, config: TorsoConfig) -> None:
        """Raise ShoalError unless the convolutions fit the array and each other."""
        channels, kernels, strides, _ = picture_layers(space, config)
        observed = f"{name} {list(space.shape)}"
        if config.encoder_padding == "same" and num_values(space) is not None:
            raise ShoalError(
                f"encoder_padding='same' pads images, and {observed} is a grid of cells; give 'auto' or 'valid'."
            )
        names = (f"encoder_{x}" for x in ("channels", "kernels", "strides"))
        fitting = [name for name in names if getattr(config, name) is None]
        conv_layers(
            space.shape,
            channels,
            kernels,
            strides,
            _padding(space, config),
            of=observed,
            prefix="encoder_",
            hint=f"; what is not given ({', '.join(fitting)}) is the default for it" if fitting else "",
        )

    @property
    def expects_repeats(self) -> bool:
        """Whether all pictures are grids, and the other parts integers of few values."""
        paths = dict(self.pictured_parts)
        of_few_values = all(part.sizes is not None or part.path in paths for part in self.parts)
        return of_few_values and all(isinstance(picture, GridCNN) for picture in self.pictures)


class Residual(Pictures):
    """Every picture passes a `ResidualCNN`; integers are divided by their greatest value."""

    kind = "resnet"

    @staticmethod
    def layers(space: Box, config: TorsoConfig, key: Array) -> ResidualCNN:
        """Make a `ResidualCNN`."""
        return ResidualCNN(
            space.shape,
            CHANNELS if config.encoder_channels is None else config.encoder_channels,
            sizes=SIZES if config.encoder_features is None else config.encoder_features,
            blocks=config.encoder_blocks,
            activation=_activation(config),
            scale=config.hidden_scale,
            initialiser=config.initialiser,
            final_activation=config.encoder_style["final_activation"],
            key=key,
        )


def picture_layers(space: Box, config: TorsoConfig) -> PictureLayers:
    """Choose the layers of the convolutional torso for an array [height, width, channels].

    Those that are not given fit the array. A grid of cells passes windows of 2 x 2, by default three times. An image
    of whole tiles of 8 x 8 that is smaller than Atari's is processed tile by tile, which on the CPU is several times
    faster. An image below 36 x 36 passes 16 windows of 3 x 3 and a layer of 128, as in MinAtar (Young and Tian 2019,
    arXiv:1903.03176), any other the convolutions of Mnih et al. 2015.
    """
    shortest, longest = min(space.shape[:2]), max(space.shape[:2])
    is_tiled = not any(side % TILE_SIZE for side in space.shape[:2])
    if num_values(space) is not None:
        channels = GRID_CHANNELS if config.encoder_channels is None else config.encoder_channels
        fitting = PictureLayers(channels, (GRID_KERNEL,) * len(channels), (1,) * len(channels), ())
    elif MIN_TILED_SIZE <= shortest <= longest < ATARI_SIZE and is_tiled:
        fitting = TILED_LAYERS
    elif shortest >= MIN_ATARI_SIZE:
        fitting = ATARI_LAYERS
    else:
        fitting = SMALL_LAYERS
    given = {name: getattr(config, f"encoder_{name}") for name in fitting._fields}
    return fitting._replace(**{name: x for name, x in given.items() if x is not None})


def _activation(config: TorsoConfig) -> str:
    return "relu" if config.encoder_activation == "auto" else config.encoder_activation


def _padding(space: Box, config: TorsoConfig) -> Padding:
    """Choose the padding: by default zeros around an image smaller than the window; given kernels must fit."""
    if config.encoder_padding != "auto":
        return config.encoder_padding
    is_too_small = min(space.shape[:2]) < SMALL_KERNEL and num_values(space) is None
    return "same" if is_too_small and config.encoder_kernels is None else "valid"


def _is_picture(space: Space) -> TypeGuard[Box]:
    return isinstance(space, Box) and len(space.shape) == 3


def _channels_last(picture: Box, config: TorsoConfig) -> Box:
    """Return the space of a picture as [height, width, channels]."""
    if not config.channels_first:
        return picture
    low, high = (np.transpose(bound, (1, 2, 0)) for bound in (picture.low, picture.high))
    return Box(low, high, dtype=picture.dtype)
