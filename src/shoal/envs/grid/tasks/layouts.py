"""Layouts of worlds: walls and rooms, whose cells are known while tracing, and random draws without loops.

All random draws of an episode come from one call of the generator (`random_bits`), one 32-bit number per
decision.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.grid.engine.board import Board
from shoal.envs.grid.engine.tiles import FLOOR, WALL, Colour, Tile
from shoal.types import Array

COLOURS = (Colour.RED, Colour.GREEN, Colour.BLUE, Colour.PURPLE, Colour.YELLOW, Colour.GREY)
MAX_WITHOUT_TABLE = 14  # numbers drawn; with more, compiling takes long
# The sides in which each door joins two rooms: the shortest, the step from one to the next, and both in words.
SIDES = {
    "R1": (0, 1, ""),
    "R2": (5, 2, "an odd number of 5 or more"),
    "R4": (5, 2, "an odd number of 5 or more"),
    "R6": (9, 1, "9 or more"),
    "R9": (7, 3, "7 or more, and one more than a multiple of 3"),
}
THINGS = (Tile.BALL, Tile.SQUARE, Tile.PYRAMID, Tile.HEX, Tile.STAR)


def random_bits(key: Array, count: int) -> Array:
    """Draw random 32-bit numbers, [count]."""
    return jax.random.bits(key, (count,), jnp.uint32)


def uniform_below(bits: Array, limit: Array | int) -> Array:
    """Convert random numbers to whole numbers from 0 to `limit - 1`: `floor(bits * limit / 2^32)`.

    The product has more than 32 bits, so it is computed in two halves. No number is likelier than another by
    more than one part in `2^32 / limit`; `limit` is less than 2^16.
    """
    limit = jnp.asarray(limit, jnp.uint32)
    high, low = (bits >> 16) * limit, (bits & 0xFFFF) * limit
    return (high + (low >> 16) >> 16).astype(jnp.int32)


def choose(bits: Array, choices: Sequence[int]) -> Array:
    """Choose one of several values for each random number."""
    return jnp.asarray(np.asarray(choices, np.int32))[uniform_below(bits, len(choices))]


def sample_distinct(bits: Array, total: Array | int) -> list[Array]:
    """Draw different numbers from 0 to `total - 1`, all orders equally likely; as many as there are bits.

    These are the first steps of a Fisher-Yates shuffle. For few numbers, only the entries of its table that
    were swapped are stored; otherwise `total` must not be traced.
    """
    if bits.shape[0] > MAX_WITHOUT_TABLE and isinstance(total, int):
        return list(_sample_distinct_by_table(bits, total))
    swapped: list[tuple[Array, Array]] = []  # entries of the table, and their values now

    def entry_at(place: Array | int) -> Array:
        entry = jnp.asarray(place, jnp.int32)
        for other, value in swapped:  # a later swap of the same entry counts
            entry = jnp.where(other == place, value, entry)
        return entry

    samples = []
    for index in range(bits.shape[0]):
        position = index + uniform_below(bits[index], total - index)
        samples.append(entry_at(position))
        swapped.append((position, entry_at(index)))
    return samples


def _sample_distinct_by_table(bits: Array, total: int) -> Array:
    def swap(table: Array, index_and_bits: tuple[Array, Array]) -> tuple[Array, Array]:
        index, entry_bits = index_and_bits
        position = index + uniform_below(entry_bits, total - index)
        return table.at[position].set(table[index]), table[position]

    indices = jnp.arange(bits.shape[0], dtype=jnp.int32)
    return jax.lax.scan(swap, jnp.arange(total, dtype=jnp.int32), (indices, bits))[1]


def room(height: int, width: int) -> np.ndarray:
    """Make floor within walls, cells [height, width]."""
    grid = np.full((height, width), FLOOR, np.uint16)
    grid[[0, -1], :] = WALL
    grid[:, [0, -1]] = WALL
    return grid


def two_rooms(height: int, width: int) -> np.ndarray:
    """Make two rooms side by side."""
    grid = room(height, width)
    grid[:, width // 2] = WALL
    return grid


def four_rooms(height: int, width: int) -> np.ndarray:
    """Make two by two rooms."""
    grid = two_rooms(height, width)
    grid[height // 2, :] = WALL
    return grid


def six_rooms(height: int, width: int) -> np.ndarray:
    """Make three rooms on each side of a corridor from top to bottom."""
    left, right = width // 2 - 2, width // 2 + 2
    grid = room(height, width)
    grid[:, [left, right]] = WALL
    for row in (height // 3, 2 * (height // 3)):
        grid[row, :left] = WALL
        grid[row, right : right + left] = WALL
    return grid


def nine_rooms(height: int, width: int) -> np.ndarray:
    """Make three by three rooms."""
    grid = room(height, width)
    grid[:, [width // 3, 2 * (width // 3)]] = WALL
    grid[[height // 3, 2 * (height // 3)], :] = WALL
    return grid


def check_rooms(rooms: str, height: int, width: int) -> None:
    """Require that a world of 1, 2, 4, 6 or 9 rooms ("R1" and so on) has a size in which each door joins two rooms."""
    size = f"height={height}, width={width}"
    if rooms != "R1" and height != width:
        raise ShoalError(f"{size}: a world of several rooms must be square")
    smallest, step, words = SIDES[rooms]
    if height < smallest or (height - smallest) % step:
        raise ShoalError(f"{size}: {rooms} needs {words}")


def free_places(board: Board, grid: np.ndarray) -> np.ndarray:
    """Return the places in memory of a grid's floor, int32."""
    rows, columns = np.nonzero(grid == FLOOR)
    return np.asarray(board.place(rows, columns), np.int32)


