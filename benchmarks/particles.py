"""Worlds of discs and spheres, Shoal's batch against JaxDEM's environments: `python benchmarks/particles.py`.

Both sides step 256 worlds with given random actions, reset those that end, and return every observation, reward and
end. A step is one of a world: one step of the physics and one sensing, as JaxDEM's are (bins of nearest centres for 16
navigators, nothing for one). JaxDEM runs as JAX compiles it by default, and once more with the settings that Shoal
makes for itself. JaxDEM is on no package index: it is read from a checkout in .venvs/JaxDEM, or from where
`JAXDEM_CHECKOUT` says; without it the command says how to get it.

Then Shoal alone: steps of 256 worlds of 8 navigators as the task is by default (ten steps of the physics, 32 rays), and
training in them, rollouts and updates without evaluation, with the settings of `training.py`: two 64x64 networks, four
epochs of four minibatches. `--alone` measures that only. `python benchmarks/neighbours.py` measures the physics alone.
"""

import os
import statistics
import sys
from argparse import Namespace
from pathlib import Path

from harness import (
    ENVIRONMENTS,
    Side,
    Worker,
    compare,
    options,
    peer_python,
    report,
    table,
    with_shoal_settings,
)

TASKS = ("one navigator", "one roller", "16 navigators")
ALONE = ("8 navigators with rays", "8 navigators with rays, training")
NUM_ENVS, NUM_STEPS = 256, 64
REPOSITORY, COMMIT = "https://github.com/cdelv/JaxDEM", "5d9c13a"


def require_checkout() -> None:
    """Say how to get JaxDEM where it is missing."""
    # The worker reads it.
    checkout = Path(os.environ.setdefault("JAXDEM_CHECKOUT", str(ENVIRONMENTS / "JaxDEM")))
    if not (checkout / "jaxdem").is_dir():
        raise SystemExit(
            f"{checkout} does not exist; to get it: git clone {REPOSITORY} {checkout} && git -C {checkout} checkout "
            f"{COMMIT}"
        )


def measure_alone(parsed: Namespace) -> None:
    """Print the rates of Shoal's own tasks, on one device and over two."""
    rows = []
    for task in ALONE:
        for devices in (1, 2) if "training" in task else (1,):
            side = Side("shoal", sys.executable, "own/particles.py", devices, environment=task)
            worker = Worker(side, NUM_ENVS, NUM_STEPS)
            rates = [worker.rate(parsed.seconds) for _ in range(parsed.rounds)]
            worker.close()
            rows.append((task, str(devices), f"{statistics.median(rates):,.0f}"))
    print(table(("shoal alone, 256 worlds", "devices", "steps/s"), rows))


def main() -> None:
    """Compare on each task and print the tables."""
    parsed = options(__doc__, switches={"alone": "measure Shoal alone, without JaxDEM"})
    if parsed.alone:
        measure_alone(parsed)
        return
    require_checkout()
    python = peer_python("jaxdem")
    comparisons = []
    for task in TASKS:
        ours = Side("shoal", sys.executable, "own/particles.py", environment=task)
        peer = Side("jaxdem", python, "peers/jaxdem_environments.py", environment=task)
        sides = with_shoal_settings(peer, one_thread=False)
        comparisons += [compare(task, ours, side, NUM_ENVS, NUM_STEPS, parsed) for side in sides]
    report(comparisons, parsed)
    measure_alone(parsed)


if __name__ == "__main__":
    main()
