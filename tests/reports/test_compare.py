"""Comparisons of runs that are written by hand: what is computed, said and refused."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from shoal.base.errors import ShoalError
from shoal.cli import compare as command
from shoal.records import comparisons, scores
from shoal.reports import compare_inputs, figures
from shoal.reports.compare import read_comparison
from shoal.runs.comparing import compare, declared_scale

GOOD, BETTER = (1.0, 2.0, 3.0, 4.0, 5.0), (3.0, 4.0, 5.0, 6.0, 9.0)
EMPTY = {"environment": {"name": "MiniGrid-Empty-5x5", "parameters": {}}}
DQN = {"algorithm": {"name": "dqn"}}


def text_of(result):
    return command.table(result)


def notes_of(result):
    return "\n".join(result["notes"])


def test_reading_imports_no_jax():
    code = "import sys, shoal.runs.comparing; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_statistics_are_those_of_the_scores(write_run):
    result = compare([write_run("a", GOOD), write_run("b", BETTER)])
    first, other = result["rows"]
    assert first["name"] == "a" and first["runs"][0]["scores"] == list(GOOD) and "difference" not in first
    assert other["iqm"]["value"] == scores.iqm(BETTER) == 5.0
    assert tuple(other["iqm"]["interval"]) == scores.stratified_bootstrap_interval(BETTER)
    assert other["median"]["value"] == 5.0 and other["mean"]["value"] == pytest.approx(5.4)
    assert other["difference"]["value"] == pytest.approx(2.0)
    low, high = other["improvement"]["interval"]
    assert other["improvement"]["value"] == pytest.approx(brute_force(GOOD, BETTER))
    assert (low, high) == pytest.approx(comparisons.newcombe_interval(brute_force(GOOD, BETTER), 5, 5))
    assert other["optimality_gap"]["value"] == pytest.approx(
        1 - (5.4 - 22) / (500 - 22)
    )  # CartPole's own bounds
    gap = compare([write_run("c", GOOD), write_run("d", BETTER)], bounds={"CartPole-v1": (0, 5)})
    assert gap["rows"][0]["optimality_gap"]["value"] == pytest.approx(np.mean([0.8, 0.6, 0.4, 0.2, 0.0]))
    assert gap["rows"][1]["iqm"]["value"] == 5.0  # of one environment scores are as they are


def brute_force(x, y):
    return np.mean([(b > a) + 0.5 * (b == a) for a in x for b in y])


def test_equal_runs_are_as_good_as_each_other(write_run):
    result = compare([write_run("a", GOOD), write_run("b", GOOD)])
    assert result["rows"][1]["improvement"]["value"] == 0.5
    assert result["rows"][1]["difference"]["value"] == 0.0
    assert "0.50  [0.21, 0.79]" in text_of(result)


def test_a_run_that_is_named_twice_is_compared_with_itself(write_run):
    a = write_run("a", GOOD)
    result = compare([a, a, a])
    assert [row["name"] for row in result["rows"]] == ["a", "a (2)", "a (3)"]
    assert "named twice" in notes_of(result) and "pointwise" in notes_of(result)
    (a.parent / "link").symlink_to(a)
    assert "named twice" in notes_of(compare([a, a.parent / "link"]))
    assert {row["improvement"]["value"] for row in result["rows"][1:]} == {0.5}


def test_names_are_paths_where_directories_are_named_alike(write_run):
    paths = [write_run("x/run", GOOD), write_run("y/run", GOOD)]
    assert [row["name"] for row in compare(paths)["rows"]] == list(map(str, paths))


def test_names(write_run, write_sweep, monkeypatch):
    run = write_sweep("s") / "runs" / "000"
    a, b = write_run("a", GOOD), write_run("b\nc", GOOD)
    monkeypatch.chdir(a)
    result = compare([".", b, f"{run}:0 a"])
    assert [row["name"] for row in result["rows"]] == ["a", "b c", "000:0 a"]
    assert [row["name"] for row in compare({"x\ny": a, "z": b})["rows"]] == ["x y", "z"]


def test_ties_are_half_an_improvement(write_run):
    result = compare([write_run("a", (1.0,) * 5), write_run("b", (1.0,) * 4 + (2.0,))])
    assert result["rows"][1]["improvement"]["value"] == pytest.approx(0.6)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_few_seeds_have_points_alone(write_run, count):
    result = compare([write_run("a", GOOD[:count]), write_run("b", BETTER)], target=1.0)
    row, other = result["rows"]
    parts = [row[name] for name in ("iqm", "median", "mean")] + [row["steps_to_score"]["CartPole-v1"]]
    assert all(x["value"] is not None and x["interval"] is None for x in parts)
    assert other["difference"]["interval"] is None and other["improvement"]["interval"] is None
    assert other["iqm"]["interval"] is not None
    assert f"no interval from {count} seed" in notes_of(result) and "at 5 seeds" in notes_of(result)


def test_a_failed_seed_loses(write_run):
    result = compare(
        [write_run("a", GOOD), write_run("b", BETTER, failed=[4])], bounds={"CartPole-v1": (0, 5)}
    )
    row = result["rows"][1]
    assert row["failed"] == 1 and row["runs"][0]["failed"] == [4]
    assert row["runs"][0]["scores"][4] == -math.inf
    assert row["iqm"]["value"] == pytest.approx(4.0)  # of 3, 4 and 5: the failed one is trimmed
    assert row["iqm"]["interval"][0] == -math.inf and math.isfinite(row["iqm"]["interval"][1])
    assert row["mean"] == row["optimality_gap"] == {"value": None, "interval": None, "why": "1 failed"}
    assert row["improvement"]["value"] == pytest.approx(brute_force(GOOD, (3.0, 4.0, 5.0, 6.0, -math.inf)))
    text = text_of(result)
    assert "[-inf (1 failed), " in text and text.count("none: 1 failed") == 2
    assert json.loads(command.json_text(result, str))


def test_columns_are_as_wide_as_their_longest_cell(write_run):
    """Nothing is cut within an interval."""
    failed = write_run("b", tuple(1e-3 * x for x in BETTER), failed=[0, 4])
    lines = text_of(compare([write_run("a", GOOD), failed], bounds={"CartPole-v1": (0, 5)})).splitlines()
    rows = lines[2:5]
    assert any(len(row.partition("5  ")[2].partition("]")[0]) > command.CELL for row in rows)
    medians = [re.split(r"\]\s+|IQM\s+", row)[-1] for row in rows]
    assert len({len(row) - len(median) for row, median in zip(rows, medians, strict=True)}) == 1
    assert all(len({row.index(x) for row in rows[1:] if x in row}) <= 1 for x in ("none: ",))


def test_runs_of_which_all_seeds_failed(write_run):
    failed = write_run("b", BETTER, failed=range(5))
    result = compare([write_run("a", GOOD), failed, failed], target=1.0)
    row = result["rows"][1]
    assert row["iqm"] == {"value": -math.inf, "interval": None}
    assert row["improvement"]["value"] == 0.0 and row["difference"]["value"] == -math.inf
    assert row["steps_to_score"]["CartPole-v1"]["reached"] == 0
    assert "-inf (5 failed)" in text_of(result) and "> 200 (5 failed)" in text_of(result)
    both = compare([failed, failed])
    assert both["rows"][1]["improvement"]["value"] == 0.5
    assert "none: both are minus infinity" in text_of(both)


def test_a_run_that_was_killed_counts_as_far_as_it_went(write_run):
    a, killed = write_run("a", GOOD), write_run("b", BETTER, finished=False)
    result = compare([a, killed])
    assert result["metric"] == "final"
    assert result["rows"][1]["runs"][0]["scores"] == list(BETTER)  # of the evaluation at step 200
    assert "b has no absolute scores" in notes_of(result)
    assert "b has not ended (interrupted): its evaluations until step 200 count" in notes_of(result)


@pytest.mark.full
def test_metrics_and_runs_without_them(write_run, tmp_path):
    a, b = write_run("a", GOOD), write_run("b", BETTER)
    assert compare([a, b], metric="score")["rows"][0]["iqm"]["value"] == 3.0
    assert compare([a, b], metric="final")["metric"] == "final"
    unbounded = compare([a, b], metric="score")["rows"][0]["optimality_gap"]
    assert unbounded == {"value": None, "interval": None, "why": "no bounds"}
    with pytest.raises(ShoalError, match=r"no metric 'scores'; did you mean 'score'\?"):
        compare([a, b], metric="scores")
    for name in ("seed", "step", "updates", "time", "train_seconds", "label", "kind", "foo"):
        with pytest.raises(ShoalError, match=f"no metric '{name}'; it has return_mean, score"):
            compare([a, b], metric=name)
    without = write_run("c", GOOD, finished=False, run={"eval_every": "never"})
    (without / "metrics.jsonl").write_text("")
    with pytest.raises(ShoalError, match=r"c' has no evaluations \(eval_every='never'\)"):
        compare([a, without])
    late = write_run("d", GOOD)  # evaluated again at its end alone
    (late / "metrics.jsonl").write_text("")
    assert compare([a, late])["rows"][1]["iqm"]["value"] == 3.0
    with pytest.raises(ShoalError, match="no evaluations during training"):
        compare([a, late], target=1.0)
    compare([a, late], plot=tmp_path / "profiles.png")


def test_too_few_runs(write_run):
    for runs in ([], [write_run("a", GOOD)], {"a": [write_run("b", GOOD)]}):
        with pytest.raises(ShoalError, match="two runs or more"):
            compare(runs)
    c, d = write_run("c", GOOD), write_run("d", GOOD)
    with pytest.raises(ShoalError, match="a has two runs in CartPole-v1, "):
        compare({"a": [c, d]})
    with pytest.raises(ShoalError, match="the group 'x' has no run"):
        compare({"x": [], "a": c, "b": d})
    with pytest.raises(ShoalError, match="no run directory"):
        compare([c, "nowhere"])
    with pytest.raises(ShoalError, match="not a list of runs"):
        compare("runs/a")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"run": {"eval_mode": "sampled"}}, "eval_mode=greedy and sampled"),
        ({"run": {"eval_max_steps": 7}}, "eval_max_steps=100 and 7"),
        ({"run": {"eval_consecutive": 3}}, "eval_consecutive=1 and 3"),
        ({"run": {"score": "success"}}, "score=return_mean and success"),
        ({"config": {"eval_env": {"gravity": 3.7}}}, r"env.gravity=9.8 and 3.7"),
        (
            {"config": {"eval_env": {"name": "CartPole-v1", "parameters": {"gravity": 3.7}}}},
            r"env.gravity=9.8 and 3.7",
        ),
        (
            {"config": {"environment": {"name": "CartPole-v1", "parameters": {"gravity": 1.0}}}},
            "env.gravity=9.8 and 1.0",
        ),
    ],
)
def test_runs_that_are_evaluated_differently_are_refused(write_run, config, sentence):
    run = {"eval_mode": "greedy", "eval_max_steps": 100, "eval_consecutive": 1, "score": "return_mean"}
    common = {"environment": {"name": "CartPole-v1", "parameters": {"gravity": 9.8}}}
    a = write_run("a", GOOD, run=run, config=common)
    b = write_run("b", GOOD, run=run | config.get("run", {}), config=common | config.get("config", {}))
    with pytest.raises(ShoalError, match=f"not evaluated alike: {sentence}; --anyway"):
        compare([a, b])
    result = compare([a, b], anyway=True)
    assert result["rows"][1]["improvement"]["value"] == 0.5
    assert re.search(f"are not evaluated alike: {sentence}$", result["notes"][0])


@pytest.fixture
def four(write_run):
    """Two algorithms in two environments, of which the second has returns below 0."""
    return [
        write_run("pc", GOOD),
        write_run("pa", tuple(x - 100 for x in GOOD), config=EMPTY),
        write_run("dc", BETTER, config=DQN),
        write_run("da", tuple(x - 100 for x in GOOD), config=EMPTY | DQN),
    ]


BOUNDS = {"CartPole-v1": (0.0, 10.0), "MiniGrid-Empty-5x5": (-100.0, -90.0)}


def test_several_environments_are_normalised(four):
    result = compare(four, bounds=BOUNDS, target=0.3, consecutive=1)
    assert [row["name"] for row in result["rows"]] == ["ppo", "dqn"] and result["is_normalised"]
    matrix = np.stack([BETTER, GOOD], axis=-1) / 10
    row = result["rows"][1]
    assert row["iqm"]["value"] == pytest.approx(scores.iqm(matrix))
    assert row["median"]["value"] == pytest.approx(np.median(matrix.mean(axis=0)))
    assert row["optimality_gap"]["value"] == pytest.approx(1 - matrix.mean())
    assert row["improvement"]["value"] == pytest.approx((brute_force(GOOD, BETTER) + 0.5) / 2)
    steps = row["steps_to_score"]
    assert steps["CartPole-v1"]["target"] == pytest.approx(3) and steps["MiniGrid-Empty-5x5"][
        "target"
    ] == pytest.approx(-97)
    assert "steps to -97 in MiniGrid-Empty-5x5" in text_of(result)
    named = compare({"x": four[:2], "y": four[2:]}, bounds=BOUNDS)
    assert [row["name"] for row in named["rows"]] == ["x", "y"]
    assert named["rows"][1]["iqm"] == row["iqm"]


def test_an_interval_of_width_zero_is_none(four, write_run):
    """One algorithm wins every comparison: the bootstrap of several environments cannot tell how sure that is."""
    best = [write_run("bc", (50.0,) * 5, config={"algorithm": {"name": "a"}})]
    best.append(write_run("ba", (50.0,) * 5, config=EMPTY | {"algorithm": {"name": "a"}}))
    result = compare([*four[:2], *best], bounds=BOUNDS)
    assert result["rows"][1]["improvement"] == {"value": 1.0, "interval": None}


def test_groups_that_do_not_fit_are_refused(four, write_run):
    with pytest.raises(ShoalError, match="MiniGrid-Empty-5x5 declares no score_bounds"):
        compare(four, bounds={"CartPole-v1": (0, 1)})
    with pytest.raises(ShoalError, match="different environments and of one algorithm"):
        compare(four[:2], bounds=BOUNDS)
    with pytest.raises(ShoalError, match="different environments and in one group"):
        compare({"a": four[:2]}, bounds=BOUNDS)
    with pytest.raises(ShoalError, match="dqn has no run in MiniGrid-Empty-5x5"):
        compare(four[:3], bounds=BOUNDS)
    with pytest.raises(ShoalError, match="ppo has two runs in CartPole-v1"):
        compare([*four, four[0]], bounds=BOUNDS)
    short = write_run("short", GOOD[:4], config=EMPTY | DQN)
    with pytest.raises(
        ShoalError, match="different numbers of seeds: 5 in CartPole-v1, 4 in MiniGrid-Empty-5x5"
    ):
        compare([*four[:3], short], bounds=BOUNDS)


def test_bounds_are_checked_and_declared(four, tmp_path, monkeypatch):
    with pytest.raises(ShoalError, match="no run; did you mean 'CartPole-v1'"):
        compare(four, bounds={"CartPole-v0": (0, 1)})
    for pair in ((1, 0), (0, math.inf), (0,), "ab", "05", (False, 1), 3):
        with pytest.raises(ShoalError, match="are not a low and a higher finite number"):
            compare(four, bounds={"CartPole-v1": pair})
    from shoal.envs import registry

    monkeypatch.setattr(registry, "score_bounds_of", BOUNDS.get)
    assert compare(four)["bounds"] == {name: list(pair) for name, pair in BOUNDS.items()}
    with pytest.raises(ShoalError, match="declares no score_bounds"):
        compare(four, metric="score")  # of which declared bounds are not


def test_declared_bounds_are_of_the_default_parameters(four, write_run):
    def of(**parameters):
        return {"environment": {"name": "CartPole-v1", "parameters": parameters}}

    usual = write_run("a", GOOD, config=of(gravity=9.8, max_episode_steps=500))
    assert compare([usual, usual])["bounds"] == {"CartPole-v1": [22.0, 500.0]}
    short = write_run("b", GOOD, config=of(gravity=9.8, max_episode_steps=100))
    result = compare([short, short])
    assert result["bounds"] is None and result["rows"][0]["optimality_gap"]["why"] == "no bounds"
    assert "a run has max_episode_steps=100; --bounds CartPole-v1=LOW:HIGH" in notes_of(result)
    assert compare([short, short], bounds={"CartPole-v1": (0, 100)})["notes"] == result["notes"][1:]
    with pytest.raises(ShoalError, match="a run has max_episode_steps=100; give --bounds CartPole-v1="):
        compare([short, *four[1:]], bounds={"MiniGrid-Empty-5x5": (0, 1)}, anyway=True)


def test_an_environment_declares_its_bounds(monkeypatch):
    from shoal.envs import registry

    class Bounded:
        score_bounds = (-1.0, 2.0)

    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    registry.register("Bounded-v0", Bounded)
    assert registry.score_bounds_of("Bounded-v0") == (-1.0, 2.0)
    assert registry.score_bounds_of("CartPole-v1") == (22.0, 500.0)
    assert registry.score_bounds_of("MiniGrid-Empty-5x5") is None


def test_a_sweep_enters_by_its_confirmation(write_run, write_sweep):
    """Of two settings with two seeds each; with no confirmation the seeds that chose it have no interval."""
    sweep = write_sweep("s")
    summary = json.loads((sweep / "summary.json").read_text())
    summary["best"]["label"] = "0 a"
    (sweep / "summary.json").write_text(json.dumps(summary))
    result = compare([write_run("a", GOOD), sweep])
    assert "s enters by 0 a, trained again on new seeds" in notes_of(result)
    assert "was chosen" not in notes_of(result) and "no interval from 2 seeds" in notes_of(result)
    for file in (sweep / "confirmation").rglob("config.json"):
        file.unlink()
    result = compare([write_run("c", GOOD), sweep])
    assert result["rows"][1]["runs"][0]["scores"] == [0.0, 10.0]
    assert result["rows"][1]["iqm"]["interval"] is None
    assert "was chosen by the scores of these very seeds; --confirm-seeds" in notes_of(result)
    assert compare([sweep, f"{sweep}:1 b"])["rows"][1]["runs"][0]["scores"] == [1.0, 11.0]
    for path in (sweep, sweep / "runs" / "000"):  # only the best one was chosen
        assert "was chosen" not in notes_of(compare([sweep / "runs" / "000:1 b", f"{path}:1 b"]))
        assert "0 a was chosen by the scores of these" in notes_of(compare([f"{path}:1 b", f"{path}:0 a"]))
    with pytest.raises(ShoalError, match=r"has no setting '1 a'; did you mean"):
        compare([sweep, f"{sweep}:1 a"])
    with pytest.raises(ShoalError, match="has no best setting"):
        compare([sweep, write_sweep("t", finished=False)])


def test_a_run_of_several_settings_is_compared_by_one(write_run, write_sweep):
    run = write_sweep("s") / "runs" / "000"
    with pytest.raises(ShoalError, match=r"trains 2 settings, .* such as .*:0 a"):
        compare([write_run("a", GOOD), run])
    assert compare([f"{run}:0 a", f"{run}:1 b"])["rows"][1]["runs"][0]["scores"] == [1.0, 11.0]
    with pytest.raises(ShoalError, match="has no setting 'x'"):
        compare([f"{run}:0 a", f"{run}:x"])


def test_a_label_may_have_colons(write_run):
    variants = [{"label": "a:b=c", "settings": {}}, {"label": "x", "settings": {}}]
    run = write_run("r:1", finished=False, config={"variants": variants})
    assert command.runs_of([f"{run}:a:b=c"]) == [f"{run}:a:b=c"]
    assert compare_inputs.split_label(f"{run}:a:b=c") == (str(run), "a:b=c")
    assert compare_inputs.split_label(str(run)) == (str(run), "")


def write_halved(write_run):
    """A run in which halving stopped the setting b after 100 of 200 steps, and one seed of a failed."""
    variants = [{"label": label, "settings": {}} for label in "ab"]
    absolute = {"returns": [9.0, None, 9.0, None, None, None], "iqm": None, "interval": None}
    run = write_run(
        "h",
        (1.0, 2.0, 3.0),
        config={"variants": variants, "halving": {"factor": 2}},
        summary={
            "absolute": absolute,
            "final": absolute,
            "failed": [{"seed": 1, "label": "a", "update": 1, "last_policy_step": 0}],
        },
    )
    rows = [
        {
            "kind": "evaluation",
            "step": step,
            "updates": step // 100,
            "time": 1e9,
            "seed": seed,
            "label": label,
            "return_mean": None if step > end or (label == "a" and seed == 1 and step) else step + seed,
        }
        for step in (0, 100, 200)
        for label, end in (("a", 200), ("b", 100))
        for seed in range(3)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    return run


def test_a_setting_that_halving_stopped_did_not_fail(write_run):
    run, a = write_halved(write_run), write_run("a", GOOD)
    result = compare([a, f"{run}:b"], target=101.0, consecutive=1)
    row = result["rows"][1]
    assert row["failed"] == 0 and row["runs"][0]["scores"] == [100, 101, 102] and result["metric"] == "final"
    assert "h:b was stopped by halving after 100 steps, and counts by its last evaluation" in notes_of(result)
    assert row["runs"][0]["steps_per_seed"] == row["steps_to_score"]["CartPole-v1"]["until"] == 100
    assert row["steps_to_score"]["CartPole-v1"]["steps"] == [math.inf, 100, 100]
    result = compare([a, f"{run}:a"])
    assert result["metric"] == "absolute" and "halving" not in notes_of(result)
    assert result["rows"][1]["runs"][0]["scores"] == [9, -math.inf, 9]
    assert result["rows"][1]["runs"][0]["failed"] == [1]


def test_members_that_copy_each_other_have_no_interval(write_run):
    result = compare([write_run("a", GOOD), write_run("b", BETTER, config={"evolution": {"tune": {}}})])
    assert result["rows"][1]["iqm"]["interval"] is None and "copy each other" in notes_of(result)


def test_steps_to_a_score(write_run):
    """At 0, 100 and 200 steps a seed has nothing, half and all of its return."""
    runs = [write_run("a", GOOD), write_run("b", BETTER, failed=[0])]
    row = compare(runs, target=2.0, consecutive=1)["rows"][0]["steps_to_score"]["CartPole-v1"]
    assert row["steps"] == [math.inf, 200, 200, 100, 100] and row["value"] == 200 and row["reached"] == 4
    row = compare(runs, target=2.0, consecutive=2)["rows"][0]["steps_to_score"]["CartPole-v1"]
    assert row["steps"] == [math.inf] * 3 + [100, 100] and row["value"] == math.inf and row["until"] == 200
    row = compare(runs, target=2.0, consecutive=1)["rows"][1]["steps_to_score"]["CartPole-v1"]
    assert row["steps"] == [math.inf, 100, 100, 100, 100]
    assert "> 200" in text_of(compare(runs, target=100.0))
    assert (
        compare(runs, target=np.float32(2.0)) == compare(runs, target=np.int64(2)) == compare(runs, target=2)
    )
    for bad in (math.nan, math.inf, "x", True, np.bool_(True)):
        with pytest.raises(ShoalError, match="is not a finite number"):
            compare(runs, target=bad)
    with pytest.raises(ShoalError, match="consecutive=0"):
        compare(runs, target=1.0, consecutive=0)
    with pytest.raises(ShoalError, match="consecutive=4 is more than the evaluations"):
        compare(runs, target=1.0, consecutive=4)


def test_nothing_is_said_of_steps_beyond_the_end_of_a_run(write_run, drawn, tmp_path):
    """The first run ends at 170 steps, and the next point of the grid is 200: its last evaluation stands there."""
    short, a = write_run("s", GOOD), write_run("a", GOOD)
    file = short / "metrics.jsonl"
    file.write_text(file.read_text().replace('"step": 200', '"step": 170'))
    result = compare(
        [short, a], target=4.0, consecutive=1, plot=tmp_path / "x.png", export=tmp_path / "x.json"
    )
    first, other = (row["steps_to_score"]["CartPole-v1"] for row in result["rows"])
    assert first["steps"] == [math.inf] * 3 + [170, 170] and first["until"] == 170
    assert first["value"] == math.inf  # as of five seeds that were all observed until 170
    assert other["steps"] == [math.inf] * 3 + [200, 200]
    ends = [line.get_xdata()[-1] for line in drawn[0].axes[0].lines[:2]]
    assert ends == [170, 200]
    content = json.loads((tmp_path / "x.json").read_text())["shoal"]["CartPole-v1"]
    assert [content[name]["seed_0"]["step_2"]["step_count"] for name in ("s", "a")] == [170, 200]
    low, high = first["interval"]
    assert low == 100 and high == math.inf  # the score was reached between 100 and 170 steps


def test_failed_seeds_are_counted_by_environment(write_run):
    runs = [write_run(f"p{k}", GOOD, config=(EMPTY if k else {}), failed=[0] * k) for k in (0, 1)]
    runs += [write_run(f"d{k}", GOOD, config=(EMPTY if k else {}) | DQN) for k in (0, 1)]
    result = compare(runs, bounds=BOUNDS, target=9.0, consecutive=1)
    found = result["rows"][0]["steps_to_score"]
    assert [found[name]["failed"] for name in BOUNDS] == [0, 1] and result["rows"][0]["failed"] == 1
    assert text_of(result).count("> 200 (1 failed)") == 1


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, instead of their files."""
    saved = []
    monkeypatch.setattr(figures, "save", lambda figure, path: saved.append(figure))
    return saved


