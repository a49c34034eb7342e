"""Encoders: an observation of any space becomes one vector."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.errors import ShoalError, nearest
from shoal.nets.mlp import MLP
from shoal.spaces import Box, Dict, Discrete, MultiDiscrete, Space

Array = jax.Array

KINDS = ("flatten", "mlp_each")


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of an observation: where it stands, and how it becomes a vector.

    A small hashable value, kept in place of the space itself: the bounds of a Box of images would be
    hashed at every call of a compiled function.
    """

    path: tuple[str, ...]  # names to follow through dictionaries; empty if the observation is one array
    shape: tuple[int, ...]
    sizes: tuple[int, ...] | None  # values of each integer, to be made one-hot; None for a Box

    @property
    def num_features(self) -> int:
        """Length of the vector."""
        return math.prod(self.shape) if self.sizes is None else sum(self.sizes)

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
        columns = array.reshape(*batch_shape, len(self.sizes))
        one_hots = [jax.nn.one_hot(columns[..., i], n, dtype=jnp.float32) for i, n in enumerate(self.sizes)]
        return jnp.concatenate(one_hots, axis=-1)


def parts_of(space: Space, path: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """The arrays of a space's elements, in name order.

    Raises:
      ShoalError: the space holds something else than Box, Discrete, MultiDiscrete and Dict, or nothing.
    """
    match space:
        case Box():
            return (Part(path, space.shape, None),)
        case Discrete():
            return (Part(path, (), (space.n,)),)
        case MultiDiscrete():
            return (Part(path, space.shape, space.nvec),)
        case Dict() if len(space):
            return tuple(part for name in sorted(space) for part in parts_of(space[name], (*path, name)))
    raise ShoalError(
        f"{'/'.join(('observation_space', *path))}={space!r} cannot be encoded; "
        "it must be a Box, Discrete, MultiDiscrete or a Dict with at least one of these."
    )


class Encoder(nnx.Module):
    """Turns an observation into one vector.

    A Box is flattened and cast to float32 (its values are not scaled: that is the observation
    normaliser's part), a Discrete becomes one-hot, a MultiDiscrete several one-hots, and the parts of a
    Dict follow each other in name order. With "mlp_each" every part passes an MLP of its own first, so
    that one of a thousand numbers does not drown one of three.

    Args:
      space: of the observations.
      kind: "flatten" or "mlp_each".
      sizes: layers of each part's MLP; "flatten" has none.
      activation: of these.
      layer_norm: of these.
      key: a JAX key; "flatten" needs none.

    Raises:
      ShoalError: an unknown kind, a space that cannot be encoded, or "mlp_each" without sizes.

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
        self.parts = parts_of(space)
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
        self.torsos = nnx.List(torsos)
        self.num_features = sum(part.num_features for part in (torsos or self.parts))

    def __call__(self, observation: Any) -> Array:
        """Observations with leading axes [...] -> float32 [..., num_features]."""
        vectors = [part.flatten(observation) for part in self.parts]
        if self.torsos:
            vectors = [torso(vector) for torso, vector in zip(self.torsos, vectors, strict=True)]
        return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)
