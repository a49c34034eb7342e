"""Runs whose evaluations are left out, cut short or made in another way, and all who read their scores."""

import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal.base.errors import ShoalError
from shoal.cli import flags
from shoal.cli.eval import table
from shoal.envs.probes import ActionReward
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.records.run_config import RunConfig
from shoal.runs.policies.evaluate import evaluate_run

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    **{"seeds": 2, "num_envs": 4, "num_steps": 8, "total_steps": 32 * 6, "num_evals": 2},
    **{"eval_episodes": 4, "devices": 1, "progress": False},
}


def train(path, env=None, **settings):
    settings = SMALL | settings
    if "eval_every" in settings:
        del settings["num_evals"]
    return shoal.train(env or ActionReward(), algorithm=BanditConfig(), run_dir=path, **settings)


def text(run):
    return shoal.monitor.run_report.result_text(dict(run.summary), run.path)


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return train(tmp_path_factory.mktemp("usual") / "run")


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("absolute", [-1, 0])
@pytest.mark.rare("-1-2", "0-1")
def test_without_evaluations_the_last_policy_is_the_best(usual, tmp_path, devices, absolute):
    run = train(
        tmp_path / "run", eval_every="never", devices=devices, absolute_episodes=absolute, checkpoint_every=96
    )
    assert run.evaluations == []
    np.testing.assert_array_equal(run.learner.shared.actions, usual.learner.shared.actions)
    for seed in range(2):
        policy = run.policy("best", seed=seed).parameters
        np.testing.assert_array_equal(policy, run.learner.shared.actions[seed])
    for steps in (checkpoints := Checkpoints(run.path)).steps():
        leaves, _ = checkpoints.load(steps)
        np.testing.assert_array_equal(leaves["best/policy"], leaves["learner/shared/actions"])
    assert run.summary["final"] is None
    assert (run.summary["absolute"] is None) == (absolute == 0)
    assert not (run.path / "learning_curve.png").exists()
    assert {row["kind"] for row in RunDirectory.open(run.path).load_metrics()} == {"train"}
    assert "last policies   not evaluated (eval_every='never')" in text(run)
    assert ("best policies   not evaluated again" in text(run)) == (absolute == 0)
    assert run.summary["evaluation"]["episodes"] == (40 if absolute else 0)
    longer = shoal.resume(run, total_steps=32 * 8)
    assert longer.summary["steps_per_seed"] == 32 * 8


def test_the_best_policies_are_evaluated_again_on_as_many_episodes_as_asked_for(usual, tmp_path):
    run = train(tmp_path / "more", absolute_episodes=6)
    assert run.summary["evaluation"]["episodes"] == 6
    assert "(6 new episodes each)" in text(run)
    none = train(tmp_path / "none", absolute_episodes=0)
    assert none.summary["absolute"] is None
    assert none.summary["final"] == run.summary["final"] == usual.summary["final"]
    assert none.summary["parameters_sha256"] == usual.summary["parameters_sha256"]
    assert "best policies   not evaluated again (absolute_episodes=0)" in text(none)
    assert "last policies   IQM 1.00" in text(none)
    assert none.policy().parameters.shape == (2,)


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"eval_every": "never"}])
def test_variants_are_ranked_by_their_last_evaluation_where_the_best_have_none(tmp_path, settings):
    variants = {"frozen": {"step_size": 0.0}, "fast": {"step_size": 5.0}}
    run = train(tmp_path / "run", variants=variants, absolute_episodes=0, seed=3, **settings)
    rows = run.summary["members"]
    assert [row["absolute"] for row in rows] == [None, None]
    if settings:
        assert [row["final"] for row in rows] == [None, None]
        assert "best policies   not evaluated again" in text(run)
    else:
        assert rows[0]["final"]["iqm"] >= rows[1]["final"]["iqm"]
        assert f"{rows[0]['label']}   IQM {rows[0]['final']['iqm']:.2f}" in text(run)