def bands(axes):
    return [x for x in axes.collections if len(x.get_paths())]


def test_the_picture_has_the_numbers(write_run, drawn, tmp_path):
    runs = [write_run("a", GOOD), write_run("b", BETTER, failed=[4]), write_run("c", GOOD[:4])]
    result = compare(runs, target=2.0, consecutive=1, plot=tmp_path / "x.png")
    curve, reached, profile, *panels = drawn[0].axes
    steps, values = curve.lines[0].get_data()
    np.testing.assert_allclose(steps, [0, 100, 200])
    np.testing.assert_allclose(values, [0, 1.5, 3.0])
    (legend,) = drawn[0].legends
    assert [x.get_text() for x in legend.get_texts()] == ["a", "b (1 failed)", "c"]
    titles = ["IQM", "median", "mean", "optimality gap", "probability of being\nbetter than a"]
    assert [axes.get_title() for axes in panels] == titles
    iqm, chance = (
        [x.get_xdata().tolist() for x in axes.lines if len(x.get_xdata()) == 2]
        for axes in panels[:: len(panels) - 1]
    )
    rows = result["rows"]
    cut = [
        panels[0].get_xlim()[0],
        rows[1]["iqm"]["interval"][1],
    ]  # an interval without a lower end has an arrow
    assert iqm == [rows[0]["iqm"]["interval"], cut] and chance == [rows[1]["improvement"]["interval"]]
    assert rows[1]["iqm"]["interval"][0] == -math.inf
    assert [x.get_marker() for x in panels[0].lines].count("<") == 1
    assert len(bands(curve)) == 2 and len(bands(profile)) == 2  # none of four seeds
    np.testing.assert_allclose(reached.lines[0].get_ydata(), [0, 0.4, 0.8])
    assert reached.lines[0].get_drawstyle() == profile.lines[1].get_drawstyle() == "steps-post"
    thresholds, share = profile.lines[1].get_data()
    np.testing.assert_allclose(share, [np.mean(np.array([3, 4, 5, 6]) > x) * 0.8 for x in thresholds])


