"""TensorBoard's event files: scalars, hyper-parameters, and films and pictures as images."""

import math
import shlex
import time as clock
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from shoal.monitor.loggers.fitted_names import FittedNames, take_note
from shoal.monitor.loggers.logged_settings import (
    as_text,
    check_folder,
    file_name,
    finite,
    flat_settings,
    folder,
    has_succeeded,
    main_series,
    require_package,
    title,
    unused,
)
from shoal.monitor.loggers.logger import LoggedRun, Logger, Series

EVENTS = "events.out.tfevents.*"
OLDEST = "2.20"
QUEUE = 1000  # events that wait for the thread that writes
QUEUE_SECONDS = 5


class TensorBoardLogger(Logger):
    """Writes an event file for each series, in a directory of its own, with TensorBoard's own writer.

    A process that resumes adds a file to each of the directories, which TensorBoard reads after the former ones.

    Args:
      dir: the directory that TensorBoard is given, in which the run has one with its name.
    """

    def __init__(self, dir: str = ""):
        self._directory = dir

    def check(self) -> None:
        """Require TensorBoard, and the directory."""
        check_folder("tensorboard", self._directory)
        require_package("tensorboard", oldest=OLDEST)

    def open(self, run: LoggedRun, state: Any) -> str:
        """Begin a file for each series; one that was not logged before has a directory without others."""
        writer = require_package("tensorboard", "tensorboard.summary.writer.event_file_writer")
        self._event = require_package("tensorboard", "tensorboard.compat.proto.event_pb2").Event
        self._summary = require_package("tensorboard", "tensorboard.compat.proto.summary_pb2").Summary
        self._run = run
        root = folder(run, "tensorboard", self._directory)
        if self._directory:
            root = root / file_name(run.path.name)
        folders = FittedNames(r"[/\\:]|^[. ]|[. ]$", 200)
        self._folders = {series.name: folders(series.name) for series in run.series if series.name}
        self.note = take_note(folders)
        self._root = root.with_name(state["directory"]) if state else unused(root, _has_events)
        self._writers = {
            series.name: writer.EventFileWriter(str(self._path(series)), QUEUE, QUEUE_SECONDS)
            for series in run.series
        }
        if state is None:
            self._add_hyper_parameters(run)
        return f"{self._root}; `tensorboard --logdir {shlex.quote(str(self._root))}` shows it"

    def _path(self, series: Series) -> Path:
        return self._root / self._folders.get(series.name, "")

    def _add(self, series: Series, summary: Any, step: int = 0, time: float = math.nan) -> None:
        time = clock.time() if math.isnan(time) else time
        self._writers[series.name].add_event(self._event(wall_time=time, step=step, summary=summary))

    def _add_hyper_parameters(self, run: LoggedRun) -> None:
        hparams = require_package("tensorboard", "tensorboard.plugins.hparams.summary_v2")
        for series in run.series:
            settings = {name: _hyper_parameter(x) for name, x in flat_settings(run, series).items()}
            summary = hparams.hparams_pb(settings, trial_id=title(run, series))
            self._add(series, self._summary.FromString(summary.SerializeToString()))

    def add_scalars(self, series: Series, step: int, numbers: Mapping[str, float], time: float) -> None:
        """Write the numbers; those that are not finite are left out."""
        values = [self._summary.Value(tag=name, simple_value=x) for name, x in finite(numbers).items()]
        if values:
            self._add(series, self._summary(value=values), step, time)

    def add_file(self, kind: str, path: Path, step: int) -> None:
        """Write films, which TensorBoard plays, and pictures; none that is damaged."""
        if kind not in ("film", "picture"):
            return
        try:
            with Image.open(path) as image:
                width, height = image.size
        except UnidentifiedImageError:
            return
        content = self._summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        name = kind if kind == "film" else path.stem
        value = self._summary.Value(tag=name, image=content)
        self._add(main_series(self._run), self._summary(value=[value]), step)

    def flush(self) -> dict[str, str]:
        """Write to the files, which then outlive a kill."""
        for writer in self._writers.values():
            writer.flush()
        return {"directory": self._root.name}

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """End the session of the hyper-parameters with whether the run has succeeded, and close the files."""
        plugin = require_package("tensorboard", "tensorboard.plugins.hparams.plugin_data_pb2")
        metadata = require_package("tensorboard", "tensorboard.plugins.hparams.metadata")
        status = require_package("tensorboard", "tensorboard.plugins.hparams.api_pb2").Status
        value = status.Value("STATUS_SUCCESS" if has_succeeded(self._run, summary) else "STATUS_FAILURE")
        end = plugin.SessionEndInfo(status=value, end_time_secs=clock.time())
        content = metadata.create_summary_metadata(plugin.HParamsPluginData(session_end_info=end))
        ended = self._summary.Value(
            tag=metadata.SESSION_END_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR
        )
        for series in self._run.series:
            if summary is not None:
                self._add(series, self._summary(value=[ended]))
            self._writers[series.name].close()


def _has_events(directory: Path) -> bool:
    return any(directory.rglob(EVENTS))


def _hyper_parameter(value: object) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else as_text(value)
