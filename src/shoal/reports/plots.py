"""Learning curves as images: the interquartile mean over seeds, its 95% band, and each seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from shoal.records import curves, scores
from shoal.reports import figures
from shoal.reports.figures import COLOUR, COLOURS, TEXT, format_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_learning_curve(
    path: Path,
    steps: Sequence[int],
    returns: ArrayLike,
    title: str,
    *,
    label: str = "return of an evaluation episode",
    unit: str = "seed",
    failed: Sequence[int] = (),
) -> None:
    """Write a PNG of returns against environment steps.

    At each point the mean and its interval are of those that have a return there; one that failed is from its end on
    the worst there is, so that a mean may end, and where all failed there is none.

    Args:
      steps: environment steps of each seed at the points, [points].
      returns: returns, [points, seeds]; NaN where there is none.
      unit: the word for a column of the returns.
      failed: the columns that end before the others, since a number was not finite; their ends are marked.
    """
    figure = figures.new_figure()
    axes = figure.add_subplot()
    _plot_curve(axes, np.asarray(steps), np.asarray(returns, np.float64), unit, failed)
    axes.set_ylabel(label, color=TEXT)
    figures.set_title(axes, title)
    figures.save(figure, path)


def plot_by_episode(
    path: Path, curves: Mapping[str, ArrayLike], title: str, *, label: str = "return of the episode"
) -> None:
    """Write a PNG of the results of a trial's episodes by their index.

    Args:
      curves: by their names, the mean of each policy at each index, [episodes, seeds].
    """
    figure = figures.new_figure()
    axes = figure.add_subplot()
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        values = np.asarray(curve, np.float64)
        middle, low, high = iqm_and_interval(values)
        episodes = np.arange(1, len(values) + 1)
        if values.shape[1] > 1:
            axes.plot(episodes, values, color=colour, alpha=0.25, linewidth=0.7)
        if np.isfinite(low).any():
            axes.fill_between(episodes, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(episodes, middle, color=colour, linewidth=2, marker="o", markersize=4, label=name)
    axes.set_xlabel("episode of the trial", color=TEXT)
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel(label, color=TEXT)
    figures.style(axes)
    figures.add_legend_of(axes)
    figures.set_title(axes, title)
    figures.save(figure, path)


def _plot_curve(
    axes: "Axes", steps: np.ndarray, returns: np.ndarray, unit: str = "seed", failed: Sequence[int] = ()
) -> None:
    count, has_mean = returns.shape[1], len(failed) < returns.shape[1]
    rows = iqm_and_interval(curves.with_failures(returns, failed if has_mean else ()))
    curve, low, high = (np.where(np.isfinite(row), row, np.nan) for row in rows)
    marker = "o" if len(steps) <= figures.FEW_POINTS else None
    if count > 1:
        axes.plot(steps, returns, color=COLOUR, alpha=0.25, linewidth=0.7, marker=marker, markersize=3)
        axes.plot([], [], color=COLOUR, alpha=0.4, linewidth=0.7, label=f"one {unit}")
        if has_mean and np.isfinite(low).any():
            axes.fill_between(steps, low, high, color=COLOUR, alpha=0.2, linewidth=0, label="95% interval")
    if points := curves.last_points(steps, returns, failed):
        name = f"failed: {len(failed)} of {count} {unit}{'s' * (count > 1)}"
        axes.plot(*zip(*points, strict=True), "x", color=COLOURS[1], markersize=7, label=name)
    name = f"interquartile mean of {count} {unit}s" if count > 1 else f"one {unit}"
    if has_mean or count == 1:
        marker = "o" if np.isfinite(curve).sum() <= figures.FEW_POINTS else None
        axes.plot(steps, curve, color=COLOUR, linewidth=2, marker=marker, markersize=4, label=name)

    axes.set_xlabel("environment steps of each seed", color=TEXT)
    axes.xaxis.set_major_formatter(format_steps)
    axes.set_xlim(0 if len(steps) < 2 else min(steps), max(1, *steps) if len(steps) else 1)
    figures.style(axes)
    figures.add_legend_of(axes)


def iqm_and_interval(
    returns: np.ndarray, repetitions: int = 10_000, *, has_interval: bool = True
) -> np.ndarray:
    """Compute the IQM and the ends of its interval at each point, over the seeds that have a return there.

    The ends are NaN where there are too few seeds for an interval; all may be minus infinity, as returns may.

    Args:
      returns: [points, seeds] or [points, seeds, tasks]; NaN where there is none.
      repetitions: of the bootstrap at each point.
    Returns:
      [3, points].
    """
    found = np.full((3, len(returns)), np.nan)
    for column, point in enumerate(returns):
        known = point[~np.isnan(point).reshape(len(point), -1).any(axis=1)]
        if known.size:
            interval = scores.score_interval(known, repetitions=repetitions) if has_interval else None
            found[:, column] = [scores.iqm(known), *(interval or (np.nan, np.nan))]
    return found
