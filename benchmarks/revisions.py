"""Compare the parameters, metrics and files that two revisions come to, bit for bit.

    python benchmarks/revisions.py BASE [OTHER]

Trains with every preset of every algorithm (and variants that no preset has) for a few updates under each revision, in
a work tree and a process of its own, and compares checksums of the parameters, of the metrics and of each file of the
run's directory, less times, paths and the revision itself. OTHER is the working tree by default. A change that is meant
to alter no number shows no difference on one machine; the exit code is 1 if there is one.

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
PRESETS = ROOT / "src/shoal/runs/plan/presets"
UPDATES, SEEDS = 8, 2
SHORT = {"eval_episodes": 4, "num_evals": 1}
SIZES = {"num_envs": 64, "num_steps": 32}  # of variants, and of a preset that names none
FEW = {"num_envs": 16, "num_steps": 8}  # of families whose worlds are slow, and of algorithms with a replay
REPLAY = {**FEW, "learning_starts": 256, "buffer_size": 4096, "batch_size": 32}
FLAGS = "--xla_force_host_platform_device_count=2"  # runs take one, but those of two devices
VALUE_BASED = ("dqn", "c51", "qr_dqn")
SLOW_FAMILIES = ("craftax", "jaxmarl", "playground")
TIMED = (
    "seconds",
    "time",
    "per_second",
    "revision",
    "commit",
    "host",
    "path",
    "_dir",
    "memory",
    "pid",
    "command",
)
HELD_BY_NO_RUN = ("lock", ".log", "owner", ".journal")

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
    "recompute": ("CartPole-v1", {"recompute": "epoch", "norm_adv": "batch"}),
    "vtrace in the loss": ("CartPole-v1", {"recompute": "minibatch", "advantage": "vtrace"}),
    "recurrent vtrace": ("CartPole-v1", {"recompute": "epoch", "advantage": "vtrace", "core": "gru"}),
    "categorical critic": (
        "CartPole-v1",
        {"value_head": "categorical", "value_loss": "two_hot", "value_low": 0.0, "value_high": 100.0},
    ),
    "noisy dueling": ("CartPole-v1", {"algorithm": "dqn", "noisy": True, "dueling": True, **REPLAY}),
    "n steps": ("CartPole-v1", {"algorithm": "dqn", "n_step": 3, **REPLAY}),
    "recurrent pqn": ("MemoryChain-v0", {"algorithm": "pqn", "core": "gru"}),
    "opponents": ("mpe/Tag-v0", {"opponent": "past", **FEW}),
    "mappo": ("mpe/Spread-v0", {"algorithm": "mappo", **FEW}),
    "independent c51": ("mpe/Spread-v0", {"algorithm": "c51", **REPLAY}),
    "a population": ("CartPole-v1", {"seeds": 4}),
    "two devices": ("CartPole-v1", {"devices": 2}),
    "two devices, dqn": ("CartPole-v1", {"algorithm": "dqn", "devices": 2, **REPLAY}),
}
SEARCHES: dict[str, dict[str, Any]] = {
    "pbt": {"tune": {"learning_rate": "log:1e-4:1e-2"}, "members": 5, "ready_every": 4096},
    "sweep": {"grid": {"learning_rate": [1e-3, 3e-4]}},
    "tune": {"grid": {"learning_rate": [1e-3, 3e-4]}, "random": {"ent_coef": "log:1e-3:1e-1"}, "trials": 3},
}
RESUMED = "resumed"  # what follows a case's name whose run was stopped and resumed


def cases() -> dict[str, dict[str, Any]]:
    """The keyword arguments of `shoal.train`, by the name of each case."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(PRESETS.rglob("*.toml")):
        environment = file.relative_to(PRESETS).with_suffix("").as_posix()
        tables = tomllib.loads(file.read_text())
        for algorithm, table in tables.items():
            if algorithm not in ("trials", "steps_per_second"):
                settings = {"environment": environment, "algorithm": algorithm}
                found[f"{environment}, {algorithm}"] = settings | _sizes(environment, algorithm, table)
    for name, (environment, settings) in VARIANTS.items():
        found[name] = {"environment": environment, **SIZES, **settings}
    for name, settings in list(found.items()):
        if settings.get("algorithm", "ppo") == "ppo" and "/" not in settings["environment"]:
            found[f"{name}, 2 groups"] = {**settings, "env_groups": 2}
    for name in ("CartPole-v1, ppo", "CartPole-v1, dqn", "lstm", "mpe/Spread-v0, mappo"):
        found[f"{name}, {RESUMED}"] = found[name]
    return found | {name: {"environment": "CartPole-v1", **more} for name, more in SEARCHES.items()}


