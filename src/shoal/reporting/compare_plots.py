"""The picture of a comparison: curves on common axes, performance profiles, and sample efficiency."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.ops import comparisons, scores
from shoal.reporting.compare_inputs import Entry
from shoal.reporting.compare_rows import Comparison, Row, shared_curves, times_to_score
from shoal.show import figures
from shoal.show.figures import DASHES, PALETTE, TEXT, format_steps

THRESHOLDS = 101  # of a performance profile
PANEL = (5.2, 3.9)  # inches
REPETITIONS = 2_000  # of the bootstrap at each point of a curve


class Curve(NamedTuple):
    """A line with its interval, on an axis of steps or scores; NaN where there is nothing to draw."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def plot_comparison(path: Path, comparison: Comparison) -> None:
    """Write the PNG: a panel of curves for each environment, profiles, and sample efficiency.

    Intervals are pointwise, and only of rows that have them. Each curve has the evaluations of its own run; sample
    efficiency in several environments is drawn by those that all have.
    """
    places = range(len(comparison.environments))
    has_curves = all(len(entry.steps) for row in comparison.rows for entry in row.entries)
    panels: list[Callable[[Any], None]] = []
    if has_curves:
        panels += [functools.partial(_draw_environment, comparison=comparison, place=k) for k in places]
    if has_curves and comparison.is_normalised:
        panels.append(functools.partial(_draw_efficiency, comparison=comparison))
    if comparison.target is not None:
        panels += [functools.partial(_draw_reached, comparison=comparison, place=k) for k in places]
    panels.append(functools.partial(_draw_profiles, comparison=comparison))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    import matplotlib as mpl  # noqa: PLC0415 (takes half a second)

    with mpl.rc_context({"text.parse_math": False, "text.usetex": False}):  # names are no formulae
        figure = figures.new_figure(PANEL[0] * columns, PANEL[1] * lines)
        for place, draw in enumerate(panels):
            draw(figure.add_subplot(lines, columns, place + 1))
        figures.save(figure, path)


def _statistic(comparison: Comparison) -> str:
    return "IQM" + ", 95% interval" * any(row.has_interval for row in comparison.rows)


def _draw_environment(axes: Any, comparison: Comparison, place: int) -> None:
    environment = comparison.environments[place]
    tables = [row.entries[place] for row in comparison.rows]
    lines = [iqm_curve(x.steps, x.curves, row) for x, row in zip(tables, comparison.rows, strict=True)]
    _draw(axes, comparison.rows, lines)
    _mark_failures(axes, tables)
    _label_steps(axes, f"{comparison.metric_label}: {_statistic(comparison)}", environment)
    if comparison.target is not None:
        axes.axhline(comparison.target_in(environment), color=TEXT, linewidth=0.8, linestyle=":")


def _mark_failures(axes: Any, tables: Sequence[Entry]) -> None:
    """Mark the last evaluation of each seed that failed."""
    for place, entry in enumerate(tables):
        known = [
            (k, np.flatnonzero(np.isfinite(entry.curves[:, k]))[-1:]) for k in np.flatnonzero(entry.failed)
        ]
        ends = [(entry.steps[row], entry.curves[row, k]) for k, rows in known for row in rows]
        if ends:
            axes.plot(*zip(*ends, strict=True), "x", color=PALETTE[place % len(PALETTE)], markersize=6)


def _draw_efficiency(axes: Any, comparison: Comparison) -> None:
    """Draw the IQM of normalised scores of all environments against the share of the steps that all have."""
    share = np.linspace(0, 1, 51)
    tables: list[list[np.ndarray]] = [[] for _ in comparison.rows]
    for place, environment in enumerate(comparison.environments):
        entries = [row.entries[place] for row in comparison.rows]
        grid, values = shared_curves(entries)
        nearest = np.searchsorted(grid, share * grid[-1] * (1 + 1e-12), side="right") - 1
        for table, x in zip(tables, values, strict=True):
            table.append(comparison.normalise(x, environment)[np.maximum(nearest, 0)])
    lines = [
        iqm_curve(share, np.stack(table, axis=-1), row)
        for table, row in zip(tables, comparison.rows, strict=True)
    ]
    _draw(axes, comparison.rows, lines)
    _label(
        axes,
        "share of the environment steps that all have",
        f"normalised score: {_statistic(comparison)}",
        "Sample efficiency",
    )


