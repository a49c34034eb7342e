"""The duration of a contact."""

import math

import pytest

from shoal.envs.particles.physics.time_steps import hertz_contact_time, linear_contact_time


def test_contact_times():
    assert linear_contact_time(4.0, 1.0) == pytest.approx(math.pi / 2)
    assert hertz_contact_time(1e9, 1e-3, 0.01, 2.0) == pytest.approx(
        2.87 * (1e-6 / (0.01 * 1e18 * 2.0)) ** 0.2
    )
