"""The benchmark of the founding works: Shoal takes the settings that it is given."""

import importlib
from pathlib import Path

import pytest

import shoal
from shoal.cli import train

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def works(monkeypatch):
    """benchmarks/founding_works.py."""
    for folder in (BENCHMARKS, BENCHMARKS / "founding"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("founding_works")


def test_shoal_takes_the_settings_of_every_work(works, monkeypatch):
    """With the budget and the sizes of the peer's update, and every peer's packages name a JAX."""
    experiments = []

    def keep(experiment, caller):
        experiment.validate()
        experiments.append(experiment)
        raise shoal.ShoalError("not trained")

    monkeypatch.setattr(train, "run_experiment", keep)
    for work in works.WORKS.values():
        assert (works.DRIVERS / f"{work.driver}.py").exists()
        assert "jax==" in (BENCHMARKS / "peers" / f"{work.packages}.txt").read_text()
        with pytest.raises(shoal.ShoalError, match="not trained"):
            train.main([*works.settings(work), "--seeds", "1", "--num-updates", "2", "--eval-every", "never"])
        assert experiments[-1].run.steps_per_update == work.steps
    assert len(experiments) == len(works.WORKS)
