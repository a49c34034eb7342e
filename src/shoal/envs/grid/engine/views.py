"""The agent's view: the cells in front of it and beside it, rotated so that the agent looks up.

The agent stands in the middle of the last row. Cells outside the grid, and cells that are not visible, are
`NOTHING`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.grid.engine.agent import Agent
from shoal.envs.grid.engine.board import Board, read
from shoal.envs.grid.engine.tiles import NOTHING, OPAQUE, is_one_of, tile_of
from shoal.types import Array
from shoal.xla.single_evaluation import compute_once_in_batch


def view(board: Board, cells: Array, agent: Agent, size: int, see_through_walls: bool) -> Array:
    """Return the tiles and colours that the agent sees, uint8 [size, size, 2]."""
    in_view = view_cells(board, cells, agent, size, see_through_walls)
    return jax.lax.bitcast_convert_type(in_view, jnp.uint8).reshape(size, size, 2)


def view_cells(board: Board, cells: Array, agent: Agent, size: int, see_through_walls: bool) -> Array:
    """Return the cells that the agent sees, row by row, uint16 [size * size]."""

    def read_window(cells: Array, agent: Agent) -> Array:
        return read(cells, view_places(board, agent, size))

    in_view = compute_once_in_batch(read_window)(agent.place >= 0, cells, agent)
    return in_view if see_through_walls else jnp.where(visible_cells(in_view, size), in_view, NOTHING)


def visible_grid_cells(board: Board, cells: Array, agent: Agent, size: int, see_through_walls: bool) -> Array:
    """Report which cells of the grid the agent sees, boolean [height, width]."""
    places = view_places(board, agent, size)
    is_visible = True if see_through_walls else visible_cells(read(cells, places), size)
    return board.grid(jnp.zeros(board.size, bool).at[places].set(is_visible))


def view_places(board: Board, agent: Agent, size: int) -> Array:
    """Return the places in memory of the agent's window, row by row, [size * size]."""
    return agent.place + jnp.asarray(view_offsets(board, size))[agent.direction]


def visible_cells(window: Array, size: int) -> Array:
    """Report which cells of a window, row by row, are not hidden by others: boolean [size * size]."""
    opaque = is_one_of(tile_of(window), OPAQUE).reshape(size, size)
    return spread_visibility(~opaque).reshape(-1)


def view_offsets(board: Board, size: int) -> np.ndarray:
    """Return the distances in memory from the agent to its window: `size - 1` cells ahead, `size // 2` to each
    side.

    One row for each of the agent's directions, [4, size * size]: short axes are slow on the CPU.
    """
    forward = np.arange(size - 1, -1, -1, dtype=np.int32)[:, None]
    sideways = np.arange(size, dtype=np.int32) - size // 2
    neighbour_offsets = board.neighbour_offsets
    views = [
        forward * neighbour_offsets[number] + sideways * neighbour_offsets[(number + 1) % 4]
        for number in range(4)
    ]
    return np.stack(views).reshape(4, -1)


def spread_visibility(transparent: Array) -> Array:
    """Compute the visible cells of a window from its transparent cells; both boolean [V, V].

    Light spreads from the agent row by row, from the last to the first. In a row it passes from every lit
    transparent cell to the next on the right. Then all lit transparent cells light, in the row above, the
    cells straight ahead and diagonally to the right. Then the same is done to the left. This is the rule of
    MiniGrid (Chevalier-Boisvert et al. 2023). Here a row is one integer and a cell is one of its bits.
    """
    size = transparent.shape[-1]
    weights = np.left_shift(np.uint32(1), np.arange(size, dtype=np.uint32))
    transparent_rows = jnp.sum(jnp.where(transparent, weights, np.uint32(0)), axis=-1, dtype=jnp.uint32)
    visible_rows = [jnp.uint32(0)] * size
    visible_rows[-1] = jnp.uint32(1 << size // 2)
    for row in reversed(range(size)):
        row_bits, next_row = visible_rows[row], visible_rows[row - 1]
        for shift, end in ((jnp.left_shift, size - 1), (jnp.right_shift, 0)):
            spreading = transparent_rows[row] & np.uint32((1 << size) - 1 ^ 1 << end)
            for _ in range(size - 1):
                row_bits = row_bits | shift(row_bits & spreading, 1)
            next_row = next_row | (row_bits & spreading) | shift(row_bits & spreading, 1)
        visible_rows[row] = row_bits
        if row:
            visible_rows[row - 1] = next_row
    rows = jnp.stack(visible_rows)
    return (rows[:, None] & weights) != 0
