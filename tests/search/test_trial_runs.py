"""Tuning a quick algorithm by the real Optuna: what it leaves behind, how it goes on, and what it refuses."""

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal import cli
from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.search import sweep as sweeps

pytestmark = pytest.mark.usefixtures("undrawn")

optuna = pytest.importorskip("optuna")
SMALL = {
    **{
        "seeds": 2,
        "num_envs": 4,
        "num_steps": 8,
        "total_steps": 32 * 12,
        "eval_every": 192,
        "eval_episodes": 4,
    },
    **{"devices": 1, "progress": False, "confirm_seeds": 0, "trials": 3, "batch": 3},
}
SPACE = {"random": {"step_size": "log:0.01:5"}}


def tune(path, **settings):
    given = {name: x for name, x in (SMALL | SPACE | settings).items() if x is not None}
    return shoal.tune(Halves(bonus=1.0), algorithm=BanditConfig(), run_dir=path, **given)


def study_of(storage):
    backend = optuna.storages.journal.JournalFileBackend(str(storage))
    return optuna.load_study(study_name="shoal", storage=optuna.storages.JournalStorage(backend))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    return tune(tmp_path_factory.mktemp("tune") / "tune")


@pytest.mark.full
def test_trials_are_told_and_ranked(tuned):
    study = study_of(tuned.path / "study.journal")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3
    entries = tuned.summary["members"]
    assert {int(x["label"].split()[0]): x["absolute"]["iqm"] for x in entries} == {
        trial.number: trial.value for trial in study.trials
    }
    for entry in entries:
        trial = study.trials[int(entry["label"].split()[0])]
        assert entry["settings"] == {"step_size": trial.params["step_size"]}
    assert tuned.summary["best"]["label"] == entries[0]["label"]
    assert len((tuned.path / "members.csv").read_text().splitlines()) == 1 + 6
    assert sorted(x.name for x in (tuned.path / "batches").iterdir()) == ["00000"]
    step_size = shoal.load(tuned.path).config.step_size
    assert float(step_size) == np.float32(entries[0]["settings"]["step_size"])


@pytest.mark.full
def test_an_interrupted_tuning_ends_as_an_uninterrupted_one(tuned, tmp_path, monkeypatch):
    original = RunSupervisor.between_pieces
    pieces = []

    def between_pieces(self, population, history):
        pieces.append(history.updates)
        self.stop._requested = history.updates > 0 and len(pieces) > 1
        original(self, population, history)

    path = tmp_path / "ended"
    with monkeypatch.context() as patch:
        patch.setattr(RunSupervisor, "between_pieces", between_pieces)
        with pytest.raises(signals.Interrupted, match="the same command with this directory continues it"):
            tune(path)
    states = [trial.state.name for trial in study_of(path / "study.journal").trials]
    assert "RUNNING" in states
    assert tune(path).summary["members"] == tuned.summary["members"]
    monkeypatch.setattr(sweeps, "run_experiment", None)  # nothing is trained
    assert tune(path).summary["members"] == tuned.summary["members"]


@pytest.mark.full
def test_another_process_goes_on_with_the_study(tuned, tmp_path, capsys):
    storage = tmp_path / "study.journal"
    shutil.copy(tuned.path / "study.journal", storage)
    second = tune(tmp_path / "b", storage=storage, trials=4, progress=True)
    best = tuned.summary["best"]["label"].split()[0]
    assert second.summary["members"][0]["absolute"]["iqm"] <= tuned.summary["best"]["score"]["iqm"]
    assert f"the best of the study so far is trial {best}, " in capsys.readouterr().err
    assert [x["label"].split()[0] for x in second.summary["members"]] == ["3"]
    assert [trial.state.name for trial in study_of(storage).trials] == ["COMPLETE"] * 4
    for changes, sentence in (
        ({"random": {"step_size": "log:0.01:1"}}, r"random\.step_size='log:0.01:5.0', not 'log:0.01:1.0'"),
        ({"seeds": 3}, r"run\.seeds=2, not 3"),
    ):
        with pytest.raises(ShoalError, match=f"^study 'shoal' was made with {sentence}; give the same"):
            tune(tmp_path / "c", storage=storage, **changes)
    assert not (tmp_path / "c").exists()


@pytest.mark.full
def test_what_is_damaged_is_named_and_nothing_is_written(tuned, tmp_path):
    path = shutil.copytree(tuned.path, tmp_path / "tune")
    (path / "batches/00000/trials.json").write_text("[")
    before = (path / "study.journal").read_bytes()
    with pytest.raises(ShoalError, match=r"trials\.json"):
        tune(path)
    assert (path / "study.journal").read_bytes() == before


