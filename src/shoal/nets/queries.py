"""Queries: where among the cells of a view there is what a memory looks for."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.errors import ShoalError
from shoal.nets.encoders import MOST_VALUES, parts_of
from shoal.nets.mlp import MLP
from shoal.spaces import Space
from shoal.types import PyTree

Array = jax.Array

_RARE = -2.0  # added to each score: before anything is learned, little is found


class CellQueries(nnx.Module):
    """Shows what follows a core where in a grid of cells there is what the core looks for.

    A cell is a few integers: its tile, its colour. A query, linear in the core's output, is one number for each
    value of each of these, how much it is wanted, and one of its own; a cell is found by σ of the sum of its values'
    numbers and that one. So what is remembered of a thing is compared with every cell at once, wherever it lies.
    Layers upon a flat view would have to learn the comparison for each place and each kind of thing.

    A cell that stands beside the grid, such as what the agent holds, is asked as well.

    Args:
      space: of the observations.
      in_features: length of the core's output.
      number: of queries.
      key: a JAX key.

    Raises:
      ShoalError: the space has no grid of cells, or the number is below 1.

    Attributes:
      out_features: queries times cells.

    Source: after the attention of Mott et al. 2019, "Towards Interpretable Reinforcement Learning Using Attention
    Augmented Agents", whose queries come from a memory as well. The keys are the cells' integers themselves, and σ
    stands for the softmax, so that where nothing is found nothing is shown.
    """

    def __init__(self, space: Space, in_features: int, number: int, *, key: Array):
        if number < 1:
            raise ShoalError(f"queries={number} of CellQueries must be at least 1.")
        cells = [part for part in parts_of(space, cells=True) if part.sizes and len(part.shape) in (1, 3)]
        grid = next((part for part in cells if len(part.shape) == 3), None)
        if grid is None or grid.sizes is None:
            raise ShoalError(
                f"queries={number} needs an observation [height, width, k] of integers of less than {MOST_VALUES} "
                f"values, and observation_space={space!r} has none; leave queries at 0."
            )
        self.parts = tuple(part for part in cells if part.sizes == grid.sizes)
        self.sizes = grid.sizes
        self.number = number
        self.cells = sum(math.prod(part.shape[:-1]) for part in self.parts)
        self.wanted = MLP(in_features, (), number * (1 + sum(self.sizes)), key=key)
        self.out_features = number * self.cells

    def __call__(self, features: Array, observation: PyTree) -> Array:
        """The core's output [..., in_features], observations [...] -> how far each is found, [..., out_features]."""
        batch_shape = features.shape[:-1]
        wanted = self.wanted(features).reshape(*batch_shape, self.number, -1)
        own, *of_values = jnp.split(
            wanted, [1 + sum(self.sizes[:i]) for i in range(len(self.sizes))], axis=-1
        )
        cells = [part.find(observation).reshape(*batch_shape, -1, len(self.sizes)) for part in self.parts]
        values = jnp.concatenate(cells, axis=-2).astype(jnp.int32)
        score = own + _RARE
        for index, numbers in enumerate(of_values):
            asked = jnp.broadcast_to(values[..., None, :, index], (*batch_shape, self.number, self.cells))
            score += jnp.take_along_axis(numbers, asked, axis=-1)
        return jax.nn.sigmoid(score).reshape(*batch_shape, self.out_features)
