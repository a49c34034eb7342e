"""Queries: attention from the recurrent state to grid cells."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.encoders.parts import MAX_CELL_VALUES, observation_parts
from shoal.nets.mlp import MLP
from shoal.types import PyTree
from shoal.types.spaces import Space

Array = jax.Array

_SCORE_OFFSET = -2.0  # added to each score: scores are low before anything is learned


class CellQueries(nnx.Module):
    """Attention from a core's output to the cells of a grid; the layers after the core receive the scores.

    A cell is a few integers, such as its tile and its colour. A query, linear in the core's output, has a weight for
    each value of each integer, and a bias; a cell's score is σ of the sum of its values' weights and the bias. So the
    recurrent state is compared with every cell at once, wherever an object is. Layers on a flat view would have to
    learn the comparison for each place and each kind of object.

    Cells of the observation outside of the grid, such as the object that the agent holds, are scored as well.

    Raises:
      ShoalError: the space has no grid of cells.
    Attributes:
      out_features: queries times cells.
    Source: after the attention of Mott et al. 2019, "Towards Interpretable Reinforcement Learning Using Attention
    Augmented Agents", whose queries come from a memory as well. The keys are the cells' integers themselves, and σ
    stands for the softmax, so that all scores may be low.
    """

    def __init__(self, space: Space, in_features: int, num_queries: int, *, key: Array):
        cells = [
            part for part in observation_parts(space, cells=True) if part.sizes and len(part.shape) in (1, 3)
        ]
        grid = next((part for part in cells if len(part.shape) == 3), None)
        if grid is None or grid.sizes is None:
            raise ShoalError(
                f"queries={num_queries} needs an observation [height, width, k] of integers of less than "
                f"{MAX_CELL_VALUES} values, and observation_space={space!r} has none; leave queries at 0."
            )
        self.parts = tuple(part for part in cells if part.sizes == grid.sizes)
        self.sizes = grid.sizes
        self.num_queries = num_queries
        self.num_cells = sum(math.prod(part.shape[:-1]) for part in self.parts)
        self.wanted = MLP(in_features, (), num_queries * (1 + sum(self.sizes)), key=key)
        self.out_features = num_queries * self.num_cells

    def __call__(self, features: Array, observation: PyTree) -> Array:
        """Map the core's output [..., in_features] and observations [...] to scores in (0, 1), [..., out_features]."""
        batch_shape = features.shape[:-1]
        wanted = self.wanted(features).reshape(*batch_shape, self.num_queries, -1)
        query_score, *value_scores = jnp.split(
            wanted, [1 + sum(self.sizes[:i]) for i in range(len(self.sizes))], axis=-1
        )
        cells = [part.extract(observation).reshape(*batch_shape, -1, len(self.sizes)) for part in self.parts]
        values = jnp.concatenate(cells, axis=-2).astype(jnp.int32)
        score = query_score + _SCORE_OFFSET
        for index, scores in enumerate(value_scores):
            indices = jnp.broadcast_to(
                values[..., None, :, index], (*batch_shape, self.num_queries, self.num_cells)
            )
            score += jnp.take_along_axis(scores, indices, axis=-1)
        return jax.nn.sigmoid(score).reshape(*batch_shape, self.out_features)
