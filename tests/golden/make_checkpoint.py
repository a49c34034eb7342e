"""Make `cartpole-checkpoint`: a run that was ended after half of its updates, and what it became when it went on.

Run it once for a release, from the root of the repository: `python tests/golden/make_checkpoint.py`.
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import shoal
from shoal.base import signals
from shoal.config import struct
from shoal.runs.checkpointing import Supervisor
from shoal.runs.compiled_trainer import Pacer

PATH = Path(__file__).with_name("cartpole-checkpoint")
SETTINGS = {
    **{"seeds": 2, "devices": 1, "num_envs": 2, "num_steps": 16, "total_steps": 32 * 16, "num_evals": 2},
    **{"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 1, "eval_episodes": 2, "log_every": 128},
}


def main() -> None:
    """Train to the middle, copy what is there, go on, and write the parameters of the end beside it."""
    shutil.rmtree(PATH, ignore_errors=True)
    between_pieces = Supervisor.between_pieces

    def end_in_the_middle(self: Supervisor, population, history) -> None:
        self.stop._requested = history.updates == 8
        between_pieces(self, population, history)

    Pacer.size = lambda self, left: 1
    Supervisor.between_pieces = end_in_the_middle
    with tempfile.TemporaryDirectory() as folder:  # whose path Orbax writes into the arrays
        path = Path(folder) / PATH.name
        with contextlib.suppress(signals.Interrupted):
            shoal.train("CartPole-v1", preset=False, run_dir=path, progress=False, **SETTINGS)
        shutil.rmtree(path / "checkpoints" / "0")
        shutil.copytree(path, PATH)
        Supervisor.between_pieces = between_pieces
        run = shoal.resume(path, progress=False)
        expected = {"end": parameters(run.path), "checkpoint": parameters(PATH, checkpoint="last")}
    config = json.loads((PATH / "config.json").read_text())
    config["run"]["run_dir"] = PATH.name
    (PATH / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (PATH / "expected.json").write_text(json.dumps(expected) + "\n")


def parameters(path: Path, **which) -> list[dict]:
    """Return the parameters of each seed's last policy, or of a checkpoint's, as numbers by name."""
    policies = [shoal.load(path, "last", seed=seed, **which).parameters for seed in range(2)]
    return [
        {name: np.asarray(x).tolist() for name, x in struct.named_leaves(tree).items()} for tree in policies
    ]


if __name__ == "__main__":
    main()
