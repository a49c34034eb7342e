"""The picture of a comparison: curves on common axes, performance profiles, and sample efficiency."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.records import comparisons, curves
from shoal.reports import figures
from shoal.reports.compare_rows import ComparedRow, Comparison, shared_curves, times_to_score
from shoal.reports.figures import DASHES, PALETTE, TEXT, format_steps
from shoal.reports.plots import iqm_and_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.gridspec import SubplotSpec

THRESHOLDS = 101  # of a performance profile
PANEL = (5.2, 3.9)  # inches
REPETITIONS = 2_000  # of the bootstrap at each point of a curve
MAX_NAME = 24  # letters of a name beside an axis
SCORES = {
    "iqm": "IQM",
    "median": "median",
    "mean": "mean",
    "optimality_gap": "optimality gap",
    "improvement": "probability of being\nbetter than {}",
}


class RowStyle(NamedTuple):
    """Label, colour and dashes of a row in all panels."""

    label: str
    colour: str
    dash: str


class Curve(NamedTuple):
    """A line with its interval, on an axis of steps or scores; NaN where there is nothing to draw."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def plot_comparison(
    path: Path, comparison: Comparison, described: Sequence[Mapping[str, Any]], labels: Mapping[str, str]
) -> None:
    """Write the picture: the scores with their intervals, and panels of curves, profiles, and sample efficiency.

    Intervals of curves are pointwise, and only of rows that have them. Each curve has the evaluations of its own run;
    sample efficiency in several environments is drawn by those that all have.

    Args:
      described: the statistics of each row, as `compare` returns them.
      labels: by the name of a row, its text in the picture, or `TEXT:COLOUR`; rows that are named are drawn first.
    """
    named = [row.name for row in comparison.rows]
    order = [named.index(x) for x in [*labels, *(x for x in named if x not in labels)]]
    styles = _styles_of([named[k] for k in order], labels)
    comparison = dataclasses.replace(comparison, rows=tuple(comparison.rows[k] for k in order))
    places = range(len(comparison.environments))
    has_curves = all(len(entry.steps) for row in comparison.rows for entry in row.entries)
    panels: list[Callable[..., None]] = []
    if has_curves:
        panels += [functools.partial(_draw_environment, comparison=comparison, place=k) for k in places]
    if has_curves and comparison.is_normalised:
        panels.append(functools.partial(_draw_efficiency, comparison=comparison))
    if comparison.target is not None:
        panels += [functools.partial(_draw_reached, comparison=comparison, place=k) for k in places]
    panels.append(functools.partial(_draw_profiles, comparison=comparison))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    above = 0.8 + 0.28 * len(order)  # inches
    figure = figures.new_figure(PANEL[0] * max(2, columns), above + PANEL[1] * lines)
    halves = figure.add_gridspec(2, 1, height_ratios=[above, PANEL[1] * lines])
    grid = halves[1].subgridspec(lines, columns)
    for place, draw in enumerate(panels):
        draw(figure.add_subplot(grid[place // columns, place % columns]), styles=styles)
    # Of the profiles, which have a line for each row; the axes of the scores follow.
    handles = figure.axes[-1].get_lines()
    _draw_scores(halves[0], [described[k] for k in order], comparison, styles)
    failures = [f" ({row.failures} failed)" * bool(row.failures) for row in comparison.rows]
    texts = [figures.cut(style.label) + failed for style, failed in zip(styles, failures, strict=True)]
    figures.add_legend(figure, handles, texts)
    figures.save(figure, path)


def _styles_of(names: Sequence[str], labels: Mapping[str, str]) -> list[RowStyle]:
    """Return how each row is drawn: by its label, in the colours of the palette that no label has."""
    from matplotlib.colors import is_color_like  # noqa: PLC0415 (takes half a second)

    parts = [labels.get(name, "").rpartition(":") for name in names]
    chosen = [colour if sep and is_color_like(colour) else "" for _, sep, colour in parts]
    palette = [x for x in PALETTE if x not in chosen] or PALETTE
    return [
        RowStyle(
            (text if colour else labels.get(name, "")) or name,
            colour or palette[place % len(palette)],
            DASHES[place // len(palette) % len(DASHES)],
        )
        for place, (name, (text, _, _), colour) in enumerate(zip(names, parts, chosen, strict=True))
    ]


def labels_of(labels: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the texts of rows in the picture by the rows' names.

    Such a name may have an "=", at which a command line's NAME=TEXT was split.

    Raises:
      ShoalError: a text is given for what is no row.
    """
    texts = {}
    for word in (f"{name}={text}" for name, text in labels.items()):
        name = max((x for x in names if word.startswith(f"{x}=")), key=len, default=None)
        if name is None:
            unknown = word.partition("=")[0]
            raise ShoalError(
                f"labels has {unknown!r}, which is no row; there are {', '.join(names)}{nearest(unknown, names)}"
            )
        texts[name] = word[len(name) + 1 :]
    return texts


def _draw_scores(
    place: "SubplotSpec",
    rows: Sequence[Mapping[str, Any]],
    comparison: Comparison,
    styles: Sequence[RowStyle],
) -> None:
    """Draw each row's IQM, median, mean and optimality gap, and the probability that it is better than the first."""
    shown = [x for x in SCORES if any(row.get(x, {}).get("value") is not None for row in rows)]
    reference = next(x.label for x, row in zip(styles, rows, strict=True) if "improvement" not in row)
    grid = place.subgridspec(1, max(1, len(shown)))
    panels = grid.subplots(sharey=True, squeeze=False)[0] if shown else ()
    for axes, name in zip(panels, shown, strict=True):
        for height, (row, style) in enumerate(zip(rows, styles, strict=True)):
            value = row.get(name, {}).get("value")
            if value is not None and np.isfinite(value):
                axes.plot(value, height, "|", color=style.colour, markersize=12, markeredgewidth=2.5)
            elif value is not None:
                at_left = {"transform": axes.get_yaxis_transform(), "va": "center"}
                axes.text(0.02, height, f"{value}", color=style.colour, **at_left)
            finite = [x for x in row.get(name, {}).get("interval") or () if np.isfinite(x)]
            # The ends of intervals count for the axis, but for infinite ones.
            axes.update_datalim([(x, height) for x in finite])
        axes.autoscale_view()
        limits = axes.get_xlim()
        for height, (row, style) in enumerate(zip(rows, styles, strict=True)):
            if not (interval := row.get(name, {}).get("interval")):
                continue
            looks: Any = {"color": style.colour, "lw": 6, "alpha": 0.4, "solid_capstyle": "butt"}
            axes.plot(np.clip(interval, *limits), [height, height], **looks)
            if np.isneginf(interval[0]):  # the interval has no lower end
                axes.plot(limits[0], height, "<", color=style.colour, markersize=7)
        axes.set_xlim(limits)
        figures.style(axes)
        axes.grid(False)
        axes.grid(axis="x", color=figures.GRID, linewidth=0.8)
        axes.locator_params(axis="x", nbins=4)
        axes.set_yticks(range(len(styles)), [figures.cut(style.label, MAX_NAME) for style in styles])
        axes.set_ylim(len(styles) - 0.5, -0.5)
        axes.set_title(SCORES[name].format(figures.cut(reference, MAX_NAME)), fontsize=9, color=TEXT)


def _statistic(comparison: Comparison) -> str:
    return "IQM" + ", 95% interval" * any(row.has_interval for row in comparison.rows)


def _draw_environment(axes: "Axes", comparison: Comparison, place: int, styles: Sequence[RowStyle]) -> None:
    environment = comparison.environments[place]
    tables = [row.entries[place] for row in comparison.rows]
    lines = [iqm_curve(x.steps, x.curves, row) for x, row in zip(tables, comparison.rows, strict=True)]
    _draw(axes, styles, lines)
    for entry, style in zip(tables, styles, strict=True):
        if ends := curves.last_points(entry.steps, entry.curves, np.flatnonzero(entry.failed).tolist()):
            axes.plot(*zip(*ends, strict=True), "x", color=style.colour, markersize=6)
    _label_steps(axes, f"{comparison.metric_label}: {_statistic(comparison)}", environment)
    if comparison.target is not None:
        axes.axhline(comparison.target_in(environment), color=TEXT, linewidth=0.8, linestyle=":")


def _draw_efficiency(axes: "Axes", comparison: Comparison, styles: Sequence[RowStyle]) -> None:
    """Draw the IQM of normalised scores of all environments against the share of the steps that all have."""
    share = np.linspace(0, 1, 51)
    tables: list[list[np.ndarray]] = [[] for _ in comparison.rows]
    for place, environment in enumerate(comparison.environments):
        entries = [row.entries[place] for row in comparison.rows]
        grid, values = shared_curves(entries)
        nearest = np.searchsorted(grid, share * grid[-1] * (1 + 1e-12), side="right") - 1
        for table, x in zip(tables, values, strict=True):
            table.append(comparison.bounds[environment].normalise(x)[np.maximum(nearest, 0)])
    lines = [
        iqm_curve(share, np.stack(table, axis=-1), row)
        for table, row in zip(tables, comparison.rows, strict=True)
    ]
    _draw(axes, styles, lines)
    _label(
        axes,
        "share of the environment steps that all have",
        f"normalised score: {_statistic(comparison)}",
        "Sample efficiency",
    )


def _draw_reached(axes: "Axes", comparison: Comparison, place: int, styles: Sequence[RowStyle]) -> None:
    """Draw the share of seeds that have reached the target, against steps."""
    lines = []
    for row in comparison.rows:
        entry = row.entries[place]
        _, times, has_reached = times_to_score(comparison, entry)
        x = np.unique([0.0, *times[has_reached], entry.steps[-1]])
        y = np.array([np.mean(has_reached & (times <= step)) for step in x])
        lines.append(Curve(x, y, np.full(len(x), np.nan), np.full(len(x), np.nan)))
    _draw(axes, styles, lines, step="post")
    axes.set_ylim(-0.03, 1.03)
    title = f"Sample efficiency: steps to {comparison.target_in(comparison.environments[place]):g}"
    _label_steps(axes, "share of seeds that reached it", title)


def _draw_profiles(axes: "Axes", comparison: Comparison, styles: Sequence[RowStyle]) -> None:
    finite = np.concatenate([row.scores[np.isfinite(row.scores)] for row in comparison.rows])
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    margin = 0.02 * (high - low) or 0.02 * abs(low) or 0.02
    # A profile changes at the scores alone; of many scores the steps are too narrow to be seen.
    changes = (
        np.unique(finite) if np.unique(finite).size <= THRESHOLDS else np.linspace(low, high, THRESHOLDS)
    )
    thresholds = np.array([low - margin, *changes, high + margin])
    _draw(axes, styles, [profile_curve(thresholds, row) for row in comparison.rows], step="post")
    axes.set_ylim(-0.03, 1.03)
    kind = "normalised score" if comparison.is_normalised else comparison.metric_label
    _label(axes, f"{kind} τ", "share of seeds with a score above τ", "Performance profile")


def iqm_curve(x: np.ndarray, values: np.ndarray, row: ComparedRow) -> Curve:
    """Compute the IQM over seeds and its pointwise interval.

    Args:
      values: [G, seeds] or [G, seeds, environments].
    """
    columns = iqm_and_interval(values, REPETITIONS, has_interval=row.has_interval)
    # Where a seed has no evaluation there is no point: a mean of the others alone would be another quantity.
    columns[:, np.isnan(values).reshape(len(values), -1).any(axis=1)] = np.nan
    return Curve(x, *columns)


def profile_curve(thresholds: np.ndarray, row: ComparedRow) -> Curve:
    """Compute the performance profile of a row and its pointwise interval."""
    middle = comparisons.performance_profile(row.scores, thresholds)
    none = np.full(len(thresholds), np.nan)
    low, high = comparisons.profile_band(row.scores, thresholds) if row.has_interval else (none, none)
    return Curve(thresholds, middle, low, high)


def _draw(axes: "Axes", styles: Sequence[RowStyle], lines: Sequence[Curve], step: str | None = None) -> None:
    """Draw a curve of each row.

    Args:
      step: "post" for a function that keeps each value until the next; None for values between which lines lead.
    """
    drawstyle = f"steps-{step}" if step else "default"
    for style, line in zip(styles, lines, strict=True):
        shown = np.where(np.isfinite(line.middle), line.middle, np.nan)
        has_marker = np.isfinite(shown).sum() <= figures.FEW_POINTS and not step
        looks: Any = {"marker": "o" if has_marker else None, "markersize": 4, "clip_on": not has_marker}
        looks |= {"label": style.label, "color": style.colour, "linewidth": 2, "drawstyle": drawstyle}
        axes.plot(line.x, shown, style.dash, **looks)
        axes.update_datalim([(x, y) for x, y in zip(line.x, line.low, strict=True) if np.isfinite(y)])
    axes.autoscale_view()
    bottom = axes.get_ylim()[0]
    for style, line in zip(styles, lines, strict=True):
        has_band = ~np.isnan(line.low) & np.isfinite(line.high)
        if has_band.any():  # one without a lower end reaches the bottom
            band: Any = {"color": style.colour, "alpha": 0.18, "linewidth": 0, "step": step}
            axes.fill_between(line.x, np.maximum(line.low, bottom), line.high, where=has_band, **band)
    axes.set_ylim(bottom=bottom)


def _label_steps(axes: "Axes", y: str, title: str) -> None:
    _label(axes, "environment steps of each seed", y, title)
    axes.xaxis.set_major_formatter(format_steps)
    axes.set_xlim(left=0)
    if axes.dataLim.x1 <= 0:  # one evaluation, before the first step
        axes.set_xlim(-1, 1)
        axes.set_xticks([0])


def _label(axes: "Axes", x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, color=TEXT)
    axes.set_ylabel(y, color=TEXT)
    figures.style(axes)
    figures.set_title(axes, title)
