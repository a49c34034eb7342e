"""How a worker process measures: it compiles and warms up once, then measures whenever it is told to.

A worker is a small script for one program to be timed. It runs under the interpreter of whoever is
measured, which may know nothing of Shoal, so this file needs only JAX. Two workers that live side by
side and are asked in turn (A, B, A, B, ...) see the same weather on a machine that is shared.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any, NamedTuple


class Program(NamedTuple):
    """What a worker times: a compiled function from its state to its next state and its outputs."""

    advance: Callable[[Any], tuple[Any, Any]]  # everything that it returns is waited for
    state: Any
    steps: int  # environment steps of one call


def arguments() -> argparse.Namespace:
    """The sizes that every worker takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--num-steps", type=int, required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--environment", default="", help="which, for workers that know several")
    return parser.parse_args()


def updates_per_call(sizes: argparse.Namespace) -> int:
    """How many updates one call makes: some 65,000 environment steps, so that calling costs nothing."""
    return max(1, 65_536 // (sizes.num_envs * sizes.num_steps))


def serve(build: Callable[[argparse.Namespace], Program], packages: tuple[str, ...]) -> None:
    """Compiles, warms up, says so, and then makes as many calls as each line of the input asks for.

    Args:
      build: makes the program from the sizes.
      packages: whose versions are reported, besides JAX's.
    """
    sizes = arguments()
    import jax

    if sizes.devices > 1:
        jax.config.update("jax_num_cpu_devices", sizes.devices)
    begun = time.perf_counter()
    program = build(sizes)
    state, _ = jax.block_until_ready(program.advance(program.state))
    first_call = time.perf_counter() - begun
    state, call = measure(program, state, 3)
    say(
        {
            "steps_per_call": program.steps,
            "seconds_per_call": call / 3,
            "first_call_seconds": first_call,
            "device": jax.devices()[0].device_kind,
            "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", *packages)},
        }
    )
    for line in sys.stdin:
        state, seconds = measure(program, state, int(line))
        say({"seconds": seconds})


def measure(program: Program, state: Any, calls: int) -> tuple[Any, float]:
    """The state after so many calls, and the seconds they took; each is waited for."""
    import jax

    begun = time.perf_counter()
    for _ in range(calls):
        state, _ = jax.block_until_ready(program.advance(state))
    return state, time.perf_counter() - begun


def say(answer: dict) -> None:
    """One line for the harness."""
    print(json.dumps(answer), flush=True)
