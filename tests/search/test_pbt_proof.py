"""Population-based training leaves a bad range of learning rates, in which random search stays."""

import importlib.util
import sys
from pathlib import Path

import pytest

from shoal.records import scores

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "pbt.py"


def load():
    spec = importlib.util.spec_from_file_location("pbt_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def interval(values):
    return scores.stratified_bootstrap_interval(values, scores.iqm)


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_pbt_leaves_a_bad_range_of_learning_rates(tmp_path):
    """Five repetitions from ranges 30 times too low and too high. In each, population-based training reaches within 5%
    of the best fixed learning rate; its interval lies above random search's on two of three environments, and below on
    none. An environment counts as above if it is from one of the two ranges."""
    benchmark = load()
    above = set()
    for name, task in benchmark.TASKS.items():
        for row in benchmark.measure(task, tmp_path, ["low", "high"], repetitions=5, members=16):
            assert row["share"] >= 0.95, (name, row["range"], row["share"])
            assert row["exchange_share"] < 0.01, (name, row["range"])
            (low, high), (random_low, random_high) = interval(row["pbt"]), interval(row["random"])
            assert high >= random_low, (name, row["range"])
            if low > random_high:
                above.add(name)
    assert len(above) >= 2, above


def test_ranges_are_thirty_times_off():
    task = load().TASKS["CartPole-v1"]
    for direction, factor in (("low", 1 / 30), ("high", 30)):
        low, high = task.range(direction)
        assert low * high == pytest.approx((task.learning_rate * factor) ** 2)
        assert low < task.learning_rate * factor < high
