"""Digits by the width of an interval: the values are by hand."""

import math
import re

import numpy as np
import pytest

from shoal.base.numbers import format_estimate, format_interval, format_number, format_numbers

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (500, None, "500.0"),
        (500, (500, 500), "500.0  [500.0, 500.0]"),
        (-147.63, (-149.58, -145.31), "-147.6  [-149.6, -145.3]"),
        (0.33, (0.15, 0.58), "0.33  [0.15, 0.58]"),
        (3.2, (-1000, 400), "3  [-1000, 400]"),
        (123456.7, None, "123457"),
        (0, None, "0"),
        (-0.001, (-1, 1), "0.0  [-1.0, 1.0]"),
        (1e-7, (0.9e-7, 1.1e-7), "1.00e-07  [9.0e-08, 1.10e-07]"),
        (1e37, (0.9e37, 1.2e37), "1.00e+37  [9.0e+36, 1.20e+37]"),
        (5.0, (5 - 1e-12, 5 + 1e-12), "5.000000  [5.000000, 5.000000]"),
        (NAN, None, "nan"),
        (None, (None, None), "nan  [nan, nan]"),
        (-INF, (-INF, 480), "-inf  [-inf, 480.0]"),
        (-1e308, (-1e308, 1e308), "-1.000e+308  [-1.000e+308, 1.000e+308]"),
    ],
)
def test_an_estimate(value, interval, text):
    assert format_estimate(value, interval) == text


def test_numbers_of_one_quantity_have_one_last_digit():
    assert format_numbers([500, 12.345, NAN, 0.5]) == ["500.0", "12.3", "nan", "0.5"]
    assert format_numbers([1e37, 1, 0]) == ["1.000e+37", "1e+00", "0"]
    assert (
        format_number(0.79, (-4.5, 2.19), "+") == "+0.8"
        and format_interval((-4.5, 2.19), "+") == "[-4.5, +2.2]"
    )


def test_rounding_keeps_an_interval():
    """No end moves by more than a twentieth of the width, at any magnitude, and no text is long."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        low = rng.normal() * 10 ** rng.uniform(-30, 30)
        high = low + abs(low) * 10 ** rng.uniform(-4, 4)
        text = format_interval((low, high))
        found = [float(x) for x in re.findall(r"[^\[\], ]+", text)]
        np.testing.assert_allclose(found, (low, high), rtol=1e-9, atol=0.0501 * (high - low))
        assert len(text) <= 32
