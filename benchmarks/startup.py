"""From the command to the first update and to the end, cold and warm, and where imports spend their time.

`python benchmarks/startup.py` runs `shoal train CartPole-v1`, each start with the caches of a user of its own: empty
(cold), and then filled by that start (warm). A first update is there when the first training row stands in
`metrics.jsonl`. The whole process trains one seed for 100,000 steps with ten evaluations, its checkpoint and its
learning curve included, in turn with `peers/rejax_script.py`, which does as much with rejax; programs that take 0.1
seconds to compile or more are cached on both sides.
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

from harness import HERE, SOURCE, machine, peer_python, table

SHOAL = [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())"]
TRAIN = [*SHOAL, "train", "CartPole-v1"]
WHOLE = "--seeds 1 --total-steps 100000 --num-evals 10 --quiet --devices".split()  # noqa: SIM905
GIVE_UP = 300  # seconds
PACKAGES_SHOWN = 8
IMPORTS = (
    "import shoal, shoal.algos.ppo, shoal.runs.train.compiled_trainer; shoal.train"  # what training needs
)


def surroundings(cache: str) -> dict[str, str]:
    """The environment variables of a user whose caches are there, with this source."""
    inherited = {name: x for name, x in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    return {**inherited, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": cache}


def first_update(cache: str, devices: int) -> float:
    """Seconds from the command to the first line of metrics; every update is logged."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        command = [*TRAIN, "--run-dir", str(run), "--log-every", "1", "--devices", str(devices)]
        log = Path(directory) / "log"
        with log.open("w") as output:
            begun = time.perf_counter()
            process = subprocess.Popen(command, env=surroundings(cache), stdout=output, stderr=output)
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


def whole_process(cache: str, devices: int) -> float:
    """Seconds of a whole run of Shoal."""
    with tempfile.TemporaryDirectory() as directory:
        run = ["--run-dir", str(Path(directory) / "run")]
        return seconds_of([*TRAIN, *WHOLE, str(devices), *run], surroundings(cache))


def peer_process(cache: str) -> float:
    """Seconds of rejax's script."""
    settings = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    command = [peer_python("rejax"), str(HERE / "peers" / "rejax_script.py")]
    return seconds_of(command, {**surroundings(cache), **settings})


def seconds_of(command: list[str], environment: dict[str, str] | None = None) -> float:
    """The time that a command takes to end."""
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - begun


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
    """Measures and prints the times, the ratios to the peer, and the imports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each start is measured")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    parsed, _ = parser.parse_known_args()
    starts = {
        "first update, one device": lambda cache: first_update(cache, 1),
        "first update, two devices": lambda cache: first_update(cache, 2),
        "whole process, one device": lambda cache: whole_process(cache, 1),
        "whole process, rejax": peer_process,
    }
    figures = defaultdict(list)
    for _ in range(parsed.rounds):
        for name, start in starts.items():
            with tempfile.TemporaryDirectory() as cache:
                figures[f"{name}, cold"].append(start(cache))
                figures[f"{name}, warm"].append(start(cache))
        figures["shoal --help"].append(seconds_of([*SHOAL, "--help"]))
        figures["imports of training"].append(seconds_of([sys.executable, "-c", IMPORTS]))
    rows = [
        (name, f"{statistics.median(x):.2f}", f"{min(x):.2f}", f"{max(x):.2f}") for name, x in figures.items()
    ]
    print(table(("seconds", "median", "min", "max"), rows))
    for state in ("cold", "warm"):
        ours, theirs = (
            figures[f"whole process, one device, {state}"],
            figures[f"whole process, rejax, {state}"],
        )
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        print(
            f"\nrejax / Shoal, {state}: {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        )
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
