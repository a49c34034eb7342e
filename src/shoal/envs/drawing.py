"""Flat shapes with smooth edges, drawn with NumPy: the parts of the environments' images.

An image is float32 [height, width, 3] with values from 0 to 255; x points to the right and y downwards. A
shape is a signed distance function, negative inside the shape. Its edge fades over one pixel, so that it
looks the same at any size.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Point = tuple[float, float]  # x, y
Colour = tuple[int, int, int]

COVERAGE_LEVELS = 8  # levels of an edge's fading: few, so that an image has few colours


class Shape(NamedTuple):
    """A region of the plane."""

    low: Point  # corners of a rectangle that contains the shape
    high: Point
    distance: Callable[[np.ndarray, np.ndarray], np.ndarray]  # of points (x, y) to the edge; negative inside


def canvas(height: int, width: int, colour: Colour) -> np.ndarray:
    """Make an image of one colour, float32 [height, width, 3]."""
    return np.full((height, width, 3), colour, np.float32)


def paint(picture: np.ndarray, shape: Shape, colour: Colour, unit: float = 1.0) -> None:
    """Paint a shape onto an image, in place, with `unit` pixels per unit of length; parts outside of the
    image are ignored.
    """
    height, width, _ = picture.shape
    left, right = _pixel_range(shape.low[0] * unit, shape.high[0] * unit, width)
    top, bottom = _pixel_range(shape.low[1] * unit, shape.high[1] * unit, height)
    x, y = np.arange(left, right) + 0.5, np.arange(top, bottom)[:, None] + 0.5
    coverage = np.clip(0.5 - shape.distance(x / unit, y / unit) * unit, 0, 1)
    coverage = (np.round(coverage * COVERAGE_LEVELS) / COVERAGE_LEVELS)[..., None].astype(np.float32)
    region = picture[top:bottom, left:right]
    region += coverage * (np.asarray(colour, np.float32) - region)


def to_uint8(picture: np.ndarray) -> np.ndarray:
    """Convert an image to uint8."""
    return np.round(picture).astype(np.uint8)


def _pixel_range(low: float, high: float, size: int) -> tuple[int, int]:
    first, last = (int(np.clip(edge, 0, size)) for edge in (np.floor(low - 1), np.ceil(high + 1)))
    return first, max(first, last)


def disc(centre: Point, radius: float) -> Shape:
    """Make a filled circle."""
    x_0, y_0 = centre

    def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.hypot(x - x_0, y - y_0) - radius

    return Shape((x_0 - radius, y_0 - radius), (x_0 + radius, y_0 + radius), distance)


def box(left: float, top: float, right: float, bottom: float, corner: float = 0.0) -> Shape:
    """Make a rectangle, its corners rounded with a radius."""

    def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        beyond_x = np.abs(x - (left + right) / 2) - (right - left) / 2 + corner
        beyond_y = np.abs(y - (top + bottom) / 2) - (bottom - top) / 2 + corner
        outside = np.hypot(np.maximum(beyond_x, 0), np.maximum(beyond_y, 0))
        return outside + np.minimum(np.maximum(beyond_x, beyond_y), 0) - corner

    return Shape((left, top), (right, bottom), distance)


def line(points: Sequence[Point], thickness: float) -> Shape:
    """Make straight strokes from point to point with round ends."""
    starts, ends = points[:-1], points[1:]

    def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.sqrt(_squared_edge_distance(x, y, starts, ends)) - thickness / 2

    low, high = _bounds(points)
    half = thickness / 2
    return Shape((low[0] - half, low[1] - half), (high[0] + half, high[1] + half), distance)


def polygon(points: Sequence[Point]) -> Shape:
    """Make the inside of a closed line, which may be concave."""
    ends = [*points[1:], points[0]]

    def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
        for (x_1, y_1), (x_2, y_2) in zip(points, ends, strict=True):
            if y_1 != y_2:  # a ray to the right crosses this edge
                crosses = (y < y_1) != (y < y_2)
                inside ^= crosses & (x < x_1 + (y - y_1) / (y_2 - y_1) * (x_2 - x_1))
        return np.where(inside, -1, 1) * np.sqrt(_squared_edge_distance(x, y, points, ends))

    return Shape(*_bounds(points), distance)


def _squared_edge_distance(
    x: np.ndarray, y: np.ndarray, starts: Sequence[Point], ends: Sequence[Point]
) -> np.ndarray:
    """Compute the squared distance to the nearest of several segments."""
    nearest = np.full(np.broadcast_shapes(x.shape, y.shape), np.inf)
    for (x_1, y_1), (x_2, y_2) in zip(starts, ends, strict=True):
        dx, dy = x_2 - x_1, y_2 - y_1
        fraction = ((x - x_1) * dx + (y - y_1) * dy) / max(dx**2 + dy**2, 1e-12)
        fraction = np.clip(fraction, 0, 1)
        nearest = np.minimum(nearest, (x - x_1 - fraction * dx) ** 2 + (y - y_1 - fraction * dy) ** 2)
    return nearest


def _bounds(points: Sequence[Point]) -> tuple[Point, Point]:
    xs, ys = zip(*points, strict=True)
    return (min(xs), min(ys)), (max(xs), max(ys))


def expand(shape: Shape, margin: float) -> Shape:
    """Enlarge a shape by all points within a distance of it."""
    low, high = (
        (x + sign * margin, y + sign * margin) for (x, y), sign in ((shape.low, -1), (shape.high, 1))
    )
    return Shape(low, high, lambda x, y: shape.distance(x, y) - margin)
