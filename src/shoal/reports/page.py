"""A report of runs and sweeps as one HTML file, which opens without a network."""

import base64
import hashlib
import importlib.resources
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import require_output, write_whole_file
from shoal.base.numbers import format_interval
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments
from shoal.reports import records
from shoal.reports.figures import PALETTE
from shoal.reports.learning_curves import MAX_POINTS, LearningCurve, prepare, to_svg
from shoal.reports.markup import Markup, breakable, element, join, scroll, table, void
from shoal.reports.page_comparison import comparison
from shoal.reports.page_sections import folded, record_section
from shoal.reports.record_curves import evaluations_of
from shoal.reports.run_html import number_cells
from shoal.reports.run_record import RunRecord
from shoal.reports.sweep_record import SweepRecord

# Nothing is fetched and nothing is sent: the one script is named by its hash, films and pictures are within the page.
POLICY = (
    "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'"
)
DIGITS = 5  # of the numbers that curves are drawn by


@reports_user_code
def report(
    runs: object, out: str | Path = "report.html", *, force: bool = False, film_size: str = "20MB"
) -> Path:
    """Write a page about runs and sweeps: one HTML file with everything in it, which opens without a network.

    It has the scores, interactive learning curves, the settings that differ, films, where a run came from, versions and
    the command that trains it again. Several runs are compared in a table, and those of one environment share axes.
    Runs that are trained at the moment, or were interrupted, are shown as far as they are. The same files give the same
    bytes.

    Args:
      runs: a path of a run, a sweep or a study, what `train` or `sweep` returned, or a list of these.
      out: the file, whose name ends in .html.
      force: whether a file that exists is replaced.
      film_size: of all films and pictures of the page together, such as "500MB"; "0" leaves them out.
    Returns:
      the path of the file.
    Raises:
      ShoalError: a run does not exist or is damaged, or the file exists or cannot be written.
    """
    path = _checked_output(out, arguments.boolean("force", force))
    film_bytes = arguments.num_bytes("film_size", arguments.text("film_size", film_size, "20MB"))
    listed: Sequence[object] = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    if not listed:
        raise ShoalError("runs is empty; name a run, such as runs/CartPole-v1-ppo-20260131-093000.")
    found = [records.read(run) for run in listed]
    page = page_of(dict(zip(names_of(found), found, strict=True)), film_bytes)
    with write_whole_file(path, parents=False, new=not force) as file:
        file.write(page.encode(errors="replace"))  # a name may hold half a surrogate
    return path


