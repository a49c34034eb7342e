"""Images of the classic environments; lengths are in metres where the environment has them, and to scale."""

import math

import numpy as np

from shoal.envs.drawing import Colour, Point, Shape, box, canvas, disc, line, paint, polygon, to_uint8

BACKGROUND: Colour = (247, 248, 250)
GROUND: Colour = (226, 230, 236)
LIGHT_GREY: Colour = (176, 184, 194)
DARK_GREY: Colour = (46, 56, 72)
BLUE: Colour = (62, 124, 177)
ORANGE: Colour = (226, 125, 50)
GREEN: Colour = (78, 160, 96)


def cart_with_pole(position: float, angle: float, pole: float, limit: float) -> np.ndarray:
    """Draw a cart on a track that ends at -limit and limit; the angle is from upright, clockwise."""
    height, width, rail = 240, 480, 180.0
    scale = width / (2.3 * limit)
    picture = canvas(height, width, BACKGROUND)
    paint(picture, box(0, rail, width, height), GROUND)
    ends = [width / 2 + side * limit * scale for side in (-1, 1)]
    paint(picture, line([(ends[0], rail), (ends[1], rail)], 3), LIGHT_GREY)
    for end in ends:
        paint(picture, line([(end, rail - 9), (end, rail + 9)], 3), LIGHT_GREY)
    middle = width / 2 + position * scale
    for wheel in (-18, 18):
        paint(picture, disc((middle + wheel, rail - 6), 7), DARK_GREY)
        paint(picture, disc((middle + wheel, rail - 6), 2.5), LIGHT_GREY)
    paint(picture, box(middle - 33, rail - 36, middle + 33, rail - 8, corner=6), DARK_GREY)
    hinge = (middle, rail - 36)
    tip = _end_point(hinge, angle, pole * scale)
    paint(picture, line([hinge, tip], 9), ORANGE)
    paint(picture, disc(hinge, 6), BLUE)
    return to_uint8(picture)


def pendulum(angle: float, length: float) -> np.ndarray:
    """Draw a rod on a pivot; the angle is from upright, counter-clockwise."""
    size = 320
    centre = (size / 2, size / 2)
    picture = canvas(size, size, BACKGROUND)
    rod_length = 118 * min(length, 1.2)
    paint(picture, disc(centre, rod_length + 2), GROUND)
    paint(picture, disc(centre, rod_length - 1), BACKGROUND)
    tip = _end_point(centre, -angle, rod_length)
    paint(picture, line([centre, tip], 18), ORANGE)
    paint(picture, disc(tip, 15), ORANGE)
    paint(picture, disc(centre, 6), DARK_GREY)
    return to_uint8(picture)


def two_links(angle_1: float, angle_2: float, bar: float) -> np.ndarray:
    """Draw two hinged links of length 1 and a bar; angles from hanging down, the second's from the first."""
    size = 320
    scale = size / 2 / 2.24
    pivot = (size / 2, size / 2)
    picture = canvas(size, size, BACKGROUND)
    goal = pivot[1] - bar * scale
    for start in range(8, size, 16):
        paint(picture, line([(start, goal), (start + 7, goal)], 2.5), GREEN)
    elbow = _end_point(pivot, math.pi - angle_1, scale)
    tip = _end_point(elbow, math.pi - angle_1 - angle_2, scale)
    paint(picture, line([pivot, elbow], 14), BLUE)
    paint(picture, line([elbow, tip], 12), ORANGE)
    for joint in (pivot, elbow):
        paint(picture, disc(joint, 5), DARK_GREY)
    return to_uint8(picture)


def car_on_a_hill(position: float, goal: float, low: float, high: float, steepness: float) -> np.ndarray:
    """Draw a car on the hill sin(steepness x), between low and high, and a flag at the goal."""
    height, width = 240, 480
    scale = width / (high - low)
    picture = canvas(height, width, BACKGROUND)

    def to_pixels(place: float) -> float:
        return (place - low) * scale

    def hill_height(x: np.ndarray) -> np.ndarray:
        return height * (0.56 - 0.34 * np.sin(steepness * (x / scale + low)))

    def slope(x: np.ndarray) -> np.ndarray:
        return -height * 0.34 * steepness / scale * np.cos(steepness * (x / scale + low))

    hill = Shape((0, 0), (width, height), lambda x, y: (hill_height(x) - y) / np.hypot(1, slope(x)))
    ridge = Shape(
        (0, 0), (width, height), lambda x, y: np.abs(hill_height(x) - y) / np.hypot(1, slope(x)) - 1.2
    )
    paint(picture, hill, GROUND)
    paint(picture, ridge, LIGHT_GREY)
    foot = (to_pixels(goal), float(hill_height(np.asarray(to_pixels(goal)))))
    top = (foot[0], foot[1] - 40)
    paint(picture, line([foot, top], 2.5), DARK_GREY)
    paint(picture, polygon([top, (top[0] + 20, top[1] + 7), (top[0], top[1] + 14)]), GREEN)
    middle = np.asarray(to_pixels(position))
    _paint_car(picture, (float(middle), float(hill_height(middle))), math.atan(float(slope(middle))))
    return to_uint8(picture)


def _paint_car(picture: np.ndarray, contact: Point, tilt: float) -> None:
    """Paint a car that stands on a point, its front raised by an angle (negative, since y points downwards)."""

    def point_at(ahead: float, up: float) -> Point:
        return (
            contact[0] + ahead * math.cos(tilt) + up * math.sin(tilt),
            contact[1] + ahead * math.sin(tilt) - up * math.cos(tilt),
        )

    paint(picture, line([point_at(-15, 12), point_at(15, 12)], 12), ORANGE)
    paint(picture, line([point_at(-8, 19), point_at(6, 19)], 9), ORANGE)
    for wheel in (-11, 11):
        paint(picture, disc(point_at(wheel, 6), 6), DARK_GREY)
        paint(picture, disc(point_at(wheel, 6), 2), LIGHT_GREY)


def _end_point(start: Point, angle: float, length: float) -> Point:
    """Return the point at a length and an angle from upright, clockwise."""
    return start[0] + length * math.sin(angle), start[1] - length * math.cos(angle)
