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

# What Shoal asks of XLA on a CPU, for a peer that is to have the same; a test compares them with Shoal's own.
BACKEND_FLAGS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1048576"
COMPILER_OPTIONS = {"xla_cpu_prefer_vector_width": 512, "xla_cpu_parallel_codegen_split_count": 1}
ROWS_WORTH_THREADS = 4096  # of a rollout; Shoal gives a smaller one a single thread

# Many environments with settings that do solve CartPole, for the time until it is solved.
SOLVING = {"learning_rate": 1e-3, "num_epochs": 4, "num_minibatches": 32, "updates_per_evaluation": 2}
SOLVED = 475.0  # mean return of the episodes of an evaluation
EVALUATION_EPISODES = 128
MOST_STEPS = 10_000_000

# Value-based training; both sides take the same, by their own names.
DQN = {
    "buffer_size": 50_000,
    "learning_starts": 1_000,
    "batch_size": 100,
    "train_frequency": 10,  # one step of 10 environments
    "gradient_steps": 5,
    "target_network_frequency": 200,
    "learning_rate": 1e-3,
    "max_grad_norm": 10.0,
    "double": True,
}
PQN = {
    "update_epochs": 4,
    "num_minibatches": 4,
    "q_lambda": 0.65,
    "learning_rate": 2.5e-4,
    "max_grad_norm": 10.0,
    "optimizer": "adam",
    "layer_norm": False,
}

# rejax's own for Pendulum, by Shoal's names; two hidden layers of 64.
SAC = {
    "buffer_size": 10_000,
    "learning_starts": 256,
    "batch_size": 256,
    "train_frequency": 1,
    "learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "tau": 0.02,
    "norm_obs": True,
}
TD3 = {
    "buffer_size": 10_000,
    "learning_starts": 1_000,
    "batch_size": 100,
    "train_frequency": 1,
    "learning_rate": 1e-3,
    "critic_learning_rate": 1e-3,
    "max_grad_norm": 100.0,
    "tau": 0.05,
    "policy_frequency": 2,
    "target_network_frequency": 2,
    "exploration_noise": 0.3,
    "policy_noise": 0.2,
    "noise_clip": 0.5,
    "norm_obs": True,
}

# PureJaxRL's settings for MinAtar.
BREAKOUT = {"learning_rate": 5e-3, "update_epochs": 4, "num_minibatches": 8, "activation": "relu"}

# Playground's settings for the control suite, with fewer epochs, for few environments; and those of Shoal's preset.
_BALANCE = {"learning_rate": 1e-3, "ent_coef": 1e-2, "gamma": 0.995, "reward_scale": 10.0}
BALANCE = {
    "wide": _BALANCE
    | {
        "update_epochs": 4,
        "num_minibatches": 8,
        "hidden_sizes": (32, 32, 32, 32),
        "critic_hidden_sizes": (256, 256, 256, 256, 256),
    },
    "narrow": _BALANCE
    | {
        "update_epochs": 10,
        "num_minibatches": 16,
        "hidden_sizes": (64, 64),
        "critic_hidden_sizes": (64, 64),
    },
}


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
    parser.add_argument("--members", type=int, default=1, help="of a population, for workers that train one")
    parser.add_argument("--environment", default="", help="which, for workers that know several")
    parser.add_argument("--same-backend", action="store_true", help="compile as Shoal does")
    return parser.parse_args()


def compiler_options(sizes: argparse.Namespace) -> dict[str, Any]:
    """How a peer's program is compiled: as JAX does by default, or with the options that Shoal gives."""
    return COMPILER_OPTIONS if sizes.same_backend else {}


def updates_per_call(sizes: argparse.Namespace) -> int:
    """How many updates one call makes: some 65,000 environment steps, so that calling costs nothing."""
    return max(1, 65_536 // (sizes.num_envs * sizes.num_steps * sizes.members))


def value_updates_per_call(sizes: argparse.Namespace) -> int:
    """The same for value-based training: fewer steps where each of them is followed by gradient steps."""
    return max(1, (65_536 if sizes.environment == "pqn" else 8_192) // (sizes.num_envs * sizes.num_steps))


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


class Solver(NamedTuple):
    """What a worker trains until the task is solved."""

    start: Callable[[int], Any]  # from a seed, the state before the first update
    advance: Callable[[Any], Any]  # the updates between two evaluations
    score: Callable[[Any, int], float]  # mean return of an evaluation, whose number is its seed
    steps: int  # environment steps of one `advance`


def serve_seeds(build: Callable[[argparse.Namespace], Solver], packages: tuple[str, ...]) -> None:
    """Compiles, says so, and then trains each seed that a line of the input names until the task is solved.

    Evaluations are not timed: the peers evaluate in different ways, and none has to.
    """
    sizes = arguments()
    import jax

    solver = build(sizes)
    state = solver.advance(solver.start(0))
    solver.score(state, 0)
    names = ("jax", "jaxlib", *packages)
    say(
        {
            "device": jax.devices()[0].device_kind,
            "versions": {name: metadata.version(name) for name in names},
        }
    )
    for line in sys.stdin:
        state, seconds, steps, score = solver.start(int(line)), 0.0, 0, 0.0
        while score < SOLVED and steps < MOST_STEPS:
            jax.block_until_ready(state)
            begun = time.perf_counter()
            state = jax.block_until_ready(solver.advance(state))
            seconds += time.perf_counter() - begun
            steps += solver.steps
            score = solver.score(state, steps)
        say({"seconds": seconds, "steps": steps, "score": score})