def _sizes(environment: str, algorithm: str, table: dict[str, Any]) -> dict[str, Any]:
    if algorithm in VALUE_BASED:
        return REPLAY
    if environment.split("/", maxsplit=1)[0] in SLOW_FAMILIES:
        return {**FEW, "num_minibatches": 2}
    return SIZES | {name: table[name] for name in SIZES if name in table}


def work(names: list[str]) -> None:
    """Run the cases with the Shoal that is imported, and print a line of JSON for each."""
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "run"
            try:
                found = trained(name, dict(cases()[name]), path)
            except Exception as error:  # a case that fails is a difference, and the others go on
                found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"case": name, "found": found}), flush=True)


def trained(name: str, settings: dict[str, Any], path: Path) -> dict[str, str]:
    """Train one case, and return the checksums of what it comes to."""
    import shoal

    steps = UPDATES * settings.get("num_envs", 64) * settings.get("num_steps", 32)
    settings = {"seeds": SEEDS, **SHORT, **settings, "progress": False, "run_dir": str(path)}
    if name in SEARCHES:
        if name == "pbt":  # which evaluates before each exchange, a seed for each member
            settings = {k: v for k, v in settings.items() if k not in ("seeds", *SHORT)}
        getattr(shoal, name)(**settings, total_steps=steps, **SIZES)
        return files_of(path)
    if name.endswith(RESUMED):
        shoal.train(**settings, total_steps=steps, listeners=[Stop()])
        run = shoal.resume(path, progress=False, total_steps=2 * steps)
    else:
        run = shoal.train(**settings, total_steps=steps)
    return {"parameters": fingerprint(run.learner.shared), **files_of(path)}


class Stop:
    """A listener that asks a run to end as soon as it has trained."""

    def on_evaluation(self, step: int, numbers: Any) -> str | None:
        """Ask for it."""
        return "as asked" if step else None


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


def files_of(directory: Path) -> dict[str, str]:
    """The checksum of each file, by its path; of text less what holds times, places and the revision."""
    found = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        if not any(word in path.name for word in HELD_BY_NO_RUN):
            found[path.relative_to(directory).as_posix()] = hashlib.sha256(_content(path)).hexdigest()
    return found


def _content(path: Path) -> bytes:
    if path.suffix == ".safetensors":
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)  # the record of a checkpoint, which has times
        return json.dumps(header).encode() + data[start:]
    if path.suffix not in (".json", ".jsonl"):
        return path.read_bytes()
    text = path.read_text()
    parts = text.splitlines() if path.suffix == ".jsonl" else [text]
    return json.dumps([_untimed(json.loads(part)) for part in parts]).encode()


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _untimed(v) for k, v in value.items() if not any(word in k for word in TIMED)}
    return [_untimed(part) for part in value] if isinstance(value, list) else value


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


def checksums(revision: str, names: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each case with the checksums that a revision comes to."""
    with checked_out(revision) as tree:
        command = [sys.executable, __file__, "--work", *names]
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": FLAGS,
        }
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                answer = json.loads(line)
                print(f"{revision or 'working tree'}: {answer['case']}", file=sys.stderr)
                yield answer["case"], answer["found"]


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
    names = [name for name in cases() if not options.only or any(part in name for part in options.only)]
    cached = json.loads(options.cache.read_text()) if options.cache and options.cache.exists() else {}
    sides = []
    for revision in (options.base, options.other):
        kept = cached.setdefault(revision, {}) if revision else {}
        for name, found in checksums(revision, [name for name in names if name not in kept]):
            kept[name] = found
            if options.cache:
                options.cache.write_text(json.dumps(cached, indent=1))
        sides.append(kept)
    before, after = sides
    differing = [
        name for name in names if before.get(name) != after.get(name) or "error" in before.get(name, {})
    ]
    for name in differing:
        print(name)
        old, new = before.get(name, {}), after.get(name, {})
        for part in sorted({*old, *new}):
            if old.get(part) != new.get(part) or part == "error":
                print(f"  {part}: before {old.get(part)}, after {new.get(part)}")
    print(f"{len(names) - len(differing)} of {len(names)} cases are equal bit for bit")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