def evaluated(write_run, name, steps, values, failed=()):
    """A run of which each seed has a value at each of some steps."""
    count = len(values[0])
    run = write_run(
        name, [x or 0.0 for x in values[-1]], failed=failed, summary={"steps_per_seed": steps[-1]}
    )
    row = {"kind": "evaluation", "time": 1e9}
    rows = [
        row | {"step": step, "updates": k, "seed": seed, "return_mean": x[seed], "score": x[seed]}
        for k, (step, x) in enumerate(zip(steps, values, strict=True))
        for seed in range(count)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    return run


@pytest.mark.full
def test_what_is_said_of_a_run_does_not_depend_on_the_others(write_run, drawn, tmp_path):
    """Whether another is shorter, evaluated more seldom, or has seeds that failed, of which two tie or all failed."""
    slope = np.array([1.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    fine = np.arange(0, 401, 20)
    run = evaluated(write_run, "long", fine.tolist(), (fine[:, None] * slope / 100).tolist())
    ties = np.ones((3, 6)) * np.arange(3)[:, None]
    others = [
        evaluated(write_run, "short", [0, 50, 90], ties.tolist()),
        evaluated(write_run, "coarse", [0, 200, 400], ties.tolist()),
        evaluated(write_run, "some", [0, 50, 90], [[0] * 6, [1] * 6, [2, 2, None, 2, None, 2]], (2, 4)),
        evaluated(write_run, "whole", [0, 50, 90], [[0] * 6, [None] * 6, [None] * 6], range(6)),
    ]
    said, curves, points = [], [], []
    for k, other in enumerate([run, *others]):
        result = compare([run, other], target=2.0, plot=tmp_path / f"{k}.png")
        said.append(result["rows"][0])
        points.append(result["rows"][1]["steps_to_score"]["CartPole-v1"]["sooner"]["points"])
        curve, reached, *_ = drawn[-1].axes
        curves.append([axes.lines[0].get_data() for axes in (curve, reached)])
    assert all(x == said[0] for x in said)
    assert points == [21, 3, 3, 3, 3]  # by which alone they are compared
    found = said[0]["steps_to_score"]["CartPole-v1"]
    assert found["steps"] == [200, 200, 100, 80, 60, 40] and found["until"] == 400
    for x in curves:
        np.testing.assert_equal(x, curves[0])
    np.testing.assert_array_equal(curves[0][0][0], fine)
    x, y = drawn[3].axes[0].lines[2].get_data()  # the ends of the two seeds that failed
    np.testing.assert_array_equal([x, y], [[50, 50], [1, 1]])


@pytest.mark.full
def test_being_sooner_is_by_the_common_evaluations(write_run):
    """One that is evaluated more often sees the same noise sooner, which then counts for nothing."""
    generator, seldom = np.random.default_rng(0), np.arange(0, 201, 40)
    values = generator.normal(size=(201, 40))
    often = evaluated(write_run, "often", list(range(201)), values.tolist())
    other = evaluated(write_run, "seldom", seldom.tolist(), generator.normal(size=(6, 40)).tolist())
    result = compare([often, other], target=1.0, consecutive=1)
    first, row = (x["steps_to_score"]["CartPole-v1"] for x in result["rows"])
    assert first["value"] < 20 and row["value"] > 40
    low, high = row["sooner"]["interval"]
    assert low < 0.5 < high and row["sooner"]["points"] == 6
    grid = values[seldom] >= 1
    steps = np.where(grid.any(axis=0), seldom[grid.argmax(axis=0)], math.inf)
    assert row["sooner"]["value"] == pytest.approx(brute_force(-steps, -np.array(row["steps"])))
    assert "evaluated 6, 201 times: who looks more often" in notes_of(result)
    few = compare([often, evaluated(write_run, "one", [200], [[1.0] * 40])], target=1.0, consecutive=1)
    assert few["rows"][1]["steps_to_score"]["CartPole-v1"]["sooner"]["points"] == 1
    assert "probability of being sooner" in text_of(few)


def test_steps_after_the_end_of_a_run_are_no_common_evaluations(write_run):
    """Its last evaluation stands for another's next one where its own would not have been due before."""
    short = evaluated(
        write_run, "short", [0, 80, 160], [[0.0] * 5, [0.0] * 3 + [2.0] * 2, [0.0] * 3 + [2.0] * 2]
    )
    for name, step, points in (("far", 5_000, 1), ("near", 165, 2)):
        other = evaluated(write_run, name, [0, step], [[0.0] * 5, [2.0] * 5])
        row = compare([short, other], target=1.0, consecutive=1)["rows"][1]
        sooner = row["steps_to_score"]["CartPole-v1"]["sooner"]
        assert sooner["points"] == points and row["steps_to_score"]["CartPole-v1"]["steps"] == [step] * 5
        assert sooner["value"] == (None if points == 1 else 0.8)  # nobody reaches it at step 0 alone


@pytest.mark.full
def test_names_in_the_picture_are_no_formulae(write_run, tmp_path, monkeypatch):
    saved, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, path: saved.append(figure) or save(figure, path))
    names = ("_new", r"a$\frac{$")
    compare(dict(zip(names, [write_run("a"), write_run("b")], strict=True)), plot=tmp_path / "x.png")
    (legend,) = saved[0].legends
    assert [text.get_text().strip() for text in legend.get_texts()] == list(names)


@pytest.mark.slow
def test_labels_give_texts_colours_and_the_order(write_run, tmp_path, monkeypatch):
    """Names of any letters and length, on paper: nothing on the terminal, and texts that are text."""
    drawn, save, long = [], figures.save, "x" * 80
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure) or save(figure, path))
    runs = {"a": write_run("a", GOOD), "b": write_run("b", BETTER), "鱼 $": write_run("c", GOOD)}
    labels = {"鱼 $": f"{long}:x", "b": "ours:#d55e00"}
    for kind, start in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        compare(runs, plot=tmp_path / f"{kind}.{kind}", labels=labels)
        assert (tmp_path / f"{kind}.{kind}").read_bytes().startswith(start)
    (legend,) = drawn[0].legends
    assert [x.get_text() for x in legend.get_texts()] == [f"{long[:57]}...", "ours", "a"]
    assert [x.get_color() for x in drawn[0].axes[0].lines] == [
        figures.PALETTE[0],
        "#d55e00",
        figures.PALETTE[3],
    ]
    assert ">ours</text>" in (tmp_path / "svg.svg").read_text()
    named = compare(
        {"a=1": write_run("d", GOOD), "a": write_run("e", GOOD)},
        plot=tmp_path / "z.svg",
        labels={"a": "1=x=y"},
    )
    assert len(named["rows"]) == 2 and drawn[-1].legends[0].get_texts()[0].get_text() == "x=y"
    with pytest.raises(ShoalError, match="labels has 'd', which is no row; there are a, b"):
        compare(runs, plot=tmp_path / "y.png", labels={"d": ""})


