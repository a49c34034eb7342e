"""`import shoal` from end to end: train, load, evaluate, roll out; a user's own classes; every refusal."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import flat
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.actor_critic_config import ActorCriticConfig
from shoal.records.directory import RunDirectory
from shoal.runs.plan.decide import decide
from shoal.runs.policies.evaluate import evaluate_run
from shoal.runs.train.placement import hidden_weights, place

pytestmark = pytest.mark.usefixtures("undrawn")

BANDIT = {
    **{"seeds": 2, "seed": 3, "num_envs": 4, "num_steps": 8, "total_steps": 100, "num_evals": 2},
    **{"eval_episodes": 4, "eval_metrics": f"{__name__}:share_of_twenty", "devices": 1},
}


class MyNetwork(ActorCritic):
    """A user's own network: Shoal's, but smaller."""

    def __init__(self, spec, *, key):
        super().__init__(spec, ActorCriticConfig(hidden_sizes=(4,)), key=key)


def share_of_twenty(played):
    """A user's metric of the played episodes."""
    return {"share_of_twenty": jnp.mean(played.length == 20.0)}


def short_is_good(metrics):
    """A user's score."""
    return -metrics["length_mean"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def bandit(path):
    """A user's environment and algorithm, both by name."""
    return shoal.train(
        "tiny_worlds:Halves",
        algorithm="tiny_bandit:BanditConfig",
        environment_parameters={"bonus": 1.0},
        run_dir=path / "bandit",
        progress=False,
        step_size=2.0,
        **BANDIT,
    )


def balance(path, algorithm, **settings):
    """A run in an environment that is given itself."""
    sizes = {"seeds": 3, "num_envs": 4, "num_steps": 8, "total_steps": 96, "num_evals": 1, "eval_episodes": 4}
    world = envs.make("CartPole-v1", gravity=9.0, max_episode_steps=30)
    return shoal.train(world, algorithm=algorithm, run_dir=str(path), progress=False, **sizes, **settings)


@pytest.fixture(scope="module")
def pole(path):
    return balance(path / "pole", BanditConfig, eval_mode="sampled")


@envs.environment
class Weighted(envs.Wrapper):
    """A wrapper of the user's own, with an array."""

    weights: jax.Array

    def step(self, state, action, key):
        state, timestep = self.env.step(state, action, key)
        return state, timestep._replace(reward=timestep.reward * self.weights[action])


# ---- train


@pytest.mark.full
def test_a_run_is_shown_in_a_line_and_in_a_notebook_as_a_table(pole):
    assert re.fullmatch(
        rf"<TrainedRun CartPole-v1, tiny_bandit:BanditConfig, 3 seeds, 96 steps each: "
        rf"IQM \d+\.\d\d; {re.escape(str(pole.path))}>",
        repr(pole),
    )
    shown = pole._repr_html_()
    assert shown.count("<tr>") == 4
    assert all(f">{x:.2f}</td>" in shown for x in pole.summary["absolute"]["returns"])
    assert "<svg" in shown and "<script" not in shown


@pytest.mark.full
def test_a_run_in_a_wrapped_environment_is_loaded_evaluated_and_made_again_by_its_path(path):
    world = envs.TimeLimit(
        Weighted(envs.RewardScale(Halves(short=3), 2.0), jnp.asarray([1, 3], jnp.uint8)), 9
    )
    small = BANDIT | {"seeds": 1, "eval_metrics": "", "total_steps": 32, "num_evals": 1}
    run = shoal.train(world, algorithm=BanditConfig, run_dir=path / "wrapped", progress=False, **small)
    loaded = shoal.load(run.path).environment
    assert jax.tree.structure(loaded) == jax.tree.structure(world)
    assert loaded.env.weights.dtype == np.uint8
    assert loaded.env.weights.tolist() == [1, 3]
    assert shoal.evaluate(run.path, episodes=4) == shoal.evaluate(run.policy(), world, episodes=4)
    assert evaluate_run(run.path, episodes=4, max_episode_steps=2)["metrics"][3]["length_max"] == 2
    again = shoal.train(config=run.path, run_dir=path / "wrapped-again", progress=False)
    assert again.summary["parameters_sha256"] == run.summary["parameters_sha256"]
    one, other = (json.loads((x.path / "config.json").read_text())["environment"] for x in (run, again))
    assert one == other


@pytest.mark.full
def test_a_run_says_what_it_came_to(bandit, path):
    summary = bandit.summary
    assert bandit.path == path / "bandit"
    assert summary == RunDirectory.open(bandit.path).load_summary()
    assert summary["environment"] == "tiny_worlds:Halves"
    assert summary["algorithm"] == "tiny_bandit:BanditConfig"
    assert summary["seeds"] == [3, 4]
    assert summary["steps_per_seed"] == 96  # whole updates
    assert summary["evaluation"]["episodes"] == 40
    assert summary["evaluation"]["share_of_twenty"] == summary["evaluation"]["info_is_long"]
    assert summary["steps_per_second"] == pytest.approx(2 * 96 / summary["seconds"]["train"])
    for scores in (summary["final"], summary["absolute"]):
        assert scores["interval"] is None  # of two seeds
        assert len(scores["returns"]) == 2
    steps, metrics = zip(*bandit.evaluations, strict=True)
    assert steps == (0, 64, 96)
    assert metrics[-1]["return_mean"].tolist() == summary["final"]["returns"]
    assert bandit.learner.shared.actions.shape == (2, 2)


def test_the_run_directory_is_complete(bandit):
    assert {x.name for x in bandit.path.iterdir()} == {
        *(
            "config.json",
            "metrics.jsonl",
            "summary.json",
            "learning_curve.png",
            "best.safetensors",
            "last.safetensors",
            "checkpoints",
        ),
        ".lock",
    }
    rows = RunDirectory.open(bandit.path).load_metrics()
    assert {row["seed"] for row in rows} == {3, 4}
    assert {row["step"] for row in rows if row["kind"] == "evaluation"} == {0, 64, 96}
    assert [row["step"] for row in rows if row["kind"] == "train" and row["seed"] == 3] == [32, 64, 96]
    assert {"baseline", "episode_return", "episodes"} <= set(rows[-3])


@pytest.mark.full
def test_its_config_makes_the_same_run_again(bandit, path):
    again = shoal.train(config=bandit.path, run_dir=path / "again", progress=False)
    assert again.summary["parameters_sha256"] == bandit.summary["parameters_sha256"]
    assert len(set(again.summary["parameters_sha256"])) == 2
    assert again.summary["absolute"] == bandit.summary["absolute"]
    configs = [json.loads((run.path / "config.json").read_text()) for run in (bandit, again)]
    for config in configs:
        config["run"].pop("run_dir")
        config.pop("asked")
    assert configs[0] == configs[1]

    def timeless(row):
        return {name: x for name, x in row.items() if "second" not in name and name != "time"}

    first, second = (RunDirectory.open(run.path).load_metrics() for run in (bandit, again))
    assert [timeless(row) for row in first] == [timeless(row) for row in second]


@pytest.mark.full
def test_a_users_score_chooses_the_best(path):
    """Given as a function, for an environment that is given itself; the sign of the score is the user's."""
    run = shoal.train(
        Halves(bonus=1.0),
        algorithm=BanditConfig(),
        score=short_is_good,
        run_dir=path / "scored",
        progress=False,
        **BANDIT | {"eval_metrics": "", "seeds": 1, "eval_mode": "both"},
    )
    config = json.loads((run.path / "config.json").read_text())
    assert config["run"]["score"].endswith(":short_is_good")
    _, metadata = RunDirectory.open(run.path).load_policy("best")
    lengths = [metrics["length_mean"][0] for _, metrics in run.evaluations]
    assert metadata["scores"] == [-min(lengths)]
    assert metadata["updates"] == [[0, 2, 3][int(np.argmin(lengths))]]
    assert "sampled_return_mean" in run.evaluations[0][1]


def test_nothing_is_printed_unless_asked_for(path, capsys):
    settings = BANDIT | {"eval_metrics": "", "seeds": 1, "num_evals": 0, "total_steps": 32}
    for progress in (False, True):
        run_dir = path / f"progress-{progress}"
        shoal.train("probe/action", algorithm=BanditConfig, run_dir=run_dir, progress=progress, **settings)
        told = capsys.readouterr()
        assert told.out == ""
        assert ("32 of 32 steps" in told.err) == progress


# ---- load and act


def test_the_best_seeds_policy_is_loaded_unless_told_otherwise(bandit):
    _, metadata = RunDirectory.open(bandit.path).load_policy("best")
    best = int(np.argmax(metadata["scores"]))
    leaves, _ = RunDirectory.open(bandit.path).load_policy("last")
    actions = leaves["learner/actions"]
    np.testing.assert_array_equal(shoal.load(bandit.path, "last").parameters, actions[best])
    for k, seed in enumerate((3, 4)):
        np.testing.assert_array_equal(bandit.policy("last", seed=seed).parameters, actions[k])
    policy = shoal.load(str(bandit.path), "last", seed=3)
    memory, action = policy(policy.initial_memory(), np.zeros(1), reward=0.0)
    assert memory.state.tolist() == [0]
    assert action == int(np.argmax(actions[0]))


@pytest.mark.full
def test_a_policy_comes_back_with_its_network_and_its_world(path):
    config = PPOConfig(update_epochs=1, num_minibatches=2, norm_obs=True)
    pole = balance(path / "net", config, network=MyNetwork)
    policy = shoal.load(pole.path)
    assert flat(policy.config)["network"] == f"{__name__}:MyNetwork"
    assert policy.environment == envs.make("CartPole-v1", gravity=9.0, max_episode_steps=30)
    assert policy.parameters.observation is not None  # the normaliser
    kernels = [x.shape for x in jax.tree.leaves(policy.parameters.actor) if x.ndim == 2]
    assert sorted(kernels) == [(2, 4), (4, 4)]
    assert pole.policy("last", seed=1)((), np.zeros(4))[1] in (0, 1)


# ---- evaluate


def test_an_evaluation_is_the_same_each_time_and_another_for_another_seed(pole):
    policy = pole.policy("last", seed=0)
    first, again, other = (shoal.evaluate(policy, episodes=16, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert all(isinstance(x, float) for x in first.values())
    assert first["length_max"] <= 30
    assert shoal.evaluate(policy, episodes=16, greedy=False) != first
    assert shoal.evaluate(pole.path, episodes=16) == shoal.evaluate(pole.policy(), episodes=16)


def test_what_a_training_returned_is_evaluated_as_its_best_policy_is(pole):
    assert shoal.evaluate(pole, episodes=3) == shoal.evaluate(pole.policy(), episodes=3)


def test_an_evaluation_in_another_world(pole):
    policy = pole.policy()
    assert shoal.evaluate(policy, "CartPole-v1", episodes=4, max_episode_steps=3)["truncated"] == 1
    assert shoal.evaluate(policy, envs.make("CartPole-v1"), episodes=4, max_steps=5)["unfinished"] == 1


def test_a_whole_run_is_evaluated_as_it_was(pole):
    told = evaluate_run(pole.path, episodes=8)
    assert (told["environment"], told["which"], told["mode"]) == ("CartPole-v1", "best", "sampled")
    assert list(told["metrics"]) == [0, 1, 2]
    assert told["returns"] == [x["return_mean"] for x in told["metrics"].values()]
    one = evaluate_run(pole.path, which="last", run_seed=1, episodes=8, greedy=True, seed=5)
    expected = shoal.evaluate(pole.policy("last", seed=1), episodes=8, seed=5)
    assert one["metrics"] == {1: expected}


# ---- fine-tuning


@pytest.mark.full
def test_fine_tuning_starts_from_the_last_parameters(bandit, path):
    """Three seeds from two: the third starts from the first again. A step size of zero leaves them be."""
    run = shoal.train(
        start_from=bandit.path,
        config=bandit.path,
        run_dir=path / "tuned",
        progress=False,
        **{"seeds": 3, "step_size": 0.0, "num_evals": 0, "total_steps": 32, "eval_metrics": ""},
    )
    before = np.asarray(bandit.learner.shared.actions)
    np.testing.assert_array_equal(run.learner.shared.actions, before[[0, 1, 0]])
    assert json.loads((run.path / "config.json").read_text())["from"] == str(bandit.path)


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(bandit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(shoal.ShoalError, match=r"^from='.*' does not fit: 'network/.*' is learned here"):
        shoal.train("CartPole-v1", start_from=bandit.path, progress=False, total_steps=10_000)
    assert list(tmp_path.iterdir()) == []


# ---- roll out, check


def test_a_rollout_by_chance_and_by_a_policy(bandit):
    by_chance = shoal.rollout("tiny_worlds:Halves", num_envs=4, num_steps=44, short=2, long=2)
    assert (by_chance.episodes, by_chance.length_mean) == (4 * 15, 2.0)  # the 2nd, 5th, 8th ... step ends one
    greedy = shoal.rollout(None, bandit.path, num_envs=4, num_steps=42, greedy=True)
    action = int(np.argmax(shoal.load(bandit.path).parameters))
    assert greedy.return_mean == pytest.approx(greedy.length_mean * (1 + action), rel=1e-6)


@pytest.mark.slow
def test_the_checker_is_at_hand():
    assert shoal.check(envs.make("probe/observation"), keys=4, steps=8, ignore=("action-ignored",)) == []


# ---- what cannot be


def test_what_cannot_be_evaluated(pole):
    policy = pole.policy()
    for arguments, sentence in (
        ({"max_steps": 0}, "max_steps=0 is too small: it must be at least 1"),
        ({"gravity": 3.0}, "gravity cannot be set on an environment that is made already"),
    ):
        with pytest.raises(shoal.ShoalError, match=sentence):
            shoal.evaluate(policy, **arguments)


def test_the_machines_choices_are_made_explicit(monkeypatch):
    """What is written down names them, so that the same run can be made on another machine."""
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setattr("shoal.base.cpu.cores", lambda: 2)
    decided = shoal.runs.plan.decide.decide(
        "CartPole-v1", overrides={"seeds": 1, "num_envs": 1024, "target_kl": 0.1}
    )
    devices, placed = place(decided)
    assert len(devices) == placed.run.devices == 2
    assert placed.run.env_groups == 2
    assert placed.config.kl_stop
    assert placed.config.gradient_chunk == 512
    several = dataclasses.replace(decided, run=dataclasses.replace(decided.run, seeds=10))
    assert place(several)[1].run.env_groups == 1
    monkeypatch.setattr("shoal.base.cpu.cores", lambda: 8)  # four cores for each of the two devices
    assert place(decided)[1].config.gradient_chunk == 4096


@pytest.mark.full
@pytest.mark.parametrize(
    "sizes,weights",
    [
        ({}, 2 * 64 * 64),
        ({"hidden_sizes": (256,)}, 0),
        ({"hidden_sizes": ()}, 0),
        ({"hidden_sizes": (32, 8), "critic_hidden_sizes": (256, 256, 16)}, 32 * 8 + 256 * 256 + 256 * 16),
        ({"hidden_sizes": 64}, 0),  # refused later, by a sentence
        ({"hidden_sizes": ("a",), "critic_hidden_sizes": 3.5}, 0),
    ],
)
def test_the_weights_between_hidden_layers_are_counted(sizes, weights):
    assert hidden_weights(decide("CartPole-v1", overrides=sizes).config) == weights
