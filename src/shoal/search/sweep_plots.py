"""Pictures of a sweep: scores over settings, pairs of settings, parallel coordinates, importance, and curves.

Each setting has an axis from 0 to 1 on its own scale, with ticks at its values; settings without a score are left out.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from shoal.base.numbers import format_number
from shoal.reports import figures
from shoal.reports.figures import COLOUR, COLOURS, TEXT
from shoal.reports.plots import iqm_and_interval
from shoal.search.distributions import Between, Choice, is_same
from shoal.search.ranking import Importance, Ranked
from shoal.search.space import Space, format_value

BEST = COLOURS[1]
GREY = "#9a9a9a"
COLOUR_MAP = "viridis"
MOST_SETTINGS = 12  # panels of one picture
MOST_PAIRED = 4  # settings of which all pairs are shown
MOST_GROUPS = 6  # for the medians over a range
MOST_CELLS_WITH_NUMBERS = 64
CHANCE = 0.05
SMALL = MappingProxyType({"va": "center", "fontsize": 8})  # numbers within a picture
ON_LINES = MappingProxyType({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6})
NO_SHARE = "cannot be estimated: too few settings, or equal scores"
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
ABSENT = -0.12  # the place below an axis of a setting that is not part of a point

Curve = tuple[Any, Any]  # environment steps of each seed [points], returns [points, seeds]


class ScoredSettings(NamedTuple):
    """What the pictures of settings show.

    Attributes:
      names: of the settings, the most important first; all of the space by default.
      label: of the axis of the scores.
    """

    ranked: Sequence[Ranked]
    space: Space
    title: str
    names: Sequence[str] = ()
    label: str = "score"

    @property
    def shown(self) -> list[str]:
        """The names that a picture has room for."""
        return list(self.names or self.space.names)[:MOST_SETTINGS]

    @property
    def valid(self) -> list[Ranked]:
        """The settings that were trained to the end and have a score, best first."""
        return [x for x in self.ranked if math.isfinite(x.score) and not x.stopped]


def plot_settings(path: Path, scored: ScoredSettings) -> None:
    """Write a PNG of the score over each setting: a point for each, with its 95% interval if any, and medians."""
    shown, valid = scored.shown, scored.valid
    columns = min(len(shown), 3 if len(shown) in (3, 5, 6, 9) else 4)
    rows = math.ceil(len(shown) / columns)
    figure = figures.new_figure(max(4.5, 3.1 * columns), 0.5 + 2.7 * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, name in itertools.zip_longest(panels.flat, shown):
        if name is None:
            axes.set_visible(False)
            continue
        _plot_setting(axes, valid, scored.space, name)
    for row in panels:
        row[0].set_ylabel(scored.label, color=TEXT)
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figures.add_legend(figure, handles, labels)
    _set_heading(figure, scored.title)
    figures.save(figure, path)


def _plot_setting(axes: Any, ranked: Sequence[Ranked], space: Space, name: str) -> None:
    present = [x for x in ranked if name in x.settings]
    places = _places(present, space, name)
    scores = np.array([x.score for x in present])
    low, high = np.array([x.interval or (x.score, x.score) for x in present]).reshape(-1, 2).T
    axes.vlines(places, low, high, color=COLOUR, alpha=0.35, linewidth=1.0)
    axes.plot(
        places,
        scores,
        "o",
        color=COLOUR,
        alpha=0.75,
        markersize=4,
        markeredgewidth=0,
        label="one setting" + ", 95% interval" * any(x.interval for x in present),
    )
    centres, medians = _medians(present, space, name)
    is_range = not isinstance(space.distribution(name), Choice)
    has_order = is_range or all(isinstance(value, int | float) for value in space.axis(name))
    axes.plot(
        centres,
        medians,
        linestyle="-" if has_order else "none",
        color=TEXT,
        linewidth=1.4,
        marker="_",
        markersize=8 if is_range else 22,
        markeredgewidth=1.4,
        label="median of the settings there",
    )
    if present and present[0] is ranked[0]:
        axes.plot(places[:1], scores[:1], "D", color=BEST, markersize=6, label="best score", zorder=5)
    figures.style(axes)
    axes.set_xlabel(name, color=TEXT)
    axes.set_xlim(*_limits(space, name))
    _set_ticks(axes.xaxis, space, name)


def plot_pairs(path: Path, scored: ScoredSettings) -> None:
    """Write a PNG of each pair of settings: a heat map of medians for two lists of values, else coloured points.

    The first four settings are shown; there must be two.

    Raises:
      ShoalError: the file cannot be written.
    """
    shown, valid = scored.shown[:MOST_PAIRED], scored.valid
    size = len(shown) - 1
    figure = figures.new_figure(1.6 + 3.0 * size, 0.6 + 2.8 * size)
    panels = figure.subplots(size, size, squeeze=False)
    norm = _colour_norm([x.score for x in valid])
    for row, column in itertools.product(range(size), repeat=2):
        axes = panels[row, column]
        if column > row:
            axes.set_visible(False)
            continue
        _plot_pair(axes, valid, scored.space, shown[column], shown[row + 1], norm)
        if row == size - 1:
            axes.set_xlabel(shown[column], color=TEXT)
        if column == 0:
            axes.set_ylabel(shown[row + 1], color=TEXT)
    _add_colour_bar(figure, panels, norm, scored.label)
    _set_heading(figure, scored.title)
    figures.save(figure, path)


def _plot_pair(axes: Any, ranked: Sequence[Ranked], space: Space, x: str, y: str, norm: Any) -> None:
    present = [r for r in ranked if x in r.settings and y in r.settings]
    is_list = [isinstance(space.distribution(name), Choice) for name in (x, y)]
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        _set_ticks(axis, space, name)
    axes.tick_params(colors=TEXT)
    if all(is_list):
        _draw_heat_map(axes, present, space, x, y, norm)
        return
    places = [_places(present[::-1], space, name) for name in (x, y)]  # the best on top
    axes.scatter(*places, c=[r.score for r in present[::-1]], cmap=COLOUR_MAP, norm=norm, s=26, linewidths=0)
    if present and present[0] is ranked[0]:
        axes.plot(
            places[0][-1:],
            places[1][-1:],
            "D",
            color="none",
            markeredgecolor=BEST,
            markersize=9,
            markeredgewidth=1.6,
        )
    axes.set_xlim(*_limits(space, x))
    axes.set_ylim(*_limits(space, y))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_heat_map(axes: Any, ranked: Sequence[Ranked], space: Space, x: str, y: str, norm: Any) -> None:
    columns, rows = space.axis(x), space.axis(y)
    cells = np.full((len(rows), len(columns)), np.nan)
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        inside = [r.score for r in ranked if is_same(r.settings[x], column) and is_same(r.settings[y], row)]
        cells[i, j] = np.median(inside) if inside else np.nan
    step_x, step_y = (1 / max(len(values) - 1, 1) for values in (columns, rows))
    extent = (-step_x / 2, 1 + step_x / 2, -step_y / 2, 1 + step_y / 2)
    axes.imshow(cells, origin="lower", extent=extent, aspect="auto", cmap=COLOUR_MAP, norm=norm)
    for i, j in np.ndindex(cells.shape) if cells.size <= MOST_CELLS_WITH_NUMBERS else ():
        if np.isfinite(cells[i, j]):
            ink = "white" if norm(cells[i, j]) < 0.6 else "black"
            text = format_number(float(cells[i, j]))
            axes.text(j * step_x, i * step_y, text, ha="center", color=ink, **SMALL)
    axes.spines[:].set_visible(False)


def plot_parallel(path: Path, scored: ScoredSettings) -> None:
    """Write a PNG of parallel coordinates: a line through the values of each setting, coloured by its score."""
    from matplotlib import colormaps  # noqa: PLC0415 (takes half a second)

    shown, space = scored.shown, scored.space
    valid = scored.valid[::-1]  # the best on top
    norm = _colour_norm([x.score for x in valid])
    figure = figures.new_figure(max(6, 2.2 + 1.5 * len(shown)), 4.4)
    axes = figure.add_subplot()
    places = [_places(valid, space, name, 0.25) for name in shown]
    lines = np.stack([*places, np.clip([norm(x.score) for x in valid], 0, 1)], axis=1)
    for x, line in zip(valid, lines, strict=True):
        axes.plot(line, color=colormaps[COLOUR_MAP](norm(x.score)), linewidth=1.0, alpha=0.6)
    if valid:
        axes.plot(lines[-1], color=BEST, linewidth=2.4, label="best score")
    _draw_parallel_axes(axes, space, shown, bool((lines == ABSENT).any()))
    _draw_score_axis(axes, len(shown), norm, scored.label)
    if valid:
        figures.add_legend_of(axes)
    _set_heading(figure, scored.title)
    figures.save(figure, path)


def _draw_parallel_axes(axes: Any, space: Space, names: Sequence[str], has_absent: bool) -> None:
    for index, name in enumerate(names):
        axes.axvline(index, color=TEXT, linewidth=0.9)
        for place, text in ticks_of(space, name):
            axes.plot([index - 0.025, index], [place, place], color=TEXT, linewidth=0.9)
            axes.text(index - 0.045, place, text, ha="right", color=TEXT, bbox=ON_LINES, **SMALL)
        if has_absent and name in space.where:
            axes.text(index - 0.045, ABSENT, "absent", ha="right", color=GREY, **SMALL)
    axes.set_xticks(range(len(names) + 1), [*names, "score"], color=TEXT)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.xaxis.set_ticks_position("top")
    axes.set_yticks([])
    axes.set_xlim(-0.45, len(names) + 0.55)
    axes.set_ylim(ABSENT - 0.05 if has_absent else -0.04, 1.04)
    axes.spines[:].set_visible(False)


def _draw_score_axis(axes: Any, place: int, norm: Any, label: str) -> None:
    """Draw the last axis of parallel coordinates: the colours of the scores, with ticks."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 (takes half a second)

    colours = np.linspace(0, 1, 256)[:, None]
    axes.imshow(
        colours, origin="lower", extent=(place, place + 0.07, 0, 1), aspect="auto", cmap=COLOUR_MAP, zorder=3
    )
    lowest = [] if norm.vmin in (None, norm.vmax) else [norm.vmin]
    inner = [x for x in MaxNLocator(5).tick_values(norm.vmin, norm.vmax) if 0.06 < norm(x) <= 1]
    for value in [*lowest, *inner]:
        text = f"≤ {format_number(value)}" if value == norm.vmin else format_number(value)
        axes.text(place + 0.1, float(norm(value)), text, color=TEXT, **SMALL)
    axes.text(place + 0.48, 0.5, label, rotation=90, ha="center", va="center", fontsize=9, color=TEXT)


