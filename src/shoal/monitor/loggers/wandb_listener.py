"""A listener that logs to the run of W&B that a user's own program has begun, in the same process."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.monitor.listeners import StartedRun
from shoal.monitor.loggers.fitted_names import FittedNames
from shoal.monitor.loggers.logged_settings import finite, flat_settings, require_package, result_numbers
from shoal.monitor.loggers.logger import LoggedRun, Series
from shoal.monitor.loggers.series import Aggregation
from shoal.monitor.loggers.wandb_logger import OLDEST, REFUSED_IN_METRICS, STEP, log_policy
from shoal.records.directory import RunDirectory

ALL = Series("all", "all")


class WandbListener:
    """Logs to `wandb.run`: of several members their interquartile mean, and the best policies at the end.

    The run of W&B stays the user's: it is neither begun nor finished here. The numbers have W&B's axis `global_step`.

    Args:
      run: another run of W&B than the one that is `wandb.run` when training starts.
    """

    def __init__(self, run: Any = None):
        self._run = run
        self._names = FittedNames(REFUSED_IN_METRICS)

    def on_start(self, run: StartedRun) -> None:
        """Take the run of W&B, and give it the settings.

        Raises:
          ShoalError: there is none.
        """
        self._run = self._run or require_package("wandb", oldest=OLDEST).run
        if self._run is None:
            raise ShoalError("WandbListener has no run of W&B; call wandb.init() before training.")
        self._path, self._members = run.path, run.members
        series = Series("", "member", *run.members[0]) if len(run.members) == 1 else ALL
        self._aggregation = Aggregation(run.members, (series,), {}, run.config)
        self._run.config.update(
            flat_settings(LoggedRun(run.path, run.config, (series,)), series), allow_val_change=True
        )
        for kind in ("train", "evaluation"):
            self._run.define_metric(f"{kind}/*", step_metric=STEP)  # and of none of the user's own numbers

    def on_training(self, step: int, numbers: Mapping[str, np.ndarray]) -> None:
        """Log the numbers of a log point."""
        self._log("train", step, numbers)

    def on_evaluation(self, step: int, numbers: Mapping[str, np.ndarray]) -> None:
        """Log the numbers of an evaluation."""
        self._log("evaluation", step, numbers)

    def _log(self, kind: str, step: int, numbers: Mapping[str, np.ndarray]) -> None:
        rows = [
            {
                "kind": kind,
                "step": step,
                **member.columns,
                **{name: _entry(x, k) for name, x in numbers.items()},
            }
            for k, member in enumerate(self._members)
        ]
        for _, own in self._aggregation.numbers(rows):
            if values := finite(own):
                self._run.log({self._names(key): x for key, x in values.items()} | {STEP: step})

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Log the result, and the best policies as an artifact."""
        self._run.summary.update(result_numbers(summary))
        path = RunDirectory(self._path).policy_path("best")
        if path.is_file():
            log_policy(self._run, path)


def _entry(values: object, member: int) -> object:
    """Return a number of a member; those within another entry by their names."""
    if isinstance(values, Mapping):
        return {name: _entry(x, member) for name, x in values.items()}
    return np.asarray(values)[member].item()
