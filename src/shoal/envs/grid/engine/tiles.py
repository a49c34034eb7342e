"""The content of a cell: a tile and a colour, as one 16-bit number.

The low byte is the tile and the high byte the colour, so that a cell reinterpreted as two bytes is
`[tile, colour]`. The numbers are those of XLand-MiniGrid.
"""

import enum

import jax
import jax.numpy as jnp
import numpy as np

from shoal.types import Array

Bytes = jax.Array | np.ndarray  # uint8, as in rulesets


class Tile(enum.IntEnum):
    """The kind of object on a cell."""

    EMPTY = 0  # outside the grid, not visible, or nothing in the pocket
    FLOOR = 1
    WALL = 2
    BALL = 3
    SQUARE = 4
    PYRAMID = 5
    GOAL = 6
    KEY = 7
    DOOR_LOCKED = 8
    DOOR_CLOSED = 9
    DOOR_OPEN = 10
    HEX = 11
    STAR = 12


class Colour(enum.IntEnum):
    """The colour of a tile."""

    EMPTY = 0
    RED = 1
    GREEN = 2
    BLUE = 3
    PURPLE = 4
    YELLOW = 5
    GREY = 6
    BLACK = 7
    ORANGE = 8
    WHITE = 9
    BROWN = 10
    PINK = 11


NUM_TILES, NUM_COLOURS = len(Tile), len(Colour)

TILE_BITS = 8
TILE_MASK = (1 << TILE_BITS) - 1

WALKABLE = (Tile.FLOOR, Tile.GOAL, Tile.DOOR_OPEN)
PICKABLE = (Tile.BALL, Tile.SQUARE, Tile.PYRAMID, Tile.KEY, Tile.HEX, Tile.STAR)
OPAQUE = (Tile.WALL, Tile.DOOR_LOCKED, Tile.DOOR_CLOSED)


def cell(tile: int, colour: int) -> np.uint16:
    """Return the number of a tile of a colour."""
    return np.uint16(int(tile) | int(colour) << TILE_BITS)


NOTHING = cell(Tile.EMPTY, Colour.EMPTY)
FLOOR = cell(Tile.FLOOR, Colour.BLACK)
WALL = cell(Tile.WALL, Colour.GREY)
GOAL = cell(Tile.GOAL, Colour.GREEN)


def coloured_cells(tile: int, colour: Array) -> Array:
    """Return the numbers of a tile of several colours, given as an array."""
    return (jnp.uint16(int(tile)) | colour.astype(jnp.uint16) << TILE_BITS).astype(jnp.uint16)


def tile_of(cells: Array) -> Array:
    """Return the tiles of cells, uint16."""
    return cells & jnp.uint16(TILE_MASK)


def is_one_of(tiles: Array, kinds: tuple[Tile, ...]) -> Array:
    """Report whether each tile is of one of several kinds, by one shift of a constant in place of a table."""
    members = np.uint32(sum(1 << kind for kind in kinds))
    return ((members >> tiles.astype(jnp.uint32)) & 1).astype(bool)


def pack(pairs: Bytes) -> Array:
    """Convert `[tile, colour]` pairs [..., 2] to cells [...]."""
    numbers = jnp.asarray(pairs).astype(jnp.uint16)
    return numbers[..., 0] | numbers[..., 1] << TILE_BITS


def unpack(cells: Array) -> Array:
    """Convert cells [...] to `[tile, colour]` pairs, uint8 [..., 2]."""
    return jnp.stack([cells & jnp.uint16(TILE_MASK), cells >> TILE_BITS], axis=-1).astype(jnp.uint8)
