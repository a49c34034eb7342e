"""Runs workers side by side and compares them; needs nothing but Python.

A machine that is shared drifts by half between minutes, so no rate means anything by itself. Each
comparison keeps one process alive for each side, asks them in turn for about a second of work, takes the
ratio within each round, and reports the median of the ratios with the smallest and the largest. One process may be
faster than the next of the same program by a fifth, for as long as it lives: small differences need `--launches`.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import protocol

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"  # what is measured, wherever this interpreter's Shoal is installed from
ENVIRONMENTS = HERE.parent / ".venvs"


class Side(NamedTuple):
    """What is measured: a worker's script, and whose interpreter runs it."""

    name: str
    python: str
    script: str
    devices: int = 1
    environment: str = ""  # which, where the script knows several
    members: int = 1  # of a population, where the script trains one
    same_backend: bool = False  # whether a peer is given the flags and compiler options that Shoal sets
    one_thread: bool = True  # with them, one thread for a small workload, as `shoal train` has
    plain: str = ""  # what SHOAL_PLAIN is: "1" for Shoal's plain forms alone, or the names of some


class Comparison(NamedTuple):
    """The rates of two sides, one of each a round, in environment steps per second."""

    label: str
    ours: Side
    theirs: Side
    our_rates: list[float]
    their_rates: list[float]
    our_start: dict
    their_start: dict

    def as_dict(self) -> dict[str, Any]:
        """For JSON, the sides by name."""
        sides = {"ours": self.ours._asdict(), "theirs": self.theirs._asdict()}
        return {**self._asdict(), **sides, "ratios": self.ratios}

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, round by round."""
        return [a / b for a, b in zip(self.our_rates, self.their_rates, strict=True)]


class Worker:
    """A live process that measures when it is asked to."""

    def __init__(self, side: Side, num_envs: int, num_steps: int):
        command = [side.python, str(HERE / side.script)]
        command += [
            "--num-envs",
            str(num_envs),
            "--num-steps",
            str(num_steps),
            "--devices",
            str(side.devices),
        ]
        command += ["--environment", side.environment] if side.environment else []
        command += ["--members", str(side.members)] if side.members > 1 else []
        modules = os.pathsep.join([str(HERE), str(SOURCE)])
        environment = {**os.environ, "PYTHONPATH": modules, "JAX_PLATFORMS": "cpu"}
        environment |= {"SHOAL_PLAIN": side.plain} if side.plain else {}
        if side.same_backend:
            command.append("--same-backend")
            environment["XLA_FLAGS"] = protocol.BACKEND_FLAGS
            if side.one_thread and num_envs * num_steps < protocol.ROWS_WORTH_THREADS:
                environment["NPROC"] = "1"
        self.side = side
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.start = self._answer()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"the worker {self.side.name} ({self.side.script}) ended with {self.process.wait()}")

    def solve(self, seed: int) -> dict:
        """What it takes to train a seed until the task is solved: seconds, steps and the last score."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        return self._answer()

    def rate(self, seconds: float) -> float:
        """Environment steps per second over about so many seconds."""
        assert self.process.stdin is not None
        calls = max(1, round(seconds / self.start["seconds_per_call"]))
        self.process.stdin.write(f"{calls}\n")
        self.process.stdin.flush()
        return calls * self.start["steps_per_call"] / self._answer()["seconds"]

    def close(self) -> None:
        """Lets the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def compare(
    label: str, ours: Side, theirs: Side, num_envs: int, num_steps: int, options: argparse.Namespace
) -> Comparison:
    """Measures two sides in turn, with as many launches and rounds of each as the options say."""
    print(f"{label}: {ours.name} and {theirs.name} ...", file=sys.stderr, flush=True)
    rates = []
    for _ in range(options.launches):
        workers = [Worker(side, num_envs, num_steps) for side in (ours, theirs)]
        try:
            for number in range(options.rounds):
                order = (0, 1) if number % 2 else (1, 0)  # whoever is asked first may be slower
                asked = {side: workers[side].rate(options.seconds) for side in order}
                rates.append([asked[0], asked[1]])
        finally:
            for worker in workers:
                worker.close()
    our_rates, their_rates = ([rate[side] for rate in rates] for side in (0, 1))
    return Comparison(label, ours, theirs, our_rates, their_rates, workers[0].start, workers[1].start)


def compare_all(
    workloads: Iterable[tuple[int, int]], ours: Side, theirs: Sequence[Side], options: argparse.Namespace
) -> list[Comparison]:
    """Compares on each workload, of so many environments and steps, with one side after the other."""
    return [compare(f"{n} x {t}", ours, side, n, t, options) for n, t in workloads for side in theirs]


def with_shoal_settings(peer: Side, *, one_thread: bool = True) -> tuple[Side, Side]:
    """A peer as JAX compiles it by default, and once more with the settings that Shoal makes for itself.

    Args:
      peer: without them.
      one_thread: whether a small workload has a single thread then, as in `shoal train`.
    """
    return peer, peer._replace(
        name=f"{peer.name}, Shoal's settings", same_backend=True, one_thread=one_thread
    )


def peer_python(name: str) -> str:
    """The interpreter of a peer's own virtual environment, made and filled on the first call.

    It has what stands in `peers/NAME.txt` and the Python and JAX of this process: the same compiler on both sides.
    Where a JAX stands there too, the peer works with no other. The environment is made again when one is another.
    """
    packages = (HERE / "peers" / f"{name}.txt").read_text().split()
    if not any(package.startswith("jax==") for package in packages):
        packages = [f"jax=={metadata.version('jax')}", *packages]
    wanted = "\n".join([f"Python {platform.python_version()}", *packages])
    directory = ENVIRONMENTS / name
    python, stamp = directory / "bin" / "python", directory / ".requirements"
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    print(f"installing {name} into {directory} ...", file=sys.stderr, flush=True)
    uv = shutil.which("uv")
    if uv:
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, directory], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*map(str, install), *packages], check=True)
    stamp.write_text(wanted)
    return str(python)


def options(
    description: str | None,
    rounds: int = 9,
    seconds: float = 1.0,
    only: Sequence[str] = (),
    switches: Mapping[str, str] = MappingProxyType({}),
) -> argparse.Namespace:
    """The flags of every comparison; limits this process and its workers to the cores asked for.

    Args:
      description: for the help.
      rounds: the default.
      seconds: the default.
      only: names of which `--only` chooses some; without any there is no such flag.
      switches: further flags without a value, and their helps.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each side is asked")
    parser.add_argument("--seconds", type=float, default=seconds, help="how long each answer takes, about")
    parser.add_argument(
        "--launches",
        type=int,
        default=1,
        help="how often both processes are started anew, with so many rounds each",
    )
    parser.add_argument("--cores", type=int, default=0, help="CPU cores to use; 0 is all")
    parser.add_argument("--json", metavar="FILE", help="write every rate to this file as well")
    if only:
        parser.add_argument(
            "--only", nargs="+", choices=list(only), metavar="NAME", help="compare these alone"
        )
    for name, help_text in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=help_text)
    parsed = parser.parse_args()
    if parsed.cores:
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: parsed.cores]))
    return parsed


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def report(comparisons: Sequence[Comparison], parsed: argparse.Namespace) -> None:
    """Prints the ratios, and writes all the rates where that was asked for."""
    header = ("workload", "ours", "theirs", "our steps/s", "their steps/s", "ratio, median [min, max]")
    print(table(header, [row(comparison) for comparison in comparisons]))
    conditions(comparisons[0].our_start, comparisons[0].their_start)
    if parsed.json:
        measured = {"machine": machine(), "comparisons": [comparison.as_dict() for comparison in comparisons]}
        Path(parsed.json).write_text(json.dumps(measured, indent=1))


def conditions(our_start: dict, their_start: dict) -> None:
    """Prints the machine and the versions of both sides."""
    here = machine()
    versions = {**our_start["versions"], **their_start["versions"]}
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(
        f"\n{here['cpu']}, {here['cores']} cores, load {here['load']:.1f} at the end; "
        f"Python {here['python']}, {packages}"
    )


def row(comparison: Comparison) -> tuple[str, ...]:
    """One comparison as cells of the table."""
    ratios = comparison.ratios
    return (
        comparison.label,
        comparison.ours.name,
        comparison.theirs.name,
        f"{statistics.median(comparison.our_rates):,.0f}",
        f"{statistics.median(comparison.their_rates):,.0f}",
        f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
    )
