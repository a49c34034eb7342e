"""`shoal report RUN`: write a page about runs and sweeps."""

import dataclasses
from collections.abc import Sequence

from shoal.cli import flags
from shoal.reports.page import report

COMMAND = "shoal report RUN ..."
DESCRIPTION = (
    "Writes one HTML file about runs, sweeps and studies, finished or not, which opens without a network: scores, "
    "learning curves, settings that differ, films, origin, versions, and the command that trains a run again. Several "
    "runs are compared in a table, and those of one environment share the axes of their curves."
)


@dataclasses.dataclass(frozen=True)
class ReportFlags:
    """The flags of the page."""

    out: str = "report.html"
    """Writes the page to this file, which must end in .html and not exist."""
    force: bool = False
    """Replaces the file if it exists."""
    film_size: str = "20MB"
    """Inlines films and pictures up to this size together, the last ones first; the page names those that are left
    out. 0 leaves all out."""


def main(arguments: Sequence[str]) -> int:
    """Write the page, and print its path and size."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, ReportFlags(), arguments)
    flags.require("run", "shoal report runs/CartPole-v1-ppo-20260131-093000", "".join(words[:1]))
    path = report(words, settings.out, force=settings.force, film_size=settings.film_size)
    print(f"{path} ({path.stat().st_size / 1000:,.0f} kB)")
    return 0
