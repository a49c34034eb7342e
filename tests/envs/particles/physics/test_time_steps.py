"""The longest time step: a twentieth of the contact time."""

import math

import pytest

from shoal.base.errors import ShoalError
from shoal.envs.particles.physics.time_steps import check_time_step, hertz_contact_time, linear_contact_time


def test_contact_times():
    assert linear_contact_time(4.0, 1.0) == pytest.approx(math.pi / 2)
    assert hertz_contact_time(1e9, 1e-3, 0.01, 2.0) == pytest.approx(
        2.87 * (1e-6 / (0.01 * 1e18 * 2.0)) ** 0.2
    )


def test_a_time_step_beyond_the_bound_is_refused():
    check_time_step("time_step", 0.05, 1.0, "stiffness=10")
    with pytest.raises(
        ShoalError, match=r"^time_step=0.06 is too long: it must be at most 0.05, a twentieth of .*"
    ):
        check_time_step("time_step", 0.06, 1.0, "stiffness=10")
