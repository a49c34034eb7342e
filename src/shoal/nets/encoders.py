"""Encoders: an observation of any space becomes one vector."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from shoal.base.errors import ShoalError, nearest
from shoal.config.arguments import LARGEST_INDEX
from shoal.nets.activations import activation as activation_named
from shoal.nets.cnn import CNN, GridCNN
from shoal.nets.convolution import Padding, as_pair, out_size
from shoal.nets.inputs import one_hots
from shoal.nets.mlp import MLP
from shoal.nets.residual import ResidualCNN
from shoal.nets.sets import SetTorso
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space

Array = jax.Array
Windows = tuple[int | tuple[int, int], ...]

Torso = CNN | GridCNN | ResidualCNN

KINDS = ("flatten", "one_hot", "mlp", "mlp_each", "cnn", "resnet", "set")
OF_PICTURES = ("cnn", "resnet")
PRESENT_SUFFIX = (
    "_present"  # an entry NAME_present [K] of integers says which rows of the entry NAME [K, F] count
)
SMALL_KERNEL = 3  # the window for images below 36 x 36, which are pictures of cells
TILE_SIZE, MIN_TILED_SIZE, ATARI_SIZE = 8, 40, 84  # pixels of the sides of a tile, and of images
MIN_ATARI_SIZE = 36  # the least size for the windows of Mnih et al. 2015
MAX_CELL_VALUES = 64  # per integer of a cell: with more, integers are the brightness of an image


class EncoderLayers(NamedTuple):
    """The layers of an encoder; each None takes what fits the observation (see `picture_layers`).

    Attributes:
      channels: with "cnn", how many each convolution has; with "resnet", each stack.
      kernels: size of each convolution's window: a number, or (height, width).
      strides: of each in the same form.
      features: widths of the dense layers after the convolutions with "cnn" and "resnet", and of the MLP: with "mlp",
        of each part with "mlp_each" and of each row with "set", where None is (64,).
      heads: with "set", of a layer of attention between the rows; 0 for none.
      activation: of all layers; "auto" takes ReLU for convolutions and what follows them, and for the others that
        which an `Encoder` is given.
      layer_norm: normalise each layer before its activation (not with "resnet").
      padding: of the convolutions of images with "cnn", "valid" or "same"; "auto" pads only the images that are smaller
        than the window that they take.
      embedding: length of the vector of each integer of a cell, where "cnn" finds a grid of cells.
      blocks: with "resnet", residual blocks of each stack.
      channels_first: whether pictures are [channels, height, width].
    """

    channels: tuple[int, ...] | None = None
    kernels: Windows | None = None
    strides: Windows | None = None
    features: tuple[int, ...] | None = None
    heads: int = 0
    activation: str = "auto"
    layer_norm: bool = False
    padding: str = "auto"
    embedding: int = 16
    blocks: int = 2
    channels_first: bool = False


class PictureLayers(NamedTuple):
    """The layers for one array [height, width, channels]; the fields are those of `EncoderLayers`."""

    channels: tuple[int, ...]
    kernels: Windows
    strides: Windows
    features: tuple[int, ...]


DEFAULT_LAYERS = EncoderLayers()  # what fits the observation
GRID_CHANNELS, GRID_KERNEL = (16, 32, 64), 2  # as the baselines of XLand-MiniGrid, see `GridCNN`
ATARI_LAYERS = PictureLayers((32, 64, 64), (8, 4, 3), (4, 2, 1), ())  # Mnih et al. 2015
TILED_LAYERS = PictureLayers((16, 32, 32), (TILE_SIZE, 3, 3), (TILE_SIZE, 1, 1), ())
SMALL_LAYERS = PictureLayers((16,), (SMALL_KERNEL,), (1,), (128,))  # MinAtar's
MLP_FEATURES = (64,)


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of an observation: where it stands, and how it becomes a vector.

    A small hashable value, kept in place of the space itself: the bounds of a Box of images would be
    hashed at every call of a compiled function.
    """

    path: tuple[str, ...]  # names to follow through dictionaries; empty if the observation is one array
    shape: tuple[int, ...]
    # Values of each integer of the last axis, to be made one-hot; None for numbers.
    sizes: tuple[int, ...] | None

    @property
    def num_features(self) -> int:
        """Length of the vector."""
        return math.prod(self.shape) if self.sizes is None else math.prod(self.shape[:-1]) * sum(self.sizes)

    def extract(self, observation: Any) -> Array:
        """Return the part's array in an observation, checked for its shape."""
        for name in self.path:
            if name not in observation:
                names = ", ".join(observation)
                raise ShoalError(f"observation has {names} but lacks {name!r}{nearest(name, observation)}.")
            observation = observation[name]
        array = jnp.asarray(observation)
        if array.shape[array.ndim - len(self.shape) :] != self.shape:
            raise ShoalError(
                f"{'/'.join(('observation', *self.path))} has shape {array.shape}, which must end in "
                f"{self.shape} as its space does."
            )
        return array

    def flatten(self, observation: Any) -> Array:
        """Return the part as float32 [..., num_features]."""
        array = self.extract(observation)
        batch_shape = array.shape[: array.ndim - len(self.shape)]
        if self.sizes is None:
            return array.astype(jnp.float32).reshape(*batch_shape, self.num_features)
        columns = [array[..., i] for i in range(len(self.sizes))] if self.shape else [array]
        return one_hots(columns, self.sizes).reshape(*batch_shape, self.num_features)