def plot_importances(path: Path, found: Sequence[Importance], title: str) -> None:
    """Write a PNG of bars: the share of the differences between settings that each explains alone.

    A share that cannot be estimated has a text in the place of its bar.
    """
    figure = figures.new_figure(7, 1.5 + 0.36 * len(found))
    axes = figure.add_subplot()
    is_clear = [x.p_value < CHANCE for x in found]
    places = np.arange(len(found))[::-1]
    shares = np.array([x.share for x in found])
    axes.barh(places, shares, color=[COLOUR if clear else GREY for clear in is_clear], height=0.62)
    for place, share in zip(places, shares, strict=True):
        x, text = (0.0, NO_SHARE) if math.isnan(share) else (share, f"{share:.2f}")
        axes.text(x + 0.012, place, text, va="center", fontsize=9, color=TEXT)
    for colour, text in ((COLOUR, f"p < {CHANCE:g}"), (GREY, "may be chance")):
        axes.barh([0], [0], color=colour, label=text)
    axes.set_yticks(places, [x.name for x in found])
    axes.set_xlim(0, 1.04)
    axes.set_xlabel("share of the variance of ranks that a setting explains alone", color=TEXT)
    figures.style(axes)
    axes.grid(False)
    axes.grid(axis="x", color=figures.GRID, linewidth=0.8)
    figures.add_legend_of(axes)
    figures.set_title(axes, title)
    figures.save(figure, path)


