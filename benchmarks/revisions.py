"""Compare the parameters and metrics that two revisions come to, bit for bit.

    python benchmarks/revisions.py BASE [OTHER]

Trains with every preset (and variants that no preset has) for a few updates under each revision, in a work tree and
a process of its own, and compares checksums of the parameters and of the metrics. OTHER is the working tree by
default. A change that is meant to alter no number shows no difference on one machine; the exit code is 1 if there
is one.

Both revisions run under the interpreter that runs this script, which must have Shoal's dependencies.
"""

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UPDATES, SEEDS = 8, 2
SHORT = {"eval_episodes": 4, "num_evals": 1}
SIZES = {"num_envs": 64, "num_steps": 32}  # of variants, and of a preset that names none

# Parts of the algorithms that no preset uses; each on a small environment.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a2c": ("CartPole-v1", {"algorithm": "a2c"}),
    "reinforce": ("CartPole-v1", {"algorithm": "reinforce"}),
    "penalty": ("CartPole-v1", {"surrogate": "penalty", "lr_schedule": "adaptive", "clip_vloss": True}),
    "dpo": ("CartPole-v1", {"surrogate": "dpo", "norm_adv": "batch", "lr_schedule": "cosine"}),
    "separate": (
        "CartPole-v1",
        {"critic_update_epochs": 6, "critic_optimizer": "rmsprop", "target_kl": 0.01},
    ),
    "shared": (
        "CartPole-v1",
        {"shared_torso": True, "norm_obs": True, "norm_reward": True, "layer_norm": True},
    ),
    "beta": ("Pendulum-v1", {"distribution": "beta"}),
    "tanh_normal": ("Pendulum-v1", {"distribution": "tanh_normal", "state_dependent_std": True}),
    "lstm": ("CartPole-v1", {"core": "lstm", "chunk_length": 8, "burn_in": 4, "num_minibatches": 2}),
    "mingru": ("MemoryChain-v0", {"core": "mingru", "core_layers": 2, "core_outputs": "sum"}),
    "trials": ("XLand-MiniGrid-R1-9x9", {"environment_parameters": {"trial_episodes": 2}}),
}


def cases(root: Path) -> dict[str, dict[str, Any]]:
    """The keyword arguments of `shoal.train`, by the name of each case."""
    found = {}
    for file in sorted((root / "src/shoal/runs/presets").glob("*.toml")):
        table = tomllib.loads(file.read_text())["ppo"]
        found[file.stem] = {"environment": file.stem, **SIZES, **_sizes_of(table)}
    for name, (environment, settings) in VARIANTS.items():
        found[name] = {"environment": environment, **SIZES, **settings}
    for name, settings in list(found.items()):
        found[f"{name}, 2 groups"] = {**settings, "env_groups": 2}
    return found


def _sizes_of(table: dict[str, Any]) -> dict[str, Any]:
    return {name: table[name] for name in SIZES if name in table}


def work(names: list[str]) -> None:
    """Run the cases with the Shoal that is imported, and print a line of JSON for each."""
    import shoal

    for name in names:
        settings = dict(cases(ROOT)[name])
        steps = UPDATES * settings["num_envs"] * settings["num_steps"]
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "run"
            settings |= SHORT | {
                "seeds": SEEDS,
                "total_steps": steps,
                "progress": False,
                "run_dir": str(path),
            }
            try:
                found = [
                    fingerprint(shoal.train(**settings).learner.shared),
                    numbers_of(path / "metrics.jsonl"),
                ]
            except Exception as error:  # a case that fails is a difference, and the others go on
                found = [f"{type(error).__name__}: {error}"]
        print(json.dumps({"case": name, "found": found}), flush=True)


def fingerprint(tree: Any) -> str:
    """The checksum of all arrays of a tree, whatever their names and their order."""
    import jax
    import numpy as np

    def words(leaf: Any) -> bytes:
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        return f"{array.dtype} {array.shape}".encode() + array.tobytes()

    parts = sorted(hashlib.sha256(words(leaf)).digest() for leaf in jax.tree.leaves(tree))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def numbers_of(metrics: Path) -> str:
    """The checksum of all metrics but those that hold wall time."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    timed = ("seconds", "time", "per_second")
    rest = [{k: v for k, v in line.items() if not any(word in k for word in timed)} for line in lines]
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A work tree of a revision; the repository itself if it is empty."""
    if not revision:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", tree, revision], cwd=ROOT, check=True
        )
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def checksums(revision: str, names: list[str]) -> dict[str, Any]:
    """The checksums of a revision's parameters, by case."""
    found = {}
    with checked_out(revision) as tree:
        command = [sys.executable, __file__, "--work", *names]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "JAX_PLATFORMS": "cpu"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                answer = json.loads(line)
                found[answer["case"]] = answer["found"]
                print(f"{revision or 'working tree'}: {answer['case']}", file=sys.stderr)
    return found


def main() -> None:
    """Compare two revisions, and end with 1 if a case differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", default="HEAD", help="the revision before the change")
    parser.add_argument(
        "other", nargs="?", default="", help="the revision after it; the working tree by default"
    )
    parser.add_argument("--only", nargs="*", metavar="CASE", help="cases whose name contains one of these")
    parser.add_argument("--cache", type=Path, help="a JSON file that keeps the checksums of revisions")
    parser.add_argument("--work", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        return work(options.work)
    names = [name for name in cases(ROOT) if not options.only or any(part in name for part in options.only)]
    cached = json.loads(options.cache.read_text()) if options.cache and options.cache.exists() else {}
    sides = []
    for revision in (options.base, options.other):
        kept = cached.setdefault(revision, {}) if revision else {}
        kept |= checksums(revision, [name for name in names if name not in kept])
        sides.append(kept)
    if options.cache:
        options.cache.write_text(json.dumps(cached, indent=1))
    before, after = sides
    differing = [name for name in names if before.get(name) != after.get(name)]
    for name in differing:
        print(f"{name}\n  before {before.get(name)}\n  after  {after.get(name)}")
    print(f"{len(names) - len(differing)} of {len(names)} cases are equal bit for bit")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
