"""What groups of environments share must be reduced: an algorithm that does not is refused before it compiles."""

import re

import jax
import jax.numpy as jnp
import pytest
import tiny_bandit
from tiny_bandit import BanditConfig
from tiny_worlds import SMALL, Halves

import shoal
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.engine.reduction_check import check_reduced
from shoal.engine.run import ProgramSettings
from shoal.types import Learner, Mean

SETTINGS = ProgramSettings(**SMALL | {"groups": 2})
SIZES = {"num_envs": 4, "num_steps": 8, "total_steps": 64, "num_evals": 0, "eval_episodes": 2}
SIZES |= {"seeds": 1, "progress": False}


@struct.struct
class Unreduced(BanditConfig):
    """The bandit with one mistake."""

    mistake: str = "none"

    def algorithm(self, spec, axis=()):
        if self.mistake == "ignores axis":
            return tiny_bandit.bandit(self, spec, ())
        right = tiny_bandit.bandit(self, spec, axis)

        def init(key, num_envs):
            return right.init(jax.random.fold_in(key, jax.lax.axis_index(axis)), num_envs)

        def update(learner, trajectory, keys, clock):
            new, metrics, *_ = right.update(learner, trajectory, keys, clock)
            if self.mistake == "metric":
                metrics = metrics | {"reward": Mean(trajectory.timesteps.reward.sum(), jnp.ones(()))}
            if self.mistake == "one leaf":
                mean = trajectory.timesteps.reward.mean()
                new = Learner(new.shared._replace(baseline=mean), new.local)
            return new, metrics

        return right._replace(init=init if self.mistake == "init" else right.init, update=update)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("ignores axis", r"update \(.*, line \d+\) returns 'shared/actions'"),
        ("one leaf", r"update \(.*, line \d+\) returns 'shared/baseline'"),
        ("metric", r"update \(.*, line \d+\) returns 'metrics/reward/total'"),
        ("init", r"init \(.*, line \d+\) returns 'shared/actions'"),
    ],
)
def test_what_is_not_reduced_is_named(mistake, words):
    with pytest.raises(ShoalError) as error:
        check_reduced(Halves(), Unreduced(mistake=mistake), SETTINGS)
    assert re.search(f"{words} that differs between the 2 groups", str(error.value))
    assert "jax.lax.psum" in str(error.value)


def test_what_is_reduced_passes():
    check_reduced(Halves(), BanditConfig(), SETTINGS)


@pytest.mark.full
def test_with_one_group_there_is_nothing_to_reduce(tmp_path):
    shoal.train(
        Halves(), algorithm=Unreduced(mistake="ignores axis"), env_groups=1, run_dir=tmp_path / "run", **SIZES
    )


def test_training_refuses_it_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShoalError, match="that differs between the 2 groups of environments"):
        shoal.train(Halves(), algorithm=Unreduced(mistake="ignores axis"), env_groups=2, **SIZES)
    assert list(tmp_path.iterdir()) == []
