import pytest

from shoal.envs.particles.tasks.particle_scores import success_then_time


def test_success_counts_before_time():
    quick, slow = ({"info_success": 1.0, "length_mean": length} for length in (34.0, 52.0))
    failing = {"info_success": 0.98, "length_mean": 30.0}
    assert success_then_time(quick) > success_then_time(slow) > success_then_time(failing)
    assert success_then_time(quick) == pytest.approx(1 - 34e-4)
