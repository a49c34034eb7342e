"""Whole sweeps of a quick algorithm: what they leave behind, how they go on, and what they refuse."""

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal import cli, interruption
from shoal.errors import ShoalError
from shoal.runtime.checkpointing import Supervisor
from shoal.runtime.disk.directory import RunDirectory
from shoal.sweeps import sweep as sweeps
from shoal.sweeps.space import from_tables
from shoal.trained import evaluate_run

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


def sweep(path, **settings):
    chosen = {name: x for name, x in (SMALL | settings).items() if x is not None}
    return shoal.sweep(Halves(bonus=1.0), algorithm=BanditConfig(), sweep_dir=path, **chosen)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Four settings in one program, of which the best three train again on a new seed."""
    return sweep(tmp_path_factory.mktemp("sweep") / "sweep", **SPACE, confirm_seeds=1)


def labels(summary):
    return [entry["label"] for entry in summary["members"]]


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
        assert (swept.path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
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
    with pytest.raises(ShoalError, match="label='x' is none of the sweep's"):
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
def test_the_command_trains_the_winner_alone(swept, capsys, monkeypatch):
    monkeypatch.setattr("shoal.experiment.catalogue.config_class", lambda _: BanditConfig)
    program, *words = shlex.split(swept.summary["command"])
    assert program == "shoal" and swept.summary["command_is"] == "bit for bit"
    assert words[words.index("--env-groups") + 1] == words[words.index("--devices") + 1] == "1"
    assert cli.main([*words, "--quiet"]) == 0
    compare_winner(swept.path)


@pytest.mark.full
@pytest.mark.parametrize(
    ("seeds", "flags", "likeness"),
    [(3, "--devices 3", "bit for bit"), (1, "--seeds 2 --devices 2", "bit for bit, with a further seed")],
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
    words = [*words.split(), "--devices", "2", "--confirm-seeds", "0", "--sweep-dir", str(tmp_path / "sweep")]
    printed = run("sweep", "CartPole-v1", *words, "--seeds", str(seeds))
    command = json.loads((tmp_path / "sweep" / "summary.json").read_text())["command"]
    assert f" {flags} --run-dir " in command
    assert f"; alone it is trained, {likeness}, by\n  {command}\n" in printed
    run(*shlex.split(command)[1:])
    compare_winner(tmp_path / "sweep")


def test_a_finished_sweep_is_read_and_another_one_refused(swept, monkeypatch):
    monkeypatch.setattr(sweeps, "run_experiment", None)  # nothing is trained
    again = sweep(swept.path, **SPACE, confirm_seeds=1)
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
    monkeypatch.setattr("shoal.experiment.catalogue.config_class", lambda _: BanditConfig)
    original = Supervisor.between_pieces

    def between_pieces(self, population, history):
        self.stop._requested = history.updates > 0
        original(self, population, history)

    with monkeypatch.context() as patch:
        patch.setattr(Supervisor, "between_pieces", between_pieces)
        with pytest.raises(
            interruption.Interrupted, match="the same command with this directory continues it"
        ):
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
        ({"grid": {"step_size": [1.0]}, "run_dir": "x"}, "run_dir is no setting of a sweep"),
        ({"grid": {"env.bonuss": [1.0]}}, "bonuss"),
        ({"grid": {"step_size": [1.0]}, "seeds": 10**9}, "not even 1000000000 members of one setting"),
        ({"random": {"step_size": "log:1:0.1"}}, "bounds the wrong way round"),
        ({"grid": {"step_size": [1.0]}, "space": "x.toml"}, "is given beside grid"),
        ({}, "the space is empty"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path, settings, sentence):
    with pytest.raises(ShoalError, match=sentence):
        sweep(tmp_path / "sweep", **settings)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_reads_spaces(tmp_path, capsys):
    words = ["sweep", "CartPole-v1", "--grid", "gamma=0.9,0.99", "--grid=learning_rate=1,2", "--random"]
    assert cli.main([*words, "gamma=log:0.1:0.9", "--sweep-dir", str(tmp_path / "sweep")]) == 2
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