def two_rooms_door(board: Board, bits: Array) -> Array:
    """Draw the place of the door between two rooms, from one random number."""
    return board.place(1 + uniform_below(bits, board.height - 2), board.width // 2)


def four_rooms_doors(board: Board, bits: Array) -> Array:
    """Draw the places of the four doors between four rooms, from four random numbers: left, right, upper, lower."""
    middle_row, middle_column = board.height // 2, board.width // 2
    offsets = 1 + uniform_below(bits, middle_row - 1)
    return jnp.stack(
        [
            board.place(middle_row, offsets[0]),
            board.place(middle_row, middle_column + offsets[1]),
            board.place(offsets[2], middle_column),
            board.place(middle_row + offsets[3], middle_column),
        ]
    )


def six_rooms_doors(board: Board) -> np.ndarray:
    """Return the places of the six doors to the corridor: those on the left from top to bottom, then on the right."""
    middle, third = board.height // 2, board.height // 3
    rows = np.asarray([middle - third, middle, middle + third] * 2)
    columns = np.asarray([board.width // 2 - 2] * 3 + [board.width // 2 + 2] * 3)
    return np.asarray(board.place(rows, columns), np.int32)


def six_rooms_corners(board: Board) -> np.ndarray:
    """Return the upper left corners of the walls of the six rooms, in the order of their doors."""
    third = board.height // 3
    rows = np.asarray([0, third, 2 * third] * 2)
    columns = np.asarray([0] * 3 + [board.width // 2 + 2] * 3)
    return np.asarray(board.place(rows, columns), np.int32)


def nine_rooms_doors(board: Board, bits: Array) -> Array:
    """Draw the places of the twelve doors between nine rooms, from twelve random numbers."""
    height, width = board.height // 3, board.width // 3
    offsets = 1 + uniform_below(bits, width - 1)
    walls = [(row * height, (column + 1) * width, True) for row in range(3) for column in range(2)]
    walls += [((row + 1) * height, column * width, False) for row in range(2) for column in range(3)]
    return jnp.stack(
        [
            board.place(row + offset, column) if vertical else board.place(row, column + offset)
            for (row, column, vertical), offset in zip(walls, offsets, strict=True)
        ]
    )
