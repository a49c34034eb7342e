"""Scores of several runs: interquartile mean, its bootstrap interval, and ranking, on the host in NumPy float64.

A score of minus infinity is that of a seed that failed: it is below all others, and trimmed like any other.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Simulated coverage of the 95% bootstrap intervals of the IQM and of differences (docs/compare.md): 0.93 to 0.95 at ten
# seeds, 0.87 to 0.93 at five, 0.73 to 0.80 at three.
MIN_SEEDS = 5  # below which an interval is not shown
ENOUGH_SEEDS = 10  # below which a sentence says how much too narrow it is

Statistic = Callable[..., np.ndarray | np.floating | float]  # from scores and `axis`, as NumPy's mean takes


def iqm(scores: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray | float:
    """Interquartile mean: the mean of the middle half of the scores.

    A quarter of them is cut at each end, rounded down to whole scores (SciPy's `trim_mean` at 0.25): of
    fewer than four nothing is cut. Any number of axes counts as one.

    Returns:
      a float, or an array of the axes that remain.
    Raises:
      ValueError: there are no scores.
    Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
    """
    scores = np.asarray(scores, np.float64)
    axes = tuple(range(scores.ndim)) if axis is None else np.atleast_1d(axis).tolist()
    axes = [a % scores.ndim for a in axes]
    remaining = [a for a in range(scores.ndim) if a not in axes]
    flat = scores.transpose(*remaining, *axes).reshape([scores.shape[a] for a in remaining] + [-1])
    n = flat.shape[-1]
    if n == 0:
        raise ValueError("scores is empty, and the interquartile mean of nothing is undefined.")
    cut = num_cut(n)
    middle = np.partition(flat, (cut, n - cut - 1), axis=-1)[..., cut : n - cut]
    # Scores with a NaN among them have no middle half; say so and do not guess.
    result = np.where(np.isnan(flat).any(axis=-1), np.nan, middle.mean(axis=-1))
    return float(result) if result.ndim == 0 else result


def num_cut(count: int) -> int:
    """Return how many of so many scores the interquartile mean cuts at each end: a quarter, in whole scores."""
    return count // 4


def score_interval(
    scores: np.ndarray,
    statistic: Statistic = iqm,
    repetitions: int = 10_000,
) -> tuple[float, float] | None:
    """Compute the 95% bootstrap interval of a statistic, as Shoal prints and draws it; None where there is none.

    Fewer than `MIN_SEEDS` seeds have no interval, since it would cover far less than 95%; nor has a score that is NaN,
    or an interval of which neither end is finite.

    Args:
      scores: one number a run, [seeds] or [seeds, tasks].
    """
    scores = np.asarray(scores, np.float64)
    if len(scores) < MIN_SEEDS or np.isnan(scores).any():
        return None
    interval = stratified_bootstrap_interval(scores, statistic, repetitions=repetitions)
    return interval if np.isfinite(interval).any() else None


def crossed_score_interval(scores: np.ndarray) -> tuple[float, float] | None:
    """Compute the 95% interval of the IQM of pairs [rows, columns], as Shoal prints it; None where there is none.

    Fewer than `MIN_SEEDS` rows or columns have none. A single row or column, such as a fixed
    opponent, is not drawn.
    """
    scores = np.asarray(scores, np.float64)
    drawn = [size for size in scores.shape if size > 1]
    if not drawn or min(drawn) < MIN_SEEDS or np.isnan(scores).any():
        return None
    return crossed_bootstrap_interval(scores)


def few_seeds_note(seeds: int) -> str:
    """Say how far an interval of so many seeds, or its absence, can be relied upon; "" for `ENOUGH_SEEDS` or more."""
    if seeds >= ENOUGH_SEEDS:
        return ""
    if seeds < MIN_SEEDS:
        count = f"{seeds} seed{'s' * (seeds != 1)}"
        return f"no interval from {count}: it takes {MIN_SEEDS}, and {ENOUGH_SEEDS} for one that can be relied upon"
    return (
        f"bootstrap intervals from fewer than {ENOUGH_SEEDS} seeds are too narrow: those of 95% cover 87% to 93% at "
        f"{MIN_SEEDS} seeds, and 93% to 95% at {ENOUGH_SEEDS}"
    )


class SettingScore(NamedTuple):
    """The score of one setting.

    Attributes:
      scores: of each seed; one that failed has the worst score of the search. All are NaN if all seeds failed.
    """

    scores: tuple[float, ...]
    iqm: float
    failures: int


def rank_settings(
    scores: Mapping[str, Sequence[float]], others: Iterable[float] = ()
) -> dict[str, SettingScore]:
    """Aggregate the scores of each setting's seeds, and sort the settings, best first.

    A seed that failed counts with the worst score of the search, so that a setting does not win by the seeds that
    survived it. A setting of which all seeds failed has no score and is last. Of equal scores that of fewer failures
    comes first, then the order of the arguments decides.

    Args:
      others: further scores of the same search, which count for its worst.
    """
    every = [float(x) for x in (*(x for seeds in scores.values() for x in seeds), *others)]
    worst = min((x for x in every if math.isfinite(x)), default=math.nan)
    found = {label: _aggregate(np.asarray(seeds, np.float64), worst) for label, seeds in scores.items()}

    def order(item: tuple[str, SettingScore]) -> tuple[bool, float, int]:
        score = item[1]
        return math.isnan(score.iqm), -np.nan_to_num(score.iqm), score.failures

    return dict(sorted(found.items(), key=order))


def _aggregate(scores: np.ndarray, worst: float) -> SettingScore:
    has_failed = ~np.isfinite(scores)
    filled = np.where(has_failed, math.nan if has_failed.all() else worst, scores)
    return SettingScore(tuple(filled.tolist()), float(iqm(filled)), int(has_failed.sum()))


def stratified_bootstrap_interval(
    scores: np.ndarray,
    statistic: Statistic = iqm,
    confidence: float = 0.95,
    repetitions: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Confidence interval of a statistic of runs: percentiles over samples with replacement.

    Stratified: the seeds of each task are drawn among that task's own, so that every task keeps its
    share. One run says nothing of how runs differ: both ends are NaN; so they are where a score is.

    Args:
      scores: one number a run, [seeds] or [seeds, tasks].
      statistic: from scores and `axis` (a tuple, as NumPy's mean takes) to one number each; `iqm`,
        `np.mean`, `np.median`.
    Returns:
      the lower and the upper end.
    Raises:
      ValueError: `scores` is empty or has other than one or two axes, or `confidence` is not in (0, 1).
    Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
    section 4.1; Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13.
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim not in (1, 2) or scores.size == 0:
        raise ValueError(f"scores has shape {list(scores.shape)}; it must be [seeds] or [seeds, tasks].")
    if len(scores) == 1 or np.isnan(scores).any():
        return np.nan, np.nan
    return percentile_interval(
        bootstrap(resampled(scores), scores.size, statistic, repetitions, seed), confidence
    )


def crossed_bootstrap_interval(
    scores: np.ndarray,
    statistic: Statistic = iqm,
    confidence: float = 0.95,
    repetitions: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Confidence interval of a statistic of pairs [rows, columns]: rows and columns are both drawn with replacement.

    For scores of each of some runs with each of some others, of which those of one run are not independent. With one
    column it is the bootstrap over the rows; with one pair both ends are NaN.

    Returns:
      the lower and the upper end.
    Raises:
      ValueError: `scores` is empty or has other than two axes, or `confidence` is not in (0, 1).
    Source: Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1(2).
    """
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError(f"scores has shape {list(scores.shape)}; it must be [rows, columns].")
    if scores.size == 1 or np.isnan(scores).any():
        return np.nan, np.nan

    def draw(generator: np.random.Generator, count: int) -> np.ndarray:
        rows, columns = (generator.integers(size, size=(count, size)) for size in scores.shape)
        return scores[rows[:, :, None], columns[:, None, :]]

    return percentile_interval(bootstrap(draw, scores.size, statistic, repetitions, seed), confidence)


Draw = Callable[[np.random.Generator, int], np.ndarray]  # (generator, count) -> [count, seeds, tasks]


def resampled(scores: np.ndarray) -> Draw:
    """Return what draws samples of scores, [seeds] or [seeds, tasks]: seeds with replacement, each task by itself."""
    columns = np.asarray(scores, np.float64).reshape(len(scores), -1)

    def draw(generator: np.random.Generator, count: int) -> np.ndarray:
        indices = generator.integers(len(columns), size=(count, *columns.shape))
        return np.take_along_axis(columns[None], indices, axis=1)

    return draw


def bootstrap(
    draw: Draw,
    size: int,
    statistic: Statistic,
    repetitions: int = 10_000,
    seed: int = 0,
) -> np.ndarray:
    """Compute a statistic of samples that `draw` makes some at a time, each of `size` scores: [repetitions, ...]."""
    generator = np.random.default_rng(seed)
    per_block = max(1, 1_000_000 // size)  # bounds memory, whatever the number of tasks
    sizes = [min(per_block, repetitions - start) for start in range(0, repetitions, per_block)]
    return np.concatenate([np.asarray(statistic(draw(generator, n), axis=(1, 2))) for n in sizes])


def quantiles(values: np.ndarray, shares: Sequence[float]) -> np.ndarray:
    """Compute quantiles of numbers, of which some may be minus infinity.

    Then they are numbers of these themselves, as in `percentile_interval`.
    """
    is_finite = np.isfinite(values).all()
    found: np.ndarray = np.quantile(values, shares, method="linear" if is_finite else "inverted_cdf")
    return found


def percentile_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval between two percentiles of a statistic's bootstrap values, [repetitions].

    Where a value is infinite the ends are values themselves, since between two infinities, or between one and a number,
    there is nothing to interpolate. A NaN is a difference of two infinities, of which nothing is known: it counts as
    the smallest value for the lower end, and as the largest for the upper one.

    Raises:
      ValueError: `confidence` is not in (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie between 0 and 1, as 0.95 does.")
    tail = (1 - confidence) / 2
    if np.isfinite(values).all() or np.isnan(values).all():
        low, high = np.quantile(values, (tail, 1 - tail))
        return float(low), float(high)
    lowest, highest = (np.where(np.isnan(values), x, values) for x in (-np.inf, np.inf))
    low = np.quantile(lowest, tail, method="inverted_cdf")
    high = np.quantile(highest, 1 - tail, method="inverted_cdf")
    return float(low), float(high)