def _checked_output(out: str | Path, force: bool) -> Path:
    """Return the path of the page.

    Raises:
      ShoalError: it is no page, exists, or cannot be written.
    """
    path = arguments.path("out", out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ShoalError(f"out={str(out)!r} is not the name of a page; give one that ends in .html.")
    require_output(path, force, f"out={str(out)!r}")
    return path


def names_of(found: Sequence[RunRecord | SweepRecord]) -> list[str]:
    """Return a name for each record: its own, or its directory's; a number follows where it is not the first such."""
    names: list[str] = []
    for record in found:
        name = record.name or record.path.resolve().name
        count = sum(x.rpartition(" (")[0] == name or x == name for x in names)
        names.append(f"{name} ({count + 1})" if count else name)
    return names


def page_of(found: Mapping[str, RunRecord | SweepRecord], film_bytes: float) -> str:
    """Build the page of records by their names."""
    first = next(iter(found.values()))
    title = f"{len(found)} runs" if len(found) > 1 else f"{next(iter(found))}: {first.environment}"
    charts = charts_of(found)
    data = {
        "palette": PALETTE,
        "charts": [[to_data(curve) for curve in curves] for curves in charts.values()],
    }
    drawn = join(_chart(k, name, curves) for k, (name, curves) in enumerate(charts.items()))
    is_alone = len(found) == 1
    sections = []
    for place, (name, record) in enumerate(found.items()):
        charts_of_record = drawn if is_alone else Markup()
        section, film_bytes = record_section(place, name, record, film_bytes, charts_of_record)
        sections.append(section)
    script = _script()
    body = [
        element("header", element("h1", breakable(title)), element("p", _subtitle(found))),
        element(
            "main",
            *(
                []
                if is_alone
                else [element("section", element("h2", "Comparison"), comparison(found)), drawn]
            ),
            *sections,
        ),
        element("footer", element("p", "Written by shoal report.")),
        element("script", data_text(data), type="application/json", id="data"),
        element("script", script),
    ]
    return "<!doctype html>\n" + element(
        "html", element("head", *_head(title, script)), element("body", *body), lang="en"
    )


def _head(title: str, script: str) -> list[Markup]:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return [
        void("meta", charset="utf-8"),
        void("meta", http_equiv="Content-Security-Policy", content=POLICY.format(hash=digest)),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        void("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(_asset("uPlot.min.css") + _asset("page.css"))),
    ]


def _script() -> Markup:
    """Return uPlot with its licence, and the script of the page."""
    return Markup(f"/*\n{_asset('uPlot.LICENSE')}*/\n{_asset('uPlot.iife.min.js')}{_asset('page.js')}")


def _asset(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _subtitle(found: Mapping[str, RunRecord | SweepRecord]) -> str:
    environments = ", ".join(dict.fromkeys(record.environment for record in found.values()))
    algorithms = ", ".join(dict.fromkeys(record.algorithm for record in found.values()))
    return f"{algorithms} in {environments}"


def charts_of(found: Mapping[str, RunRecord | SweepRecord]) -> dict[str, list[LearningCurve]]:
    """Prepare the curves of each environment, those of a record alone with all its seeds or best settings."""
    charts: dict[str, list[LearningCurve]] = {}
    for name, record in found.items():
        for evaluations in evaluations_of(record, name if len(found) > 1 else ""):
            charts.setdefault(record.environment, []).append(prepare(evaluations))
    return charts


def _chart(place: int, environment: str, curves: Sequence[LearningCurve]) -> Markup:
    """Make a chart: the picture that is shown where scripts are off, what it shows, and its numbers as tables."""
    title = f"Learning curves in {environment}"
    drawn = [np.isfinite(line).sum() for curve in curves for line in curve.lines.values()]
    failed = [curve.name or curve.description for curve in curves if not np.isfinite(curve.middle).any()]
    failures = [
        element("p", breakable(name), ": every seed failed, so that there is no mean to draw.")
        for name in failed
    ]
    # One point is no curve, and its number is in the section of the run.
    if max(drawn, default=0) < 2:
        return element("section", element("h3", title), *failures)
    lines = [
        element(
            "li",
            element("span", class_="swatch", style=f"background:{PALETTE[k % len(PALETTE)]}"),
            f"{curve.name}: {curve.description}" if curve.name else curve.description,
        )
        for k, curve in enumerate(curves)
    ]
    shaded = any(np.isfinite(curve.low).any() for curve in curves)
    text = "Interquartile mean over seeds of the return in evaluations"
    text += "; shaded is its pointwise 95% interval" * shaded
    text += "; a cross is where a seed failed" * any(curve.failed for curve in curves)
    return element(
        "section",
        element("h3", title),
        element(
            "figure",
            element("div", to_svg(curves, title), class_="plot"),
            element("figcaption", f"{text}.", element("ul", *lines)),
            class_="chart",
            id=f"chart-{place}",
        ),
        *failures,
        folded(f"Numbers of the curves (at most {MAX_POINTS} evaluations each)", join(map(_numbers, curves))),
    )


def _numbers(curve: LearningCurve) -> Markup:
    """Make the table of the evaluations of a curve."""
    head = ("environment steps", "IQM", "low", "high", "worst", "best")
    columns = (curve.middle, curve.low, curve.high, curve.lowest, curve.highest)
    rows = [
        [f"{step:,}", *number_cells(row, row[1:3])] for step, *row in zip(curve.steps, *columns, strict=True)
    ]
    caption = (
        f"Evaluations of {curve.name or curve.description}; low and high are the ends of the 95% interval"
    )
    return scroll(table(caption, head, rows, head))


def to_data(curve: LearningCurve) -> dict[str, object]:
    """Return a curve as the page's script reads it."""
    has_interval = np.isfinite(curve.low) & np.isfinite(curve.high)
    low, high = (np.where(has_interval, end, np.nan) for end in (curve.low, curve.high))
    ends = [None if np.isnan(x) else (x, y) for x, y in zip(low, high, strict=True)]
    return {
        "name": curve.name or curve.description,
        "steps": curve.steps.tolist(),
        "texts": [number_cells([x], y)[0] for x, y in zip(curve.middle, ends, strict=True)],
        "intervals": [format_interval(x) for x in ends],
        "middle": _rounded(curve.middle),
        "low": _rounded(low) if has_interval.any() else None,
        "high": _rounded(high) if has_interval.any() else None,
        "lines": [
            {"name": name, "values": _rounded(x), "failed": name in curve.failed}
            for name, x in curve.lines.items()
        ],
    }


def _rounded(values: np.ndarray) -> list[float | int | None]:
    """Round numbers to the digits that a picture shows; null for one that is not finite."""
    rounded = [float(f"{x:.{DIGITS}g}") if math.isfinite(x) else None for x in values.tolist()]
    return [int(x) if x is not None and x.is_integer() else x for x in rounded]


def data_text(data: Mapping[str, object]) -> Markup:
    """Return data as JSON that cannot end the script element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
