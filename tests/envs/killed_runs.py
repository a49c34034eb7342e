"""Kill a `shoal train` process, resume its run, and compare it with one that nobody killed."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

SHOAL = (sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main(sys.argv[1:]))")
SMALL = (
    *("--no-preset", "--quiet", "--seeds", "1", "--num-envs", "4", "--num-steps", "16"),
    *("--num-minibatches", "2", "--update-epochs", "1", "--hidden-sizes", "8"),
    *("--num-evals", "2", "--eval-episodes", "2", "--absolute-episodes", "2"),
    *("--total-steps", "6400", "--checkpoint-every", "320"),
)
LIMIT = 280.0  # seconds that a process may take
ATTEMPTS = 4


def assert_killed_run_ends_the_same(tmp_path: Path, environment: str, *flags: str) -> None:
    """Assert that a run that was killed with signal 9 and resumed ends with the parameters of one that was not.

    Args:
      environment: a name of `shoal envs`, and parameters of the environment after spaces.
      flags: further settings of `shoal train`, which override those of a small run.
    """
    train = [*SHOAL, "train", *environment.split(" "), *SMALL, *flags, "--run-dir"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*train, str(whole)], check=True, timeout=LIMIT)
    for _ in range(ATTEMPTS):
        shutil.rmtree(killed, ignore_errors=True)
        _kill_after_a_checkpoint([*train, str(killed)], killed)
        if not (killed / "summary.json").exists():
            break  # on a loaded machine it may end before it is killed
    assert not (killed / "summary.json").exists(), "it had ended before it was killed: give it more steps"
    subprocess.run([*SHOAL, "resume", str(killed), "--quiet"], check=True, timeout=LIMIT)
    assert _parameters_of(killed) == _parameters_of(whole)


def _kill_after_a_checkpoint(command: list[str], run_path: Path) -> None:
    deadline = time.monotonic() + LIMIT
    with subprocess.Popen(command) as process:
        try:
            while not any(path.name[0].isdigit() for path in run_path.glob("checkpoints/*")):
                assert process.poll() is None, f"it ended with {process.returncode} and without a checkpoint"
                assert time.monotonic() < deadline, "it has made no checkpoint"
                time.sleep(0.005)
        finally:
            process.kill()


def _parameters_of(run_path: Path) -> list[str]:
    return json.loads((run_path / "summary.json").read_text())["parameters_sha256"]
