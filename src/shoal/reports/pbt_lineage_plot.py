"""The picture of a population whose members copy each other: settings over time, coloured by score."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.records.pbt_lineage import Ancestor, Exchange
from shoal.records.pbt_settings import LINEAR, ONE_MINUS_LOG, magnitude
from shoal.reports import figures
from shoal.reports.figures import COLOURS, TEXT

COPY_COLOUR = "#b0b0b0"
FAILED_COLOUR = COLOURS[1]
COLOUR_MAP = "viridis"


ANCESTORS = "ancestors of the best policy"
FAILED = {"colors": FAILED_COLOUR, "linestyles": ":", "linewidths": 2.2}


def plot_lineage(
    path: Path,
    exchanges: Sequence[Exchange],
    scores: Mapping[int, ArrayLike],
    best: Sequence[Ancestor],
    *,
    best_updates: int,
    scales: Mapping[str, str],
    steps_per_update: int,
    title: str,
) -> None:
    """Write a PNG with one panel for each setting.

    A horizontal line is a member between two evaluations, coloured by its score at the second, and dotted where it has
    none; a grey line leads from a parent to the member that copied it; the line of descent of the best policy is
    outlined.

    Args:
      scores: of the members, by the number of updates of each evaluation.
      best_updates: the number of updates of that policy.
      scales: of the axes, by setting: "linear", "log" or "one-minus-log".
    """
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415 (takes half a second)
    from matplotlib.collections import LineCollection  # noqa: PLC0415
    from matplotlib.colors import Normalize  # noqa: PLC0415

    figure = figures.new_figure(7.5, 1.2 + 2.8 * len(scales))
    panels = figure.subplots(len(scales), 1, squeeze=False, sharex=True)[:, 0]
    points = sorted(scores)
    norm = Normalize(*_range(np.concatenate([np.ravel(scores[updates]) for updates in points])))
    values = np.ravel([scores[updates] for updates in points[1:]])
    has_score = np.isfinite(values)
    for axes, (name, scale) in zip(panels, scales.items(), strict=True):
        size = np.array([steps_per_update, 1.0])
        lines = _lines_of(exchanges, points, name, scale) * size
        outline = _outline(best, best_updates, name, scale) * size
        copies = _copies_of(exchanges, name, scale) * size
        collections: list[tuple[np.ndarray, dict[str, Any]]] = [
            (copies, {"colors": COPY_COLOUR, "linewidths": 0.7}),
            (outline, {"colors": TEXT, "linewidths": 5.0, "label": ANCESTORS if best else None}),
            (
                lines[has_score],
                {"array": values[has_score], "cmap": COLOUR_MAP, "norm": norm, "linewidths": 2.2},
            ),
            (lines[~has_score], FAILED | {"label": None if has_score.all() else "members that failed"}),
        ]
        for ends, style in collections:
            axes.add_collection(LineCollection(list(ends), **style))
        axes.autoscale()
        if scale != LINEAR:
            figures.set_log_ticks(axes.yaxis)
        figures.style(axes)
        axes.set_ylabel(f"1 - {name}" if scale == ONE_MINUS_LOG else name, color=TEXT)
    panels[-1].set_xlabel("environment steps of each member", color=TEXT)
    panels[-1].xaxis.set_major_formatter(figures.format_steps)
    figures.set_title(panels[0], title)
    figures.add_legend_of(panels[0])
    figure.colorbar(ScalarMappable(norm, COLOUR_MAP), ax=list(panels), label="score at the next evaluation")
    figures.save(figure, path)


def _range(values: np.ndarray) -> tuple[float, float]:
    """Return the least and the largest finite number; 0 and 1 where there is none."""
    finite = values[np.isfinite(values)]
    return (finite.min(), finite.max()) if finite.size else (0.0, 1.0)


def _lines_of(exchanges: Sequence[Exchange], points: Sequence[int], name: str, scale: str) -> np.ndarray:
    """Return the line of each member between two evaluations, [lines, 2, 2], those of the first interval first."""
    found = []
    for start, end in itertools.pairwise(points):
        # The end of a run that was made longer later has no exchange.
        exchange = [x for x in exchanges if x.updates <= start][-1]
        found += [[(start, y), (end, y)] for y in magnitude(scale, np.asarray(exchange.settings[name]))]
    return np.array(found)


def _copies_of(exchanges: Sequence[Exchange], name: str, scale: str) -> np.ndarray:
    """Return a line from the parent to each member that copied it, [lines, 2, 2]."""
    found = []
    for before, exchange in itertools.pairwise(exchanges):
        width = (exchange.updates - before.updates) / 4
        for member, parent in enumerate(exchange.parents):
            if parent != member:
                ends = [before.settings[name][parent], exchange.settings[name][member]]
                heights = magnitude(scale, np.asarray(ends))
                found.append([(exchange.updates - width, heights[0]), (exchange.updates, heights[1])])
    return np.array(found).reshape(-1, 2, 2)


def _outline(line: Sequence[Ancestor], end: int, name: str, scale: str) -> np.ndarray:
    """Return the line of descent as lines of two points, [lines, 2, 2]."""
    ends = [*(ancestor.updates for ancestor in line[1:]), end]
    heights = [float(magnitude(scale, ancestor.settings[name])) for ancestor in line]
    found = [[(x.updates, y), (to, y)] for x, y, to in zip(line, heights, ends, strict=False)]
    return np.array(found).reshape(-1, 2, 2)
