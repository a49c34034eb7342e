"""Grid worlds as RGB images, in the style of MiniGrid.

Every tile of every colour, with and without the agent on it, is drawn once with NumPy (`atlas`); an image of
many cells is then one gather, which can be compiled and mapped over.
"""

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from shoal.envs.drawing import Point, Shape, box, canvas, disc, expand, paint, polygon, to_uint8
from shoal.envs.grid.engine.board import DIRECTIONS, read
from shoal.envs.grid.engine.tiles import NUM_COLOURS, NUM_TILES, TILE_BITS, Colour, Tile, tile_of
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
OUTLINE_WIDTH = 1 / 16  # in the colour of the lines, around black objects, since the floor is black too
NEAR_BLACK = (28, 28, 28)  # of black doors, goals and walls
HIGHLIGHT = 0.3  # how far visible cells are blended towards white in an image of the whole grid

NUM_FIGURES = len(DIRECTIONS) + 1  # no agent on a tile, or one that looks up, right, down or left
NO_AGENT, AGENT_UP = 0, 1


def _radial_points(
    corners: int, radii: tuple[float, float], middle: float, first_angle: float = 0.0
) -> list[Point]:
    """Return corners around a point, at the radii in turn, the first one at an angle from upright, clockwise."""
    angles = [first_angle + math.tau * k / corners for k in range(corners)]
    distances = [radii[k % 2] for k in range(corners)]
    return [(0.5 + r * math.sin(t), middle - r * math.cos(t)) for r, t in zip(distances, angles, strict=True)]


FULL_TILE = box(0, 0, 1, 1)
GRID_LINES = (box(0, 0, LINE_WIDTH, 1), box(0, 0, 1, LINE_WIDTH))

# Objects that can be carried, each a union of shapes; lengths are in tiles.
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
    Tile.HEX: (polygon(_radial_points(6, (0.35, 0.35), 0.5, math.tau / 12)),),
    Tile.STAR: (polygon(_radial_points(10, (0.42, 0.17), 0.54)),),
}
KEY_RING_HOLE = disc((0.56, 0.28), 0.065)

AGENT = ((0.5, 0.13), (0.81, 0.87), (0.19, 0.87))  # looking up
MIN_DRAWN_SIZE = 32  # smaller tiles are drawn at this size and reduced


