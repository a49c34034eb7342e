"""Shapes cover what geometry says they cover."""

import math

import numpy as np
import pytest

from shoal.envs.drawing import box, canvas, disc, expand, line, paint, polygon, to_uint8

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
ARROW = [(10.0, 30.0), (45.0, 5.0), (80.0, 30.0), (45.0, 18.0)]  # concave

SHAPES = {
    "disc": (disc((50, 40), 20), math.pi * 400),
    "box": (box(10, 5, 60, 45), 50 * 40),
    "rounded": (box(10, 5, 60, 45, corner=10), 50 * 40 - (4 - math.pi) * 100),
    "line": (line([(15, 20), (75, 20)], 8), 60 * 8 + math.pi * 16),
    "bent": (line([(15, 20), (75, 20), (15, 20)], 8), 60 * 8 + math.pi * 16),
    "arrow": (polygon(ARROW), 0.0),
    "turned_back": (polygon(ARROW[::-1]), 0.0),
    "grown": (expand(box(20, 20, 60, 40), 5), 40 * 20 + 2 * 5 * (40 + 20) + math.pi * 25),
}


def shoelace(points):
    """The area within a closed line."""
    pairs = zip(points, [*points[1:], points[0]], strict=True)
    return abs(sum(x_1 * y_2 - x_2 * y_1 for (x_1, y_1), (x_2, y_2) in pairs)) / 2


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_covers_its_area(name):
    shape, area = SHAPES[name]
    picture = canvas(90, 100, BLACK)
    paint(picture, shape, WHITE)
    assert picture[..., 0].sum() / 255 == pytest.approx(area or shoelace(ARROW), rel=0.01)


def test_the_inside_of_a_polygon_is_that_of_a_double_loop():
    picture = canvas(40, 90, BLACK)
    paint(picture, polygon(ARROW), WHITE)
    for row in range(40):
        for column in range(90):
            x, y = column + 0.5, row + 0.5
            turns = 0.0
            for (x_1, y_1), (x_2, y_2) in zip(ARROW, [*ARROW[1:], ARROW[0]], strict=True):
                angle = math.atan2(y_2 - y, x_2 - x) - math.atan2(y_1 - y, x_1 - x)
                turns += math.remainder(angle, math.tau)
            inside = abs(turns) > math.pi
            assert (picture[row, column, 0] > 127.5) == inside or 100 < picture[row, column, 0] < 156


def test_a_unit_scales_and_what_is_outside_is_left_out():
    small, large = canvas(16, 16, BLACK), canvas(64, 64, BLACK)
    for picture in (small, large):
        paint(picture, disc((0.9, 0.2), 0.3), (200, 100, 0), unit=len(picture))
        paint(picture, box(2, 2, 3, 3), WHITE, unit=len(picture))
    np.testing.assert_allclose(large.reshape(16, 4, 16, 4, 3).mean((1, 3)), small, atol=25)
    assert small.max() == 200


def test_edges_have_few_colours():
    picture = canvas(64, 64, BLACK)
    paint(picture, disc((32, 32), 25.3), WHITE)
    assert len(np.unique(to_uint8(picture).reshape(-1, 3), axis=0)) <= 9
