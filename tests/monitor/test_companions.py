"""Processes beside a run: whatever a logger does, its trainer is told in a sentence and waits for nothing."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.monitor import companions
from shoal.monitor.loggers import later as later_loggers
from shoal.monitor.loggers.requests import Requested, check_loggers, companions_of
from shoal.monitor.progress import Progress
from shoal.records.directory import RunDirectory

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
        if self.fault == "raises" and step >= 2:
            raise RuntimeError("the service\\nis down")
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
        processes.require(print)
        processes.begin(path, notes.append, notes.append)
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


FAULTY = """
import os, signal, time
import shoal

PLACE, HOW = {place!r}, {how!r}

def may_fail(place):
    if place == PLACE and HOW == "raises":
        raise RuntimeError("the service is down")
    if place == PLACE and HOW == "exits":
        os._exit(3)
    if place == PLACE and HOW == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if place == PLACE and HOW == "hangs":
        time.sleep(1000)

may_fail("import")

class Faulty(shoal.Logger):
    def __init__(self):
        may_fail("constructor")

    def check(self):
        may_fail("check")

    def open(self, run, state):
        may_fail("open")
        return "somewhere"

    def add_scalars(self, series, step, numbers, time):
        may_fail("add_scalars")

    def flush(self):
        may_fail("flush")
        return {{1}} if (PLACE, HOW) == ("flush", "returns a set") else 1

    def close(self, summary):
        may_fail("close")
"""
HOW = {
    "raises": "RuntimeError: the service is down",
    "exits": "ended with exit status 3",
    "is killed": "was ended by SIGKILL",
    "hangs": "has not ended yet",
    "returns a set": "{1} is a set, which JSON cannot hold",
}
BEFORE, AFTER = ("import", "constructor", "check"), ("open", "add_scalars", "flush", "close")


@pytest.mark.full
@pytest.mark.parametrize("how", list(HOW)[:4])
@pytest.mark.parametrize("place", BEFORE)
def test_a_logger_that_fails_before_a_run_refuses_it(user_folder, monkeypatch, place, how):
    """In a minute at most, in one sentence; and its process ends."""
    monkeypatch.setattr(companions, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(companions, "READY_SECONDS", 2.0 if how == "hangs" else 60.0)
    (user_folder / "faulty.py").write_text(FAULTY.format(place=place, how=how))
    notes = []
    early = "ended before it began" if how in ("exits", "is killed") else HOW[how]
    sentence = "^logger faulty:Faulty has not begun within 2 seconds.$" if how == "hangs" else early
    with pytest.raises(ShoalError, match=sentence), beside(name="faulty:Faulty") as processes:
        processes.require(notes.append)
    assert notes == ["waiting for logger faulty:Faulty"] or how != "hangs"
    assert processes._processes[0]._process.wait(10) is not None


@pytest.mark.parametrize(
    ("place", "how"),
    [(place, how) for place in AFTER for how in list(HOW)[:4]] + [("flush", "returns a set")],
)
@pytest.mark.quick("add_scalars-raises", "add_scalars-is killed", "close-hangs", "flush-returns a set")
def test_what_a_logger_loses_is_said_in_a_quiet_run_and_can_be_sent(user_folder, monkeypatch, place, how):
    """On standard error, in `summary.json`, and with its traceback in its log; the rest is sent once it works."""
    monkeypatch.setattr(companions, "CLOSING_SECONDS", 2.0 if how == "hangs" else 60.0)
    path, shown = user_folder / "run", io.StringIO()
    (user_folder / "faulty.py").write_text(FAULTY.format(place=place, how=how))
    progress = Progress(4, quiet=True, stream=shown)
    with beside(name="faulty:Faulty") as processes:
        processes.require(progress.note)
        processes.begin(path, progress.note, progress.warn)
        log(path, range(4))
        RunDirectory(path).save_summary({"steps_per_seed": 3, "evaluation": {}, **processes.summary()})
    (line,) = shown.getvalue().splitlines()
    later = f"`shoal log {path} --logger faulty:Faulty` sends what is missing"
    assert line.startswith("faulty:Faulty") and HOW[how] in line and line.endswith(later)
    state = json.loads((path / "summary.json").read_text())["loggers"]["faulty:Faulty"]
    assert state == processes.summary()["loggers"]["faulty:Faulty"]
    assert HOW[how] in state and state.endswith(later)
    assert ("Traceback" in (path / "loggers/faulty-Faulty.log").read_text()) == (how.startswith("r"))
    processes.abandon()

    (user_folder / "faulty.py").write_text(FAULTY.format(place="", how=""))
    (sent,) = later_loggers.send(path, "faulty:Faulty", Requested())
    assert sent.startswith(f"{path}: 4 rows and ") and sent.endswith("files sent; somewhere")
    assert json.loads((path / "summary.json").read_text())["loggers"] == {"faulty:Faulty": "complete"}
    assert list(later_loggers.send(path, "faulty:Faulty", Requested())) == [f"{path}: all was sent before"]


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
        processes.require(print)


def test_a_killed_trainer_leaves_a_logger_that_sends_the_rest(user_folder):
    """The pipe ends with its holder, however that ends; the run may be resumed, and is marked so."""
    path = user_folder / "run"
    program = (
        "import sys, time, pathlib\n"
        "from shoal.monitor.companions import Companions\n"
        "from shoal.monitor.loggers.requests import check_loggers, companions_of\n"
        "with Companions(companions_of(check_loggers(['own_loggers:Mine']))) as processes:\n"
        "    processes.require(print)\n"
        "    processes.begin(pathlib.Path('run'), print, print)\n"
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
        processes.require(print)
        processes.begin(user_folder / "run", print, print)
        processes.abandon()
        raise KeyError


class Told:
    def __init__(self):
        self.steps = []

    def on_training(self, step, numbers):
        self.steps.append(step)


@pytest.mark.slow
def test_loggers_change_nothing_in_a_run(user_folder, capfd):
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
    states = run.summary["loggers"]
    assert states == json.loads((run.path / "summary.json").read_text())["loggers"]
    assert states["others:Mine"] == "complete" and "the service" in states["own_loggers:Mine"]
    assert "own_loggers:Mine: Mine.add_scalars failed" in capfd.readouterr().err  # without progress too
    steps = [int(x) for x in received(user_folder / "logged") if x.isdecimal()]
    assert set(listener.steps) <= set(steps)
    config = [(user_folder / name / "config.json").read_text() for name in ("plain", "logged")]
    assert config[0].replace("plain", "logged") == config[1]
    (run.path / "loggers" / "torn.json").write_text("{")
    longer = shoal.resume(run.path, total_steps=4_000, progress=False)  # without its loggers
    expected = "the run was resumed without it; `shoal log logged --logger {}` sends what is missing"
    assert longer.summary["loggers"] == {name: expected.format(name) for name in states}
    told = capfd.readouterr().err
    assert all(f"{name}: {state}" in told for name, state in longer.summary["loggers"].items())


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