@functools.cache
def atlas(size: int) -> np.ndarray:
    """Draw all tiles, uint8 [tiles, colours, FIGURES, size, size, 3]; the array is read-only."""
    scale = -(-MIN_DRAWN_SIZE // size)
    tiles = np.empty((NUM_TILES, NUM_COLOURS, NUM_FIGURES, size, size, 3), np.uint8)
    for tile in Tile:
        for colour in Colour:
            empty = _draw_tile(tile, colour, scale * size)
            for figure in range(NUM_FIGURES):
                picture = empty if figure == NO_AGENT else _draw_agent(empty, figure - AGENT_UP)
                smaller = picture.reshape(size, scale, size, scale, 3).mean((1, 3))
                tiles[tile, colour, figure] = to_uint8(smaller)
    tiles.flags.writeable = False
    return tiles


def image(cells: Array, figures: Array | np.ndarray, size: int) -> Array:
    """Make an image of cells, uint16 [H, W], each of `size` pixels a side.

    Args:
      figures: NOBODY, or LOOKING_UP and the direction of an agent, int [H, W].
    Returns:
      uint8 [H * size, W * size, 3].
    """
    height, width = cells.shape
    rows = jnp.asarray(atlas(size).reshape(-1, 3 * size))  # rows of pixels: a gather of long slices is fast
    kinds = tile_of(cells).astype(jnp.int32) * NUM_COLOURS + (cells >> TILE_BITS).astype(jnp.int32)
    first_rows = (kinds * NUM_FIGURES + figures) * size
    pixels = read(rows, first_rows[:, None, :] + np.arange(size, dtype=np.int32)[:, None])
    return pixels.reshape(height * size, width * size, 3)


def image_of_view(cells: Array, size: int) -> Array:
    """Make an image of the agent's view, the agent in the middle of the last row: uint8 [V * size, V * size, 3]."""
    figures = np.full(cells.shape, NO_AGENT, np.int32)
    figures[-1, cells.shape[1] // 2] = AGENT_UP
    return image(cells, figures, size)


def image_of_grid(
    cells: Array, position: tuple[Array, Array], direction: Array, is_visible: Array, size: int
) -> Array:
    """Make an image of a whole grid of cells, uint16 [H, W], each of `size` pixels a side.

    Returns:
      uint8 [H * size, W * size, 3].
    """
    figures = jnp.full(cells.shape, NO_AGENT, jnp.int32).at[position].set(AGENT_UP + direction)
    picture = image(cells, figures, size)
    is_visible = jnp.repeat(jnp.repeat(is_visible, size, axis=0), size, axis=1)[..., None]
    highlighted = picture + jnp.round(HIGHLIGHT * (255.0 - picture)).astype(jnp.uint8)
    return jnp.where(is_visible, highlighted, picture)


def _draw_tile(tile: Tile, colour: Colour, size: int) -> np.ndarray:
    """Draw a tile without the agent."""
    black = RGB[Colour.BLACK]
    rgb = NEAR_BLACK if colour == Colour.BLACK and tile not in (Tile.FLOOR, *THINGS) else RGB[colour]
    dark_rgb = (rgb[0] // 2, rgb[1] // 2, rgb[2] // 2)
    picture = canvas(size, size, black)
    paint_shapes = functools.partial(_paint_shapes, picture)
    match tile:
        case Tile.EMPTY:
            paint_shapes([FULL_TILE], RGB[Colour.EMPTY])
        case Tile.WALL:
            paint_shapes([FULL_TILE], rgb)
        case Tile.FLOOR:
            paint_shapes([FULL_TILE], dark_rgb)
            paint_shapes(GRID_LINES, LINE)
        case Tile.GOAL:
            paint_shapes([FULL_TILE], rgb)
            paint_shapes(GRID_LINES, dark_rgb if rgb == LINE else LINE)
        case Tile.DOOR_LOCKED:
            paint_shapes([FULL_TILE], rgb)
            paint_shapes([box(0.06, 0.06, 0.94, 0.94)], dark_rgb)
            paint_shapes([box(0.52, 0.47, 0.76, 0.57)], rgb)
        case Tile.DOOR_CLOSED:
            for edge, fill in ((0.0, rgb), (0.04, black), (0.09, rgb), (0.14, black)):
                paint_shapes([box(edge, edge, 1 - edge, 1 - edge)], fill)
            paint_shapes([disc((0.74, 0.5), 0.085)], rgb)
        case Tile.DOOR_OPEN:
            paint_shapes(GRID_LINES, LINE)
            paint_shapes([box(0.87, 0, 1, 1)], rgb)
            paint_shapes([box(0.915, 0.045, 0.955, 0.955)], black)
        case _:
            paint_shapes(GRID_LINES, LINE)
            if colour == Colour.BLACK:
                paint_shapes([expand(shape, OUTLINE_WIDTH) for shape in THINGS[tile]], LINE)
            paint_shapes(THINGS[tile], rgb)
            if tile == Tile.KEY:
                paint_shapes([KEY_RING_HOLE], black)
    return picture


def _draw_agent(picture: np.ndarray, direction: int) -> np.ndarray:
    """Draw the agent, looking in a direction, on a tile."""
    picture, triangle = picture.copy(), polygon(_rotate(AGENT, direction))
    _paint_shapes(picture, [expand(triangle, OUTLINE_WIDTH / 2)], RGB[Colour.BLACK])
    _paint_shapes(picture, [triangle], RGB[Colour.RED])
    return picture


def _paint_shapes(picture: np.ndarray, shapes: Sequence[Shape], colour: tuple[int, int, int]) -> None:
    for shape in shapes:
        paint(picture, shape, colour, unit=len(picture))


def _rotate(points: Sequence[Point], quarters: int) -> list[Point]:
    """Rotate the points of a tile by some quarter turns to the right."""
    rotated = list(points)
    for _ in range(quarters):
        rotated = [(1 - y, x) for x, y in rotated]
    return rotated