def plot_best_and_worst(
    path: Path, best: Mapping[str, Curve], worst: Mapping[str, Curve], title: str, *, label: str = "score"
) -> None:
    """Write a PNG of the learning curves of the best and of the worst settings, with 95% intervals.

    Args:
      best: by label, the environment steps of each seed [points] and the returns [points, seeds], best first.
    """
    figure = figures.new_figure(7, 5.0)
    axes = figure.add_subplot()
    dashes = itertools.cycle(["-", "--", ":"])
    for colours, curves, style in (
        (itertools.repeat(GREY), worst, dashes),
        (iter(COLOURS), best, itertools.repeat("-")),
    ):
        for (name, (steps, returns)), colour, dash in zip(curves.items(), colours, style, strict=False):
            middle, low, high = iqm_and_interval(np.asarray(returns, np.float64))
            if np.isfinite(low).any():
                axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(steps, middle, dash, color=colour, linewidth=1.8, label=name)
    axes.set_xlabel("environment steps of each seed", color=TEXT)
    axes.xaxis.set_major_formatter(figures.format_steps)
    axes.set_ylabel(label, color=TEXT)
    axes.margins(x=0)
    figures.style(axes)
    handles, labels = axes.get_legend_handles_labels()
    order = [*range(len(worst), len(handles)), *range(len(worst))[::-1]]  # from the best to the worst
    figures.add_legend(figure, [handles[i] for i in order], [labels[i] for i in order])
    figures.set_title(axes, title)
    figures.save(figure, path)