def test_one_evaluation_before_the_first_step_is_drawn_within_the_axes(write_run, drawn, tmp_path):
    one = write_run("a", GOOD, finished=False)
    lines = (one / "metrics.jsonl").read_text().splitlines(keepends=True)
    (one / "metrics.jsonl").write_text("".join(x for x in lines if json.loads(x)["step"] == 0))
    compare([one, one], plot=tmp_path / "x.png")
    curve = drawn[0].axes[0]
    assert list(curve.get_xticks()) == [0] and curve.get_xlim() == (-1, 1)


def test_a_damaged_summary_is_named(write_run):
    damaged, a = write_run("b", GOOD), write_run("a", GOOD)
    content = json.loads((damaged / "summary.json").read_text())
    cases = [(part, "absolute") for part in ("x", 3, {"iqm": 1}, {"returns": [1.0]}, {"returns": ["x"] * 5})]
    for part, metric in (*cases, ("x", "final")):
        (damaged / "summary.json").write_text(json.dumps(content | {"absolute": part}))
        with pytest.raises(ShoalError, match=r"b/summary\.json is damaged"):
            compare([a, damaged], metric=metric)


def test_the_picture_of_several_environments(four, drawn, tmp_path):
    compare(four, bounds=BOUNDS, plot=tmp_path / "x.png")
    titles = [axes.get_title(loc="left") for axes in drawn[0].axes if axes.get_title(loc="left")]
    assert titles == ["CartPole-v1", "MiniGrid-Empty-5x5", "Sample efficiency", "Performance profile"]
    share, values = drawn[0].axes[2].lines[1].get_data()
    ends = np.stack([BETTER, GOOD], axis=-1) / 10
    assert share[-1] == 1 and values[-1] == pytest.approx(scores.iqm(ends))


