"""Kill real `shoal train` processes, start them again, and compare what they end with.

Used by the tests, and by `benchmarks/soak.py` for more kills. A run of a tiny network is repeated by the same command
until it is finished; it must then equal a run that nobody killed: parameters, scores, every line of `metrics.jsonl`.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import parameters_sha256

CHILD = Path(__file__).with_name("child.py")
SOURCE = Path(__file__).parents[2] / "src"
NETWORKS = Path(__file__).parents[1] / "algos"
LIMIT = 240.0  # seconds that a process may take
TINY = {
    **{"hidden_sizes": 8, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
    **{"total_steps": 12800, "num_evals": 4, "eval_episodes": 4, "log_every": 640, "checkpoint_every": 320},
}
VARIANTS = {
    "feed-forward": {"seeds": 2, "devices": 1},
    "recurrent": {"seeds": 1, "devices": 1, "core": "gru", "core_size": 8},
    "a network with state": {
        **{"seeds": 2, "devices": 1, "hidden_sizes": None, "network": "stateful_networks:Both"},
    },
    "one seed in two groups": {"seeds": 1, "devices": 2, "env_groups": 2},
    "a linen network": {
        **{"seeds": 2, "devices": 1, "hidden_sizes": None, "network": "linen_networks:network"},
    },
    "ten seeds": {"seeds": 10, "devices": 2},
    "sac and its replay": {
        **{"seeds": 1, "devices": 1, "algorithm": "sac", "num_minibatches": None, "update_epochs": None},
        **{"learning_starts": 640, "buffer_size": 4096, "train_frequency": 64, "batch_size": 16},
    },
}


def train(environment: str = "CartPole-v1", **settings: Any) -> list[str]:
    """Return the arguments of `shoal train` for a run of a tiny network, with other settings; None leaves one out."""
    chosen = {name: x for name, x in {**TINY, **settings}.items() if x is not None}
    flags = [(f"--{name.replace('_', '-')}", str(x)) for name, x in chosen.items()]
    return ["train", environment, "--no-preset", *(word for flag in flags for word in flag)]


class Workplace(NamedTuple):
    """Where processes run: a folder for run directories, and a compilation cache that one process at a time writes."""

    folder: Path
    cache: Path

    def start(self, arguments: Sequence[str], run_path: Path, **environment: str) -> subprocess.Popen:
        """Start the command with the functions of `child.py` in place."""
        command = [sys.executable, str(CHILD), *arguments, "--run-dir", str(run_path)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment() | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a process."""
        variables = {
            name: x for name, x in os.environ.items() if name not in ("SHOAL_CACHE", "KILL_AT", "COUNT_TO")
        }
        return variables | {
            "XDG_CACHE_HOME": str(self.cache),
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{NETWORKS}",
        }


def finish(process: subprocess.Popen, limit: float = LIMIT) -> tuple[int, str, str]:
    """Wait for the end of a process; return its status, and what it wrote."""
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"it had not ended after {limit:g} seconds: {err}") from None
    return process.returncode, out, err


# ---- what a run ends with


def rows_of(run_path: Path) -> list[dict[str, Any]]:
    """Read every line of `metrics.jsonl`, without what measures time; a torn line is an error."""
    text = (run_path / "metrics.jsonl").read_text()
    assert text.endswith("\n"), "metrics.jsonl ends with a torn line"
    return [
        {
            name: x
            for name, x in json.loads(line).items()
            if not any(word in name for word in ("seconds", "time", "per_second"))
        }
        for line in text.splitlines()
    ]