def observation_parts(space: Space, path: tuple[str, ...] = (), *, cells: bool = False) -> tuple[Part, ...]:
    """List the arrays of a space's elements, in name order.

    Args:
      cells: whether a Box of integers of few values is taken as such, and not as numbers.
    Raises:
      ShoalError: the space holds something else than Box, Discrete, MultiDiscrete and Dict, or nothing.
    """
    match space:
        case Box():
            return (Part(path, space.shape, _num_values(space) if cells else None),)
        case Discrete():
            return (Part(path, (), (space.n,)),)
        case MultiDiscrete():
            return (Part(path, space.shape, space.nvec),)
        case Dict() if len(space):
            names = sorted(space)
            return tuple(
                part for name in names for part in observation_parts(space[name], (*path, name), cells=cells)
            )
    raise ShoalError(
        f"{'/'.join(('observation_space', *path))}={space!r} cannot be encoded; "
        "it must be a Box, Discrete, MultiDiscrete or a Dict with at least one of these."
    )


def convolutional_torso(
    space: Space, key: Array, layers: EncoderLayers = DEFAULT_LAYERS, kind: str = "cnn", **style: Any
) -> Torso | None:
    """Build the torso for an array [height, width, channels]; None for a space of another kind.

    With "cnn", integers of few values are the cells of a grid, which are embedded; of more values an image, whose
    brightness is divided by its greatest; floats are an image as they are. With "resnet" all are images.
    """
    if not _is_picture(space):
        return None
    style |= dict(activation="relu" if layers.activation == "auto" else layers.activation, key=key)
    if kind == "resnet":
        given = {"channels": layers.channels, "sizes": layers.features}
        given = {name: x for name, x in given.items() if x is not None}
        return ResidualCNN(space.shape, blocks=layers.blocks, **given, **style)  # type: ignore[arg-type]
    channels, kernels, strides, features = picture_layers(space, layers)
    style |= dict(
        channels=channels, kernels=kernels, strides=strides, sizes=features, layer_norm=layers.layer_norm
    )
    if (values := _num_values(space)) is not None:
        return GridCNN(space.shape, values, embedding=layers.embedding, **style)
    return CNN(space.shape, padding=_padding(space, layers), **style)


