"""Learning curves as images: the interquartile mean over seeds, its 95% band, and each seed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.files import write_whole_file
from shoal.ops import scores

COLOUR = "#1f6fb4"
COLOURS = (COLOUR, "#c8553d", "#4f8a3c", "#8a5fb0")  # of several curves
TEXT = "#333333"


def plot_learning_curve(
    path: Path,
    steps: Sequence[int],
    returns: Any,
    title: str,
    *,
    label: str = "return of an evaluation episode",
) -> None:
    """Write a PNG of returns against environment steps.

    Args:
      path: the file.
      steps: environment steps of each seed at the points, [points].
      returns: returns, [points, seeds]; NaN where there is none.
      title: the heading, such as "CartPole-v1, ppo".
      label: of the vertical axis.
    Raises:
      ShoalError: the file cannot be written.
    """
    figure = _figure()
    axes = figure.add_subplot()
    _plot_curve(axes, np.asarray(steps), np.asarray(returns, np.float64))
    axes.set_ylabel(label, color=TEXT)
    _save(figure, axes, title, path)


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
    figure = _figure()
    axes = figure.add_subplot()
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        values = np.asarray(curve, np.float64)
        middle, low, high = _iqm_and_interval(values)
        episodes = np.arange(1, len(values) + 1)
        if values.shape[1] > 1:
            axes.plot(episodes, values, color=colour, alpha=0.25, linewidth=0.7)
            axes.fill_between(episodes, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(episodes, middle, color=colour, linewidth=2, marker="o", markersize=4, label=name)
    axes.set_xlabel("episode of the trial", color=TEXT)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel(label, color=TEXT)
    _style_axes(axes)
    _save(figure, axes, title, path)


def _figure() -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (takes half a second)
    from matplotlib.figure import Figure  # noqa: PLC0415

    # The canvas is used directly, since pyplot has global state and may open windows.
    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, axes: Any, title: str, path: Path) -> None:
    axes.set_title(title, loc="left", color=TEXT, fontsize=11, fontweight="bold")
    with write_whole_file(Path(path), parents=False) as file:
        figure.savefig(file, format="png")


def _plot_curve(axes: Any, steps: np.ndarray, returns: np.ndarray) -> None:
    num_seeds = returns.shape[1]
    curve, low, high = _iqm_and_interval(returns)
    marker = "o" if len(steps) < 2 else None  # a line through one point shows nothing
    if num_seeds > 1:
        axes.plot(steps, returns, color=COLOUR, alpha=0.25, linewidth=0.7, marker=marker)
        axes.plot([], [], color=COLOUR, alpha=0.4, linewidth=0.7, label="one seed")
        axes.fill_between(steps, low, high, color=COLOUR, alpha=0.2, linewidth=0, label="95% interval")
    name = f"interquartile mean of {num_seeds} seeds" if num_seeds > 1 else "one seed"
    axes.plot(steps, curve, color=COLOUR, linewidth=2, marker=marker, label=name)

    axes.set_xlabel("environment steps of each seed", color=TEXT)
    axes.xaxis.set_major_formatter(_format_steps)
    axes.set_xlim(0 if len(steps) < 2 else min(steps), max(1, *steps) if len(steps) else 1)
    _style_axes(axes)


def _style_axes(axes: Any) -> None:
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, fontsize=9, loc="best", labelcolor=TEXT)


def _iqm_and_interval(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the IQM and the ends of its interval at each point, over the seeds that have a return there."""
    rows = np.full((3, len(returns)), np.nan)
    for column, row in enumerate(returns):
        finite = row[np.isfinite(row)]
        if finite.size:
            interval = scores.stratified_bootstrap_interval(finite, scores.iqm)
            rows[:, column] = [scores.iqm(finite), *interval]
    return rows[0], rows[1], rows[2]


def _format_steps(steps: float, _: int) -> str:
    """Format 1,500,000 as 1.5M, for the ticks of the horizontal axis."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(steps) >= size:
            return f"{steps / size:g}{unit}"
    return f"{steps:g}"
