"""Grid worlds as RGB images, in the style that users of MiniGrid know.

Every tile of every colour, with and without the agent on it, is drawn once with NumPy (`atlas`); an image of
many cells is then one gather, which can be compiled and mapped over.
"""

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from shoal.envs.drawing import Point, Shape, box, canvas, disc, finished, grown, paint, polygon
from shoal.envs.grid.board import DIRECTIONS, read
from shoal.envs.grid.tiles import NUM_COLOURS, NUM_TILES, TILE_BITS, Colour, Tile, tile_of
from shoal.types import Array

RGB = {
    Colour.EMPTY: (40, 40, 48),
    Colour.RED: (255, 0, 0),
    Colour.GREEN: (0, 255, 0),
    Colour.BLUE: (0, 0, 255),
    Colour.PURPLE: (112, 39, 195),
    Colour.YELLOW: (255, 255, 0),
    Colour.GREY: (100, 100, 100),
    Colour.BLACK: (0, 0, 0),
    Colour.ORANGE: (255, 140, 0),
    Colour.WHITE: (255, 255, 255),
    Colour.BROWN: (160, 82, 45),
    Colour.PINK: (225, 20, 147),
}
LINE = RGB[Colour.GREY]  # between cells, along their upper and left edges
LINE_WIDTH = 1 / 32
RIM = 1 / 16  # in the colour of the lines, about things that are black: the floor is black too
SOOT = (28, 28, 28)  # of doors, goals and walls that are black
LIT = 0.3  # how far towards white the cells are that the agent sees, in a picture of the whole grid

FIGURES = len(DIRECTIONS) + 1  # no agent on a tile, or one that looks up, right, down or left
NOBODY, LOOKING_UP = 0, 1


def _around(corners: int, radii: tuple[float, float], middle: float, first: float = 0.0) -> list[Point]:
    """Corners around a point, at the radii in turn, the first one at an angle from upright, clockwise."""
    turns = [first + math.tau * k / corners for k in range(corners)]
    reach = [radii[k % 2] for k in range(corners)]
    return [(0.5 + r * math.sin(t), middle - r * math.cos(t)) for r, t in zip(reach, turns, strict=True)]


WHOLE = box(0, 0, 1, 1)
LINES = (box(0, 0, LINE_WIDTH, 1), box(0, 0, 1, LINE_WIDTH))

# What can be carried, each a union of shapes; lengths are in tiles.
THINGS = {
    Tile.BALL: (disc((0.5, 0.5), 0.31),),
    Tile.SQUARE: (box(0.24, 0.24, 0.76, 0.76),),
    Tile.PYRAMID: (polygon([(0.5, 0.17), (0.87, 0.81), (0.13, 0.81)]),),
    Tile.KEY: (
        disc((0.56, 0.28), 0.19),
        box(0.5, 0.3, 0.63, 0.88),
        box(0.37, 0.58, 0.56, 0.67),
        box(0.37, 0.79, 0.56, 0.88),
    ),
    Tile.HEX: (polygon(_around(6, (0.35, 0.35), 0.5, math.tau / 12)),),
    Tile.STAR: (polygon(_around(10, (0.42, 0.17), 0.54)),),
}
KEYHOLE_OF_THE_KEY = disc((0.56, 0.28), 0.065)

AGENT = ((0.5, 0.13), (0.81, 0.87), (0.19, 0.87))  # looking up
FINE = 32  # small tiles are drawn so large at least, and made smaller


