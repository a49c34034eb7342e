"""How often the intervals of `shoal compare` cover the truth, simulated: `python benchmarks/interval_coverage.py`.

Prints the tables of docs/compare.md#coverage. Every number is of `COMPARISONS` simulated comparisons, so that its
standard error is at most 0.02, and 0.007 near 0.95.
"""

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from shoal.records import comparisons, curves, scores

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
COMPARISONS = 1_000  # half as many of steps to a score, which take longer
REPETITIONS = 2_000  # of the bootstrap
SEEDS = (3, 5, 10)
BUDGET = 100.0  # environment steps of a simulated run
MEDIAN = 47.0  # of the steps at which its seeds reach the target: between two of six evaluations


def mixture(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw scores of which 30% are of seeds that learn nothing."""
    is_bad = generator.random(shape) < 0.3
    return np.where(is_bad, generator.normal(20, 5, shape), generator.normal(450, 30, shape))


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "skewed (log-normal of deviation 1)": lambda generator, shape: generator.lognormal(size=shape),
    "with a ceiling (normal, a half above it)": lambda generator, shape: np.minimum(
        generator.normal(size=shape), 0
    ),
    "30% bad seeds": mixture,
}


def true_iqm(draw: Draw) -> float:
    """Compute the interquartile mean of a distribution."""
    return float(scores.iqm(draw(np.random.default_rng(0), (1_000_000,))))


def covers(interval: Sequence[float], truth: float) -> bool:
    """Report whether an interval has a number in it."""
    return interval[0] <= truth <= interval[1]


def of_iqm(draw: Draw, seeds: int) -> float:
    """Coverage of the interval of an IQM."""
    generator, truth = np.random.default_rng(seeds), true_iqm(draw)
    found = [
        scores.stratified_bootstrap_interval(draw(generator, (seeds,)), repetitions=REPETITIONS)
        for _ in range(COMPARISONS)
    ]
    return float(np.mean([covers(x, truth) for x in found]))


def of_difference(draw: Draw, seeds: int, scale: float = 1.0) -> float:
    """Coverage of the interval of a difference of IQM; the other run's scores are spread by a factor."""
    generator, truth = np.random.default_rng(seeds), true_iqm(draw) * (scale - 1)
    found = [
        comparisons.difference_interval(
            draw(generator, (seeds,)), scale * draw(generator, (seeds,)), repetitions=REPETITIONS
        )
        for _ in range(COMPARISONS)
    ]
    return float(np.mean([covers(x, truth) for x in found]))


def of_improvement(seeds: int, shift: float, scale: float = 1.0) -> float:
    """Coverage of Newcombe's interval of a probability of improvement, of normal scores."""
    generator = np.random.default_rng(seeds)
    large = np.random.default_rng(0).normal(size=(2, 4_000_000))
    truth = float(np.mean(scale * large[1] + shift > large[0]))
    found = []
    for _ in range(COMPARISONS):
        first, other = generator.normal(size=(2, seeds))
        found.append(covers(comparisons.improvement_interval(first, scale * other + shift), truth))
    return float(np.mean(found))


def of_steps(seeds: int, evaluations: int, spread: float, noise: float) -> tuple[float, float]:
    """Coverage of the interval of the median of the steps to a score, and of one from the later evaluations alone.

    The return of a seed rises in a straight line through the target, which it reaches at log-normal steps.

    Args:
      spread: the deviation of the logarithm of these steps.
      noise: the deviation of an evaluation, as a share of the target.
    """
    generator, steps = np.random.default_rng(seeds), np.linspace(0, BUDGET, evaluations)
    found = []
    for _ in range(COMPARISONS):
        crossings = MEDIAN * np.exp(spread * generator.normal(size=seeds))
        values = steps[:, None] / crossings + noise * generator.normal(size=(evaluations, seeds))
        before, times = curves.steps_to_score(steps, values, 1.0, 2)
        has_reached = np.isfinite(times)
        before, times = (np.where(has_reached, x, BUDGET) for x in (before, times))
        intervals = [curves.survival_interval(x, times, has_reached) for x in (before, times)]
        found.append([covers(x, MEDIAN) for x in intervals])
    own, later = np.mean(found, axis=0)
    return float(own), float(later)


def bias(draw: Draw, seeds: tuple[int, int]) -> float:
    """Mean difference of the IQM of equal runs with different numbers of seeds, the second less the first."""
    generator = np.random.default_rng(0)
    first, other = (scores.iqm(draw(generator, (100_000, n)), axis=1) for n in seeds)
    return float(np.mean(other) - np.mean(first))


def print_row(*cells: object) -> None:
    """Print a line of a table."""
    texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    print(f"| {' | '.join(texts)} |", flush=True)


def main() -> None:
    """Print the tables."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--comparisons", type=int, default=COMPARISONS)
    globals()["COMPARISONS"] = arguments.parse_args().comparisons
    print_row("interval", *(f"{n} seeds" for n in SEEDS))
    for name, draw in DISTRIBUTIONS.items():
        print_row(f"IQM, {name}", *(of_iqm(draw, n) for n in SEEDS))
    print_row("difference, normal", *(of_difference(DISTRIBUTIONS["normal"], n) for n in SEEDS))
    print_row("difference, 30% bad seeds", *(of_difference(mixture, n) for n in SEEDS))
    for shift in (0.0, 1.0, 2.0):
        print_row(f"improvement, normal, shift {shift}", *(of_improvement(n, shift) for n in SEEDS))
    print_row("improvement, ten times the deviation", *(of_improvement(n, 0.0, 10.0) for n in SEEDS))
    print()
    print_row("spread", "noise", "evaluations", *(f"{n} seeds" for n in (5, 10, 20)), "later ends alone")
    for spread, noise, evaluations in (
        (0.1, 0.0, 6),
        (0.5, 0.0, 6),
        (0.5, 0.1, 6),
        (0.5, 0.1, 51),
        (0.5, 0.3, 51),
    ):
        found = [of_steps(n, evaluations, spread, noise) for n in (5, 10, 20)]
        later = ", ".join(f"{x:.2f}" for _, x in found)
        print_row(f"{spread}", f"{noise}", evaluations, *(x for x, _ in found), later)
    print()
    for pair in ((3, 5), (5, 8), (7, 8), (8, 10), (10, 20)):
        print_row(f"{pair[0]} and {pair[1]}", *(bias(draw, pair) for draw in DISTRIBUTIONS.values()))


if __name__ == "__main__":
    main()
