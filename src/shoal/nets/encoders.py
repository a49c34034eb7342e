"""Encoders: an observation of any space becomes one vector."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from shoal.errors import ShoalError, nearest
from shoal.nets.cnn import CNN, GridCNN
from shoal.nets.convolution import Padding
from shoal.nets.inputs import one_hots
from shoal.nets.mlp import MLP
from shoal.spaces import Box, Dict, Discrete, MultiDiscrete, Space

Array = jax.Array

KINDS = ("flatten", "one_hot", "mlp_each", "cnn")
SMALL_KERNEL = 3  # the window for images below 36 x 36, which are pictures of cells
TILE_SIZE, MIN_TILED_SIZE, ATARI_SIZE = 8, 40, 84  # pixels of the sides of a tile, and of images
MAX_CELL_VALUES = 64  # of an integer of a cell: beyond that, integers are the brightness of an image


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of an observation: where it stands, and how it becomes a vector.

    A small hashable value, kept in place of the space itself: the bounds of a Box of images would be
    hashed at every call of a compiled function.
    """

    path: tuple[str, ...]  # names to follow through dictionaries; empty if the observation is one array
    shape: tuple[int, ...]
    sizes: (
        tuple[int, ...] | None
    )  # values of each integer of the last axis, to be made one-hot; None for numbers

    @property
    def num_features(self) -> int:
        """Length of the vector."""
        return math.prod(self.shape) if self.sizes is None else math.prod(self.shape[:-1]) * sum(self.sizes)

    def extract(self, observation: Any) -> Array:
        """The part's array in an observation, checked for its shape."""
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
        """The part as float32 [..., num_features]."""
        array = self.extract(observation)
        batch_shape = array.shape[: array.ndim - len(self.shape)]
        if self.sizes is None:
            return array.astype(jnp.float32).reshape(*batch_shape, self.num_features)
        columns = [array[..., i] for i in range(len(self.sizes))] if self.shape else [array]
        return one_hots(columns, self.sizes).reshape(*batch_shape, self.num_features)


