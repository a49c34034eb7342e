"""Whole sweeps of a quick algorithm: what they leave behind, how they go on, and what they refuse."""

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal import cli
from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.cli.searching import print_result
from shoal.records.directory import RunDirectory
from shoal.runs.policies.evaluate import evaluate_run
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.search import grouping, ranking, search_report
from shoal.search import sweep as sweeps
from shoal.search.ranking import MemberResult, rank
from shoal.search.space import from_tables

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    **{
        "seeds": 2,
        "num_envs": 4,
        "num_steps": 8,
        "total_steps": 32 * 12,
        "eval_every": 192,
        "eval_episodes": 4,
    },
    **{"devices": 1, "progress": False, "confirm_seeds": 0},
}


SPACE = {"grid": {"baseline_rate": [0.1, 0.2]}, "random": {"step_size": "log:0.01:5"}, "samples": 2}


DIVERGING = {"baseline_rate": [3e38, 0.1, 0.2, 0.3]}


def sweep(path, **settings):
    chosen = {name: x for name, x in (SMALL | settings).items() if x is not None}
    return shoal.sweep(Halves(bonus=1.0), algorithm=BanditConfig(), run_dir=path, **chosen)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Four settings in one program, of which the best three train again on a new seed."""
    return sweep(tmp_path_factory.mktemp("sweep") / "sweep", **SPACE, confirm_seeds=1)


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """As many settings, of which the first has no seed that survives: its baseline is infinite after an update."""
    path = tmp_path_factory.mktemp("diverged") / "sweep"
    return sweep(path, grid=DIVERGING, confirm_seeds=1)


def labels(summary):
    return [entry["label"] for entry in summary["members"]]


@pytest.mark.full
def test_settings_are_sorted_by_score_and_the_best_confirmed(swept):
    summary = json.loads((swept.path / "summary.json").read_text())
    assert summary == swept.summary
    scores = [entry["absolute"]["iqm"] for entry in summary["members"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4
    assert all(entry["seeds"] == [0, 1] for entry in summary["members"])
    assert [entry["seeds"] for entry in summary["confirmed"]] == [[2]] * 3
    assert set(labels({"members": summary["confirmed"]})) == set(labels(summary)[:3])
    best = summary["best"]
    assert best["label"] == summary["confirmed"][0]["label"]
    assert best["score"] == best["confirmed"] != best["optimistic"]


def test_the_directory_holds_a_table_pictures_and_ordinary_runs(swept):
    table = list(csv.DictReader((swept.path / "members.csv").read_text().splitlines()))
    assert len(table) == 8
    assert {row["baseline_rate"] for row in table} == {"0.1", "0.2"}
    assert all(row["steps"] == "384" for row in table)
    for name in ("settings", "pairs", "parallel", "importances", "curves"):
        assert (swept.path / f"{name}.png").is_file()
    (run,) = (swept.path / "runs").iterdir()
    assert {row["label"] for row in RunDirectory.open(run).load_metrics()} == set(labels(swept.summary))


def test_the_best_member_is_loaded_and_evaluated(swept):
    best = swept.summary["best"]
    policy = shoal.load(swept.path)
    assert float(policy.config.step_size) == np.float32(best["settings"]["step_size"])
    found = evaluate_run(swept.path, episodes=4)
    assert list(found["metrics"]) == [f"{best['label']}, seed {seed}" for seed in (0, 1)]
    other = labels(swept.summary)[-1]
    assert list(evaluate_run(swept.path, label=other, run_seed=1, episodes=4)["metrics"]) == [
        f"{other}, seed 1"
    ]
    with pytest.raises(ShoalError, match="label='x' is not one of the sweep's"):
        shoal.load(swept.path, label="x")


def compare_winner(path):
    """Require that the run of the printed command has the parameters of the sweep's best setting, bit for bit."""
    best = json.loads((path / "summary.json").read_text())["best"]
    alone, together = (
        json.loads((path / name / "summary.json").read_text()) for name in ("winner", best["run"])
    )
    variants = json.loads((path / best["run"] / "config.json").read_text())["variants"]
    seeds, place = best["optimistic"]["seeds"], [x["label"] for x in variants].index(best["label"])
    first = place * len(seeds)
    assert alone["seeds"][: len(seeds)] == seeds
    assert (
        alone["parameters_sha256"][: len(seeds)] == together["parameters_sha256"][first : first + len(seeds)]
    )


