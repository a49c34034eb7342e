"""A sweep of 64 learning rates on CartPole, 250,000 steps each, in four ways: `python benchmarks/sweeps.py`.

    shoal sweep      one command
    shoal train      a process for each learning rate, as many at once as there are cores
    rejax            `vmap` of its `train` over the learning rates, as JAX compiles it by default, and once more with
                     the settings that Shoal makes for itself
    Optuna           proposes a learning rate for each of 64 processes of `shoal train`, as many at once

Wall time is from the start of the first process to the end of the last, with imports and compilation; each way begins
with an empty compile cache. Memory is the largest resident size of a process, times the number of processes at once.
All train with 4 environments, rollouts of 128 steps, 4 epochs of 4 minibatches and two 64x64 tanh networks, and
evaluate before and after training. Last, what early stopping itself takes, as a share of the time between two rungs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import protocol
from harness import HERE, SOURCE, machine, peer_python, table

SHOAL = str(Path(sys.executable).with_name("shoal"))
LOW, HIGH = 1e-5, 1e-1  # of the learning rates
SIZES = ["--num-envs", "4", "--num-steps", "128"]
FLAGS = [*SIZES, "--update-epochs", "4", "--num-minibatches", "4", "--hidden-sizes", "64", "64"]
FLAGS += ["--no-preset", "--eval-every", "0", "--no-checkpoints", "--seeds", "1", "--quiet"]


class Cost(NamedTuple):
    """Wall time in seconds, and bytes of memory."""

    seconds: float
    memory: int


def peak_memory(command: list[str], environment: Mapping[str, str]) -> int:
    """Run a command, and return the largest resident size of its process in bytes."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_maxrss * 1024


def measured(run: Callable[[Path, dict[str, str]], int]) -> Cost:
    """Measure one way, which is given an empty folder and the processes' environment, and returns its memory."""
    with tempfile.TemporaryDirectory() as folder:
        modules = os.pathsep.join([str(HERE), str(SOURCE)])
        cache = str(Path(folder) / "cache")
        environment = {**os.environ, "PYTHONPATH": modules, "JAX_PLATFORMS": "cpu"}
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache}
        start_time = time.perf_counter()
        memory = run(Path(folder), environment)
        return Cost(time.perf_counter() - start_time, memory)


def spread(count: int) -> list[float]:
    """Return learning rates that are spread evenly on a logarithmic scale."""
    return [LOW * (HIGH / LOW) ** (k / (count - 1)) for k in range(count)]


def as_sweep(rates: list[float], steps: int) -> Cost:
    """Measure one `shoal sweep`."""
    grid = "learning_rate=" + ",".join(f"{x:.6g}" for x in rates)

    def run(folder: Path, environment: dict[str, str]) -> int:
        command = [SHOAL, "sweep", "CartPole-v1", "--grid", grid, "--total-steps", str(steps), *FLAGS]
        command += ["--confirm-seeds", "0", "--run-dir", str(folder / "sweep")]
        return peak_memory(command, environment)

    return measured(run)


def training(folder: Path, number: int, rate: float, steps: int) -> list[str]:
    """Return the command that trains one learning rate."""
    command = [SHOAL, "train", "CartPole-v1", "--learning-rate", f"{rate:.6g}", "--total-steps", str(steps)]
    return [*command, *FLAGS, "--devices", "1", "--run-dir", str(folder / str(number))]


def as_processes(rates: list[float], steps: int) -> Cost:
    """Measure a `shoal train` for each learning rate."""
    at_once = len(os.sched_getaffinity(0))

    def run(folder: Path, environment: dict[str, str]) -> int:
        commands = [training(folder, k, rate, steps) for k, rate in enumerate(rates)]
        with ThreadPoolExecutor(at_once) as pool:
            return at_once * max(pool.map(lambda command: peak_memory(command, environment), commands))

    return measured(run)


def as_trials(rates: list[float], steps: int) -> Cost:
    """Measure Optuna with a process for each trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    at_once = len(os.sched_getaffinity(0))

    def run(folder: Path, environment: dict[str, str]) -> int:
        used: list[int] = []

        def objective(trial: optuna.Trial) -> float:
            rate = trial.suggest_float("learning_rate", LOW, HIGH, log=True)
            used.append(peak_memory(training(folder, trial.number, rate, steps), environment))
            summary = json.loads((folder / str(trial.number) / "summary.json").read_text())
            return summary["absolute"]["iqm"]

        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        study.optimize(objective, n_trials=len(rates), n_jobs=at_once)
        return at_once * max(used)

    return measured(run)


def as_vmap(rates: list[float], steps: int, *, same_backend: bool) -> Cost:
    """Measure rejax's `train` under `vmap`."""

    def run(folder: Path, environment: dict[str, str]) -> int:
        command = [peer_python("rejax"), str(HERE / "peers" / "rejax_sweep.py"), *map(str, rates)]
        command += [*SIZES, "--total-steps", str(steps)]
        if same_backend:
            command.append("--same-backend")
            environment |= {"XLA_FLAGS": protocol.BACKEND_FLAGS, "NPROC": "1"}
        return peak_memory(command, environment)

    return measured(run)


def halving_share() -> dict[str, Any]:
    """Return what early stopping takes, as a share of the time between two rungs."""
    command = [sys.executable, str(HERE / "own" / "halving.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(SOURCE)])}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output)
    rungs = len(found["choosing"])
    between = (found["seconds"]["train"] + found["seconds"]["evaluate"]) / (rungs + 1)
    spent = statistics.fmean(found["choosing"]) + sum(found["dealing"]) / rungs
    return found | {"share": spent / between}


def main() -> None:
    """Measure the ways, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", type=int, default=64, help="the number of learning rates")
    parser.add_argument("--total-steps", type=int, default=250_000, help="of each")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    parsed = parser.parse_args()
    peer_python("rejax")  # installed before anything is measured
    rates, steps = spread(parsed.rates), parsed.total_steps
    ways = {
        "`shoal sweep`": lambda: as_sweep(rates, steps),
        "rejax under `vmap`": lambda: as_vmap(rates, steps, same_backend=False),
        "rejax under `vmap`, Shoal's settings": lambda: as_vmap(rates, steps, same_backend=True),
        "a process of `shoal train` each": lambda: as_processes(rates, steps),
        "Optuna, a process of `shoal train` for each trial": lambda: as_trials(rates, steps),
    }
    costs = {}
    for name, measure in ways.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        costs[name] = measure()
    halving = halving_share()
    rows = [(name, f"{x.seconds:.1f}", f"{x.memory / 1e6:,.0f}") for name, x in costs.items()]
    print(table(("way", "wall time, s", "memory, MB"), rows))
    print(f"\na step of early stopping: {halving['share']:.2%} of the time between two rungs")
    print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))
    if parsed.json:
        figures = {"machine": machine(), "costs": {k: v._asdict() for k, v in costs.items()}}
        Path(parsed.json).write_text(json.dumps(figures | {"halving": halving}, indent=1))


if __name__ == "__main__":
    main()
