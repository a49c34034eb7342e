"""Rows of a comparison: groups of runs with their scores, and what is asked of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from shoal.records import curves, scores
from shoal.reports.compare_inputs import ABSOLUTE, FINAL, ComparedRun, ScoreBounds
from shoal.reports.run_record import RETURN


class Estimate(TypedDict, total=False):
    """A statistic as JSON holds it: with its interval, or `why` there is no value."""

    value: float | None
    interval: list[float] | None
    why: str


@dataclasses.dataclass(frozen=True)
class ComparedRow:
    """One side of a comparison: a run, or the runs of one algorithm in several environments.

    Attributes:
      entries: one for each environment, all rows in the same order.
      scores: [seeds, environments]; normalised where there are several.
    """

    name: str
    entries: tuple[ComparedRun, ...]
    scores: np.ndarray

    @property
    def failures(self) -> int:
        """The number of seeds that failed, over all environments."""
        return int(sum(entry.failed.sum() for entry in self.entries))

    @property
    def caveat(self) -> str:
        """Why the row has no interval, besides the number of its seeds; "" if it may have one."""
        return next((entry.caveat for entry in self.entries if entry.caveat), "")

    @property
    def has_interval(self) -> bool:
        """Whether intervals are shown of the row."""
        return not self.caveat and len(self.scores) >= scores.MIN_SEEDS


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows, and what is asked of them.

    Attributes:
      bounds: of the scores of each environment, by which they are normalised; empty where they are not known.
      target: the score to which steps are counted; None for none. Normalised where there are several environments.
      consecutive: the number of evaluations of a run in a row that must reach it.
    """

    rows: tuple[ComparedRow, ...]
    metric: str
    environments: tuple[str, ...]
    bounds: Mapping[str, ScoreBounds]
    target: float | None = None
    consecutive: int = 2
    notes: tuple[str, ...] = ()

    @property
    def is_normalised(self) -> bool:
        """Whether the scores of the rows are normalised: 0 is the low bound, 1 the high one."""
        return len(self.environments) > 1

    @property
    def metric_label(self) -> str:
        """What a curve shows, for the axes of pictures."""
        return "return" if self.metric in (ABSOLUTE, FINAL, RETURN) else self.metric

    def target_in(self, environment: str) -> float:
        """Return the target as a score of an environment."""
        assert self.target is not None
        return self.bounds[environment].restore(self.target) if self.is_normalised else self.target


def times_to_score(comparison: Comparison, entry: ComparedRun) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the steps between which each seed reaches the target, by its own evaluations, and whether it does.

    One that does not has the steps until which it was observed. A seed that failed never reaches it: its steps are
    infinite.
    """
    target = comparison.target_in(entry.environment)
    before, times = curves.steps_to_score(entry.steps, entry.curves, target, comparison.consecutive)
    has_reached = np.isfinite(times) & ~entry.failed
    end = np.where(entry.failed, np.inf, entry.steps[-1])
    return np.where(has_reached, before, end), np.where(has_reached, times, end), has_reached


def shared_curves(entries: Sequence[ComparedRun]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Read the curves of several runs at the points of a common grid at which every run has an evaluation.

    Whoever looks more often finds a high score sooner, and whoever looks longer finds more of them: see
    `curves.common_grid`. A run's last evaluation stands for a point after its end only until its next one would have
    been due.

    Returns:
      the grid [G], and values [G, seeds] of each run.
    """
    grid = curves.common_grid([entry.steps for entry in entries])
    values = [curves.on_grid(grid, entry.steps, entry.curves) for entry in entries]
    until = min(x.steps[-1] + np.diff(x.steps[-2:]).sum() for x in entries)
    is_shared = np.all([~np.isnan(x).all(axis=1) for x in values], axis=0) & (grid <= until)
    return grid[is_shared], [x[is_shared] for x in values]


def common_times(comparison: Comparison, entries: Sequence[ComparedRun]) -> tuple[list[np.ndarray], int]:
    """Compute the steps at which the seeds of each entry reach the target by the evaluations that all have.

    Returns:
      steps of the seeds of each, infinite for one that does not reach it there; and the number of these evaluations.
    """
    grid, tables = shared_curves(entries)
    target = comparison.target_in(entries[0].environment)
    found = [curves.steps_to_score(grid, x, target, comparison.consecutive)[1] for x in tables]
    return [np.where(x.failed, np.inf, steps) for x, steps in zip(entries, found, strict=True)], len(grid)
