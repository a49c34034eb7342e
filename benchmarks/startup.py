"""From the command to the first update, cold and warm, and where imports spend their time.

`python benchmarks/startup.py` runs `shoal train CartPole-v1` with a fresh compile cache (cold) and then
again with the cache that this has filled (warm), each several times, and stops it after its first update:
that is when the first line of `metrics.jsonl` is written, since every update is logged here. Importing,
making the agents, compiling and the evaluation before training are all within that time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from harness import machine, table

COMMAND = [str(Path(sys.executable).with_name("shoal")), "train", "CartPole-v1"]
GIVE_UP = 300  # seconds
PACKAGES_SHOWN = 8
IMPORTS = "import shoal, shoal.algos.ppo, shoal.runs.compiled_trainer; shoal.train"  # what training needs


def first_update(cache: Path, flags: list[str]) -> float:
    """Seconds from the command to the first line of metrics."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        command = [*COMMAND, "--run-dir", str(run), "--log-every", "1", *flags]
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
        log = Path(directory) / "log"
        with log.open("w") as output:
            begun = time.perf_counter()
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            try:
                while not has_update(run / "metrics.jsonl"):
                    time.sleep(0.02)
                    if process.poll() is not None or time.perf_counter() - begun > GIVE_UP:
                        raise SystemExit(f"{' '.join(command)} made no update:\n{log.read_text()}")
                return time.perf_counter() - begun
            finally:
                process.terminate()
                process.wait()


def has_update(metrics: Path) -> bool:
    """Whether a line of a training metric has been written (the evaluation before training has none)."""
    return metrics.exists() and any("approx_kl" in line for line in metrics.read_text().splitlines())


def seconds_of(command: list[str], times: int) -> float:
    """The median time that a command takes to end."""

    def once() -> float:
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun

    return statistics.median(once() for _ in range(times))


def import_seconds(statement: str) -> dict[str, float]:
    """Seconds that a statement's imports take, by package, without what each imports in turn."""
    command = [sys.executable, "-X", "importtime", "-c", statement]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()
    spent: dict[str, float] = defaultdict(float)
    for line in lines:
        own, _, module = (
            line.removeprefix("import time:").split("|") if line.count("|") == 2 else ("", "", "")
        )
        if own.strip().isdigit():
            spent[module.strip().split(".")[0]] += int(own) / 1e6
    return dict(spent)


def main() -> None:
    """Measures and prints two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each start is measured")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    parser.add_argument("--flags", default="", help="further flags of shoal train, in quotes")
    parsed, _ = parser.parse_known_args()
    cold, warm = [], []
    for _ in range(parsed.rounds):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(first_update(Path(cache), parsed.flags.split()))
            warm.append(first_update(Path(cache), parsed.flags.split()))
    whole = [sys.executable, "-c", IMPORTS]
    figures = {
        "first update, cold compile cache": cold,
        "first update, warm compile cache": warm,
        "shoal --help": [seconds_of([COMMAND[0], "--help"], parsed.rounds)],
        "imports of training": [seconds_of(whole, parsed.rounds)],
    }
    rows = [
        (name, f"{statistics.median(x):.2f}", f"{min(x):.2f}", f"{max(x):.2f}") for name, x in figures.items()
    ]
    print(table(("seconds", "median", "min", "max"), rows))
    imports = import_seconds(IMPORTS)
    slowest = sorted(imports.items(), key=lambda item: -item[1])
    shown = [*slowest[:PACKAGES_SHOWN], ("the rest", sum(x for _, x in slowest[PACKAGES_SHOWN:]))]
    print("\n" + table(("imports of", "own seconds"), [(name, f"{x:.2f}") for name, x in shown]))
    print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))
    if parsed.json:
        measured = {"machine": machine(), "seconds": figures, "imports": imports}
        Path(parsed.json).write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