def observation_parts(space: Space, path: tuple[str, ...] = (), *, cells: bool = False) -> tuple[Part, ...]:
    """The arrays of a space's elements, in name order.

    Args:
      space: of the observations.
      path: the names that lead to it.
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


def convolutional_torso(space: Space, key: Array) -> CNN | GridCNN | None:
    """What takes an array [height, width, channels] as a picture; None for a space of another kind.

    Integers of few values are the cells of a grid, which are embedded; of more values an image, whose
    brightness is divided by its greatest; floats are an image as they are. An image of whole tiles of 8 x 8 that
    is smaller than Atari's is taken tile by tile, which on the CPU is several times as fast. An image below 36 x 36
    passes 16 windows of 3 x 3 and a layer of 128, as in MinAtar (Young and Tian 2019, arXiv:1903.03176).
    """
    if not isinstance(space, Box) or len(space.shape) != 3:
        return None
    if (sizes := _num_values(space)) is not None:
        return GridCNN(space.shape, sizes, key=key)
    shortest, longest = min(space.shape[:2]), max(space.shape[:2])
    if MIN_TILED_SIZE <= shortest <= longest < ATARI_SIZE and not any(
        side % TILE_SIZE for side in space.shape[:2]
    ):
        return CNN(space.shape, (16, 32, 32), (TILE_SIZE, 3, 3), (TILE_SIZE, 1, 1), sizes=(), key=key)
    if shortest >= 36:  # what the windows of Mnih et al. 2015 need
        return CNN(space.shape, sizes=(), key=key)
    padding: Padding = "valid" if shortest >= SMALL_KERNEL else "same"
    return CNN(space.shape, (16,), (SMALL_KERNEL,), (1,), padding=padding, sizes=(128,), key=key)


def _num_values(space: Box) -> tuple[int, ...] | None:
    """How many values each integer of the last axis has; None for other numbers, or more values than a cell has."""
    if not space.shape or not np.issubdtype(space.dtype, np.integer) or np.min(space.low) < 0:
        return None
    highest = np.asarray(space.high).reshape(-1, space.shape[-1]).max(axis=0)
    return tuple(int(x) + 1 for x in highest) if highest.max() < MAX_CELL_VALUES else None


class Encoder(nnx.Module):
    """Turns an observation into one vector.

    A Box is flattened and cast to float32 (its values are not scaled: that is the observation
    normaliser's part), a Discrete becomes one-hot, a MultiDiscrete several one-hots, and the parts of a
    Dict follow each other in name order. With "one_hot" integers of few values, such as the tiles and colours
    of a grid's cells, become one-hot too: the layer upon them then has weights for each value at each place,
    which on the CPU costs less than convolutions over a view of 7 x 7 cells. With "mlp_each" every part passes
    an MLP of its own first, so that one of a thousand numbers does not drown one of three. With "cnn" every part
    of three axes, [height, width, channels], passes convolutions: a grid of cells a `GridCNN`, an image a `CNN`.

    Args:
      space: of the observations.
      kind: "flatten", "one_hot", "mlp_each" or "cnn".
      sizes: layers of each part's MLP with "mlp_each".
      activation: of these.
      layer_norm: of these.
      key: a JAX key; "flatten" needs none.

    Raises:
      ShoalError: an unknown kind, a space that cannot be encoded, "mlp_each" without sizes, "cnn" for a space
        with no part of three axes, or "one_hot" for one without integers of few values.

    Attributes:
      num_features: length of the vector.
    """

    def __init__(
        self,
        space: Space,
        kind: str = "flatten",
        sizes: Sequence[int] = (64,),
        *,
        activation: str = "tanh",
        layer_norm: bool = False,
        scale: float = math.sqrt(2),
        key: Array | None = None,
    ):
        if kind not in KINDS:
            raise ShoalError(f"encoder={kind!r} is none of {', '.join(KINDS)}{nearest(str(kind), KINDS)}.")
        self.parts = observation_parts(space, cells=kind == "one_hot")
        if kind == "one_hot" and all(part.sizes is None for part in self.parts):
            raise ShoalError(
                f"encoder='one_hot' needs integers of less than {MAX_CELL_VALUES} values, and "
                f"observation_space={space!r} has none; 'flatten' takes numbers."
            )
        self.kind = kind
        self.pictured_parts: tuple[
            tuple[tuple[str, ...], float], ...
        ] = ()  # path and divisor of each picture
        torsos: list[MLP] = []
        if kind == "mlp_each":
            if not sizes or key is None:
                raise ShoalError(
                    f"encoder='mlp_each' needs a key and at least one layer, not {tuple(sizes)}."
                )
            style: dict[str, Any] = dict(activation=activation, layer_norm=layer_norm, scale=scale)
            keys = jax.random.split(key, len(self.parts))
            torsos = [
                MLP(part.num_features, sizes, key=part_key, **style)
                for part, part_key in zip(self.parts, keys, strict=True)
            ]
        pictures: list[CNN | GridCNN] = []
        if kind == "cnn":
            pictures = self._build_pictures(space, key)
        self.torsos = nnx.List(torsos)
        self.pictures = nnx.List(pictures)
        flat = [part for part in self.parts if part.path not in dict(self.pictured_parts)]
        self.num_features = sum(picture.out_features for picture in pictures)
        self.num_features += sum(part.num_features for part in (torsos or flat))

    @property
    def expects_repeats(self) -> bool:
        """Whether it is to be expected, and worth the search, that equal observations come up again and again.

        So it is for grids of cells, with nothing beside them but integers of few values.
        """
        pictured_parts = dict(self.pictured_parts)
        of_few_values = all(part.sizes is not None or part.path in pictured_parts for part in self.parts)
        grids = all(isinstance(picture, GridCNN) for picture in self.pictures)
        return self.kind in ("one_hot", "cnn") and grids and of_few_values

    def __call__(self, observation: Any) -> Array:
        """Observations with leading axes [...] -> float32 [..., num_features]."""
        if self.pictures:
            return self._encode_with_pictures(observation)
        vectors = [part.flatten(observation) for part in self.parts]
        if self.torsos:
            vectors = [torso(vector) for torso, vector in zip(self.torsos, vectors, strict=True)]
        return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)

    def _build_pictures(self, space: Space, key: Array | None) -> list[CNN | GridCNN]:
        torsos = []
        keys = jax.random.split(jax.random.key(0) if key is None else key, len(self.parts))
        for part, part_key in zip(self.parts, keys, strict=True):
            subspace: Any = space
            for name in part.path:
                subspace = subspace[name]
            if (torso := convolutional_torso(subspace, part_key)) is not None:
                is_image = isinstance(torso, CNN) and np.issubdtype(subspace.dtype, np.integer)
                self.pictured_parts += ((part.path, float(np.max(subspace.high)) if is_image else 1.0),)
                torsos.append(torso)
        if not torsos:
            raise ShoalError(
                f"encoder='cnn' needs an observation [height, width, channels], and observation_space={space!r} has "
                "none; 'flatten' works."
            )
        return torsos

    def _encode_with_pictures(self, observation: Any) -> Array:
        torsos = {
            path: (torso, divisor)
            for torso, (path, divisor) in zip(self.pictures, self.pictured_parts, strict=True)
        }
        vectors = []
        for part in self.parts:
            if part.path not in torsos:
                vectors.append(part.flatten(observation))
                continue
            torso, divisor = torsos[part.path]
            array = part.extract(observation)
            vectors.append(torso(array.astype(jnp.float32) / divisor if isinstance(torso, CNN) else array))
        return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)
