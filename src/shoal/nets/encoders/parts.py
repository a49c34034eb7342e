"""The arrays of an observation: where each stands, and how it becomes a vector."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.nets.inputs import one_hots
from shoal.types import PyTree
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space

Array = jax.Array
Path = tuple[str, ...]  # names to follow through dictionaries; empty if the observation is one array

MAX_CELL_VALUES = 64  # per integer of a cell: with more, integers are the brightness of an image


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of an observation: where it stands, and how it becomes a vector.

    A small hashable value, kept in place of the space itself: the bounds of a Box of images would be
    hashed at every call of a compiled function.
    """

    path: Path
    shape: tuple[int, ...]
    # Values of each integer of the last axis, to be made one-hot; None for numbers.
    sizes: tuple[int, ...] | None

    @property
    def num_features(self) -> int:
        """Length of the vector."""
        return math.prod(self.shape) if self.sizes is None else math.prod(self.shape[:-1]) * sum(self.sizes)

    def extract(self, observation: PyTree) -> Array:
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

    def flatten(self, observation: PyTree) -> Array:
        """Return the part as float32 [..., num_features]."""
        array = self.extract(observation)
        batch_shape = array.shape[: array.ndim - len(self.shape)]
        if self.sizes is None:
            return array.astype(jnp.float32).reshape(*batch_shape, self.num_features)
        columns = [array[..., i] for i in range(len(self.sizes))] if self.shape else [array]
        return one_hots(columns, self.sizes).reshape(*batch_shape, self.num_features)


def observation_parts(space: Space, path: Path = (), *, cells: bool = False) -> tuple[Part, ...]:
    """List the arrays of a space's elements, in name order.

    Args:
      cells: whether a Box of integers of few values is taken as such, and not as numbers.
    Raises:
      ShoalError: the space holds something else than Box, Discrete, MultiDiscrete and Dict, or nothing.
    """
    match space:
        case Box():
            return (Part(path, space.shape, num_values(space) if cells else None),)
        case Discrete():
            return (Part(path, (), (space.n,)),)
        case MultiDiscrete():
            return (Part(path, space.shape, space.nvec),)
        case Dict() if len(space):
            # The order in which JAX flattens a dictionary.
            names = sorted(space)
            return tuple(
                part for name in names for part in observation_parts(space[name], (*path, name), cells=cells)
            )
    raise ShoalError(
        f"{'/'.join(('observation_space', *path))}={space!r} cannot be encoded; "
        "it must be a Box, Discrete, MultiDiscrete or a Dict with at least one of these."
    )


def entry(tree: PyTree, path: Path) -> PyTree:
    """Return what the names of a path lead to, in a space or in an observation."""
    return functools.reduce(lambda entry, name: entry[name], path, tree)


def num_values(space: Box) -> tuple[int, ...] | None:
    """Count the values of each integer of the last axis; None for other numbers, or more values than a cell has."""
    # A negative integer would have no row in a table of embeddings.
    if not space.shape or not np.issubdtype(space.dtype, np.integer) or np.min(space.low) < 0:
        return None
    highest = np.asarray(space.high).reshape(-1, space.shape[-1]).max(axis=0)
    return tuple(int(x) + 1 for x in highest) if highest.max() < MAX_CELL_VALUES else None