@pytest.mark.full
def test_a_setting_that_diverged_is_last_and_is_neither_confirmed_nor_the_best(diverged):
    """Its seeds have best policies from before the fault, with scores like the others'."""
    summary, last = diverged.summary, "0 baseline_rate=3e+38"
    assert labels(summary)[-1] == last
    entry = summary["members"][-1]
    assert entry["failed"] == [0, 1]
    assert np.isnan(entry["absolute"]["iqm"]) and np.isnan(entry["absolute"]["returns"]).all()
    assert json.loads((diverged.path / "summary.json").read_text())["members"][-1]["absolute"]["iqm"] is None
    assert {x["label"] for x in summary["confirmed"]} == set(labels(summary)[:3])
    assert summary["best"]["label"] in labels(summary)[:3]
    assert float(diverged.policy().config.baseline_rate) == np.float32(
        summary["best"]["settings"]["baseline_rate"]
    )
    text = search_report.result_text(summary, diverged.path)
    assert f"no score                    {last}   failed: seeds 0, 1\n" in text
    assert "\ntrained again on 1 new seed:\n" in text
    table = list(csv.DictReader((diverged.path / "members.csv").read_text().splitlines()))
    assert (
        [row["label"] for row in table if row["failure"]]
        == [last] * 2
        == [row["label"] for row in table][-2:]
    )
    faults = json.loads((diverged.path / "runs/000/summary.json").read_text())["failed"]
    assert [x["label"] for x in faults] == [last] * 2
    for row, fault in zip(table[-2:], faults, strict=True):  # it made its last update at the fault
        assert (int(row["seed"]), int(row["steps"])) == (fault["seed"], 32 * fault["update"])
        assert row["failure"] == f"a number was not finite in update {fault['update']}"
    assert {row["steps"] for row in table[:-2]} == {"384"}


def test_the_worst_of_settings_that_live_is_drawn_and_not_what_failed(diverged, monkeypatch, tmp_path):
    curves = []
    monkeypatch.setattr(
        "shoal.search.sweep_plots.plot_best_and_worst", lambda *args, **_: curves.extend(args[1:3])
    )
    path = shutil.copytree(diverged.path, tmp_path / "sweep")
    again = sweep(path, grid=DIVERGING, confirm_seeds=1)
    assert labels(again.summary) == labels(diverged.summary)
    best, _, worst = labels(diverged.summary)[:3]
    assert [list(part) for part in curves] == [[best], [worst]]
    assert curves[0][best][1].shape == (3, 2)  # points and seeds
    members = [
        MemberResult(best, {}, 0, {"absolute": 1.0}, 384),
        MemberResult(best, {}, 1, {"absolute": 1.0}, 384, failure="a number was not finite"),
    ]
    run = types.SimpleNamespace(
        path=path / "runs/000", group=types.SimpleNamespace(candidates=[grouping.Candidate(best, {})])
    )
    _, drawn = search_report._curves([run], "return_mean", rank(members))[best]
    np.testing.assert_array_equal(drawn, curves[0][best][1][:, :1])


def test_a_policy_has_the_settings_of_its_label_wherever_the_config_lists_them(swept, tmp_path):
    path = shutil.copytree(swept.path / "runs/000", tmp_path / "run")
    config = json.loads((path / "config.json").read_text())
    config["variants"].reverse()
    (path / "config.json").write_text(json.dumps(config))
    for label in labels(swept.summary):
        before, after = (shoal.load(run, label=label, seed=1) for run in (swept.path / "runs/000", path))
        assert after.config == before.config


def test_what_failed_is_named_and_what_failed_again_is_not_the_best(tmp_path):
    def members(label, scores):
        """A seed for each score; None is one that failed."""
        for seed, score in enumerate(scores):
            failure = "a number was not finite" if score is None else ""
            yield MemberResult(label, {"a": 1}, seed, {"absolute": score}, 100, failure=failure)

    ranked = rank([*members("0 a=1", [9.0, 9.0]), *members("1 a=2", [5.0, None]), *members("2 a=3", [None])])
    directory = types.SimpleNamespace(path=tmp_path, plan=lambda: {"runs/000": [x.label for x in ranked]})
    base = types.SimpleNamespace(environment_name="x", algorithm="y")
    report = search_report.Report(directory, from_tables({"grid": {"a": [1, 2, 3]}}), base, "absolute")
    assert report._best(ranked, [])["label"] == "0 a=1"
    again = rank([*members("0 a=1", [None, None]), *members("1 a=2", [3.0, None])])
    best = report._best(ranked, again)
    assert (best["label"], best["score"]["iqm"], best["score"]["failed"]) == ("1 a=2", 3.0, [1])
    assert report._best(ranked, again[1:])["label"] == "1 a=2"  # of the confirmed, only it did not fail
    assert report._best(ranked[2:], []) is None
    summary = {"environment": "x", "algorithm": "y", "objective": "absolute", "best": None, "command": None}
    summary |= {"members": ranking.summarise(ranked), "confirmed": ranking.summarise(again)}
    text = search_report.result_text(summary, tmp_path, shown=1)
    assert "failed among these: 1 a=2 (seed 1), 2 a=3 (seed 0)" in text
    assert "0 a=1   failed: seeds 0, 1" in text and "there is no best setting" in text


