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
from shoal.nets.inputs import one_hots
from shoal.nets.mlp import MLP
from shoal.spaces import Box, Dict, Discrete, MultiDiscrete, Space

Array = jax.Array

KINDS = ("flatten", "one_hot", "mlp_each", "cnn")
TILE, TILES_FROM, ATARI = 8, 40, 84  # pixels of the sides of a tile, and of images
MOST_VALUES = 64  # of an integer of a cell: beyond that, integers are the brightness of an image


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

    def find(self, observation: Any) -> Array:
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
        array = self.find(observation)
        batch_shape = array.shape[: array.ndim - len(self.shape)]
        if self.sizes is None:
            return array.astype(jnp.float32).reshape(*batch_shape, self.num_features)
        columns = [array[..., i] for i in range(len(self.sizes))] if self.shape else [array]
        return one_hots(columns, self.sizes).reshape(*batch_shape, self.num_features)


def parts_of(space: Space, path: tuple[str, ...] = (), *, cells: bool = False) -> tuple[Part, ...]:
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
            return (Part(path, space.shape, _values(space) if cells else None),)
        case Discrete():
            return (Part(path, (), (space.n,)),)
        case MultiDiscrete():
            return (Part(path, space.shape, space.nvec),)
        case Dict() if len(space):
            names = sorted(space)
            return tuple(part for name in names for part in parts_of(space[name], (*path, name), cells=cells))
    raise ShoalError(
        f"{'/'.join(('observation_space', *path))}={space!r} cannot be encoded; "
        "it must be a Box, Discrete, MultiDiscrete or a Dict with at least one of these."
    )


def convolutions(space: Space, key: Array) -> CNN | GridCNN | None:
    """What takes an array [height, width, channels] as a picture; None for a space of another kind.

    Integers of few values are the cells of a grid, which are embedded; of more values an image, whose
    brightness is divided by its greatest; floats are an image as they are. An image of whole tiles of 8 x 8 that
    is smaller than Atari's is taken tile by tile, which on the CPU is several times as fast.
    """
    if not isinstance(space, Box) or len(space.shape) != 3:
        return None
    if (sizes := _values(space)) is not None:
        return GridCNN(space.shape, sizes, key=key)
    small, large = min(space.shape[:2]), max(space.shape[:2])
    if TILES_FROM <= small <= large < ATARI and not any(side % TILE for side in space.shape[:2]):
        return CNN(space.shape, (16, 32, 32), (TILE, 3, 3), (TILE, 1, 1), sizes=(), key=key)
    if small >= 36:  # what the windows of Mnih et al. 2015 need
        return CNN(space.shape, sizes=(), key=key)
    return CNN(space.shape, (32, 64), (3, 3), (2, 1), padding="same", sizes=(), key=key)


def _values(space: Box) -> tuple[int, ...] | None:
    """How many values each integer of the last axis has; None for other numbers, or more values than a cell has."""
    if not space.shape or not np.issubdtype(space.dtype, np.integer) or np.min(space.low) < 0:
        return None
    most = np.asarray(space.high).reshape(-1, space.shape[-1]).max(axis=0)
    return tuple(int(x) + 1 for x in most) if most.max() < MOST_VALUES else None


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
        self.parts = parts_of(space, cells=kind == "one_hot")
        if kind == "one_hot" and all(part.sizes is None for part in self.parts):
            raise ShoalError(
                f"encoder='one_hot' needs integers of less than {MOST_VALUES} values, and observation_space={space!r} "
                "has none; 'flatten' takes numbers."
            )
        self.kind = kind
        self.shown: tuple[tuple[tuple[str, ...], float], ...] = ()  # path and divisor of each picture
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
            pictures = self._pictures(space, key)
        self.torsos = nnx.List(torsos)
        self.pictures = nnx.List(pictures)
        flat = [part for part in self.parts if part.path not in dict(self.shown)]
        self.num_features = sum(picture.out_features for picture in pictures)
        self.num_features += sum(part.num_features for part in (torsos or flat))

    @property
    def repeats(self) -> bool:
        """Whether it is to be expected, and worth the search, that equal observations come up again and again.

        So it is for grids of cells, with nothing beside them but integers of few values.
        """
        shown = dict(self.shown)
        of_few_values = all(part.sizes is not None or part.path in shown for part in self.parts)
        grids = all(isinstance(picture, GridCNN) for picture in self.pictures)
        return self.kind in ("one_hot", "cnn") and grids and of_few_values

    def __call__(self, observation: Any) -> Array:
        """Observations with leading axes [...] -> float32 [..., num_features]."""
        if self.pictures:
            return self._with_pictures(observation)
        vectors = [part.flatten(observation) for part in self.parts]
        if self.torsos:
            vectors = [torso(vector) for torso, vector in zip(self.torsos, vectors, strict=True)]
        return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)

    def _pictures(self, space: Space, key: Array | None) -> list[CNN | GridCNN]:
        found = []
        keys = jax.random.split(jax.random.key(0) if key is None else key, len(self.parts))
        for part, part_key in zip(self.parts, keys, strict=True):
            own: Any = space
            for name in part.path:
                own = own[name]
            if (picture := convolutions(own, part_key)) is not None:
                image = isinstance(picture, CNN) and np.issubdtype(own.dtype, np.integer)
                self.shown += ((part.path, float(np.max(own.high)) if image else 1.0),)
                found.append(picture)
        if not found:
            raise ShoalError(
                f"encoder='cnn' needs an observation [height, width, channels], and observation_space={space!r} has "
                "none; 'flatten' works."
            )
        return found

    def _with_pictures(self, observation: Any) -> Array:
        pictures = {where: (net, most) for net, (where, most) in zip(self.pictures, self.shown, strict=True)}
        vectors = []
        for part in self.parts:
            if part.path not in pictures:
                vectors.append(part.flatten(observation))
                continue
            net, most = pictures[part.path]
            array = part.find(observation)
            vectors.append(net(array.astype(jnp.float32) / most if isinstance(net, CNN) else array))
        return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)
