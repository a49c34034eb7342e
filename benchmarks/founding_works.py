"""The five works that Shoal began as, at their own settings, beside Shoal: `python benchmarks/founding_works.py`.

Stoix's `ff_ppo`, jaxagents' IPPO, JaxDEM's PPO trainer, XLand-MiniGrid's single-task baseline, and the rollouts of
"An RL environment in JAX". Each runs from a checkout of its repository, in a virtual environment with the packages that
it works with (`peers/*.txt`), by a small driver (`founding/`) that calls the work's own functions. Shoal runs as
`shoal train` or `shoal rollout` with the same settings. The processes of a work follow each other in turn, seed by
seed: a peer as JAX compiles it by default, and with the settings that Shoal makes for itself; where it can spread over
devices, once with as many as Shoal uses. The first process of each has an empty compilation cache, the others have its.

For each process: the seconds of a million steps while training, without compiling and evaluation; those from its start
to the end of its first update; the score of its last policy; and the most memory that it had.
"""

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import protocol
from harness import ENVIRONMENTS, HERE, SOURCE, machine, peer_python, table

SHOAL = (sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())")
DRIVERS = HERE / "founding"
COMPILER_FLAGS = " ".join(f"--{name}={value}" for name, value in protocol.COMPILER_OPTIONS.items())
SHOAL_FLAGS = f"{protocol.BACKEND_FLAGS} {COMPILER_FLAGS}"
TWO_DEVICES = "--xla_force_host_platform_device_count=2"
MILLION, GIB = 1e6, 2**30
ROLLOUTS = "mountain-car"


class Work(NamedTuple):
    """A work, what runs it, and Shoal's flags for the same."""

    driver: str  # in founding/
    packages: str  # peers/NAME.txt
    repository: str
    commit: str
    ours: str  # the recipe that `shoal train` is given, and what is otherwise
    steps: int  # of an update
    updates: int  # of a seed
    episodes: int  # of the last policy, which its score is the mean return of
    mode: str = "sampled"  # in which it plays them
    metric: str = "return_mean"
    sizes: str = ""  # that the driver is given
    flags: str = SHOAL_FLAGS  # as far as the peer's jaxlib knows them
    spreads: bool = False  # whether it can spread over devices
    caches: bool = True  # whether the programs in its jaxlib's compilation cache compute what they should


# The script of the work, of which the recipe is the notebook.
XMINIGRID = "--config xland_minigrid observe_direction=true --encoder-embedding 16"
OF_STOIX = {
    "driver": "stoix_ppo",
    "packages": "stoix",
    "repository": "https://github.com/EdanToledo/Stoix",
    "commit": "8fff19c",
    "steps": 1024 * 128,
    "updates": 8,
    "episodes": 128,
    "flags": COMPILER_FLAGS,  # with small loops as single kernels its jaxlib aborts
    "caches": False,  # a program of the cache learns nothing: of CartPole its policies return 0
    "spreads": True,
}
OF_XMINIGRID = {
    "driver": "xminigrid_ppo",
    "packages": "xminigrid_training",
    "repository": "https://github.com/dunnolab/xland-minigrid",
    "commit": "0d306d1",
    "episodes": 80,
    "spreads": True,
}
WORKS = {
    "stoix": Work(**OF_STOIX, ours="--config stoix_ff_ppo"),
    "stoix-grid": Work(**OF_STOIX, ours="MiniGrid-Empty-6x6 --config stoix_ff_ppo", sizes="environment=1"),
    "jaxagents": Work(  # its KL stop leaves 1.4 of 9 epochs to the actor, of which the driver reports the mean
        driver="jaxagents_ippo",
        packages="jaxagents",
        repository="https://github.com/amavrits/jax-agents",
        commit="f064039",
        ours="--config jaxagents_ippo --update-epochs 2",
        steps=128 * 200,
        updates=40,
        episodes=100,
        mode="greedy",
        metric="return_agent_0_mean",  # the prey's; the predator's is the opposite
        flags=protocol.BACKEND_FLAGS,  # its jaxlib does not know the others
    ),
    "jaxdem": Work(
        driver="jaxdem_ppo",
        packages="jaxdem_training",
        repository="https://github.com/cdelv/JaxDEM",
        commit="5d9c13a",
        # JaxDEM's rate hardly decreases over the epochs that are made here.
        ours="--config jaxdem --lr-schedule constant",
        steps=1024 * 64,
        updates=64,
        episodes=32,
    ),
    "xminigrid": Work(
        **OF_XMINIGRID,
        ours=f"{XMINIGRID} --num-envs 256 --core-size 256",
        steps=256 * 16,
        updates=24,
    ),
    "xminigrid-full": Work(
        **OF_XMINIGRID,
        ours=f"{XMINIGRID} --num-envs 8192 --core-size 1024",
        steps=8192 * 16,
        updates=2,
        sizes="num_envs=8192 rnn_hidden_dim=1024",
    ),
}


