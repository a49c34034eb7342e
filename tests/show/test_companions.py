"""Processes beside a run: whatever a logger does, its trainer is told in a sentence and waits for nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.reporting.loggers.requests import check_loggers, companions_of
from shoal.show import companions

LOGGER = """
import os, time
import shoal

class Mine(shoal.Logger):
    def __init__(self, fault=""):
        self.fault = fault

    def check(self):
        if self.fault == "key":
            raise shoal.ShoalError("there is no key; `mine login` asks for one.")

    def open(self, run, state):
        if self.fault == "hangs":
            time.sleep(1000)
        self.file = open(run.path / "received.txt", "a", buffering=1)
        return f"https://mine.example/{len(run.series)}"

    def add_scalars(self, series, step, numbers, time):
        if self.fault == "raises" and step == 2:
            raise RuntimeError("the service\\nis down")
        if self.fault == "dies" and step == 2:
            os._exit(3)
        if self.fault == "floods":
            print("x" * 2_000_000)
            os.write(2, b"y" * 2_000_000)
        if self.fault == "stops" and step >= 2:
            self.stop = "it is good enough"
        print(step, file=self.file)

    def close(self, summary):
        print("end", summary and summary["steps_per_seed"], file=self.file)
"""


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    (tmp_path / "own_loggers.py").write_text(LOGGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(companions, "CLOSING_SECONDS", 20.0)
    path = tmp_path / "run"
    path.mkdir()
    config = {
        "environment": {"name": "Walk-v0"},
        "algorithm": {"name": "ppo"},
        "run": {"seed": 0, "seeds": 1},
    }
    (path / "config.json").write_text(json.dumps(config))
    return tmp_path


def beside(fault="", name="own_loggers:Mine"):
    return companions.Companions(companions_of(check_loggers({name: {"fault": fault} if fault else {}})))


def log(path, steps):
    with open(path / "metrics.jsonl", "a") as file:
        for step in steps:
            row = {
                "kind": "train",
                "step": step,
                "updates": step,
                "time": time.time(),
                "seed": 0,
                "loss": 1.0,
            }
            file.write(json.dumps(row) + "\n")


def received(path):
    return (path / "received.txt").read_text().split("\n")[:-1]


def run_beside(path, fault="", wait_for=None):
    """Write the rows of a run beside which a logger runs; return what was shown."""
    notes = []
    with beside(fault) as processes:
        processes.require()
        processes.begin(path, notes.append)
        log(path, range(4))
        end = time.monotonic() + 20
        while wait_for is not None and not wait_for(processes, notes) and time.monotonic() < end:
            time.sleep(0.05)
        (path / "summary.json").write_text(json.dumps({"steps_per_seed": 3, "evaluation": {}}))
    return notes, processes


def test_a_logger_receives_the_rows_and_the_end(user_folder):
    path = user_folder / "run"
    notes, processes = run_beside(path)
    assert notes == ["own_loggers:Mine: https://mine.example/1"] and processes.stop == ""
    assert received(path) == ["0", "1", "2", "3", "end 3"]
    assert json.loads((path / "loggers/own_loggers-Mine.json").read_text())["finished"]


FAULTS = {
    "raises": "Mine.add_scalars failed in own_loggers.py, line 21: RuntimeError: the service",
    "dies": "its process has ended",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.full
def test_a_logger_that_fails_is_one_sentence(user_folder, fault):
    path = user_folder / "run"
    notes, _ = run_beside(path, fault, lambda processes, notes: len(notes) == 2)
    later = f"`shoal log {path} --logger own_loggers:Mine`"
    assert notes[1:] == [
        f"own_loggers:Mine: {FAULTS[fault]}; the run is not affected, and {later} sends what is missing"
    ]
    (user_folder / "own_loggers.py").write_text(LOGGER.replace('"raises"', '"_"').replace('"dies"', '"_"'))
    command = [sys.executable, "-m", "shoal", "log", "run", "--logger", "own_loggers:Mine"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "run: 4 rows and 0 files sent; https://mine.example/1\n"
    assert received(path)[-5:] == ["0", "1", "2", "3", "end 3"]
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout == "run: all was sent before\n"


def test_a_logger_that_hangs_is_left_behind(user_folder, monkeypatch):
    monkeypatch.setattr(companions, "CLOSING_SECONDS", 0.5)
    path, start_time = user_folder / "run", time.monotonic()
    notes, processes = run_beside(path, "hangs")
    assert time.monotonic() - start_time < 10
    assert len(notes) == 1 and notes[0].startswith(
        f"own_loggers:Mine has not ended yet, and process {processes._processes[0]._process.pid} goes on; `shoal log"
    )
    processes.abandon()


def test_a_logger_that_floods_fills_no_disk(user_folder):
    path = user_folder / "run"
    notes, _ = run_beside(path, "floods")
    assert len(notes) == 1 and received(path)[-1] == "end 3"
    assert (path / "loggers/own_loggers-Mine.log").stat().st_size <= 1_000_000


def test_a_logger_asks_to_stop(user_folder):
    _, processes = run_beside(user_folder / "run", "stops", lambda processes, notes: processes.stop)
    assert processes.stop == "own_loggers:Mine: it is good enough"


@pytest.mark.parametrize(
    ("name", "fault", "sentence"),
    [
        ("own_loggers:Mine", "key", "there is no key; `mine login` asks for one"),
        ("own_loggers:Mien", "", "'own_loggers:Mien' cannot be imported: .*; did you mean 'Mine'"),
        (
            "json:dumps",
            "",
            "logger='json:dumps' is not a class with shoal.Logger as base and a method add_scalars",
        ),
    ],
)
def test_what_is_missing_is_known_before_a_run(user_folder, name, fault, sentence):
    with pytest.raises(ShoalError, match=sentence), beside(fault, name) as processes:
        processes.require()


def test_a_killed_trainer_leaves_a_logger_that_sends_the_rest(user_folder):
    """The pipe ends with its holder, however that ends; the run may be resumed, and is marked so."""
    path = user_folder / "run"
    program = (
        "import sys, time, pathlib\n"
        "from shoal.show.companions import Companions\n"
        "from shoal.reporting.loggers.requests import check_loggers, companions_of\n"
        "with Companions(companions_of(check_loggers(['own_loggers:Mine']))) as processes:\n"
        "    processes.require()\n"
        "    processes.begin(pathlib.Path('run'), print)\n"
        "    time.sleep(1000)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True)
    assert "https" in trainer.stdout.readline()
    log(path, range(4))
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    end = time.monotonic() + 30
    while received(path)[-1:] != ["end None"] and time.monotonic() < end:
        time.sleep(0.05)
    assert received(path) == ["0", "1", "2", "3", "end None"]


def test_a_run_that_is_not_kept_leaves_no_process(user_folder):
    with pytest.raises(KeyError), beside("hangs") as processes:
        processes.require()
        processes.begin(user_folder / "run", lambda text: None)
        processes.abandon()
        raise KeyError


class Told:
    def __init__(self):
        self.steps = []

    def on_training(self, step, numbers):
        self.steps.append(step)


@pytest.mark.full
def test_loggers_change_nothing_in_a_run(user_folder):
    """Numbers are bit for bit those of a run without, beside a listener, a logger that works and one that does not."""
    settings = dict(
        seeds=2, total_steps=2_000, num_envs=8, num_steps=25, num_evals=1, eval_episodes=4, preset=False
    )
    plain = shoal.train("CartPole-v1", **settings, run_dir="plain", progress=False)
    (user_folder / "others.py").write_text(LOGGER)
    loggers = {"own_loggers:Mine": {"fault": "raises"}, "others:Mine": {}}
    listener = Told()
    run = shoal.train(
        "CartPole-v1", **settings, run_dir="logged", loggers=loggers, listeners=[listener], progress=False
    )
    assert run.summary["parameters_sha256"] == plain.summary["parameters_sha256"]
    steps = [int(x) for x in received(user_folder / "logged") if x.isdecimal()]
    assert set(listener.steps) <= set(steps)
    config = [(user_folder / name / "config.json").read_text() for name in ("plain", "logged")]
    assert config[0].replace("plain", "logged") == config[1]


@pytest.mark.full
def test_a_run_stops_where_a_logger_asks_for_it(user_folder):
    run = shoal.train(
        "CartPole-v1",
        **dict(seeds=1, total_steps=20_000_000, num_envs=8, num_steps=16, num_evals=1, eval_episodes=4),
        **dict(log_every=2_000, preset=False, progress=False, run_dir="stopped"),
        loggers={"own_loggers:Mine": {"fault": "stops"}},
    )
    assert run.summary["stopped"] == "own_loggers:Mine: it is good enough"
    assert 0 < run.summary["steps_per_seed"] < 20_000_000
    assert received(user_folder / "stopped")[-1] == f"end {run.summary['steps_per_seed']}"