@pytest.mark.slow
def test_the_score_of_an_unchanged_policy_is_the_same_at_each_evaluation(tmp_path):
    still = {"variants": {"still": {"step_size": 0.0}}, "num_evals": 4, "eval_mode": "sampled"}
    fixed = train(tmp_path / "fixed", Halves(bonus=0.5), eval_seed=11, **still)
    other = train(tmp_path / "other", Halves(bonus=0.5), **still)
    of_fixed, of_other = (
        np.array([metrics["return_mean"] for _, metrics in run.evaluations]) for run in (fixed, other)
    )
    assert (of_fixed == of_fixed[0]).all() and len(of_fixed) == 5
    assert (of_other != of_other[0]).any()
    assert fixed.summary["final"]["returns"] != fixed.summary["absolute"]["returns"]  # new episodes


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"eval_every": "nevr"}, "eval_every='nevr' is not a whole number"),
        ({"eval_every": -2}, "eval_every=-2 is out of bounds"),
        (
            {"eval_every": "never", "score": "length_mean"},
            "score='length_mean' has no effect with eval_every='never'",
        ),
        ({"absolute_episodes": -2}, "absolute_episodes=-2 is out of bounds"),
        ({"eval_seed": 2**32}, "eval_seed=4294967296 is out of bounds"),
    ],
)
def test_what_cannot_work_is_one_sentence(tmp_path, settings, sentence):
    with pytest.raises(ShoalError, match=sentence):
        train(tmp_path / "run", **settings)
    with pytest.raises(ShoalError, match="num_evals=3 has no effect with eval_every='never'"):
        shoal.train("CartPole-v1", num_evals=3, eval_every="never")
    assert not (tmp_path / "run").exists()


def test_a_search_needs_the_evaluation_by_which_it_ranks(tmp_path):
    sizes = {
        "seeds": 1,
        "num_envs": 4,
        "num_steps": 8,
        "num_minibatches": 1,
        "total_steps": 256,
        "devices": 1,
    }
    with pytest.raises(
        ShoalError, match="absolute_episodes=0 leaves out the evaluation by which settings are ranked"
    ):
        shoal.sweep(
            "CartPole-v1", grid={"gamma": [0.9, 0.99]}, absolute_episodes=0, run_dir=tmp_path / "s", **sizes
        )
    with pytest.raises(ShoalError, match="halving=2 compares evaluations, and eval_every='never' makes none"):
        shoal.sweep(
            "CartPole-v1",
            grid={"gamma": [0.9, 0.99]},
            eval_every="never",
            halving=2,
            min_steps=64,
            run_dir=tmp_path / "s",
            **sizes,
        )
    assert not (tmp_path / "s").exists()


def test_trials_have_consecutive_episodes_already():
    with pytest.raises(ShoalError, match="2 consecutive episodes cannot be played of trials"):
        shoal.runs.plan.decide.decide(
            "CartPole-v1", environment_parameters={"trial_episodes": 3}, overrides={"eval_consecutive": 2}
        ).validate()


@pytest.mark.parametrize(("word", "value"), [("never", "never"), ("1e3", 1000), ("-1", -1)])
def test_a_number_or_a_word_is_a_flag_too(word, value):
    values, _ = flags.parse_values("shoal train", "", RunConfig(), ["--eval-every", word])
    assert values == {"eval_every": value}


def test_each_episode_of_a_run_is_written_to_a_file(usual, tmp_path):
    file = tmp_path / "results.npz"
    results = evaluate_run(usual.path, episodes=5, episodes_file=file)
    assert "episodes" not in results["metrics"][0]
    assert results == evaluate_run(usual.path, episodes=5)
    with np.load(file) as saved:
        arrays = dict(saved)
    assert arrays.pop("members").tolist() == ["0", "1"]
    assert sorted(arrays) == ["final_reward", "length", "return", "terminated", "truncated"]
    assert {x.shape for x in arrays.values()} == {(2, 5)}
    for k in range(2):
        assert arrays["return"][k].mean() == pytest.approx(results["metrics"][k]["return_mean"])
        assert arrays["terminated"][k].mean() == pytest.approx(results["metrics"][k]["terminated"])
    assert [x.name for x in tmp_path.iterdir()] == ["results.npz"]
    with pytest.raises(ShoalError, match=r"episodes_file='.*' cannot be written: "):
        evaluate_run(usual.path, episodes_file=tmp_path)


@pytest.mark.slow
def test_episodes_are_played_in_a_row_as_in_the_run_or_as_asked_for(usual, tmp_path):
    run = train(tmp_path / "run", eval_consecutive=2)
    assert run.evaluations[-1][1]["info_return_of_episode_1_mean"].tolist() == [1.0, 1.0]
    assert run.summary["final"]["returns"] == [2.0, 2.0]
    as_run, asked = evaluate_run(run.path, episodes=3), evaluate_run(usual.path, episodes=3, consecutive=2)
    alone = evaluate_run(run.path, episodes=3, consecutive=1)
    assert as_run["by_episode"]["return"]["mean"] == asked["by_episode"]["return"]["mean"] == [1.0, 1.0]
    assert "by episode of a trial" in table(as_run) and "by episode" not in table(alone)
    assert alone["iqm"] == 1.0 and as_run["iqm"] == 2.0
    with pytest.raises(ShoalError, match="consecutive=2 keeps the memory from one episode to the next"):
        evaluate_run(run.path, memory_lasts="episode")
