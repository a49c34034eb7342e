"""Synchronous successive halving: at each rung the best settings continue, and the others stop.

All settings are compared after the same number of updates, by the interquartile mean of their seeds' evaluations. Of
those that have a score (a setting of which all seeds failed has none) one of every `factor` continues, at least one.
A member that has stopped makes no further update and is not evaluated; its schedules are those of the full budget, as
those of the members that continue.

Source: Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"; Li et al.
2020, "A System for Massively Parallel Hyperparameter Tuning".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shoal.base.errors import ShoalError
from shoal.records.members import Members
from shoal.records.scores import rank_settings

if TYPE_CHECKING:
    from shoal.records.run_config import RunConfig  # which imports this module


def updates_in(steps: int, steps_per_update: int) -> int:
    """Return the number of whole updates nearest to a number of environment steps, at least one."""
    return max(1, round(steps / steps_per_update))


class Halving(NamedTuple):
    """The rungs at which members of several settings stop."""

    factor: int  # one of this many settings continues
    min_steps: int  # environment steps of each member before the first rung
    metric: str = "return_mean"  # of evaluations, by which settings are compared

    def rungs(self, steps_per_update: int, total_steps: int) -> list[int]:
        """List the numbers of updates at which settings are compared: those of min_steps times powers of factor."""
        found, steps = [], self.min_steps
        while (updates := updates_in(steps, steps_per_update)) < total_steps // steps_per_update:
            found.append(updates)
            steps *= self.factor
        return found

    def check(self, run: "RunConfig", settings: int) -> None:
        """Require that there is something to stop, and a time to do it."""
        if self.factor < 2:
            raise ShoalError(f"halving={self.factor} is too small: one of at least 2 settings continues.")
        if not run.is_evaluated:
            raise ShoalError(
                f"halving={self.factor} compares evaluations, and eval_every='never' makes none."
            )
        total = run.total_updates * run.steps_per_update
        if not run.steps_per_update <= self.min_steps < total:
            raise ShoalError(
                f"min_steps={self.min_steps} is not between one update, num_envs*num_steps={run.steps_per_update}, and "
                f"the whole budget of {total}; {max(total // self.factor**2, run.steps_per_update)} makes two rungs."
            )
        if settings < self.factor:
            raise ShoalError(
                f"halving={self.factor} stops none of {settings} settings; give at least {self.factor} of them."
            )

    def stops(
        self, at_rungs: np.ndarray, members: Members, has_failed: np.ndarray, has_stopped: np.ndarray
    ) -> np.ndarray:
        """Report of each member whether its setting does not continue after the last of some rungs, [members].

        Args:
          at_rungs: the metric at the rungs so far, [rungs, members]; that of members that failed does not count.
        """
        scores = np.where(has_failed, np.nan, at_rungs)
        compared: dict[str, list[float]] = {}
        for member, is_out, score in zip(members, has_stopped, scores[-1], strict=True):
            if not is_out:
                compared.setdefault(member.label, []).append(float(score))
        survivors = set(self.survivors(compared, scores.ravel()))
        return np.array([member.label not in survivors for member in members])

    def survivors(self, scores: Mapping[str, Sequence[float]], others: Iterable[float] = ()) -> list[str]:
        """Return the labels of the settings that continue, best first: one of every `factor` that have a score
        (see `rank_settings`).
        """
        living = [label for label, x in rank_settings(scores, others).items() if np.isfinite(x.iqm)]
        return living[: max(len(living) // self.factor, 1)]
