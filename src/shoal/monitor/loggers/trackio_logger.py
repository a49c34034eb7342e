"""Trackio: a run for each series, on this machine or in a Hugging Face Space."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.files import user_path
from shoal.monitor.loggers.logged_settings import (
    check_folder,
    finite,
    flat_settings,
    main_series,
    require_package,
    title,
)
from shoal.monitor.loggers.logger import LoggedRun, Logger, Series

OLDEST = "0.43"


class TrackioLogger(Logger):
    """Logs each series as a run of Trackio, those of one training run in a group.

    Trackio has no time of its own for a row but that at which it arrives, and stores a row that is sent twice twice.

    Args:
      project: its name.
      name: of the run.
      group: of the runs of all series.
      space_id: a Hugging Face Space to log to, such as "user/name".
      dir: where Trackio stores its projects; without it TRACKIO_DIR, or else Trackio's own choice.
    """

    settle_seconds = 3.0  # a thread stores rows every half second

    def __init__(
        self, project: str = "shoal", name: str = "", group: str = "", space_id: str = "", dir: str = ""
    ):
        self._project, self._name, self._group, self._space = project, name, group, space_id
        self._directory = user_path(dir, "trackio.dir").absolute() if dir else None
        if self._directory:
            os.environ["TRACKIO_DIR"] = str(self._directory)  # which Trackio reads where it is imported

    def check(self) -> None:
        """Require Trackio, a project that it takes, and the directory."""
        require_package("trackio", oldest=OLDEST)
        check_folder("trackio", str(self._directory or ""))
        storage = require_package("trackio", "trackio.sqlite_storage").SQLiteStorage
        try:
            storage.validate_project_name(self._project)
        except ValueError as error:
            raise ShoalError(f"trackio.project: {error}") from error

    def open(self, run: LoggedRun, state: Any) -> str:
        """Begin a run of Trackio for each series, or resume those of an earlier process."""
        self._run = run
        ids = (state or {}).get("ids", {})
        self._runs = {series.name: self._begin(series, ids.get(series.name)) for series in run.series}
        if self._space:
            return f"https://huggingface.co/spaces/{self._space}"
        place = f"TRACKIO_DIR={self._directory} " if self._directory else ""
        return f"`{place}trackio show --project {self._project}` shows it"

    def _begin(self, series: Series, number: str | None) -> Any:
        trackio = require_package("trackio")
        trackio.context_vars.current_run.set(None)  # which it would finish
        several = len(self._run.series) > 1
        run = trackio.init(
            project=self._project,
            name=title(self._run, series, self._name),
            group=self._group or (self._run.path.name if several else None),
            config={key.lstrip("_"): x for key, x in flat_settings(self._run, series).items()},
            space_id=self._space or None,
            resume="never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,  # of this process, which does not train
        )
        trackio.context_vars.current_run.set(None)
        run.id = number or run.id  # Trackio itself resumes by the name, which another run may have
        return run

    def add_scalars(self, series: Series, step: int, numbers: Mapping[str, float], time: float) -> None:
        """Log the numbers; those that are not finite are left out."""
        if values := finite(numbers):
            self._runs[series.name].log(values, step=step)

    def add_file(self, kind: str, path: Path, step: int) -> None:
        """Log a film, a picture, or a policy as an artifact."""
        trackio = require_package("trackio")
        run = self._runs[main_series(self._run).name]
        if kind == "film":
            run.log({"film": trackio.Video(str(path))}, step=step)
        elif kind == "picture":
            run.log({path.stem: trackio.Image(str(path))}, step=step)
        elif kind == "policy":
            run.log_artifact(str(path), name=f"policy-{run.id}", type="model")

    def flush(self) -> dict[str, object]:
        """Return the ids of the runs of Trackio."""
        return {"ids": {name: run.id for name, run in self._runs.items()}}

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Finish the runs of Trackio, which stores all that they were given."""
        for run in self._runs.values():
            run.finish()
