"""The host's state of a run in progress."""

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from shoal.records.pbt_lineage import Exchange

OPTIMISER_STEPS = "optimiser_steps"  # the name of their column among the numbers of a log point

Numbers = dict[str, np.ndarray]  # one number per member


class Seconds(NamedTuple):
    """Wall time by activity, in seconds."""

    compile: float
    train: float
    evaluate: float


def with_last_scores(scores: np.ndarray, members: Iterable[int]) -> np.ndarray:
    """Fill in scores [evaluations, members] of members whose training ended early with their last finite score.

    Returns:
      a copy.
    """
    filled = np.array(scores)
    for column in (filled[:, member] for member in members):
        if (found := np.flatnonzero(np.isfinite(column))).size:
            column[found[-1] :] = column[found[-1]]
    return filled


@dataclasses.dataclass
class History:
    """The host's state of a run in progress; with the population it is sufficient to continue the run.

    Attributes:
      logged: the number of updates at the last log point.
      logged_seconds: of training, at the last log point.
      evaluations: (updates, metrics) of each evaluation.
      seconds: wall time by activity.
      frozen: members that had numbers that were not finite, and are trained no further.
      exchanges: between the members, or changes of their settings, if there are any.
      optimiser_steps: of each member at the last log point, [members]; 0 where the algorithm does not count them.
      stopped: why the run ends before its budget is spent; "" where it does not.
    """

    updates: int = 0
    logged: int = 0
    logged_seconds: float = 0.0
    evaluations: list[tuple[int, Numbers]] = dataclasses.field(default_factory=list)
    seconds: Seconds = dataclasses.field(default_factory=lambda: Seconds(0.0, 0.0, 0.0))
    frozen: list[int] = dataclasses.field(default_factory=list)
    exchanges: list[Exchange] = dataclasses.field(default_factory=list)
    optimiser_steps: np.ndarray | float = 0.0
    stopped: str = ""

    @property
    def evaluated(self) -> int:
        """The number of updates at the last evaluation; -1 before the first."""
        return self.evaluations[-1][0] if self.evaluations else -1

    def stop(self, reason: str | None) -> None:
        """End the run at its current update, if there is a reason; the first one is kept."""
        self.stopped = self.stopped or reason or ""

    def spend(self, **seconds: float) -> None:
        """Add wall time to activities."""
        spent = {name: getattr(self.seconds, name) + x for name, x in seconds.items()}
        self.seconds = self.seconds._replace(**spent)
