"""One small run, trained by the real command in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

SHOAL = Path(sys.executable).with_name("shoal")
TINY = "--seeds=2 --total-steps=4096 --num-evals=2 --eval-episodes=8 --eval-max-steps=200".split()  # noqa: SIM905


def run_shoal(*arguments: str, **more) -> subprocess.CompletedProcess:
    command = [str(SHOAL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, **more)


@pytest.fixture(scope="session")
def process():
    """The command, as a user calls it, in a process of its own."""
    return run_shoal


@pytest.fixture(scope="session")
def tiny():
    """Flags of a training run of a second."""
    return TINY


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """(the finished process, its run directory)."""
    path = tmp_path_factory.mktemp("cli") / "run"
    words = ["train", "CartPole-v1", "gravity=9.9", "--run-dir", path, "--learning-rate", "2e-3", *TINY]
    done = run_shoal(*words)
    assert done.returncode == 0, done.stderr
    return done, path


@pytest.fixture
def command(monkeypatch, tmp_path):
    """The command in this process, from an empty directory that it may import from."""
    from shoal.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *arguments: main([str(word) for word in arguments])
