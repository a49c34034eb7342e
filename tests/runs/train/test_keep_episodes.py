"""The episodes of evaluations while training: `evaluations.npz`, whatever the run is, and however often it stops."""

import jax
import numpy as np
import pytest
from broken_worlds import Breaks
from tiny_bandit import BanditConfig

import shoal
from shoal.envs.probes import ActionReward
from shoal.records.checkpoints import Checkpoints
from shoal.records.episodes_file import EVALUATIONS, EpisodesFile, read_episodes
from shoal.records.members import Member

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    "num_envs": 4,
    "num_steps": 8,
    "eval_episodes": 5,
    "eval_max_steps": 30,
    "num_evals": 4,
    "progress": False,
}
PPO = {"preset": False, "num_minibatches": 2, "update_epochs": 1, "hidden_sizes": (8,)}


def train(path, environment="CartPole-v1", algorithm="ppo", **settings):
    of_ppo = PPO if algorithm == "ppo" else {}
    fixed = {"seeds": 2, "devices": 1, "num_updates": 8, "keep_episodes": True}
    return shoal.train(environment, algorithm=algorithm, run_dir=path, **of_ppo | SMALL | fixed | settings)


def episodes(path):
    with np.load(path / EVALUATIONS) as file:
        return dict(file)


@pytest.mark.full
def test_they_are_those_of_the_metrics(tmp_path):
    run = train(tmp_path, eval_mode="both")
    found = episodes(tmp_path)
    assert found["updates"].tolist() == [0, 2, 4, 6, 8]
    assert found["steps"].tolist() == [steps for steps, _ in run.evaluations]
    assert found["seeds"].tolist() == [0, 1]
    assert {"return", "length", "sampled_return", "sampled_length"} == set(found) - {
        "updates",
        "steps",
        "seeds",
    }
    for row, (_, metrics) in enumerate(run.evaluations):
        for name in ("return", "length", "sampled_return", "sampled_length"):
            assert found[name].shape == (2, 5, 5)
            np.testing.assert_allclose(found[name][:, row].mean(-1), metrics[f"{name}_mean"], rtol=1e-6)
            np.testing.assert_array_equal(found[name][:, row].max(-1), metrics[f"{name}_max"])


class Stops:
    """A listener that fails once, at an evaluation."""

    def on_evaluation(self, step, numbers):
        if step == 128:
            raise RuntimeError("once")


def test_a_run_that_is_resumed_has_the_same_file(tmp_path):
    """Byte for byte; and one that goes on from an older checkpoint, elsewhere."""
    world, config = ActionReward(), BanditConfig()
    train(tmp_path / "whole", world, config, checkpoint_evals=True)
    with pytest.raises(shoal.ShoalError, match="once"):
        train(tmp_path / "cut", world, config, listeners=[Stops()])
    assert [k for k, _ in read_episodes(tmp_path / "cut")] == [0, 2, 4]
    shoal.resume(tmp_path / "cut", environment=world, progress=False)
    shoal.resume(
        tmp_path / "whole", environment=world, from_step=64, run_dir=tmp_path / "again", progress=False
    )
    whole = (tmp_path / "whole" / EVALUATIONS).read_bytes()
    assert (tmp_path / "cut" / EVALUATIONS).read_bytes() == whole
    assert (tmp_path / "again" / EVALUATIONS).read_bytes() == whole


def test_evaluations_after_the_checkpoint_are_made_again(tmp_path):
    """The file may hold more than the newest checkpoint counts, as after a kill between the two."""
    world, config = ActionReward(), BanditConfig()
    train(tmp_path, world, config, checkpoint_evals=True, keep=1)
    whole = (tmp_path / EVALUATIONS).read_bytes()
    checkpoints = Checkpoints(tmp_path)
    for steps in (192, 256):
        (checkpoints.path / f"{steps}.safetensors").unlink()
    for name in ("summary.json", "best.safetensors", "last.safetensors"):
        (tmp_path / name).unlink()
    shoal.resume(tmp_path, environment=world, progress=False)
    assert (tmp_path / EVALUATIONS).read_bytes() == whole


@pytest.mark.full
def test_a_resumed_run_may_begin_and_end_to_keep_them(tmp_path):
    world, config = ActionReward(), BanditConfig()
    train(tmp_path, world, config, keep_episodes=False)
    assert not (tmp_path / EVALUATIONS).exists()
    shoal.resume(tmp_path, environment=world, progress=False, num_updates=10, keep_episodes=True)
    assert [k for k, _ in read_episodes(tmp_path)] == [10]
    (tmp_path / EVALUATIONS).write_bytes(b"PK\3\4")
    with pytest.raises(
        shoal.ShoalError, match=r"evaluations.npz is damaged \(.*\); without the file a run resumes"
    ):
        shoal.resume(tmp_path, environment=world, progress=False, num_updates=12)
    (tmp_path / EVALUATIONS).unlink()
    shoal.resume(tmp_path, environment=world, progress=False, num_updates=12)
    assert [k for k, _ in read_episodes(tmp_path)] == [12]


