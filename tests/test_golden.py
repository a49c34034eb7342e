"""Runs that an earlier version wrote: they load, act as they did, and can be run again and trained on."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import shoal
from shoal.algos.ppo import PPOConfig
from shoal.api import RunConfig, to_jsonable
from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.disk.checkpoints import Checkpoints
from shoal.runs import plan, resume

GOLDEN = Path(__file__).parent / "golden"
RUNS = ("cartpole-mlp", "pendulum-gru")


def actions(run: str, which: str) -> list:
    """What the policy does at eight observations that follow each other, of two environments."""
    policy = shoal.load(GOLDEN / run, which)
    width = policy.spec.observation_space.shape[-1]
    memory, found = policy.initial_memory((2,)), []
    for step in range(8):
        observation = np.sin(np.arange(2 * width).reshape(2, width) + step).astype(np.float32)
        memory, action = policy(memory, observation, first=step in (0, 5))
        found.append(np.asarray(action).tolist())
    return found


@pytest.mark.parametrize("which", ["best", "last"])
@pytest.mark.parametrize("run", RUNS)
def test_a_policy_acts_as_when_it_was_written(run, which):
    expected = json.loads((GOLDEN / run / "actions.json").read_text())[which]
    np.testing.assert_allclose(actions(run, which), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", RUNS)
def test_the_config_says_what_it_said(run):
    saved = json.loads((GOLDEN / run / "config.json").read_text())
    decided = plan.decide(None, config_file=GOLDEN / run, overrides={})
    again = json.loads(json.dumps(to_jsonable(decided.as_json(), not_finite=str)))
    again["run"]["run_dir"] = saved["run"]["run_dir"]
    defaults = settings.flat(PPOConfig())
    defaults |= settings.flat(RunConfig())
    for part in ("algorithm", "run"):
        for name in again[part].keys() - saved[part].keys():  # settings of later versions
            default = json.loads(json.dumps(to_jsonable(defaults[name], not_finite=str)))
            assert again[part].pop(name) == default
    assert {part: again[part] for part in ("environment", "algorithm", "run")} == {
        part: saved[part] for part in ("environment", "algorithm", "run")
    }


@pytest.mark.full
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.rare("pendulum-gru", "cartpole-mlp")
def test_training_starts_from_a_run(run, tmp_path):
    steps = 16 * 32
    settings = dict(num_evals=0, eval_episodes=2, progress=False, run_dir=tmp_path / "run", total_steps=steps)
    more = shoal.train(config=GOLDEN / run, start_from=GOLDEN / run, learning_rate=1e-9, **settings)
    last = struct.named_leaves(shoal.load(GOLDEN / run, "last", seed=0).parameters)
    for name, leaf in struct.named_leaves(shoal.load(more.path, "last", seed=0).parameters).items():
        if "actor" in name:
            np.testing.assert_allclose(leaf, last[name], atol=1e-6, err_msg=name)
    assert jax.tree.leaves(more.learner)


@pytest.mark.full
def test_a_run_that_was_ended_is_loaded_and_goes_on_to_its_end(tmp_path, capsys):
    """From the checkpoint in its middle, to what it became when it was written; `make_checkpoint.py` made both."""
    expected = json.loads((GOLDEN / "cartpole-checkpoint" / "expected.json").read_text())
    path = shutil.copytree(GOLDEN / "cartpole-checkpoint", tmp_path / "run")
    assert Checkpoints(path).steps() == [256]
    assert Checkpoints(path).problem(256) == ""
    for seed, leaves in enumerate(expected["checkpoint"]):
        policy = shoal.load(path, "last", seed=seed, checkpoint="last")
        found = {name: np.asarray(x).tolist() for name, x in struct.named_leaves(policy.parameters).items()}
        assert found == leaves
    run = shoal.resume(path)
    assert "going on from the checkpoint at 256 environment steps" in capsys.readouterr().err
    assert [step for step, _ in run.evaluations] == [0, 256, 512]
    for seed, leaves in enumerate(expected["end"]):
        found = struct.named_leaves(shoal.load(path, "last", seed=seed).parameters)
        assert found.keys() == leaves.keys()
        for name, leaf in found.items():
            np.testing.assert_allclose(leaf, leaves[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_setting_that_the_run_was_written_without_has_its_default_there(tmp_path):
    """The command that began it goes on with it; another value than the default is refused, and nothing is lost."""
    path = shutil.copytree(GOLDEN / "cartpole-checkpoint", tmp_path / "run")
    saved = json.loads((path / "config.json").read_text())
    assert "recompute" not in saved["algorithm"]
    sentence = r"recompute='epoch' cannot be changed in a run that goes on \(it has 'never'\)"
    with pytest.raises(ShoalError, match=sentence):
        shoal.resume(path, recompute="epoch", progress=False)
    as_asked = saved["asked"]["algorithm"] | saved["asked"]["run"]  # where the machine decided something
    resume.check_same(path, saved, plan.decide(None, config_file=path, overrides=as_asked))
    other = plan.decide(None, config_file=path, overrides=as_asked | {"recompute": "epoch"})
    with pytest.raises(ShoalError, match="holds another run: recompute='never' there, and 'epoch' was asked"):
        resume.check_same(path, saved, other)
    assert Checkpoints(path).steps() == [256]
