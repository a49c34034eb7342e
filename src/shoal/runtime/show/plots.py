"""Learning curves as images: the interquartile mean over seeds, its 95% band, and each seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.ops import scores
from shoal.runtime.show import figures
from shoal.runtime.show.figures import COLOUR, COLOURS, TEXT, format_steps


def plot_learning_curve(
    path: Path,
    steps: Sequence[int],
    returns: Any,
    title: str,
    *,
    label: str = "return of an evaluation episode",
    unit: str = "seed",
) -> None:
    """Write a PNG of returns against environment steps.

    Args:
      path: the file.
      steps: environment steps of each seed at the points, [points].
      returns: returns, [points, seeds]; NaN where there is none.
      title: the heading, such as "CartPole-v1, ppo".
      label: of the vertical axis.
      unit: what each column of the returns is of.
    Raises:
      ShoalError: the file cannot be written.
    """
    figure = figures.new_figure()
    axes = figure.add_subplot()
    _plot_curve(axes, np.asarray(steps), np.asarray(returns, np.float64), unit)
    axes.set_ylabel(label, color=TEXT)
    figures.set_title(axes, title)
    figures.save(figure, path)


def plot_by_episode(
    path: Path, curves: Mapping[str, Any], title: str, *, label: str = "return of the episode"
) -> None:
    """Write a PNG of the results of a trial's episodes by their index.

    Args:
      path: the file.
      curves: by their names, the mean of each policy at each index, [episodes, seeds].
      title: the heading.
      label: of the vertical axis.
    Raises:
      ShoalError: the file cannot be written.
    """
    figure = figures.new_figure()
    axes = figure.add_subplot()
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        values = np.asarray(curve, np.float64)
        middle, low, high = iqm_and_interval(values)
        episodes = np.arange(1, len(values) + 1)
        if values.shape[1] > 1:
            axes.plot(episodes, values, color=colour, alpha=0.25, linewidth=0.7)
            axes.fill_between(episodes, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(episodes, middle, color=colour, linewidth=2, marker="o", markersize=4, label=name)
    axes.set_xlabel("episode of the trial", color=TEXT)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(label, color=TEXT)
    figures.style(axes)
    figures.add_legend(axes)
    figures.set_title(axes, title)
    figures.save(figure, path)


def _plot_curve(axes: Any, steps: np.ndarray, returns: np.ndarray, unit: str = "seed") -> None:
    count = returns.shape[1]
    curve, low, high = iqm_and_interval(returns)
    marker = "o" if len(steps) < 2 else None  # a line through one point shows nothing
    if count > 1:
        axes.plot(steps, returns, color=COLOUR, alpha=0.25, linewidth=0.7, marker=marker)
        axes.plot([], [], color=COLOUR, alpha=0.4, linewidth=0.7, label=f"one {unit}")
        axes.fill_between(steps, low, high, color=COLOUR, alpha=0.2, linewidth=0, label="95% interval")
    name = f"interquartile mean of {count} {unit}s" if count > 1 else f"one {unit}"
    axes.plot(steps, curve, color=COLOUR, linewidth=2, marker=marker, label=name)

    axes.set_xlabel("environment steps of each seed", color=TEXT)
    axes.xaxis.set_major_formatter(format_steps)
    axes.set_xlim(0 if len(steps) < 2 else min(steps), max(1, *steps) if len(steps) else 1)
    figures.style(axes)
    figures.add_legend(axes)


def iqm_and_interval(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the IQM and the ends of its interval at each point, over the seeds that have a return there."""
    rows = np.full((3, len(returns)), np.nan)
    for column, row in enumerate(returns):
        finite = row[np.isfinite(row)]
        if finite.size:
            interval = scores.stratified_bootstrap_interval(finite, scores.iqm)
            rows[:, column] = [scores.iqm(finite), *interval]
    return rows[0], rows[1], rows[2]