def test_a_seed_that_failed_has_none(tmp_path):
    """NaN from there on, in the places of its episodes; the others keep theirs."""
    world = Breaks(reward=1.0, within=600.0)
    run = train(tmp_path, world, BanditConfig(), seeds=6, num_updates=20, on_nan="freeze")
    ended = np.stack([np.isnan(metrics["length_mean"]) for _, metrics in run.evaluations], axis=1)
    assert ended.any()
    assert not ended.all()
    for name in ("return", "length"):
        found = np.isnan(episodes(tmp_path)[name])
        assert found[ended].all()
        assert not found[~ended].all(-1).any()


@pytest.mark.slow
def test_members_agents_and_consecutive_episodes_have_axes(tmp_path):
    variants = {"fast": {"learning_rate": 1e-3}, "slow": {"learning_rate": 1e-4}}
    train(tmp_path / "labels", variants=variants, eval_consecutive=3, checkpoints=False)
    found = episodes(tmp_path / "labels")
    assert found["labels"].tolist() == ["fast", "fast", "slow", "slow"]
    assert found["seeds"].tolist() == [0, 1, 0, 1]
    assert found["return_of_episode"].shape == found["length_of_episode"].shape == (4, 5, 5, 3)
    np.testing.assert_allclose(found["return_of_episode"].sum(-1), found["return"])
    train(tmp_path / "agents", "mpe/Spread-v0")
    found = episodes(tmp_path / "agents")
    assert found["return"].shape == (2, 5, 5)
    assert found["return_agents"].shape == (2, 5, 5, 3)


@pytest.mark.slow
def test_runs_of_a_sweep_keep_them(tmp_path):
    settings = PPO | SMALL | {"num_updates": 2, "seeds": 2, "confirm_seeds": 0, "keep_episodes": True}
    shoal.sweep("CartPole-v1", grid={"learning_rate": [1e-3, 1e-4]}, run_dir=tmp_path, **settings)
    found = [path for path in tmp_path.rglob(EVALUATIONS)]
    assert len(found) == 1
    assert episodes(found[0].parent)["labels"].shape == (4,)


@pytest.mark.full
def test_the_function_that_chooses_a_checkpoint_sees_them(tmp_path):
    seen = {}

    def worst_episode(records):
        seen.update(records)
        return max(records, key=lambda steps: records[steps]["episodes"]["return"].min())

    run = train(tmp_path, checkpoint_evals=True)
    shoal.load(tmp_path, checkpoint=worst_episode, seed=0)
    found = episodes(tmp_path)
    assert sorted(seen) == found["steps"].tolist() == [steps for steps, _ in run.evaluations]
    for row, steps in enumerate(found["steps"].tolist()):
        np.testing.assert_array_equal(seen[steps]["episodes"]["length"], found["length"][:, row])


def test_without_them_a_record_has_none(tmp_path):
    train(tmp_path, ActionReward(), BanditConfig(), keep_episodes=False)
    seen = []
    shoal.load(
        tmp_path,
        checkpoint=lambda records: (seen.extend(records.values()), max(records))[1],
        environment=ActionReward(),
        seed=0,
    )
    assert [x["episodes"] for x in seen] == [{}] * len(seen)


def test_a_trainer_returns_them(tmp_path):
    """As arrays of its evaluations, equal to a run's; in the order of `updates`."""
    train(tmp_path, ActionReward(), BanditConfig(), seeds=1, seed=3)
    settings = {name: x for name, x in SMALL.items() if name != "progress"}
    trainer = shoal.make_train(ActionReward(), BanditConfig(), **settings, num_updates=8, keep_episodes=True)
    found = trainer(jax.random.key(3))[1]["evaluations"]
    for name in ("return", "length"):
        assert found[name].shape == (5, 5)
        np.testing.assert_array_equal(found[name], episodes(tmp_path)[name][0])
    assert (
        "return"
        not in shoal.make_train(ActionReward(), BanditConfig(), **settings, num_updates=8)(jax.random.key(3))[
            1
        ]["evaluations"]
    )


def test_what_cannot_be_kept_is_refused(tmp_path):
    with pytest.raises(shoal.ShoalError, match=r"^keep_episodes=True has no effect with eval_every='never'"):
        shoal.train("CartPole-v1", keep_episodes=True, eval_every="never", run_dir=tmp_path / "run")


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    file = EpisodesFile(tmp_path, (Member(0),), 10, [])
    file.write()
    assert not (tmp_path / EVALUATIONS).exists()
    file.add(1, {"return": np.ones((1, 2), np.float32)})
    file.write()
    before = (tmp_path / EVALUATIONS).read_bytes()
    file.add(2, {"return": np.zeros((1, 2), np.float32)})

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", full)
        with pytest.raises(shoal.ShoalError, match=r"evaluations.npz cannot be written: No space left"):
            file.write()
    assert (tmp_path / EVALUATIONS).read_bytes() == before
    file.write()
    assert episodes(tmp_path)["steps"].tolist() == [10, 20]
    assert [path.name for path in tmp_path.iterdir()] == [EVALUATIONS]