@pytest.mark.full
def test_files_are_written_once(write_run, tmp_path):
    runs = [write_run("a", GOOD), write_run("b", BETTER)]
    compare(runs, plot=tmp_path / "x.png", export=tmp_path / "x.json")
    assert imread(tmp_path / "x.png").std() > 0
    for name in ("plot", "export"):
        with pytest.raises(ShoalError, match=f"{name}=.* exists already"):
            compare(runs, **{name: tmp_path / "x.png"})
    with pytest.raises(
        ShoalError, match=r"export='.*y.png' is the file of plot too; give a name that is free"
    ):
        compare(runs, plot=tmp_path / "y.png", export=tmp_path / "." / "y.png")
    with pytest.raises(ShoalError, match=r"ends in none of \.png, \.pdf, \.svg; try '.*y\.pdf'"):
        compare(runs, plot=tmp_path / "y.jpg")
    with pytest.raises(ShoalError, match="there is no directory"):
        compare(runs, plot=tmp_path / "no" / "x.png")
    failed = write_run("c", BETTER, failed=[0])
    with pytest.raises(ShoalError, match="of c 1 failed"):
        compare([runs[0], failed], plot=tmp_path / "y.png", export=tmp_path / "y.json")
    assert not list(tmp_path.glob("y.*"))