def picture_layers(space: Box, layers: EncoderLayers = DEFAULT_LAYERS) -> PictureLayers:
    """Choose the layers of the convolutional torso for an array [height, width, channels].

    Those that are not given fit the array. A grid of cells passes windows of 2 x 2, by default three times. An image
    of whole tiles of 8 x 8 that is smaller than Atari's is processed tile by tile, which on the CPU is several times
    faster. An image below 36 x 36 passes 16 windows of 3 x 3 and a layer of 128, as in MinAtar (Young and Tian 2019,
    arXiv:1903.03176), any other the convolutions of Mnih et al. 2015.
    """
    shortest, longest = min(space.shape[:2]), max(space.shape[:2])
    is_tiled = not any(side % TILE_SIZE for side in space.shape[:2])
    if _num_values(space) is not None:
        channels = GRID_CHANNELS if layers.channels is None else layers.channels
        fitting = PictureLayers(channels, (GRID_KERNEL,) * len(channels), (1,) * len(channels), ())
    elif MIN_TILED_SIZE <= shortest <= longest < ATARI_SIZE and is_tiled:
        fitting = TILED_LAYERS
    elif shortest >= MIN_ATARI_SIZE:
        fitting = ATARI_LAYERS
    else:
        fitting = SMALL_LAYERS
    given = {name: getattr(layers, name) for name in fitting._fields}
    return fitting._replace(**{name: x for name, x in given.items() if x is not None})


def check_encoder(
    space: Space, kind: str, layers: EncoderLayers = DEFAULT_LAYERS, name: str = "encoder"
) -> None:
    """Require that an `Encoder` can be built for a space; computes no array.

    Raises:
      ShoalError: as `Encoder`.
    """
    if kind not in KINDS:
        raise ShoalError(f"{name}={kind!r} is none of {', '.join(KINDS)}{nearest(str(kind), KINDS)}.")
    if layers.activation != "auto":
        activation_named(layers.activation)
    parts = observation_parts(space, cells=kind == "one_hot")
    if kind == "one_hot" and all(part.sizes is None for part in parts):
        raise ShoalError(
            f"{name}='one_hot' needs integers of less than {MAX_CELL_VALUES} values, and "
            f"observation_space={space!r} has none; 'flatten' takes numbers."
        )
    if kind in ("mlp", "mlp_each", "set") and layers.features is not None and not layers.features:
        raise ShoalError(
            f"encoder_features=() leaves {name}={kind!r} without a layer; give one, such as {MLP_FEATURES}."
        )
    if kind == "set":
        _check_sets(space, parts, layers, name)
    if kind in OF_PICTURES:
        pictures = {
            part.path: subspace for part in parts if _is_picture(subspace := _entry(space, part.path))
        }
        if not pictures:
            axes = "[channels, height, width]" if layers.channels_first else "[height, width, channels]"
            raise ShoalError(
                f"{name}={kind!r} needs an observation {axes}, and observation_space={space!r} has none; 'flatten' "
                "works."
            )
        for path, subspace in pictures.items():
            observed, picture = "/".join(("observation", *path)), _channels_last(subspace, layers)
            if kind == "cnn":
                _check_convolutions(observed, picture, layers)
            else:  # the first stack has the most places
                channels = (1,) if layers.channels is None else layers.channels
                _check_channels(kind, f"{observed} {list(picture.shape)}", picture.shape[:2], channels)


def _check_sets(space: Space, parts: tuple[Part, ...], layers: EncoderLayers, name: str) -> None:
    """Raise ShoalError unless there is a set, and the heads of the attention divide its features."""
    if not any(_is_set(part) for part in parts):
        raise ShoalError(
            f"{name}='set' needs an observation [rows, features] of numbers, and observation_space={space!r} has none; "
            "'flatten' works."
        )
    width = (layers.features or MLP_FEATURES)[-1]
    if layers.heads and width % layers.heads:
        raise ShoalError(
            f"encoder_heads={layers.heads} must divide {width}, the last of encoder_features, which it splits."
        )


