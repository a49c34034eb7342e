"""Tables of members and settings as HTML, for pages and notebooks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.base.numbers import format_interval, format_numbers
from shoal.records import scores
from shoal.records.members import Members
from shoal.reports import learning_curves
from shoal.reports.markup import Markup, element, join, table

COLUMNS = {"absolute": "best policy, new episodes", "final": "last policy"}  # parts of a summary


def run_html(
    description: str,
    summary: Mapping[str, Any],
    evaluations: Sequence[tuple[int, Mapping[str, np.ndarray]]],
    members: Members,
    failed: Sequence[int],
) -> Markup:
    """Show a run in a notebook: a sentence, the table of its members, and its curve as SVG.

    Args:
      description: the sentence.
      evaluations: (environment steps, metrics) of each evaluation; a metric is an array, one number per member.
      failed: the places of members that were not trained to the end.
    """
    settings = [] if "best" in summary else summary.get("members", [])
    parts = [element("p", description), members_table(members, returns_of(summary), failed)]
    if settings:
        parts[1] = settings_table("Settings, the best first", settings)
    if evaluations:
        steps = np.array([step for step, _ in evaluations])
        values = np.array([metrics["return_mean"] for _, metrics in evaluations], np.float64)
        # Of population-based training alone the summary has a best member.
        found = learning_curves.by_setting(members, steps, values, failed, is_pbt="best" in summary)
        labels = [x["label"] for x in settings[: learning_curves.MAX_SETTINGS]] or list(found)
        curves = [learning_curves.prepare(found[label]) for label in labels]
        parts.append(learning_curves.to_svg(curves, f"Learning curves in {summary['environment']}"))
    return join(parts)


def sweep_html(description: str, summary: Mapping[str, Any]) -> Markup:
    """Show a sweep in a notebook: a sentence, and the tables of its settings."""
    parts = [element("p", description)]
    if summary["confirmed"]:
        parts.append(settings_table("Best settings on new seeds", summary["confirmed"]))
    return join([*parts, settings_table("Settings, the best first", summary["members"])])


def returns_of(summary: Mapping[str, Any] | None) -> dict[str, Sequence[float | None]]:
    """Return the returns of each member in a summary, by the title of their column."""
    return {
        title: summary[part]["returns"] for part, title in COLUMNS.items() if summary and summary.get(part)
    }


def members_table(
    members: Members, columns: Mapping[str, Sequence[float | None]], failed: Sequence[int] = ()
) -> Markup:
    """Make the table of the members of a run.

    Args:
      columns: by title, a number for each member, in their order; NaN and None are empty.
      failed: the places of members that were not trained to the end.
    """
    has_labels = any(member.label for member in members)
    head = ["seed", *(["setting"] if has_labels else []), *columns, *([""] if failed else [])]
    cells, rows = [number_cells(values) for values in columns.values()], []
    for k, member in enumerate(members):
        numbers = [column[k] for column in cells]
        labels = [member.label] if has_labels else []
        states = ["failed" if k in failed else ""] if failed else []
        rows.append([str(member.seed), *labels, *numbers, *states])
    return table("Returns of the seeds", head, rows, {"seed", *columns})


RANKING = ("setting", "rank", "score (IQM)", "95% interval", "seeds", "")


def settings_table(caption: str, entries: Sequence[Mapping[str, Any]]) -> Markup:
    """Make the table of settings with their scores, in the order of the entries.

    Args:
      entries: as in `members` of the summary of a sweep, or of a run of several settings.
    """
    rows = []
    for place, entry in enumerate(entries):
        score = entry.get("absolute") or entry.get("final") or entry.get("at_rung") or {}
        remarks = [f"{len(entry['failed'])} failed"] if entry.get("failed") else []
        if entry.get("at_rung"):
            remarks.append(f"stopped after {entry['steps_per_seed']:,} steps")
        count = len(entry["seeds"])
        interval = score.get("interval") if count >= scores.MIN_SEEDS else None
        (iqm,) = number_cells([score.get("iqm")], interval)
        cells = (f"{place + 1}", iqm, format_interval(interval), f"{count}", "; ".join(remarks))
        rows.append([entry["label"], *cells])
    return table(caption, RANKING, rows, RANKING[1:5])


def number_cells(
    values: Sequence[float | None], interval: Sequence[float | None] | None = None, sign: str = ""
) -> list[str]:
    """Format numbers of a table as `format_numbers` does; "" for one that is missing or NaN."""
    texts = format_numbers(values, interval, sign)
    return ["" if x is None or math.isnan(x) else text for x, text in zip(values, texts, strict=True)]
