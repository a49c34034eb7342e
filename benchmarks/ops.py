"""Every public function of `shoal.ops`, time for each element: `python benchmarks/ops.py`.

Each is compiled and called on arguments of a usual size, in turn with a plain function that reads the same
arguments and writes results of the same shapes: one fused pass that adds them up, or for functions of time one
scan that discounts. A ratio of 1 is as fast as memory allows; what is above has more to compute.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from harness import machine, options, table
from operations import Case, cases


def main() -> None:
    """Measures all cases and prints the table."""
    parsed = options(__doc__, rounds=7, seconds=0.01)
    rows, rates = [], {}
    for case in cases():
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        ours, plain = measured(case, parsed.rounds, parsed.seconds)
        rates[f"{case.name} against {case.against}"] = {"nanoseconds": ours, "plain_nanoseconds": plain}
        rows.append(row(case, ours, plain))
    print(table(("function", "elements", "ns each", "against", "ns each", "ratio, median [min, max]"), rows))
    here = machine()
    print(
        f"\n{here['cpu']}, {here['cores']} cores, load {here['load']:.1f} at the end; Python {here['python']}, "
        f"jax {jax.__version__}, numpy {np.__version__}"
    )
    if parsed.json:
        Path(parsed.json).write_text(json.dumps({"machine": here, "cases": rates}, indent=1))


def measured(case: Case, rounds: int, seconds: float) -> tuple[list[float], list[float]]:
    """Nanoseconds for each element, ours and the plain one's, in turn, one of each a round."""
    functions = [jax.jit(f) for f in (case.function, case.plain)]
    calls = []
    for function in functions:
        elapsed(function, case.arguments, 1)  # compiles
        once = elapsed(function, case.arguments, 1)
        calls.append(max(1, round(seconds / once)))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, count, kept in zip(functions, calls, times, strict=True):
            kept.append(1e9 * elapsed(function, case.arguments, count) / count / case.elements)
    return times


def elapsed(function: Callable, arguments: Any, calls: int) -> float:
    """Seconds of so many calls, each waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def row(case: Case, ours: list[float], plain: list[float]) -> tuple[str, ...]:
    """One case as cells of the table: the fastest rounds, and the ratios within each."""
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    return (
        case.name,
        f"{case.elements:,}",
        f"{min(ours):.3g}",
        case.against,
        f"{min(plain):.3g}",
        f"{statistics.median(ratios):.3g} [{min(ratios):.3g}, {max(ratios):.3g}]",
    )


if __name__ == "__main__":
    main()