class ProcessError(Exception):
    """A process ended with an error; with what it printed."""


class Outcome(NamedTuple):
    """What a process did."""

    rate: float  # steps a second
    first_update: float  # seconds since its start
    compile: float  # seconds
    score: float | None
    memory: int  # bytes, the most that it had
    said: dict[str, Any]

    @property
    def million(self) -> float:
        """The seconds of a million steps."""
        return MILLION / self.rate


class Side(NamedTuple):
    """Who trains, and whether its scores are of interest."""

    name: str
    train: Callable[[int, str], Outcome]  # of a seed and the folder of its caches
    is_timed_only: bool = False  # with one seed


def watch(
    command: Sequence[str], environment: dict[str, str], is_there: Callable[[], bool] = lambda: False
) -> tuple[str, float, int]:
    """What a command prints, the seconds until something is there, and the bytes that it had at most."""
    with tempfile.TemporaryFile("w+") as output:
        begun, seen = time.time(), 0.0
        process = subprocess.Popen(
            command, env=environment | {"FOUNDING_BEGUN": str(begun)}, stdout=output, stderr=subprocess.STDOUT
        )
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            seen = seen or (time.time() - begun if is_there() else 0.0)
            if pid:
                break
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise ProcessError(f"{' '.join(map(str, command))} ended with {process.returncode}:\n{text[-4000:]}")
    return text, seen, usage.ru_maxrss * 1024


