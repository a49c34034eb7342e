"""MLflow: a run for the whole, and one nested in it for each member, in a database or on a server."""

import math
import os
import time as clock
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.monitor.loggers.fitted_names import FittedNames, take_note
from shoal.monitor.loggers.logged_settings import (
    as_text,
    finite,
    flat_settings,
    has_succeeded,
    main_series,
    require_package,
    result_numbers,
    title,
)
from shoal.monitor.loggers.logger import LoggedRun, Logger, Series
from shoal.records.directory import LOGGERS

OLDEST = "3.17"
# What `mlflow.utils.validation` refuses, and the columns of its databases.
REFUSED = (
    r"[^/\w.\- :]|^/|/(?=/|$)|(?<![^/])\.{1,2}(?![^/])"  # of the name of a metric or a parameter, a path
)
NAME_LENGTH = 250  # of these, and of a run
EXPERIMENT_LENGTH = 256
PARAMETER_CHARACTERS = 6000
METRICS_PER_CALL = 1000
PARAMETERS_PER_CALL = 20  # which are below its 1 MB for a call
PARENT = "mlflow.parentRunId"


class MlflowLogger(Logger):
    """Logs each series as a run of MLflow, those of members nested in the run of all.

    Args:
      tracking_uri: of a database or a server; without it MLFLOW_TRACKING_URI, or else a SQLite file in the run.
      experiment: its name; without it MLFLOW_EXPERIMENT_NAME, or else "shoal".
      name: of the run.
    """

    def __init__(self, tracking_uri: str = "", experiment: str = "", name: str = ""):
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "") or "shoal"
        self._experiments = FittedNames(most=EXPERIMENT_LENGTH)
        self._experiment = self._experiments(experiment)
        self._name = name
        self._waiting: dict[str, list[Any]] = {}  # metrics by the names of series

    def check(self) -> None:
        """Require MLflow."""
        require_package("mlflow", oldest=OLDEST)

    def open(self, run: LoggedRun, state: Any) -> str:
        """Create the runs of MLflow, or continue those of an earlier process."""
        self._entities = require_package("mlflow", "mlflow.entities")
        self._run = run
        directory = run.path.absolute() / LOGGERS
        uri = self._uri or f"sqlite:///{directory / 'mlflow.db'}"
        directory.mkdir(exist_ok=True)
        self._client = require_package("mlflow").MlflowClient(uri)
        experiment = self._find_experiment(None if self._uri else (directory / "mlflow_files").as_uri())
        state = state or {}
        ids, self._names = state.get("ids", {}), FittedNames(REFUSED, NAME_LENGTH, state.get("names"))
        self._settings, self._titles = FittedNames(REFUSED, NAME_LENGTH), FittedNames(most=NAME_LENGTH)
        main = main_series(run)
        self._ids = {main.name: ids.get(main.name) or self._create(experiment, main, {})}
        tags = {PARENT: self._ids[main.name]}
        for series in (x for x in run.series if x != main):
            self._ids[series.name] = ids.get(series.name) or self._create(experiment, series, tags)
        for number in self._ids.values():
            self._client.update_run(number, status="RUNNING")
        self.note = take_note(self._experiments, self._settings, self._titles)
        if uri.startswith("http"):
            return f"{uri}/#/experiments/{experiment}/runs/{self._ids[main.name]}"
        return f"{uri}; `mlflow ui --backend-store-uri {uri}` shows it"

    def _find_experiment(self, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return found.experiment_id if found else self._client.create_experiment(self._experiment, artifacts)

    def _create(self, experiment: str, series: Series, tags: Mapping[str, str]) -> str:
        name = self._titles(title(self._run, series, self._name))
        number: str = self._client.create_run(experiment, tags=dict(tags), run_name=name).info.run_id
        settings = [
            self._entities.Param(self._settings(key), as_text(value)[:PARAMETER_CHARACTERS])
            for key, value in flat_settings(self._run, series).items()
        ]
        for start in range(0, len(settings), PARAMETERS_PER_CALL):
            self._client.log_batch(number, params=settings[start : start + PARAMETERS_PER_CALL])
        return number

    def add_scalars(self, series: Series, step: int, numbers: Mapping[str, float], time: float) -> None:
        """Keep the numbers for the next call; those that are not finite are left out."""
        milliseconds = int(1000 * (clock.time() if math.isnan(time) else time))
        self._waiting.setdefault(series.name, []).extend(
            self._entities.Metric(self._names(name), x, milliseconds, step)
            for name, x in finite(numbers).items()
        )
        self.note = take_note(self._names) or self.note

    def add_file(self, kind: str, path: Path, step: int) -> None:
        """Log a file as an artifact of the run of all; films in a directory."""
        self._client.log_artifact(
            self._ids[main_series(self._run).name], str(path), "films" if kind == "film" else None
        )

    def flush(self) -> dict[str, object]:
        """Send the metrics, and return the numbers of the runs of MLflow, and the names that differ there."""
        for name, metrics in self._waiting.items():
            while metrics:
                self._client.log_batch(self._ids[name], metrics=metrics[:METRICS_PER_CALL])
                del metrics[:METRICS_PER_CALL]
        return {"ids": self._ids, "names": self._names.changed}

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """End the runs of MLflow: FINISHED, FAILED where all members failed, KILLED where the run can be resumed."""
        main = main_series(self._run)
        if summary is not None:
            self.add_scalars(main, int(summary["steps_per_seed"]), result_numbers(summary), math.nan)
        ended = "FINISHED" if has_succeeded(self._run, summary) else "KILLED" if summary is None else "FAILED"
        try:
            self.flush()
        finally:
            for number in self._ids.values():
                self._client.set_terminated(number, ended)
