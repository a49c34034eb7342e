"""Time until PPO with many environments solves CartPole, Shoal against rejax: `python benchmarks/solving.py`.

1,024 environments, with the settings in `protocol.SOLVING`, the same ones on both sides: training goes on until 128
new episodes with sampled actions have a mean return of at least 475. Only training is timed, not compiling and not
the evaluations. Each seed is trained on both sides, one after the other; the ratios are of equal seeds.
"""

import statistics
import sys

from harness import Side, Worker, conditions, options, peer_python, table, with_shoal_settings
from protocol import SOLVED

NUM_ENVS, NUM_STEPS = 1024, 32


def main() -> None:
    """Trains as many seeds on each side as there are rounds, and prints the table."""
    parsed = options(__doc__, rounds=10)
    peer = Side("rejax", peer_python("rejax"), "peers/rejax_solving.py")
    sides = (
        Side("shoal", sys.executable, "own/solving.py"),
        Side("shoal, 2 devices", sys.executable, "own/solving.py", 2),
        *with_shoal_settings(peer),
    )
    workers = [Worker(side, NUM_ENVS, NUM_STEPS) for side in sides]
    try:
        rounds = [[worker.solve(seed) for worker in workers] for seed in range(parsed.rounds)]
    finally:
        for worker in workers:
            worker.close()
    by_side = list(zip(*rounds, strict=True))
    print(
        table(
            ("side", "seconds, median [min, max]", "steps, median", "solved", "ratio to shoal"),
            rows(sides, by_side),
        )
    )
    conditions(workers[0].start, workers[2].start)


def rows(sides: tuple[Side, ...], by_side: list) -> list[tuple[str, ...]]:
    """One row a side: seconds and steps until solved, seeds that were, and seconds over Shoal's on one device."""
    ours = [answer["seconds"] for answer in by_side[0]]
    cells = []
    for side, answers in zip(sides, by_side, strict=True):
        seconds = [answer["seconds"] for answer in answers]
        solved = sum(answer["score"] >= SOLVED for answer in answers)
        ratios = [theirs / mine for theirs, mine in zip(seconds, ours, strict=True)]
        cells.append(
            (
                side.name,
                f"{statistics.median(seconds):.2f} [{min(seconds):.2f}, {max(seconds):.2f}]",
                f"{statistics.median(answer['steps'] for answer in answers):,.0f}",
                f"{solved} of {len(answers)}",
                f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]",
            )
        )
    return cells


if __name__ == "__main__":
    main()