def _is_set(part: Part) -> bool:
    return len(part.shape) == 2 and part.sizes is None


def _presence_path(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return where an observation may say which rows of a set count; None if the set is the whole observation."""
    return (*path[:-1], path[-1] + PRESENT_SUFFIX) if path else None


def _check_convolutions(name: str, space: Box, layers: EncoderLayers) -> None:
    """Raise ShoalError unless the convolutions fit an array [height, width, channels] and each other."""
    channels, kernels, strides, _ = picture_layers(space, layers)
    observed = f"{name} {list(space.shape)}"
    if not len(channels) == len(kernels) == len(strides):
        fitting = [f"encoder_{x}" for x in ("channels", "kernels", "strides") if getattr(layers, x) is None]
        hint = f"; what is not given ({', '.join(fitting)}) is the default for {observed}"
        raise ShoalError(
            f"encoder_channels={channels}, encoder_kernels={kernels} and encoder_strides={strides} must have equally "
            f"many numbers, one for each convolution{hint if fitting else ''}."
        )
    _check_channels("cnn", observed, (1, 1), channels)
    padding, sides = _padding(space, layers), space.shape[:2]
    if layers.padding == "same" and _num_values(space) is not None:
        raise ShoalError(
            f"encoder_padding='same' pads images, and {observed} is a grid of cells; give 'auto' or 'valid'."
        )
    for index, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
        windows = as_pair(f"encoder_kernels[{index}]", kernel)
        steps = as_pair(f"encoder_strides[{index}]", stride)
        image = f"the {sides[0]} x {sides[1]} image that reaches convolution {index + 1} from {observed}"
        if padding == "valid" and any(window > side for window, side in zip(windows, sides, strict=True)):
            raise ShoalError(
                f"encoder_kernels={kernels} with encoder_strides={strides} has a window of {windows[0]} x "
                f"{windows[1]}, which is larger than {image}; smaller kernels or strides, or fewer of them, would do."
            )
        if min(steps) > max(sides):
            raise ShoalError(
                f"encoder_strides={strides} has a stride of {stride}, which is larger than {image}; it must be at "
                f"most {max(sides)}."
            )
        height, width = map(out_size, sides, windows, steps, (padding, padding))
        _check_channels("cnn", observed, (height, width), channels, index)
        sides = (height, width)


def _check_channels(
    kind: str, observed: str, sides: tuple[int, ...], channels: tuple[int, ...], index: int = 0
) -> None:
    """Raise ShoalError unless there are channels, and not too many numbers after one of the convolutions."""
    if not channels:
        raise ShoalError(
            f"encoder_channels=() leaves encoder={kind!r} without a convolution; give one, such as (16,)."
        )
    if (numbers := math.prod(sides) * channels[index]) > LARGEST_INDEX:
        raise ShoalError(
            f"encoder_channels={channels} gives {numbers} numbers after convolution {index + 1} from {observed}, "
            f"which are too many: they must be at most {LARGEST_INDEX}."
        )


def _padding(space: Box, layers: EncoderLayers) -> Padding:
    """Choose the padding: by default zeros around an image smaller than the window; given kernels must fit."""
    if layers.padding != "auto":
        return "same" if layers.padding == "same" else "valid"
    is_too_small = min(space.shape[:2]) < SMALL_KERNEL and _num_values(space) is None
    return "same" if is_too_small and layers.kernels is None else "valid"


def _is_picture(space: Space) -> TypeGuard[Box]:
    return isinstance(space, Box) and len(space.shape) == 3


def _channels_last(picture: Box, layers: EncoderLayers) -> Box:
    """Return the space of a picture as [height, width, channels]."""
    if not layers.channels_first:
        return picture
    low, high = (np.transpose(bound, (1, 2, 0)) for bound in (picture.low, picture.high))
    return Box(low, high, dtype=picture.dtype)


def _entry(space: Any, path: tuple[str, ...]) -> Any:
    """Return the space that the names of a path lead to."""
    return functools.reduce(lambda entry, name: entry[name], path, space)


def _num_values(space: Box) -> tuple[int, ...] | None:
    """Count the values of each integer of the last axis; None for other numbers, or more values than a cell has."""
    if not space.shape or not np.issubdtype(space.dtype, np.integer) or np.min(space.low) < 0:
        return None
    highest = np.asarray(space.high).reshape(-1, space.shape[-1]).max(axis=0)
    return tuple(int(x) + 1 for x in highest) if highest.max() < MAX_CELL_VALUES else None


class Encoder(nnx.Module):
    """Encodes an observation as one vector.

    A Box is flattened and cast to float32 (its values are not scaled: that is the observation
    normaliser's part), a Discrete becomes one-hot, a MultiDiscrete several one-hots, and the parts of a
    Dict follow each other in name order. With "one_hot" integers of few values, such as the tiles and colours
    of a grid's cells, become one-hot too: the layer on them then has weights for each value at each place,
    which on the CPU costs less than convolutions over a view of 7 x 7 cells. With "mlp_each" every part passes
    an MLP of its own first, so that one of a thousand numbers does not drown one of three; with "mlp" all of them
    together pass one. With "cnn" every part of three axes, [height, width, channels], passes convolutions: a grid of
    cells a `GridCNN`, an image a `CNN`; with "resnet" it passes a `ResidualCNN`. With
    "set" every part of two axes, [rows, features], passes a `SetTorso`, which ignores the order of the rows;
    an entry NAME_present [rows] of integers next to an entry NAME says which rows count (not 0).

    Args:
      layers: of the convolutions with "cnn" and "resnet", of the MLP with "mlp", of each part's with "mlp_each", and of
        each row's with "set".
    Raises:
      ShoalError: an unknown kind, a space that cannot be encoded, an MLP without a layer, "cnn" or "resnet" for a
        space with no part of three axes or with convolutions that do not fit one of these or each other, "set" for one
        without a part of two axes, or "one_hot" for a space without integers of few values.
    Attributes:
      num_features: length of the vector.
    """

    def __init__(
        self,
        space: Space,
        kind: str = "flatten",
        layers: EncoderLayers = DEFAULT_LAYERS,
        *,
        activation: str = "tanh",
        layer_norm: bool = False,
        scale: float = math.sqrt(2),
        initialiser: str = "orthogonal",
        key: Array | None = None,
    ):
        check_encoder(space, kind, layers)
        self.parts = observation_parts(space, cells=kind == "one_hot")
        self.kind = kind
        self.set_parts: tuple[tuple[str, ...], ...] = ()  # path of each set
        self.pictured_parts: tuple[
            tuple[tuple[str, ...], float], ...
        ] = ()  # path and divisor of each picture
        self.channels_first = layers.channels_first
        initial: dict[str, Any] = dict(scale=scale, initialiser=initialiser)
        style = dict(
            activation=activation if layers.activation == "auto" else layers.activation,
            layer_norm=layer_norm or layers.layer_norm,
            **initial,
        )
        torsos: list[MLP] = []
        if kind in ("mlp", "mlp_each"):
            if key is None:
                raise ShoalError(f"encoder={kind!r} needs a key.")
            sizes = MLP_FEATURES if layers.features is None else layers.features
            widths = [part.num_features for part in self.parts]
            widths = [sum(widths)] if kind == "mlp" else widths
            keys = jax.random.split(key, len(widths))
            torsos = [
                MLP(width, sizes, key=mlp_key, **style) for width, mlp_key in zip(widths, keys, strict=True)
            ]
        sets: list[SetTorso] = []
        if kind == "set":
            sets = self._build_sets(layers, style, key)
        pictures: list[Torso] = []
        if kind in OF_PICTURES:
            pictures = self._build_pictures(space, layers, key, initial)
        self.torsos = nnx.List(torsos)
        self.pictures = nnx.List(pictures)
        self.sets = nnx.List(sets)
        flat = [part for part in self.parts if part.path not in self._paths_with_torsos()]
        self.num_features = sum(picture.out_features for picture in pictures)
        self.num_features += sum(part.num_features for part in (*(torsos or flat), *sets))

    def _paths_with_torsos(self) -> set[tuple[str, ...]]:
        return {*dict(self.pictured_parts), *self.set_parts}

    @property
    def expects_repeats(self) -> bool:
        """Whether equal observations are so common that searching for them saves time.

        This holds for grids of cells, with nothing besides them but integers of few values.
        """
        pictured_parts = dict(self.pictured_parts)
        of_few_values = all(part.sizes is not None or part.path in pictured_parts for part in self.parts)
        grids = all(isinstance(picture, GridCNN) for picture in self.pictures)
        return self.kind in ("one_hot", "cnn") and grids and of_few_values

    def __call__(self, observation: Any) -> Array:
        """Encode observations with leading axes [...] as float32 [..., num_features]."""
        pictures = dict(zip(dict(self.pictured_parts), self.pictures, strict=True))
        sets = dict(zip(self.set_parts, self.sets, strict=True))
        vectors = []
        for part in self.parts:
            if part.path in pictures:
                array = part.extract(observation)
                array = jnp.moveaxis(array, -3, -1) if self.channels_first else array
                torso, divisor = pictures[part.path], dict(self.pictured_parts)[part.path]
                is_grid = isinstance(torso, GridCNN)
                vectors.append(torso(array if is_grid else array.astype(jnp.float32) / divisor))
            elif part.path in sets:
                rows = part.extract(observation).astype(jnp.float32)
                vectors.append(sets[part.path](rows, _counted_rows(observation, part.path)))
            else:
                vectors.append(part.flatten(observation))
        if self.torsos and self.kind != "mlp":
            vectors = [torso(vector) for torso, vector in zip(self.torsos, vectors, strict=True)]
        together = vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)
        return self.torsos[0](together) if self.kind == "mlp" else together

    def _build_pictures(
        self, space: Space, layers: EncoderLayers, key: Array | None, style: dict[str, Any]
    ) -> list[Torso]:
        torsos = []
        keys = jax.random.split(jax.random.key(0) if key is None else key, len(self.parts))
        for part, part_key in zip(self.parts, keys, strict=True):
            subspace = _entry(space, part.path)
            subspace = _channels_last(subspace, layers) if _is_picture(subspace) else subspace
            torso = convolutional_torso(subspace, part_key, layers, self.kind, **style)
            if torso is not None:
                is_image = not isinstance(torso, GridCNN) and np.issubdtype(subspace.dtype, np.integer)
                greatest = max(float(np.max(subspace.high)), 1.0) if is_image else 1.0
                self.pictured_parts += ((part.path, greatest),)
                torsos.append(torso)
        return torsos

    def _build_sets(self, layers: EncoderLayers, style: dict[str, Any], key: Array | None) -> list[SetTorso]:
        sizes = MLP_FEATURES if layers.features is None else layers.features
        sets = [part for part in self.parts if _is_set(part)]
        self.set_parts = tuple(part.path for part in sets)
        presence = {_presence_path(path) for path in self.set_parts}
        self.parts = tuple(part for part in self.parts if part.path not in presence)
        keys = jax.random.split(jax.random.key(0) if key is None else key, len(sets))
        return [
            SetTorso(part.shape[-1], sizes, layers.heads, key=set_key, **style)
            for part, set_key in zip(sets, keys, strict=True)
        ]


def _counted_rows(observation: Any, path: tuple[str, ...]) -> Array | None:
    """Return which rows of a set count, [..., K]; None if the observation does not say it."""
    if not path:
        return None
    entries = _entry(observation, path[:-1])
    present = entries.get(path[-1] + PRESENT_SUFFIX)
    return None if present is None else present > 0