@pytest.mark.slow
def test_a_sweep_of_which_every_member_fails_ends_with_their_names(tmp_path, capsys):
    """Its directory is whole; the command line makes exit code 2 of the error."""
    searched = sweep(tmp_path / "sweep", grid={"baseline_rate": [3e38, 2e38]}, confirm_seeds=1)
    assert searched.summary["best"] is None and searched.summary["confirmed"] == []
    assert sorted(x.name for x in searched.path.iterdir()) == [
        *("members.csv", "runs", "summary.json", "sweep.json"),
    ]
    with pytest.raises(ShoalError) as error:
        print_result(searched)
    assert str(error.value) == (
        "no setting is the best, since a number was not finite in the training of each: 0 baseline_rate=3e+38 "
        f"(seeds 0, 1), 1 baseline_rate=2e+38 (seeds 0, 1); the results are in {searched.path}."
    )
    assert "best:" not in capsys.readouterr().out
    with pytest.raises(ShoalError, match="has no best setting"):
        searched.policy()


@pytest.mark.full
def test_another_number_of_new_seeds_trains_what_is_missing(swept, tmp_path, monkeypatch):
    """Every score stays that of its label and seed, whatever the order in which the runs hold them."""
    path, trained = shutil.copytree(swept.path, tmp_path / "sweep"), []
    run_experiment = sweeps.run_experiment

    def train(run, call):
        trained.extend((x.label, x.seed) for x in run.members)
        return run_experiment(run, call)

    monkeypatch.setattr(sweeps, "run_experiment", train)
    more = sweep(path, **SPACE, confirm_seeds=3)
    confirmed = {x["label"]: x["absolute"]["returns"][0] for x in swept.summary["confirmed"]}
    assert set(trained) == {(label, seed) for label in confirmed for seed in (3, 4)}
    assert {x["label"]: x["absolute"]["returns"][0] for x in more.summary["confirmed"]} == confirmed
    new = json.loads(next(path.glob("confirmation/*-seeds-3-to-4/summary.json")).read_text())["members"]
    assert {x["label"]: x["absolute"]["returns"][1:] for x in more.summary["confirmed"]} == {
        x["label"]: x["absolute"]["returns"] for x in new
    }
    assert all(x["seeds"] == [2, 3, 4] for x in more.summary["confirmed"])
    trained.clear()
    fewer = sweep(path, **SPACE, confirm_seeds=1)
    parts = ("members", "confirmed", "best")
    assert trained == [] and [fewer.summary[x] for x in parts] == [swept.summary[x] for x in parts]
    two = sweep(path, **SPACE, confirm_seeds=2).summary["confirmed"]
    of_three = {x["label"]: x["absolute"]["returns"] for x in more.summary["confirmed"]}
    assert trained == [] and {x["label"]: x["absolute"]["returns"] for x in two} == {
        label: x[:2] for label, x in of_three.items()
    }


