"""What an agent sees: the cells in front of it and beside it, turned so that it looks up.

The agent stands in the middle of the last row. Cells outside the grid, and those that it cannot see, are
`NOTHING`.
"""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.grid.actions import Agent
from shoal.envs.grid.batching import compute_once_in_batch
from shoal.envs.grid.board import Board, read
from shoal.envs.grid.tiles import NOTHING, OPAQUE, is_one_of, tile_of
from shoal.types import Array


def view(board: Board, cells: Array, agent: Agent, size: int, see_through_walls: bool) -> Array:
    """The tiles and colours that the agent sees, uint8 [size, size, 2]."""
    seen = seen_cells(board, cells, agent, size, see_through_walls)
    return jax.lax.bitcast_convert_type(seen, jnp.uint8).reshape(size, size, 2)


def seen_cells(board: Board, cells: Array, agent: Agent, size: int, see_through_walls: bool) -> Array:
    """The cells that the agent sees, row by row, uint16 [size * size]."""

    def window(cells: Array, agent: Agent) -> Array:
        return read(cells, places_ahead(board, agent, size))

    seen = compute_once_in_batch(window)(agent.place >= 0, cells, agent)
    return seen if see_through_walls else jnp.where(lit(seen, size), seen, NOTHING)


def places_seen(board: Board, cells: Array, agent: Agent, size: int, see_through_walls: bool) -> Array:
    """Which cells of the grid the agent sees, boolean [height, width]."""
    places = places_ahead(board, agent, size)
    seen = True if see_through_walls else lit(read(cells, places), size)
    return board.grid(jnp.zeros(board.size, bool).at[places].set(seen))


def places_ahead(board: Board, agent: Agent, size: int) -> Array:
    """Where in memory lies what the agent could see, row by row, [size * size]."""
    return agent.place + jnp.asarray(offsets(board, size))[agent.direction]


def lit(window: Array, size: int) -> Array:
    """Which cells of a window, row by row, are not hidden by others: boolean [size * size]."""
    opaque = is_one_of(tile_of(window), OPAQUE).reshape(size, size)
    return visible(~opaque).reshape(-1)


def offsets(board: Board, size: int) -> np.ndarray:
    """From the agent to what it sees, by its direction: `size - 1` cells ahead, `size // 2` to each side.

    Row by row, [4, size * size]: short axes are slow on the CPU.
    """
    forward = np.arange(size - 1, -1, -1, dtype=np.int32)[:, None]
    sideways = np.arange(size, dtype=np.int32) - size // 2
    steps = board.neighbour_offsets
    views = [forward * steps[number] + sideways * steps[(number + 1) % 4] for number in range(4)]
    return np.stack(views).reshape(4, -1)


def visible(transparent: Array) -> Array:
    """Which cells of a window can be seen, given which can be seen through; both boolean [V, V].

    Light spreads from the agent row by row, from the last to the first. In a row it passes from every lit
    transparent cell to the next on the right; then all of these light, in the row above, the cells
    straight and diagonally to the right ahead of them; then the same to the left. This is the rule of
    MiniGrid (Chevalier-Boisvert et al. 2023). A row is one integer here, a cell one of its bits.
    """
    size = transparent.shape[-1]
    weights = np.left_shift(np.uint32(1), np.arange(size, dtype=np.uint32))
    clear = jnp.sum(jnp.where(transparent, weights, np.uint32(0)), axis=-1, dtype=jnp.uint32)
    lit = [jnp.uint32(0)] * size
    lit[-1] = jnp.uint32(1 << size // 2)
    for row in reversed(range(size)):
        here, above = lit[row], lit[row - 1]
        for shift, end in ((jnp.left_shift, size - 1), (jnp.right_shift, 0)):
            passing = clear[row] & np.uint32((1 << size) - 1 ^ 1 << end)
            for _ in range(size - 1):
                here = here | shift(here & passing, 1)
            above = above | (here & passing) | shift(here & passing, 1)
        lit[row] = here
        if row:
            lit[row - 1] = above
    rows = jnp.stack(lit)
    return (rows[:, None] & weights) != 0