def test_the_export_is_marl_evals(four, write_run, tmp_path):
    """As its own reader (id-marl-eval 0.0.4) accepts it: equal seeds, steps and metrics everywhere."""
    compare(four, bounds=BOUNDS, export=tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text())
    assert list(content) == ["shoal"] and list(content["shoal"]) == ["CartPole-v1", "MiniGrid-Empty-5x5"]
    for task in content["shoal"].values():
        assert list(task) == ["ppo", "dqn"]
        for run in (run for algorithm in task.values() for run in algorithm.values()):
            assert list(run) == ["step_0", "step_1", "step_2", "absolute_metrics"]
    run = content["shoal"]["CartPole-v1"]["dqn"]["seed_4"]
    assert run["step_1"] == {"step_count": 100, "return": [4.5]} and run["absolute_metrics"] == {
        "return": [9.0]
    }
    with pytest.raises(ShoalError, match="4 seeds, and marl-eval needs as many"):
        compare([four[0], write_run("e", GOOD[:4])], export=tmp_path / "y.json")
    with pytest.raises(ShoalError, match="has a comma"):
        compare({"a,b": four[0], "c": four[0]}, export=tmp_path / "y.json")


def test_the_command(write_run, capsys, tmp_path, monkeypatch):
    paths = [str(write_run("a", GOOD)), str(write_run("b=1", BETTER))]
    assert command.main(paths) == 0
    out = capsys.readouterr().out
    assert out.startswith("CartPole-v1: returns of the best policies") and "against a" in out
    assert command.main([*paths, "--json", "--target", "2"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["a", "b=1"]
    assert command.main([f"x={paths[0]}", f"y={paths[1]}", "--bounds", "CartPole-v1=0:5"]) == 0
    assert "0.40" in capsys.readouterr().out
    with pytest.raises(ShoalError, match="has no name"):
        command.main([paths[0], f"y={paths[1]}"])
    for word in ("CartPole-v1", "CartPole-v1=1", "CartPole-v1=a:b"):
        with pytest.raises(ShoalError, match="is not ENV=LOW:HIGH"):
            command.main([*paths, "--bounds", word])
    with pytest.raises(ShoalError, match="consecutive=3 has no effect with target=None"):
        command.main([*paths, "--consecutive", "3"])
    with pytest.raises(ShoalError, match="has no flag '--targt'; did you mean '--target'"):
        command.main([*paths, "--targt", "3"])


def test_few_seeds_are_said_once(write_run):
    result = compare([write_run("a", GOOD), write_run("b", (*GOOD, 6.0))])
    first, few = result["notes"]
    assert few.count("bootstrap intervals from fewer than 10 seeds") == 1
    assert (
        first.startswith("the runs have different numbers of seeds")
        and first.count("a 5 (20%), b 6 (17%)") == 1
    )


def test_many_seeds(write_run):
    many = write_run("many", tuple(np.random.default_rng(0).normal(size=256)))
    result = compare([many, write_run("b", tuple(np.random.default_rng(1).normal(1.0, size=10)))], target=0.5)
    assert result["rows"][0]["seeds"] == 256 and result["rows"][1]["improvement"]["value"] > 0.6
    (note,) = result["notes"]
    assert "many 256 (25%), b 10 (20%)" in note


@pytest.mark.full
def test_what_train_returns_can_be_compared(real_run):
    result = compare([real_run, real_run])
    assert result["rows"][1]["improvement"]["value"] == 0.5
    entry = read_comparison([real_run, real_run]).rows[0].entries[0]
    assert entry.evaluation["env.gravity"] == pytest.approx(9.8)
    assert compare_inputs.changed_parameters(entry, declared_scale("CartPole-v1").defaults) == []
