"""Rows of a comparison: groups of runs with their scores, and what is asked of them."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from shoal.ops import curves, scores
from shoal.reporting.compare_inputs import ABSOLUTE, FINAL, Entry
from shoal.reporting.run_record import RETURN

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One side of a comparison: a run, or the runs of one algorithm in several environments.

    Attributes:
      entries: one for each environment, all rows in the same order.
      scores: [seeds, environments]; normalised where there are several.
    """

    name: str
    entries: tuple[Entry, ...]
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
      bounds: of the scores of each environment, by which they are normalised; None where they are not known.
      target: the score to which steps are counted; None for none. Normalised where there are several environments.
      consecutive: the number of evaluations in a row that must reach it.
    """

    rows: tuple[Row, ...]
    metric: str
    environments: tuple[str, ...]
    bounds: Mapping[str, Interval] | None
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

    def normalise(self, values: np.ndarray, environment: str) -> np.ndarray:
        """Scale scores of an environment so that its bounds become 0 and 1."""
        assert self.bounds is not None
        low, high = self.bounds[environment]
        return (values - low) / (high - low)

    def target_in(self, environment: str) -> float:
        """Return the target as a score of an environment."""
        assert self.target is not None
        if not self.is_normalised or self.bounds is None:
            return self.target
        low, high = self.bounds[environment]
        return low + self.target * (high - low)


def grid_of(comparison: Comparison, environment: str) -> np.ndarray:
    """Return the steps at which the curves of an environment are compared."""
    return curves.common_grid([entry.steps for entry in entries_in(comparison, environment)])


def entries_in(comparison: Comparison, environment: str) -> list[Entry]:
    """Return the entry of each row in an environment."""
    place = comparison.environments.index(environment)
    return [row.entries[place] for row in comparison.rows]


def times_to_score(comparison: Comparison, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """Compute the steps at which each seed reaches the target, or until which it was observed, and whether it does.

    A seed that failed never reaches it: its time is infinite. A point of the grid that is after the last evaluation of
    a run stands for that evaluation.
    """
    grid = grid_of(comparison, entry.environment)
    values = curves.on_grid(grid, entry.steps, entry.curves)
    target = comparison.target_in(entry.environment)
    times = curves.steps_to_score(grid, values, target, comparison.consecutive)
    has_reached = np.isfinite(times) & ~entry.failed
    # Of a seed that does not reach it the time is infinite too, and so becomes that of the last evaluation.
    return np.where(entry.failed, np.inf, np.minimum(times, entry.steps[-1])), has_reached