@pytest.mark.full
def test_trials_that_stop_early_are_pruned(tmp_path):
    tuned = tune(tmp_path / "tune", trials=4, halving=3, min_steps=96)
    trials = study_of(tuned.path / "study.journal").trials
    states = [trial.state.name for trial in trials]
    assert sorted(states[:3]) == ["COMPLETE", "PRUNED", "PRUNED"]
    assert states[3] == "COMPLETE"  # a batch of one trial stops none
    by_number = {int(x["label"].split()[0]): x for x in tuned.summary["members"]}
    for trial in trials:
        if trial.state.name == "PRUNED":
            assert trial.intermediate_values == {96: by_number[trial.number]["at_rung"]["iqm"]}
    ends = [x["absolute"]["iqm"] for x in tuned.summary["members"] if "absolute" in x]
    assert (
        ends
        == sorted(ends, reverse=True)
        == [x.get("absolute", {}).get("iqm") for x in tuned.summary["members"]][:2]
    )
    assert tuned.summary["best"]["score"]["iqm"] == max(ends)
    assert tune(tmp_path / "tune", trials=4, halving=3, min_steps=96).summary == tuned.summary


def wait_for(path, process, seconds=300):
    """Wait until a process has written a file."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end, process.stderr.read()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_process_that_is_killed_ends_as_one_that_is_not(tmp_path):
    """By SIGKILL in the first batch, by SIGTERM in the second, and by SIGKILL in the confirmation."""
    words = ["-c", "import sys; from shoal.cli import main; sys.exit(main())", "tune", "CartPole-v1"]
    words += ["--random", "learning_rate=log:1e-5:1e-1", "--trials", "4", "--batch", "2", "--seeds", "2"]
    words += ["--total-steps", "40_000", "--num-evals", "2", "--confirm-seeds", "2", "--quiet", "--run-dir"]
    path, whole = tmp_path / "killed", tmp_path / "whole"

    def start(directory):
        return subprocess.Popen([sys.executable, *words, str(directory)], stderr=subprocess.PIPE, text=True)

    for end, file in (
        (signal.SIGKILL, path / "batches/00000/000/metrics.jsonl"),
        (signal.SIGTERM, path / "batches/00002/000/metrics.jsonl"),
        (signal.SIGKILL, path / "confirmation"),
    ):
        with start(path) as process:
            wait_for(file, process)
            process.send_signal(end)
            error = process.stderr.read()
            assert process.wait() == (75 if end == signal.SIGTERM else -signal.SIGKILL), error
    for directory in (path, whole):
        with start(directory) as process:
            error = process.stderr.read()
            assert process.wait() == 0, error
    summaries = [json.loads((directory / "summary.json").read_text()) for directory in (path, whole)]
    for name in ("members", "confirmed", "best"):
        assert summaries[0][name] == summaries[1][name]
    assert [trial.state.name for trial in study_of(path / "study.journal").trials] == ["COMPLETE"] * 4


@pytest.mark.quick("settings6-num_envs")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"random": {"step_siz": "log:1:2"}}, "there is no setting 'step_siz'.*did you mean 'step_size'"),
        ({"trials": 0}, "trials=0 is out of bounds"),
        ({"batch": 1.5}, "batch=1.5 is not a whole number"),
        ({"objective": "length_men"}, "did you mean 'length_mean'"),
        ({"storage": "nothing://a"}, "storage 'nothing://a' cannot be opened"),
        ({"random": {}}, "the space is empty"),
        ({"num_envs": 0}, "num_envs"),
        ({"halving": 3, "min_steps": 1}, "min_steps=1 is not between one update"),
        ({"halving": 4, "min_steps": 96}, "halving=4 stops none of 3 settings"),
        (
            {"grid": {"num_steps": [4, 8]}, "num_steps": None, "halving": 3, "min_steps": 96},
            "one compiled program",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path, settings, sentence):
    with pytest.raises(ShoalError, match=sentence):
        tune(tmp_path / "tune", **settings)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_reads_the_flags(tmp_path, capsys, monkeypatch):
    given = {}
    monkeypatch.setattr(
        "shoal.cli.tune.run_tuning", lambda *words: given.update(words=words) or sweep_of(tmp_path)
    )
    monkeypatch.setattr("shoal.cli.searching.sweep_text", lambda summary, path: "tuned")
    words = [
        "tune",
        "CartPole-v1",
        "--random",
        "gamma=uniform:0.9:1",
        "--trials",
        "7",
        "--batch",
        "3",
        "--seeds",
        "2",
    ]
    assert cli.main([*words, "--storage", "sqlite:///x.db", "--run-dir", str(tmp_path / "a")]) == 0
    request, space, options, _ = given["words"]
    assert (request.environment, request.overrides, space.names) == ("CartPole-v1", {"seeds": 2}, ("gamma",))
    assert (options.trials, options.batch, options.storage) == (7, 3, "sqlite:///x.db")
    assert options.path == str(tmp_path / "a")
    assert capsys.readouterr().out == "tuned\n"


def sweep_of(path):
    return sweeps.Sweep(path, {"best": {}})
