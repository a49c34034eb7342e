"""A run directory, and the process that logs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "logging_process.py"
SUMMARY = {
    "steps_per_seed": 3000, "failed": [], "steps_per_second": 5.0, "final": None,
    "absolute": {"returns": [2.5], "iqm": 2.5, "interval": [2.0, 3.0]},
}  # fmt: skip


@pytest.fixture
def run_path(tmp_path):
    path = tmp_path / "first"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def log(run_path, tmp_path):
    """Return a function that logs rows in a process, and returns what it printed, merged."""
    environment = {k: x for k, x in os.environ.items() if not k.startswith(("WANDB", "MLFLOW", "TRACKIO"))}
    environment |= {"HOME": str(tmp_path), "WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}
    environment |= {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}

    def run(logger, start=0, stop=0, env=None, **request):
        request = {"path": str(run_path), "logger": logger, "rows": [start, stop], **request}
        found = subprocess.run(
            [sys.executable, str(SCRIPT), json.dumps(request)],
            env={k: x for k, x in (environment | (env or {})).items() if x is not None},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert found.returncode == (-9 if request.get("kill") else 0), found.stderr
        told = {}
        for line in found.stdout.splitlines():
            if line.startswith("{"):
                told |= json.loads(line)
        assert told.get("jax", False) is False
        return told

    return run


@pytest.fixture
def summary():
    return SUMMARY


@pytest.fixture
def pictures(tmp_path):
    """A film of three frames and a picture."""
    image = pytest.importorskip("PIL.Image")
    frames = [image.new("RGB", (40, 30), color) for color in ("red", "green", "blue")]
    frames[0].save(tmp_path / "1000.gif", save_all=True, append_images=frames[1:], duration=100, loop=0)
    frames[0].save(tmp_path / "learning_curve.png")
    (tmp_path / "best.safetensors").write_bytes(b"policy")
    return [
        ["film", str(tmp_path / "1000.gif"), 1000],
        ["picture", str(tmp_path / "learning_curve.png"), 2000],
        ["policy", str(tmp_path / "best.safetensors"), 2000],
    ]