def surroundings(cache: str) -> dict[str, str]:
    """The environment variables of a user whose caches are there."""
    own = ("JAX_", "XLA_", "PYTHON", "NPROC", "SHOAL_")
    inherited = {name: x for name, x in os.environ.items() if not name.startswith(own)}
    caches = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    return {**inherited, **caches, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{SOURCE}{os.pathsep}{DRIVERS}"}


def settings(work: Work) -> list[str]:
    """The environment and the settings that `shoal train` is given for a work."""
    return work.ours.split()


def train_with_shoal(work: Work, updates: int, seed: int, cache: str) -> Outcome:
    """A run of one seed, whose last policy is scored by another process."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        metrics = run / "metrics.jsonl"
        command = [
            *SHOAL,
            "train",
            *settings(work),
            "--quiet",
            "--no-checkpoints",
            "--absolute-episodes",
            "0",
        ]
        command += ["--run-dir", str(run), "--seeds", "1", "--seed", str(seed), "--num-updates", str(updates)]
        command += ["--eval-every", "never", "--log-every", "1"]
        is_there = lambda: metrics.exists() and "approx_kl" in metrics.read_text()  # noqa: E731
        _, first, memory = watch(command, surroundings(cache), is_there)
        summary = json.loads((run / "summary.json").read_text())
        command = [*SHOAL, "eval", str(run), "--which", "last", "--mode", work.mode, "--json"]
        text, _, _ = watch([*command, "--episodes", str(work.episodes)], surroundings(cache))
    played = json.loads(text[text.index("{\n") :])["metrics"][str(seed)]
    rate, seconds = summary["steps_per_second"], summary["seconds"]["compile"]
    return Outcome(rate, first, seconds, played[work.metric], memory, summary["versions"])


def train_with_peer(work: Work, flags: str, updates: int, seed: int, cache: str) -> Outcome:
    """A seed of the peer, in a process of its own."""
    python, driver = peer_python(work.packages), DRIVERS / f"{work.driver}.py"
    command = [python, str(driver), *work.sizes.split(), "--seed", str(seed), "--updates", str(updates)]
    own = {"XLA_FLAGS": flags, "FOUNDING_CHECKOUT": str(checkout(work)), "PYTHONPATH": str(DRIVERS)}
    own |= {} if work.caches else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    text, _, _ = watch(command, surroundings(cache) | own)
    said = json.loads(next(line for line in reversed(text.splitlines()) if line.startswith("{")))
    return Outcome(*(said.pop(name) for name in Outcome._fields[:-1]), said)


def checkout(work: Work) -> Path:
    """The folder of a repository, in `FOUNDING_WORKS` or .venvs/checkouts; say how to get it where it is missing."""
    name = work.repository.rsplit("/", 1)[1]
    folder = Path(os.environ.get("FOUNDING_WORKS", ENVIRONMENTS / "checkouts")) / name
    if not folder.is_dir():
        raise SystemExit(
            f"{folder} does not exist; to get it: git clone {work.repository} {folder} && "
            f"git -C {folder} checkout {work.commit}"
        )
    return folder


def sides(name: str, work: Work, updates: int) -> list[Side]:
    """Shoal, and the peer in its variants; less of one seed of those that differ only in speed."""
    peer, few = functools.partial(train_with_peer, work), max(min(updates, 4), updates // 4)
    on_two = f"{work.flags} {TWO_DEVICES}"
    found = [
        Side("Shoal", functools.partial(train_with_shoal, work, updates)),
        Side(f"{name}, Shoal's settings", functools.partial(peer, work.flags, updates)),
        Side(f"{name}, as JAX compiles it", functools.partial(peer, "", few), is_timed_only=True),
        Side(
            f"{name}, Shoal's settings, two devices", functools.partial(peer, on_two, few), is_timed_only=True
        ),
    ]
    return found if work.spreads else found[:-1]


def roll_out_with_shoal(steps: int, devices: int, seed: int, cache: str) -> Outcome:
    """A rollout of four cars whose whole data is kept, which `shoal rollout` writes to a file."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*SHOAL, "rollout", "--config", "mountain_car", "--json", "--save", f"{folder}/data.npz"]
        command += ["--steps", str(steps), "--devices", str(devices), "--seed", str(seed)]
        text, _, memory = watch(command, surroundings(cache))
    said = json.loads(text[text.index("{\n") : text.rindex("}") + 1])
    return Outcome(said["steps_per_second"], math.nan, said["compile_seconds"], None, memory, said)


def roll_out_with_peer(steps: int, flags: str, seed: int, cache: str) -> Outcome:
    """The notebook's rollout, under Shoal's interpreter."""
    command = [sys.executable, str(DRIVERS / "mountain_car.py"), "--seed", str(seed), "--updates", str(steps)]
    text, _, _ = watch([*command, "--no-score"], surroundings(cache) | {"XLA_FLAGS": flags})
    said = json.loads(next(line for line in reversed(text.splitlines()) if line.startswith("{")))
    return Outcome(*(said.pop(name) for name in Outcome._fields[:-1]), said)


def rollouts(steps: int) -> list[Side]:
    """Shoal and the notebook, each on one device and on two."""
    found = []
    for devices in (1, 2):
        number = f"--xla_force_host_platform_device_count={devices}"
        same, on = f"{SHOAL_FLAGS} {number}", f"{devices} device{'s' * (devices > 1)}"
        peer, few = (functools.partial(roll_out_with_peer, count) for count in (steps, steps // 4))
        found += [
            Side(f"Shoal, {on}", functools.partial(roll_out_with_shoal, steps, devices)),
            Side(f"the notebook, {on}, Shoal's settings", functools.partial(peer, same)),
            Side(
                f"the notebook, {on}, as JAX compiles it", functools.partial(few, number), is_timed_only=True
            ),
        ]
    return found


def compare(name: str, all_sides: Sequence[Side], seeds: int) -> dict[str, list[Outcome]]:
    """The outcomes of all sides, seed by seed, in turn."""
    outcomes: dict[str, list[Outcome]] = {side.name: [] for side in all_sides}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            for side in all_sides if seed % 2 else reversed(all_sides):  # whoever comes first may be slower
                if seed and side.is_timed_only:
                    continue
                print(f"{name}: {side.name}, seed {seed} ...", file=sys.stderr, flush=True)
                try:
                    outcome = side.train(seed, str(Path(folder) / side.name.replace(" ", "-")))
                except ProcessError as error:
                    if not side.is_timed_only:
                        raise
                    print(error, file=sys.stderr, flush=True)  # the row is left out
                else:
                    outcomes[side.name].append(outcome)
    return outcomes


def row(name: str, side: str, outcomes: Sequence[Outcome], ours: Sequence[Outcome]) -> tuple[str, ...]:
    """A side as cells of the table; ratios are of the same seed."""
    ratios = [x.million / y.million for x, y in zip(outcomes, ours, strict=False)]
    middle = statistics.median(ratios)
    scores = [] if len(outcomes) < len(ours) else [x.score for x in outcomes if x.score is not None]
    return (
        name,
        side,
        f"{statistics.median(x.million for x in outcomes):.2f}",
        f"{middle:.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
        ", ".join(f"{score:.2f}" for score in scores),
        f"{max(x.memory for x in outcomes) / GIB:.2f}",
        f"{outcomes[0].first_update:.1f}",
        f"{outcomes[-1].first_update:.1f}" if len(outcomes) > 1 else "",
        f"{outcomes[0].compile:.1f}",
    )


HEADER = (
    "work",
    "side",
    "s per million steps",
    "times Shoal's, median [min, max]",
    "scores",
    "GiB",
    "first update, s",
    "warm",
    "compile, s",
)


def options() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*WORKS, ROLLOUTS]
    default = [name for name in names if name != "xminigrid-full"]
    parser.add_argument("--only", nargs="+", choices=names, default=default, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--variants", action=argparse.BooleanOptionalAction, default=True, help="of the peers"
    )
    parser.add_argument("--updates", type=int, default=0, help="of each seed; 0 is each work's own number")
    parser.add_argument("--rollout-steps", type=int, default=25_000_000, help="of each of four cars")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table of each work when it is there."""
    parsed = options()
    measured: dict[str, Any] = {"machine": machine()}
    for name in parsed.only:
        if name == ROLLOUTS:
            chosen = rollouts(parsed.rollout_steps)
        else:
            chosen = sides(name, WORKS[name], parsed.updates or WORKS[name].updates)
        chosen = [side for side in chosen if parsed.variants or not side.is_timed_only]
        outcomes = compare(name, chosen, parsed.seeds)
        ours = outcomes[chosen[0].name]
        rows = [row(name, side, of_side, ours) for side, of_side in outcomes.items() if of_side]
        print(table(HEADER, rows), flush=True)
        measured[name] = {side: [x._asdict() for x in of_side] for side, of_side in outcomes.items()}
        if parsed.json:
            Path(parsed.json).write_text(json.dumps(measured, indent=1))
    print("\n" + ", ".join(f"{name} {value}" for name, value in machine().items()))


if __name__ == "__main__":
    main()
