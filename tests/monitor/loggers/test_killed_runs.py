"""Runs that are killed and started again by the same command: their loggers have each row, once."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("wandb")
pytest.importorskip("tensorboard")

from test_wandb_logger import Stored

COMMAND = [
    "-m",
    "shoal",
    "train",
    "CartPole-v1",
    "--seeds",
    "2",
    "--total-steps",
    "300000",
    "--num-evals",
    "6",
    "--eval-episodes",
    "8",
    "--checkpoint-every",
    "25600",
    "--no-preset",
    "--num-envs",
    "16",
    "--num-steps",
    "32",
    "--quiet",
    "--run-dir",
    "run",
    "--logger",
]
LOG = [sys.executable, "-m", "shoal", "log", "run", "--logger"]
ENVIRONMENT = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
LIMIT = 120.0
WALL_TIME = ("seconds", "time", "per_second")


def own_environment():
    """The environment without settings of W&B, of which a test in this process may have left its service."""
    return {name: x for name, x in os.environ.items() if not name.startswith("WANDB")} | ENVIRONMENT


def start(path, logger):
    environment = own_environment() | {"HOME": str(path)}
    environment.setdefault("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # with the compiled programs
    return subprocess.Popen([sys.executable, *COMMAND, logger], cwd=path, env=environment)


def wait_for(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def rows_of(path):
    text = (path / "metrics.jsonl").read_text() if (path / "metrics.jsonl").exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def kill_after(process, path, rows):
    """Kill a trainer when it has written some rows."""
    wait_for(lambda: len(rows_of(path)) >= rows)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def logger_of(process):
    """The number of the process of a trainer's logger."""
    for child in Path("/proc").glob("[0-9]*/status"):
        try:
            if re.search(rf"^PPid:\t{process.pid}$", child.read_text(), re.M):
                return int(child.parent.name)
        except OSError:
            continue
    raise AssertionError("the trainer has no logger")


def curves_of(rows, seed):
    """The points of each number of a seed, as `metrics.jsonl` has them."""
    found = {}
    for row in rows:
        if row["seed"] == seed:
            for name, x in row.items():
                is_time = any(word in name for word in WALL_TIME)  # other where rows were made again
                if name not in ("kind", "step", "updates", "seed") and not is_time and x is not None:
                    found.setdefault(f"{row['kind']}/{name}", []).append((row["step"], x))
    return found


def as_float32(points):
    return [(step, float(np.float32(x))) for step, x in points]


def ask(port, path, **query):
    url = f"http://127.0.0.1:{port}/data/plugin/scalars/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())
    except OSError:
        return {}


@pytest.mark.slow
def test_tensorboard_shows_one_point_a_step_after_kills(tmp_path):
    path = tmp_path / "run"
    for rows in (20, 60, None):
        process = start(tmp_path, "tensorboard")
        if rows:
            kill_after(process, path, rows)
    assert process.wait(LIMIT) == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--logdir", str(path / "loggers/tensorboard"), "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *flags, "--samples_per_plugin", "scalars=100000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for seed in (0, 1):
            expected = curves_of(rows_of(path), seed)
            run = f"seed {seed}"
            wait_for(
                lambda run=run, expected=expected: expected.keys() <= ask(port, "tags").get(run, {}).keys()
            )
            for name in ("evaluation/return_mean", "train/episode_return", "train/total_loss"):
                points = [(step, x) for _, step, x in ask(port, "scalars", run=run, tag=name)]
                assert points == as_float32(expected[name]) and len(points) > 5
    finally:
        server.terminate()
        server.wait()


def stored(path):
    """The runs of W&B of a run, by the names of their series, once its service has written all rows.

    The service is a process of its own, which may write its last bytes after the logger has ended.
    """

    def read():
        state = json.loads((path / "loggers/wandb.json").read_text())
        return {name: Stored(path, number) for name, number in state["state"]["ids"].items()}

    def has_all():
        runs = read()
        return all(
            set(points) <= set(runs[f"seed {seed}"].curve(name))
            for seed in (0, 1)
            for name, points in curves_of(rows_of(path), seed).items()
        )

    wait_for(has_all)
    return read()


@pytest.mark.slow
def test_wandb_has_each_row_once_where_the_trainer_was_killed(tmp_path):
    path = tmp_path / "run"
    process = start(tmp_path, "wandb")
    kill_after(process, path, 40)
    assert start(tmp_path, "wandb").wait(LIMIT) == 0
    runs = stored(path)
    assert runs.keys() == {"seed 0", "seed 1", "all"}
    for seed in (0, 1):
        for name, points in curves_of(rows_of(path), seed).items():
            assert runs[f"seed {seed}"].curve(name) == points, name
    folders = {file.parent.name for file in path.glob("loggers/wandb/**/*.wandb")}
    assert len(folders) == 6  # two processes, each with one of each run, of the same name


@pytest.mark.slow
def test_wandb_lacks_no_row_where_the_logger_was_killed(tmp_path):
    path = tmp_path / "run"
    process = start(tmp_path, "wandb")
    wait_for(lambda: (path / "loggers/wandb.json").exists() and len(rows_of(path)) >= 40)
    os.kill(logger_of(process), signal.SIGKILL)
    assert process.wait(LIMIT) == 0
    environment = own_environment() | {"WANDB_SERVICE": "3-unix-1-/tmp/none"}  # of a process that has ended
    subprocess.run([*LOG, "wandb"], cwd=tmp_path, env=environment, check=True, timeout=LIMIT)
    assert stored(path).keys() == {"seed 0", "seed 1", "all"}  # with all rows
