"""What durability costs: `python benchmarks/durability.py [--rounds 30]`.

guard        updates with and without the look at numbers that are not finite, alternating in one process
checkpoint   pieces of training with and without a checkpoint that is copied and written meanwhile; the seconds that
             one costs, as a share of the 30 seconds between two
restoration  reading, verifying and placing a checkpoint

Each case runs in a process of its own, and prints the median of the rounds with its 95% bootstrap interval.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.runs.plan.decide import decide

INTERVAL_SECONDS = 30.0  # between two checkpoints
GUARDS = {"4 x 128": (4, 128), "1024 x 32": (1024, 32)}
CHECKPOINTS = ("CartPole-v1, its preset", "118 MB")


def preset() -> dict[str, Any]:
    """Return the settings of a run of CartPole's preset."""
    return {}


def large() -> dict[str, Any]:
    """Return the settings of a run of 118 MB: parameters, twice because of the best ones, and Adam's moments."""
    sizes = {"seeds": 1, "num_envs": 8, "num_steps": 32, "num_minibatches": 1, "update_epochs": 1}
    return sizes | {"hidden_sizes": (2048, 2048), "shared_torso": False, "preset": False}


def compiled(settings: dict[str, Any]) -> tuple[Any, Any]:
    """Plan and compile a run; returns both."""
    from shoal.runs.train import drive as train
    from shoal.runs.train import planning

    use_preset = settings.pop("preset", True)
    experiment = decide("CartPole-v1", use_preset=use_preset, overrides=settings)
    plan = planning.plan_run(experiment, planning.Caller(own_process=True))
    return plan, train.compile_run(plan)


def report(name: str, values: list[float], unit: str) -> None:
    """Print the median of the rounds and its interval."""
    import numpy as np

    values = np.asarray(values)
    draws = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    print(f"| {name} | {np.median(values):.3f} | [{low:.3f}, {high:.3f}] | {unit} |", flush=True)


def seconds_of(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the duration of a call, to the end of what it computes, and its result."""
    import jax

    start_time = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start_time, result


def guard(name: str, rounds: int) -> None:
    """Compare updates with and without the guard."""
    import jax.numpy as jnp

    from shoal.engine import loop

    num_envs, num_steps = GUARDS[name]
    settings = {"seeds": 1, "num_envs": num_envs, "num_steps": num_steps, "devices": 1, "num_minibatches": 4}
    settings |= {"preset": False, "total_steps": 10**9}
    with_guard = compiled(dict(settings))[1]
    loop.has_fault = lambda found, axis: jnp.bool_(False)  # what is found is then not computed
    without = compiled(dict(settings))[1]
    count = jnp.int32(max(1, 400_000 // (num_envs * num_steps)))
    populations, ratios = [with_guard.population, without.population], []
    for number in range(rounds + 1):
        seconds = []
        for k in (0, 1) if number % 2 else (1, 0):
            train = (with_guard, without)[k].train
            took, (populations[k], _) = seconds_of(train, populations[k], count, jnp.bool_(True))
            seconds.append((k, took))
        times = dict(seconds)
        ratios.append(times[0] / times[1])
    report(f"guard, {name}", ratios[1:], "time with, of that without")


def checkpoint(name: str, rounds: int) -> None:
    """Compare pieces of training with and without a checkpoint that is written meanwhile."""
    import jax.numpy as jnp

    from shoal.records.checkpoint_writer import Writer
    from shoal.records.checkpoints import Checkpoints
    from shoal.runs.train.checkpointing import copy_to_host

    _, run = compiled(preset() if name != "118 MB" else large())
    population, begins = run.population, jnp.bool_(True)
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Checkpoints(Path(folder)))
        size = sum(x.nbytes for x in copy_to_host(population).values() if hasattr(x, "nbytes"))

        def piece(population: Any, number: int, writes: bool) -> Any:
            if writes:
                writer.submit(number, copy_to_host(population), {})
            population, _ = run.train(population, count, begins)
            return population

        count = jnp.int32(8)
        took, (population, _) = seconds_of(run.train, population, count, begins)
        took, (population, _) = seconds_of(run.train, population, count, begins)
        _, population = seconds_of(piece, population, 0, True)
        writer.wait()
        count = jnp.int32(max(1, round(8 * max(1.5, 3 * writer.last_seconds) / took)))
        differences, writes = [], []
        for number in range(1, rounds + 1):
            times = {}
            for is_written in (True, False) if number % 2 else (False, True):
                times[is_written], population = seconds_of(piece, population, number, is_written)
                writer.wait()
                if is_written:
                    writes.append(writer.last_seconds)
            differences.append(times[True] - times[False])
            writer._checkpoints.keep({number})
    report(f"checkpoint, {name} ({size / 1e6:.1f} MB)", differences, "seconds that one costs")
    report(f"checkpoint, {name}", [x / INTERVAL_SECONDS for x in differences], "share, of 30 s")
    report(f"checkpoint, {name}", writes, "seconds of writing, in the background")


def restoration(name: str, rounds: int) -> None:
    """Time the reading of a checkpoint."""
    import jax

    from shoal.records.checkpoints import Checkpoints
    from shoal.runs.train.checkpointing import copy_to_host, restored, saved_leaves

    _, run = compiled(large())
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        checkpoints.save(1, copy_to_host(run.population), {})

        def restore() -> Any:
            leaves, _ = checkpoints.load(1, saved_leaves(run.shapes))
            return jax.tree.leaves(restored(run.population, leaves))

        report(
            f"restoration, {name}", [seconds_of(restore)[0] for _ in range(max(3, rounds // 6))], "seconds"
        )


def main() -> None:
    """Run all cases, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    kinds = {"guard": guard, "checkpoint": checkpoint, "restoration": restoration}
    if arguments.case:
        kind, name = arguments.case
        kinds[kind](name, arguments.rounds)
        return
    print("| case | median | 95% of the median | |\n| --- | --- | --- | --- |", flush=True)
    cases = [("guard", name) for name in GUARDS]
    cases += [("checkpoint", name) for name in CHECKPOINTS] + [("restoration", "118 MB")]
    for case in cases:
        command = [sys.executable, __file__, "--rounds", str(arguments.rounds), "--case", *case]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