@functools.cache
def atlas(size: int) -> np.ndarray:
    """All tiles, uint8 [tiles, colours, FIGURES, size, size, 3]; not to be written to."""
    times = -(-FINE // size)
    tiles = np.empty((NUM_TILES, NUM_COLOURS, FIGURES, size, size, 3), np.uint8)
    for tile in Tile:
        for colour in Colour:
            empty = _drawn(tile, colour, times * size)
            for figure in range(FIGURES):
                picture = empty if figure == NOBODY else _with_agent(empty, figure - LOOKING_UP)
                smaller = picture.reshape(size, times, size, times, 3).mean((1, 3))
                tiles[tile, colour, figure] = finished(smaller)
    tiles.flags.writeable = False
    return tiles


def image(cells: Array, figures: Array | np.ndarray, size: int) -> Array:
    """An image of cells, in which a cell may hold an agent.

    Args:
      cells: tiles and colours that exist, uint16 [H, W].
      figures: NOBODY, or LOOKING_UP and the direction of an agent, int [H, W].
      size: of a tile's side, in pixels.

    Returns:
      uint8 [H * size, W * size, 3].
    """
    height, width = cells.shape
    rows = jnp.asarray(atlas(size).reshape(-1, 3 * size))  # of pixels: slices of a gather that are long
    kinds = tile_of(cells).astype(jnp.int32) * NUM_COLOURS + (cells >> TILE_BITS).astype(jnp.int32)
    first_rows = (kinds * FIGURES + figures) * size
    chosen = read(rows, first_rows[:, None, :] + np.arange(size, dtype=np.int32)[:, None])
    return chosen.reshape(height * size, width * size, 3)


def image_of_view(cells: Array, size: int) -> Array:
    """An image of what an agent sees, itself in the middle of the last row: uint8 [V * size, V * size, 3]."""
    figures = np.full(cells.shape, NOBODY, np.int32)
    figures[-1, cells.shape[1] // 2] = LOOKING_UP
    return image(cells, figures, size)


def image_of_grid(
    cells: Array, position: tuple[Array, Array], direction: Array, lit: Array, size: int
) -> Array:
    """An image of a whole grid.

    Args:
      cells: uint16 [H, W].
      position: row and column of the agent.
      direction: where it looks.
      lit: the cells that it sees, boolean [H, W].
      size: of a tile's side, in pixels.

    Returns:
      uint8 [H * size, W * size, 3].
    """
    figures = jnp.full(cells.shape, NOBODY, jnp.int32).at[position].set(LOOKING_UP + direction)
    picture = image(cells, figures, size)
    lit = jnp.repeat(jnp.repeat(lit, size, axis=0), size, axis=1)[..., None]
    lighter = picture + jnp.round(LIT * (255.0 - picture)).astype(jnp.uint8)
    return jnp.where(lit, lighter, picture)


def _drawn(tile: Tile, colour: Colour, size: int) -> np.ndarray:
    """A tile without the agent, as a picture that can be painted on."""
    black = RGB[Colour.BLACK]
    rgb = SOOT if colour == Colour.BLACK and tile not in (Tile.FLOOR, *THINGS) else RGB[colour]
    dark = (rgb[0] // 2, rgb[1] // 2, rgb[2] // 2)
    picture = canvas(size, size, black)
    put = functools.partial(_put, picture)
    match tile:
        case Tile.EMPTY:
            put([WHOLE], RGB[Colour.EMPTY])
        case Tile.WALL:
            put([WHOLE], rgb)
        case Tile.FLOOR:
            put([WHOLE], dark)
            put(LINES, LINE)
        case Tile.GOAL:
            put([WHOLE], rgb)
            put(LINES, dark if rgb == LINE else LINE)
        case Tile.DOOR_LOCKED:
            put([WHOLE], rgb)
            put([box(0.06, 0.06, 0.94, 0.94)], dark)
            put([box(0.52, 0.47, 0.76, 0.57)], rgb)
        case Tile.DOOR_CLOSED:
            for edge, fill in ((0.0, rgb), (0.04, black), (0.09, rgb), (0.14, black)):
                put([box(edge, edge, 1 - edge, 1 - edge)], fill)
            put([disc((0.74, 0.5), 0.085)], rgb)
        case Tile.DOOR_OPEN:
            put(LINES, LINE)
            put([box(0.87, 0, 1, 1)], rgb)
            put([box(0.915, 0.045, 0.955, 0.955)], black)
        case _:
            put(LINES, LINE)
            if colour == Colour.BLACK:
                put([grown(shape, RIM) for shape in THINGS[tile]], LINE)
            put(THINGS[tile], rgb)
            if tile == Tile.KEY:
                put([KEYHOLE_OF_THE_KEY], black)
    return picture


def _with_agent(picture: np.ndarray, direction: int) -> np.ndarray:
    """A tile with the agent on it, looking in a direction."""
    picture, triangle = picture.copy(), polygon(_turned(AGENT, direction))
    _put(picture, [grown(triangle, RIM / 2)], RGB[Colour.BLACK])
    _put(picture, [triangle], RGB[Colour.RED])
    return picture


def _put(picture: np.ndarray, shapes: Sequence[Shape], colour: tuple[int, int, int]) -> None:
    for shape in shapes:
        paint(picture, shape, colour, unit=len(picture))


def _turned(points: Sequence[Point], quarters: int) -> list[Point]:
    """Points of a tile after so many quarter turns to the right."""
    turned = list(points)
    for _ in range(quarters):
        turned = [(1 - y, x) for x, y in turned]
    return turned