def outcome_of(run_path: Path) -> dict[str, Any]:
    """Return all that a run ends with and that must not depend on interruptions."""
    summary = json.loads((run_path / "summary.json").read_text())
    checkpoints = Checkpoints(run_path)
    end = checkpoints.steps()[-1]
    leaves, record = checkpoints.load(end)
    return {
        **{name: summary[name] for name in ("parameters_sha256", "absolute", "final", "steps_per_seed")},
        **{
            f"{which} policy": hashlib.sha256((run_path / f"{which}.safetensors").read_bytes()).hexdigest()
            for which in ("best", "last")
        },
        "last checkpoint": end,
        "its leaves": parameters_sha256(leaves),
        "its evaluation": record["evaluation"],
        "rows": rows_of(run_path),
    }


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Name what differs between the outcomes of two runs; of the rows, the first that do."""
    lines = [
        f"{name}: {found[name]} instead of {x}"
        for name, x in expected.items()
        if name != "rows" and found[name] != x
    ]
    if len(expected["rows"]) != len(found["rows"]):
        lines.append(f"{len(found['rows'])} rows instead of {len(expected['rows'])}")
    for number, (row, other) in enumerate(zip(expected["rows"], found["rows"], strict=False), start=1):
        if row != other:
            names = [name for name in {**row, **other} if row.get(name) != other.get(name)]
            lines.append(f"row {number}: {names}")
            break
    return lines


# ---- killing


class Kill(NamedTuple):
    """When a process is to be killed: at a call that `child.py` counts, or some time after its start or first save."""

    kind: str  # "any moment", "after a save", or "inside a save"
    seconds: float = 0.0
    point: str = ""


@dataclasses.dataclass
class Reference:
    """A run that nobody killed.

    Attributes:
      outcome: see `outcome_of`.
      seconds: what a start with a warm cache takes to its end.
      calls: how often each point of `child.py` was reached.
    """

    outcome: dict[str, Any]
    seconds: float
    calls: dict[str, int]


def make_reference(place: Workplace, arguments: Sequence[str], name: str) -> Reference:
    """Run without interruption, twice: with a cold cache and with a warm one; both must end with the same."""
    outcomes = []
    for suffix in ("cold", "warm"):
        run_path, counted = place.folder / f"{name}-{suffix}", place.folder / f"{name}-calls.json"
        start_time = time.monotonic()
        status, _, err = finish(place.start(arguments, run_path, COUNT_TO=str(counted)))
        assert status == 0, err
        outcomes.append(outcome_of(run_path))
    assert differences(*outcomes) == []
    return Reference(outcomes[0], time.monotonic() - start_time, json.loads(counted.read_text()))


def choose_kill(chance: random.Random, reference: Reference) -> Kill:
    """Choose when to kill: a third each at any moment, some time after a save, and inside a save."""
    kind = chance.choice(["any moment", "after a save", "inside a save"])
    if kind == "any moment":
        return Kill(kind, seconds=chance.uniform(0.0, reference.seconds))
    if kind == "after a save":
        return Kill(kind, seconds=chance.uniform(0.0, 0.2 * reference.seconds))
    point = chance.choice(sorted(reference.calls))
    number = 1 + int(reference.calls[point] * chance.random() ** 3)  # most runs have a part behind them
    return Kill(kind, point=f"{point}:{number}")


def names_in(path: Path) -> set[str]:
    """Return the names in a folder; none if there is no such folder."""
    with contextlib.suppress(OSError):
        return set(os.listdir(path))
    return set()


def run_and_kill(
    place: Workplace, arguments: Sequence[str], run_path: Path, kill: Kill
) -> tuple[int, str, str]:
    """Start a process, and kill it when that is asked for, unless it ends before."""
    before = names_in(run_path / "checkpoints")
    process = place.start(arguments, run_path, **({"KILL_AT": kill.point} if kill.point else {}))
    if kill.kind == "after a save":
        deadline = time.monotonic() + LIMIT
        while process.poll() is None and time.monotonic() < deadline:
            if any(name[0].isdigit() for name in names_in(run_path / "checkpoints") - before):
                break
            time.sleep(0.002)
    if not kill.point:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(kill.seconds)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    return finish(process)


def check_directory(run_path: Path, newest: int) -> int:
    """Check what a kill has left: every checkpoint is sound, the newest is no older; return its steps."""
    checkpoints = Checkpoints(run_path)
    problems = {steps: problem for steps in checkpoints.steps() if (problem := checkpoints.problem(steps))}
    assert not problems, problems
    aside = [name for name in names_in(checkpoints.path) if ".damaged" in name]
    assert not aside, aside
    found = max(checkpoints.steps(), default=-1)
    assert found >= newest, f"the newest checkpoint was at {newest}, and is at {found}"
    return found


@dataclasses.dataclass
class Tally:
    """What happened.

    Attributes:
      kills: by kind.
      before: kills of a run that had no checkpoint yet.
      resumed: starts that went on from a checkpoint.
      runs: finished and compared.
    """

    kills: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    before: int = 0
    resumed: int = 0
    runs: int = 0

    @property
    def total(self) -> int:
        """The number of kills."""
        return sum(self.kills.values())


def soak(
    place: Workplace,
    arguments: Sequence[str],
    name: str,
    reference: Reference,
    kills: int,
    seed: int,
    *,
    tally: Tally | None = None,
) -> Tally:
    """Kill runs until there were so many kills, and compare each with the reference once it is finished.

    Args:
      place: where they run.
      arguments: of the command, without its run directory.
      name: for the run directories.
      reference: of the same arguments.
      kills: their number.
      seed: of the moments.
      tally: of earlier calls, which is continued.
    """
    chance = random.Random(seed)
    tally = Tally() if tally is None else tally
    end = tally.total + kills
    while tally.total < end:
        run_path, newest = place.folder / f"{name}-{tally.runs}", -1
        for kill in _kills(chance, reference, end - tally.total):
            status, out, err = run_and_kill(place, arguments, run_path, kill)
            tally.resumed += "resuming from the checkpoint" in err
            what = f"{run_path.name}, seed {seed}, after {tally.total} kills, {kill}"
            assert status in (0, -signal.SIGKILL), f"{what}: status {status}\n{out}\n{err}"
            newest = check_directory(run_path, newest)
            if status == 0:
                break
            tally.kills[kill.kind] += 1
            tally.before += newest == -1
        found = differences(reference.outcome, outcome_of(run_path))
        assert not found, f"{run_path.name}, seed {seed}: {found}"
        tally.runs += 1
    return tally


def _kills(chance: random.Random, reference: Reference, wanted: int) -> Iterator[Kill]:
    """Yield the kills of one run, and at last one that never comes."""
    for _ in range(wanted):
        yield choose_kill(chance, reference)
    yield Kill("never", seconds=LIMIT)
