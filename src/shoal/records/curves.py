"""Learning curves of several runs on one grid of steps, and the steps until a score is reached; in NumPy float64."""

from collections.abc import Iterable, Sequence

import numpy as np

from shoal.records.scores import bootstrap, resampled


def with_failures(values: np.ndarray, failed: Iterable[int]) -> np.ndarray:
    """Let members that failed have minus infinity from their last finite number on: they are the worst there is.

    Args:
      values: [P, members]; a number that is not finite is missing.
      failed: the places of members.
    Returns:
      a copy, NaN where a number is missing.
    """
    found = np.where(np.isfinite(values), values, np.nan)
    for column in (found[:, member] for member in failed):
        known = np.flatnonzero(np.isfinite(column))
        column[known[-1] + 1 if known.size else 0 :] = -np.inf
    return found


def last_points(
    steps: np.ndarray, values: np.ndarray, columns: Iterable[int]
) -> list[tuple[np.floating, np.floating]]:
    """Return the step and the value of the last finite number of some columns of values, [P, members]."""
    ends = [(k, np.flatnonzero(np.isfinite(values[:, k]))[-1:]) for k in columns]
    return [(steps[row], values[row, k]) for k, rows in ends for row in rows]


def common_grid(steps: Sequence[np.ndarray]) -> np.ndarray:
    """Make the grid on which curves are compared: the steps at which every run has been evaluated once more.

    The first point is the largest of the first steps. Each further one is the largest of the steps at which each run is
    evaluated next, over the runs that still are. So in each interval every run has an evaluation, and a run that is
    evaluated more often is not looked at more often.

    Args:
      steps: of the evaluations of each run, ascending; none is empty.
    """
    grid = [max(float(x[0]) for x in steps)]
    while following := [float(x[x > grid[-1]][0]) for x in steps if x[-1] > grid[-1]]:
        grid.append(max(following))
    return np.array(grid)


def on_grid(grid: np.ndarray, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Read a run's evaluations on a grid: at each point the last one since the point before; nothing is extrapolated.

    The first point after the end of a run may so have its last evaluation, and stands for the step of that one:
    `min(grid, steps[-1])` are the steps of the values.

    Args:
      grid: [G]; steps: [P], both ascending.
      values: [P, members].
    Returns:
      values, [G, members]; NaN where there is no evaluation since the point before.
    """
    found = np.full((len(grid), *values.shape[1:]), np.nan)
    before = -np.inf
    for row, point in enumerate(grid):
        places = np.flatnonzero((steps > before) & (steps <= point))
        if places.size:
            found[row] = values[places[-1]]
        before = point
    return found


def steps_to_score(
    steps: np.ndarray, values: np.ndarray, target: float, consecutive: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Steps between which each member reaches a target: after the first ones, and by the second ones, [members] each.

    The second are those of the first of some consecutive evaluations that are all at least the target, the first those
    of the evaluation before it, 0 where there is none. Both are infinite where a member never reaches it. A NaN is
    below every target.

    Args:
      steps: of the evaluations, [P], ascending.
      values: [P, members].
    """
    above, steps = np.asarray(values) >= target, np.asarray(steps, np.float64)
    if len(steps) < consecutive:
        return np.full(above.shape[1], np.inf), np.full(above.shape[1], np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(above, consecutive, axis=0).all(axis=-1)
    has_reached, first = windows.any(axis=0), windows.argmax(axis=0)
    before = np.concatenate([[0.0], steps])[first]
    return np.where(has_reached, before, np.inf), np.where(has_reached, steps[first], np.inf)


def survival_quantile(times: np.ndarray, is_event: np.ndarray, share: float = 0.5) -> np.ndarray:
    """Time by which a share of members has reached a score (Kaplan-Meier); infinity where it has not been seen.

    Where every member without an event was observed as long as the others, this is the quantile of the times with
    infinity for those members, without interpolation. Where budgets differ, a member counts as long as it was observed.

    Args:
      times: of the event, or until which a member was observed, [..., members]; infinity for one that cannot have it.
      is_event: whether the time is that of the event, [..., members].
    Source: Kaplan and Meier 1958, "Nonparametric estimation from incomplete observations".
    """
    times, is_event = np.asarray(times, np.float64), np.asarray(is_event, bool)
    # An event precedes the end of an observation at the same time.
    order = np.lexsort((~is_event, times), axis=-1)
    times, is_event = (np.take_along_axis(x, order, axis=-1) for x in (times, is_event))
    at_risk = times.shape[-1] - np.arange(times.shape[-1])
    survival = np.cumprod(1 - is_event / at_risk, axis=-1)
    # The product of shares is rounded.
    has_share = survival <= 1 - share + 1e-9
    first = np.take_along_axis(times, has_share.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.where(has_share.any(axis=-1), first, np.inf)


def survival_interval(
    before: np.ndarray, times: np.ndarray, is_event: np.ndarray, share: float = 0.5, confidence: float = 0.95
) -> tuple[float, float]:
    """Bootstrap interval of `survival_quantile` over members; the ends are times, or infinity.

    An event lies between two evaluations, so that the lower end is of the earlier ones, and the upper end of the later.

    Args:
      before, times: between which the event was, or until which a member was observed, [members].
    """

    def quantiles(members: np.ndarray, axis: tuple[int, int]) -> np.ndarray:
        rows = members.astype(int).reshape(len(members), -1)
        ends = [
            survival_quantile(np.asarray(x)[rows], np.asarray(is_event)[rows], share) for x in (before, times)
        ]
        return np.stack(ends, axis=-1)

    earlier, later = bootstrap(resampled(np.arange(len(times))), len(times), quantiles).T
    tail = (1 - confidence) / 2
    low = np.quantile(earlier, tail, method="inverted_cdf")
    return float(low), float(np.quantile(later, 1 - tail, method="inverted_cdf"))