@pytest.mark.full
def test_the_command_trains_the_winner_alone(swept, capsys, monkeypatch):
    monkeypatch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
    program, *words = shlex.split(swept.summary["command"])
    assert program == "shoal" and swept.summary["command_is"] == "bit for bit"
    assert words[words.index("--env-groups") + 1] == words[words.index("--devices") + 1] == "1"
    assert cli.main([*words, "--quiet"]) == 0
    compare_winner(swept.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "flags", "likeness"),
    [
        (3, "--devices 3", "bit for bit"),
        (1, "--seeds 2 --devices 2", "bit for bit, with a further seed"),
    ],
)
def test_the_command_trains_an_odd_number_of_seeds_bit_for_bit(tmp_path, seeds, flags, likeness):
    """Two devices share the members of the sweep, and could not share the seeds of one setting evenly."""
    surroundings = {
        name: x for name, x in os.environ.items() if name != "XLA_FLAGS"
    }  # compiled as for a user

    def run(*words):
        words = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())", *words]
        return subprocess.run(words, check=True, capture_output=True, text=True, env=surroundings).stdout

    words = "--grid learning_rate=1e-3,3e-3 --num-envs 4 --num-steps 32 --total-steps 2048 --eval-episodes 4"
    words = [*words.split(), "--devices", "2", "--confirm-seeds", "0", "--run-dir", str(tmp_path / "sweep")]
    printed = run("sweep", "CartPole-v1", *words, "--seeds", str(seeds))
    command = json.loads((tmp_path / "sweep" / "summary.json").read_text())["command"]
    assert f" {flags} --run-dir " in command
    assert f"; alone it is trained, {likeness}, by\n  {command}\n" in printed
    run(*shlex.split(command)[1:])
    compare_winner(tmp_path / "sweep")


def test_a_finished_sweep_is_read_and_another_one_refused(swept, monkeypatch):
    monkeypatch.setattr(sweeps, "run_experiment", None)  # nothing is trained
    again = sweep(swept.path, **SPACE, confirm_seeds=1, note="another note")
    assert again.summary == swept.summary
    for changes, name in (
        ({"grid": {"baseline_rate": [0.1, 0.3]}}, "grid.baseline_rate"),
        ({"seeds": 3}, "run.seeds is 2 there, and 3 was asked for"),
        ({"sobol": True}, "sobol is False there, and True"),
    ):
        with pytest.raises(ShoalError, match=f"holds another sweep: .*{name}"):
            sweep(swept.path, **{**SPACE, "confirm_seeds": 1} | changes)
    with pytest.raises(ShoalError, match="samples=1 is less than the sweep"):
        sweep(swept.path, **{**SPACE, "confirm_seeds": 1, "samples": 1})


