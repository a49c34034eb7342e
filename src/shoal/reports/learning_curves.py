"""Learning curves prepared for a page: thinned, with the interquartile mean over seeds, and drawn as SVG."""

import io
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.records import curves, scores
from shoal.records.members import Members, places_by_label
from shoal.reports import figures
from shoal.reports.figures import DASHES, GRID, PALETTE, TEXT, format_steps
from shoal.reports.markup import Markup, element
from shoal.reports.plots import iqm_and_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 200  # of a curve; more are thinned evenly
REPETITIONS = 2_000  # of the bootstrap at each point: 256 members take seconds
MAX_SETTINGS = 4  # that have a curve, the best ones
MAX_LINES = 20  # members that have a line each; quantiles are drawn of more
QUANTILES = {"5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95}


class Evaluations(NamedTuple):
    """The evaluations of one setting during training.

    Attributes:
      name: of the run or the setting.
      steps: environment steps of each member, [P], ascending.
      values: [P, members]; NaN where there is none.
      members: their names.
      failed: the places of members that were not trained to the end.
      unit: the word for a member.
      is_independent: whether the members were trained independently, so that their mean has an interval.
      worst: what a member that failed counts as at each point, [P]: beside other settings, the worst of them all.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    members: tuple[str, ...]
    failed: tuple[int, ...] = ()
    unit: str = "seed"
    is_independent: bool = True
    worst: np.ndarray | float = -np.inf


class LearningCurve(NamedTuple):
    """A curve as it is drawn.

    Attributes:
      steps: [P].
      middle: the interquartile mean over members, of which one that failed is the worst from its end on, so that this
        may be minus infinity; NaN if all failed.
      low: of its pointwise 95% interval; NaN where there is none.
      lowest: of all members.
      lines: [P] by name, a line for each member, or quantiles of many.
      failed: the names of the lines of members that failed.
      description: what the curve and its lines show, such as "10 seeds".
    """

    name: str
    steps: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray
    lines: dict[str, np.ndarray]
    failed: tuple[str, ...]
    description: str


def by_setting(
    members: Members, steps: np.ndarray, values: np.ndarray, failed: Collection[int], *, is_pbt: bool = False
) -> dict[str, Evaluations]:
    """Divide the evaluations of a run by the labels of its members, "" where there is one setting.

    Args:
      steps, values: as in `Evaluations`.
      failed: the places of members that were not trained to the end.
      is_pbt: whether the members copy each other.
    """
    places = places_by_label(members)
    unit = "member" if is_pbt else "seed"
    known = np.where(np.isfinite(values), values, np.inf).min(axis=1, initial=np.inf)
    return {
        label: Evaluations(
            label,
            steps,
            values[:, own],
            tuple(f"{unit} {members[k].seed}" for k in own),
            tuple(column for column, k in enumerate(own) if k in failed),
            unit,
            not is_pbt,
            np.where(np.isfinite(known), known, np.nan) if len(places) > 1 else -np.inf,
        )
        for label, own in places.items()
    }


def prepare(found: Evaluations) -> LearningCurve:
    """Thin evaluations, and compute their interquartile mean and its interval."""
    points, count = len(found.steps), len(found.members)
    rows = np.unique(np.linspace(0, points - 1, min(points, MAX_POINTS)).round().astype(int))
    values = found.values[rows]
    have_all_failed = len(found.failed) == count
    filled = curves.with_failures(values, () if have_all_failed else found.failed)
    # Beside other settings a seed that failed counts as the worst of them all, as where they are ranked.
    worst = np.broadcast_to(found.worst, len(found.steps))[rows, None]
    filled = np.where(np.isneginf(filled), worst, filled)
    has_interval = found.is_independent and not have_all_failed
    middle, low, high = iqm_and_interval(filled, REPETITIONS, has_interval=has_interval)
    if have_all_failed:
        middle[:] = np.nan
    lowest, highest = (extreme.reduce(filled, axis=1) for extreme in (np.fmin, np.fmax))  # which skip NaN
    description = f"{count:,} {found.unit}{'s' * (count != 1)}"
    if found.failed:
        description += f", of which {len(found.failed)} failed"
    if count <= MAX_LINES:
        lines = dict(zip(found.members, values.T, strict=True))
        failed = tuple(found.members[k] for k in found.failed)
    else:
        lines, failed = _quantiles(filled), ()
        description += "; thin lines are quantiles"
    return LearningCurve(
        found.name, found.steps[rows], middle, low, high, lowest, highest, lines, failed, description
    )


def _quantiles(values: np.ndarray) -> dict[str, np.ndarray]:
    table = np.full((len(QUANTILES), len(values)), np.nan)
    for column, row in enumerate(values):
        known = row[~np.isnan(row)]
        if known.size:
            table[:, column] = scores.quantiles(known, list(QUANTILES.values()))
    return dict(zip(QUANTILES, table, strict=True))


def to_svg(curves: Sequence[LearningCurve], title: str) -> Markup:
    """Draw curves as SVG for a page; texts and axes have the colour of the text around it."""
    figure = figures.new_figure(7.5, 3.8)
    axes = figure.add_subplot()
    # The first is above the others, and first in the legend.
    for k, curve in reversed(list(enumerate(curves))):
        _draw(axes, curve, k, with_lines=len(curves) == 1)
    axes.set_xlabel("environment steps of each seed", color=TEXT)
    axes.set_ylabel("return", color=TEXT)
    axes.xaxis.set_major_formatter(format_steps)
    figures.style(axes)
    axes.spines[:].set_color(TEXT)
    figures.add_legend_of(axes)
    file = io.StringIO()
    figures.write(figure, file, "svg", transparent=True)
    text = file.getvalue()
    picture = text[text.index("<svg") :].replace(TEXT, "currentColor").replace(GRID, "#8884")
    label = {"role": "img", "aria_label": title}
    return Markup(picture.replace("<svg", element("svg", **label).removesuffix("></svg>"), 1))


def _draw(axes: "Axes", curve: LearningCurve, place: int, *, with_lines: bool) -> None:
    style: Any = {"color": PALETTE[place % len(PALETTE)], "marker": "o", "markersize": 4}
    if with_lines and len(curve.lines) > 1:
        for line in curve.lines.values():
            axes.plot(curve.steps, line, alpha=0.3, linewidth=0.7, markevery=_marked_points(line), **style)
    for line in (curve.lines[x] for x in curve.failed):
        places = np.flatnonzero(np.isfinite(line))[-1:]
        axes.plot(curve.steps[places], line[places], "x", color=style["color"], markersize=7)
    has_band = np.isfinite(curve.low) & np.isfinite(curve.high)
    band = {"where": has_band, "color": style["color"], "alpha": 0.2, "linewidth": 0}
    axes.fill_between(curve.steps, curve.low, curve.high, **band)
    middle = curve.middle if len(curve.lines) > 1 else next(iter(curve.lines.values()))
    middle = np.where(np.isfinite(middle), middle, np.nan)
    dashes = DASHES[place // len(PALETTE) % len(DASHES)]
    (drawn,) = axes.plot(curve.steps, middle, dashes, linewidth=2, markevery=_marked_points(middle), **style)
    label = curve.name or curve.description
    drawn.set_label(f" {label}")  # as in `figures.add_legend`


def _marked_points(values: np.ndarray) -> list[int]:
    """Return the places of the numbers that a marker shows: of few all, else those that no line leads to."""
    if len(values) <= figures.FEW_POINTS:
        return list(range(len(values)))
    is_number = np.isfinite(np.concatenate([[np.nan], values, [np.nan]]))
    return np.flatnonzero(is_number[1:-1] & ~is_number[:-2] & ~is_number[2:]).tolist()