def ticks_of(space: Space, name: str) -> list[tuple[float, str]]:
    """Return the ticks of a setting's axis: places from 0 to 1, and texts."""
    kind = space.distribution(name)
    if isinstance(kind, Choice):
        return [(kind.to_unit(value), format_value(value)) for value in space.axis(name)]
    assert isinstance(kind, Between)
    find = {"log": figures.log_ticks, "one-minus-log": _decades_below_one}.get(
        kind.scale, figures.linear_ticks
    )
    values = find(kind.low, kind.high)
    return [(kind.to_unit(value), f"{value:.6g}") for value in values]


def _decades_below_one(low: float, high: float) -> list[float]:
    """Return 0.9, 0.99, 0.999 between two bounds, with numbers between them where there are few."""
    return [round(1 - gap, 12) for gap in figures.log_ticks(1 - high, 1 - low)][::-1]


def _set_ticks(axis: Any, space: Space, name: str) -> None:
    ticks = ticks_of(space, name)
    axis.set_ticks([place for place, _ in ticks], [text for _, text in ticks], color=TEXT)
    axis.set_tick_params(labelsize=9)
    if axis.axis_name == "x" and sum(len(text) for _, text in ticks) > 26:
        for text in axis.get_ticklabels():
            text.set(rotation=30, ha="right", rotation_mode="anchor")


def _places(ranked: Sequence[Ranked], space: Space, name: str, share: float = 1) -> np.ndarray:
    """Return the places of settings on an axis; several of one value of a list are spread evenly around it,
    over a share of the full spread.
    """
    spread = share * _spread(space, name)
    found = np.array(
        [space.to_unit(name, x.settings[name]) if name in x.settings else ABSENT for x in ranked]
    )
    for place in np.unique(found[found != ABSENT]) if spread else ():
        at = np.flatnonzero(found == place)
        order = np.argsort(np.argsort(np.arange(len(at)) * GOLDEN_RATIO % 1))  # neighbours in rank are apart
        found[at] += spread * ((2 * order + 1) / len(at) - 1)
    return found


def _spread(space: Space, name: str) -> float:
    """Return how far the points of one value of a list may be from its tick; 0 for a range."""
    kind = space.distribution(name)
    return min(0.22 / max(len(kind.values) - 1, 1), 0.14) if isinstance(kind, Choice) else 0.0


def _limits(space: Space, name: str) -> tuple[float, float]:
    margin = 0.06 + 1.3 * _spread(space, name)
    return -margin, 1 + margin


def _medians(ranked: Sequence[Ranked], space: Space, name: str) -> tuple[list[float], list[float]]:
    """Return the median score at each value of a list, or in groups of equal size along a range."""
    if isinstance(space.distribution(name), Choice):
        groups = [[x for x in ranked if is_same(x.settings[name], value)] for value in space.axis(name)]
    else:
        ordered = sorted(ranked, key=lambda x: x.settings[name])
        count = max(1, min(MOST_GROUPS, len(ordered) // 5))
        groups = [ordered[len(ordered) * i // count : len(ordered) * (i + 1) // count] for i in range(count)]
    filled = [group for group in groups if group]
    centres = [float(np.median([space.to_unit(name, x.settings[name]) for x in group])) for group in filled]
    return centres, [float(np.median([x.score for x in group])) for group in filled]


def _colour_norm(scores: Sequence[float]) -> Any:
    """Return the scale of colours; the worst tenth has one colour, so that failures leave contrast to the others."""
    from matplotlib.colors import Normalize  # noqa: PLC0415 (takes half a second)

    if not len(scores):
        return Normalize(0, 1)
    low, high = float(np.quantile(scores, 0.1)), float(np.max(scores))
    return Normalize(low, high) if low < high else Normalize(low - 0.5, low + 0.5)


def _add_colour_bar(figure: Any, panels: Any, norm: Any, label: str) -> None:
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415 (takes half a second)

    bar = figure.colorbar(
        ScalarMappable(norm, COLOUR_MAP), ax=panels, extend="min", fraction=0.05, pad=0.02, aspect=35
    )
    bar.set_label(label, color=TEXT)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=TEXT)


def _set_heading(figure: Any, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", color=TEXT, fontsize=11, fontweight="bold")