@pytest.mark.full
def test_an_interrupted_sweep_goes_on(swept, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
    original = RunSupervisor.between_pieces

    def between_pieces(self, population, history):
        self.stop._requested = history.updates > 0
        original(self, population, history)

    with monkeypatch.context() as patch:
        patch.setattr(RunSupervisor, "between_pieces", between_pieces)
        with pytest.raises(signals.Interrupted, match="the same command with this directory continues it"):
            sweep(tmp_path / "sweep", **SPACE)
    resumed = sweep(tmp_path / "sweep", **SPACE, progress=True)
    assert resumed.summary["members"] == swept.summary["members"]
    assert (resumed.path / "members.csv").read_text() == (swept.path / "members.csv").read_text()
    error = capsys.readouterr().err
    assert "sweep: 4 settings, 8 members, 1 run; 0 new compiled groups, 3 compilations" in error
    assert "384 of 384 steps of 8 members (100%)" in error
    assert " best " in error


@pytest.mark.slow
def test_more_samples_extend_a_sweep(swept, tmp_path, monkeypatch):
    """Two combinations of the grid get a third sample each, which alone are trained."""
    path = shutil.copytree(swept.path, tmp_path / "sweep")
    trained, run_experiment = [], sweeps.run_experiment

    def train(run, call):
        trained.extend(variant.label for variant in run.variants)
        return run_experiment(run, call)

    monkeypatch.setattr(sweeps, "run_experiment", train)
    extended = sweep(path, **SPACE | {"samples": 3}, confirm_seeds=0)
    assert len(trained) == 2
    assert set(labels(extended.summary)) == set(labels(swept.summary)) | set(trained)


@pytest.mark.slow
def test_members_differ_in_worlds_and_are_judged_by_a_metric_of_one(tmp_path):
    """The bonus is trained with, and not evaluated with; the objective is a metric of that evaluation."""
    path = tmp_path / "sweep"
    found = sweep(
        path, grid={"env.bonus": [0.0, 3.0]}, objective="length_mean", eval_env={"bonus": 0.0}, eval_every=0
    )
    entry = found.summary["members"][0]
    run = RunDirectory.open(path / "runs/000")
    evaluation = run.load_summary()["evaluation"]
    place = [0.0, 3.0].index(entry["settings"]["env.bonus"])
    assert entry["absolute"]["returns"] == evaluation["length_mean"][2 * place : 2 * place + 2]
    steps = {row["step"] for row in run.load_metrics() if row["kind"] == "evaluation"}
    assert steps == {0, 384}  # evaluation during training is switched off
    assert evaluation["return_mean"] == evaluation["length_mean"]  # 1 a step, and no bonus
    winner = json.loads((path / "winner.json").read_text())
    assert winner["eval_env"] == {"bonus": 0.0}


@pytest.mark.quick("settings3-objective: .*did you mean 'length_mean'")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"grid": {"step_siz": [1.0]}}, "there is no setting 'step_siz'.*did you mean 'step_size'"),
        ({"grid": {"seed": [1, 2]}}, "seed cannot vary"),
        (
            {"grid": {"step_size": [1.0]}, "step_size": 2.0},
            "step_size=2.0 has no effect, since step_size varies",
        ),
        (
            {"grid": {"step_size": [1.0]}, "objective": "length_men"},
            "objective: .*did you mean 'length_mean'",
        ),
        ({"grid": {"step_size": [1.0]}, "confirm_seeds": -1}, "confirm_seeds=-1"),
        (
            {"grid": {"step_size": [1.0, 2.0]}, "halving": 3, "min_steps": 32},
            "halving=3 stops none of 2 settings",
        ),
        (
            {"grid": {"step_size": [1.0, 2.0]}, "halving": 2, "min_steps": 5},
            "min_steps=5 is not between one update",
        ),
        (
            {"grid": {"step_size": [1.0], "total_steps": [320, 640]}, "halving": 2, "total_steps": None},
            "halving=2 compares all settings at the same time, so that one compiled program",
        ),
        ({"grid": {"env.bonuss": [1.0]}}, "bonuss"),
        ({"grid": {"step_size": [1.0]}, "seeds": 10**9}, "not even 1000000000 members of one setting"),
        ({"random": {"step_size": "log:1:0.1"}}, "bounds the wrong way round"),
        ({"grid": {"step_size": [1.0]}, "space": "x.toml"}, "is given together with grid"),
        ({}, "the space is empty"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path, settings, sentence):
    with pytest.raises(ShoalError, match=sentence):
        sweep(tmp_path / "sweep", **settings)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_reads_spaces(tmp_path, capsys):
    words = ["sweep", "CartPole-v1", "--grid", "gamma=0.9,0.99", "--grid=learning_rate=1,2", "--random"]
    assert cli.main([*words, "gamma=log:0.1:0.9", "--run-dir", str(tmp_path / "sweep")]) == 2
    assert "gamma is in the grid and among the random settings" in capsys.readouterr().err
    assert cli.main(["sweep", "CartPole-v1"]) == 2
    assert "the space is empty" in capsys.readouterr().err
    assert from_tables({"grid": {"gamma": [0.9]}}).names == ("gamma",)


@pytest.mark.slow
def test_halving_stops_the_worst_and_says_where(tmp_path):
    space = {"grid": {"step_size": [0.01, 0.1, 1.0, 5.0]}, "halving": 2, "min_steps": 32}
    found = sweep(tmp_path / "sweep", **space)
    at_rungs = [entry["steps_per_seed"] for entry in found.summary["members"]]
    assert at_rungs[0] == 384
    assert sorted(at_rungs[1:]) == [32, 32, 64]
    assert all(("absolute" in x) == (x["steps_per_seed"] == 384) for x in found.summary["members"])
    assert float(shoal.load(found.path).config.step_size) == np.float32(
        found.summary["members"][0]["settings"]["step_size"]
    )


@pytest.mark.slow
def test_settings_that_diverged_take_no_place_at_a_rung(tmp_path):
    """Of eight settings four live at the first rung: two and one go on, and four are last."""
    space = {"grid": {"baseline_rate": [3e38, 0.1], "step_size": [0.01, 0.1, 1.0, 5.0]}}
    found = sweep(tmp_path / "sweep", **space, halving=2, min_steps=128, confirm_seeds=1).summary
    entries = found["members"]
    assert [x["failed"] for x in entries] == [[]] * 4 + [[0, 1]] * 4
    assert [x["steps_per_seed"] for x in entries[:4]] == [384, 256, 128, 128]
    assert [x["rung"] for x in entries] == [2, 1, 0, 0, 0, 0, 0, 0]
    assert len(found["confirmed"]) == 3
    assert all(x["settings"]["baseline_rate"] == 0.1 for x in found["confirmed"])