def _draw_reached(axes: Any, comparison: Comparison, place: int) -> None:
    """Draw the share of seeds that have reached the target, against steps."""
    lines = []
    for row in comparison.rows:
        entry = row.entries[place]
        _, times, has_reached = times_to_score(comparison, entry)
        x = np.unique([0.0, *times[has_reached], entry.steps[-1]])
        y = np.array([np.mean(has_reached & (times <= step)) for step in x])
        lines.append(Curve(x, y, np.full(len(x), np.nan), np.full(len(x), np.nan)))
    _draw(axes, comparison.rows, lines, drawstyle="steps-post")
    axes.set_ylim(-0.03, 1.03)
    title = f"Sample efficiency: steps to {comparison.target_in(comparison.environments[place]):g}"
    _label_steps(axes, "share of seeds that reached it", title)


def _draw_profiles(axes: Any, comparison: Comparison) -> None:
    finite = np.concatenate([row.scores[np.isfinite(row.scores)] for row in comparison.rows])
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    margin = 0.02 * (high - low) or 0.02 * abs(low) or 0.02
    thresholds = np.linspace(low - margin, high + margin, THRESHOLDS)
    _draw(axes, comparison.rows, [profile_curve(thresholds, row) for row in comparison.rows])
    axes.set_ylim(-0.03, 1.03)
    kind = "normalised score" if comparison.is_normalised else comparison.metric_label
    _label(axes, f"{kind} τ", "share of seeds with a score above τ", "Performance profile")


def iqm_curve(x: np.ndarray, values: np.ndarray, row: Row) -> Curve:
    """Compute the IQM over seeds and its pointwise interval.

    Args:
      values: [G, seeds] or [G, seeds, environments].
    """
    columns = np.full((3, len(x)), np.nan)
    for column, point in enumerate(values):
        columns[0, column] = scores.iqm(point)
        if (
            row.has_interval
            and (interval := scores.score_interval(point, repetitions=REPETITIONS)) is not None
        ):
            columns[1:, column] = interval
    return Curve(x, *columns)


def profile_curve(thresholds: np.ndarray, row: Row) -> Curve:
    """Compute the performance profile of a row and its pointwise interval."""
    middle = comparisons.performance_profile(row.scores, thresholds)
    none = np.full(len(thresholds), np.nan)
    low, high = comparisons.profile_band(row.scores, thresholds) if row.has_interval else (none, none)
    return Curve(thresholds, middle, low, high)


def _draw(axes: Any, rows: Sequence[Row], lines: Sequence[Curve], **style: Any) -> None:
    for place, (row, line) in enumerate(zip(rows, lines, strict=True)):
        colour = PALETTE[place % len(PALETTE)]
        dash = DASHES[place // len(PALETTE) % len(DASHES)]
        shown = np.where(np.isfinite(line.middle), line.middle, np.nan)
        marker = "o" if np.isfinite(shown).sum() < 2 else None
        failed = f" ({row.failures} failed)" if row.failures else ""
        label = f" {row.name}{failed}"  # matplotlib hides labels that begin with "_"
        line_style = {"color": colour, "linewidth": 2, "marker": marker, "clip_on": marker is None, **style}
        axes.plot(line.x, shown, dash, label=label, **line_style)
        has_band = np.isfinite(line.low) & np.isfinite(line.high)
        if has_band.any():
            axes.fill_between(
                line.x, line.low, line.high, where=has_band, color=colour, alpha=0.18, linewidth=0
            )


def _label_steps(axes: Any, y: str, title: str) -> None:
    _label(axes, "environment steps of each seed", y, title)
    axes.xaxis.set_major_formatter(format_steps)
    axes.set_xlim(left=0)
    if axes.dataLim.x1 <= 0:  # one evaluation, before the first step
        axes.set_xlim(-1, 1)
        axes.set_xticks([0])


def _label(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, color=TEXT)
    axes.set_ylabel(y, color=TEXT)
    figures.style(axes)
    figures.set_title(axes, title)
    axes.legend(frameon=False, fontsize=9, loc="best", labelcolor=TEXT)
