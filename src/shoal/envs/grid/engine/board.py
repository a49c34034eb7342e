"""The layout of a grid in memory: flat, with a margin, so that readers need not check whether a cell is inside.

Rows follow each other at a distance of `width + margin` cells: the margin to the right of one row is also the
margin to the left of the next. The margin holds `NOTHING`, and is as wide as a view reaches.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.envs.grid.engine.tiles import NOTHING
from shoal.types import Array

DIRECTIONS = ("up", "right", "down", "left")  # by number


class Board(NamedTuple):
    """Sizes of a grid; static."""

    height: int
    width: int
    margin: int

    @property
    def stride(self) -> int:
        """The distance in memory from a cell to the one below it."""
        return self.width + self.margin

    @property
    def size(self) -> int:
        """The number of cells in memory, the margin included."""
        return (self.height + 2 * self.margin) * self.stride + self.margin

    @property
    def neighbour_offsets(self) -> np.ndarray:
        """Distances in memory from a cell to its neighbours above, right, below and left, [4]."""
        return np.asarray((-self.stride, 1, self.stride, -1), np.int32)

    def place(self, row: Any, column: Any) -> Any:
        """Return the place in memory of a cell of the grid; numbers or arrays, as row and column are."""
        return (row + self.margin) * self.stride + column + self.margin

    def position(self, place: Array) -> tuple[Array, Array]:
        """Return the row and the column of a place inside the grid."""
        row, column = jnp.divmod(place - self.margin, self.stride)
        return row - self.margin, column

    def flat(self, grid: np.ndarray) -> np.ndarray:
        """Convert a grid of cells [height, width] to this layout, [size]."""
        cells = np.full(self.size, NOTHING, np.uint16)
        cells[self._places()] = grid
        return cells

    def grid(self, cells: Array) -> Array:
        """Convert cells in this layout to the grid [height, width]."""
        return cells[self._places()]

    def _places(self) -> np.ndarray:
        return np.asarray(self.place(np.arange(self.height)[:, None], np.arange(self.width)))


def direction_offset(board: Board, direction: Array) -> Array:
    """Return the distance in memory from a cell to its neighbour in a direction, by selects in place of a table."""
    vertical = jnp.where(direction == 0, -board.stride, board.stride)
    horizontal = jnp.where(direction == 1, 1, -1)
    return jnp.where(direction % 2 == 0, vertical, horizontal).astype(jnp.int32)


def read(cells: Array, places: object) -> Array:
    """Read the cells at places that are known to lie in memory."""
    return cells.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)


def write(cells: Array, places: object, values: object, *, unique: bool = True) -> Array:
    """Write a value, or one value per place, to places that are known to lie in memory."""
    return cells.at[places].set(
        values, mode="promise_in_bounds", unique_indices=unique, wrap_negative_indices=False
    )
