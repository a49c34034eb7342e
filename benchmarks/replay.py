"""Drawing 128 rows of a replay by their priorities and setting these anew: `python benchmarks/replay.py`.

Of rings of 10,000 to 1,000,000 rows in all, in a compiled loop on one thread, as a gradient step does it. All take
their turn in each round.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.xla.machine import prepare

prepare(one_thread=True)  # before JAX starts

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from harness import machine, options, table  # noqa: E402

from shoal.algos.learning import priorities  # noqa: E402

BATCH, CALLS = 128, 500
SIZES = ((1, 10_000), (8, 1_250), (1, 100_000), (1, 1_000_000), (8, 125_000))  # environments, rows of each


def loop(made: priorities.Priorities, key: jax.Array, calls: int) -> priorities.Priorities:
    """Draw and set so often."""

    def step(i: jax.Array, made: priorities.Priorities) -> priorities.Priorities:
        env, row, probability = priorities.draw(jax.random.fold_in(key, i), made, BATCH)
        return priorities.updated(made, env, row, priorities.weights(probability, 0.5) + 0.1)

    return jax.lax.fori_loop(0, calls, step, made)


def prepared(num_envs: int, num_rows: int) -> tuple[Callable, Any]:
    """Rings whose rows have random priorities, and the compiled loop."""
    env, row = (x.ravel() for x in np.indices((num_envs, num_rows)))
    priority = np.random.default_rng(0).gamma(1.0, size=env.shape).astype(np.float32)
    made = priorities.updated(priorities.empty(num_envs, num_rows), env, row, priority)
    function = jax.jit(loop, donate_argnums=0)
    return function, jax.block_until_ready(function(made, jax.random.key(0), jnp.int32(2)))


def main() -> None:
    """Measures all sizes in turn and prints the microseconds of each draw with its setting."""
    parsed = options(__doc__, rounds=15)
    rings, times = [prepared(*size) for size in SIZES], [[] for _ in SIZES]
    for round_ in range(parsed.rounds):
        for k, (function, before) in enumerate(rings):
            start = time.perf_counter()
            after = jax.block_until_ready(function(before, jax.random.key(round_), jnp.int32(CALLS)))
            times[k].append(1e6 * (time.perf_counter() - start) / CALLS)
            rings[k] = function, after
    rows = [
        (f"{envs} x {rows:,}", f"{np.median(found):.1f} [{min(found):.1f}, {max(found):.1f}]")
        for (envs, rows), found in zip(SIZES, times, strict=True)
    ]
    print(table(("rings x rows", "µs, median [min, max]"), rows))
    here = machine()
    print(f"\n{here['cpu']}, load {here['load']:.1f} at the end; jax {jax.__version__}")
    if parsed.json:
        cases = {f"{envs} x {rows}": found for (envs, rows), found in zip(SIZES, times, strict=True)}
        Path(parsed.json).write_text(json.dumps({"machine": here, "microseconds": cases}, indent=1))


if __name__ == "__main__":
    main()
