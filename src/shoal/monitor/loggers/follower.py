"""A logger that follows the files of a run: what was sent is remembered, so that nothing is sent twice."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from shoal.base.errors import ShoalError
from shoal.monitor.loggers.logged_settings import settings_hash
from shoal.monitor.loggers.logger import LoggedRun, Logger
from shoal.monitor.loggers.requests import Requested
from shoal.monitor.loggers.rows import Position, RowReader
from shoal.monitor.loggers.series import CLEANRL_NAMES, Aggregation, cleanrl_names, series_of
from shoal.records.directory import COMPLETE, CONFIG, FILMS, LOGGERS, SUMMARY, RunDirectory
from shoal.records.json_files import read_json, write_json
from shoal.records.members import members_of_config
from shoal.records.metrics_file import METRICS
from shoal.reports.run_record import read_if

SCHEMA = 1
POLL_SECONDS = 0.5
FLUSH_SECONDS = 3.0


def saved_request(path: Path, name: str, requested: Requested) -> Requested:
    """Return how a logger is asked for, or where that says nothing how the run was logged before."""
    saved = (read_if(state_file(path, name)) or {}).get("requested") if requested == Requested() else None
    return Requested(**saved) if saved else requested


def state_file(path: Path, name: str) -> Path:
    """Return the file with the state of a logger of a run."""
    return path / LOGGERS / f"{name.replace(':', '-').replace('/', '-')}.json"


class Follower:
    """Sends the rows and files of a run to a logger, from where an earlier process ended.

    Args:
      path: the run's directory.
      name: of the logger; its state is `loggers/NAME.json`.
      requested: how the logger was made.
      process: the number of the process that trains, if one does.
      tell: receives a `note` to show, or a `stop` by which the logger asks the run to stop.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        logger: Logger,
        requested: Requested | None = None,
        process: int | None = None,
        tell: Callable[..., None] = lambda **message: None,
    ):
        self._path, self._name, self._logger, self._tell = path, name, logger, tell
        self._requested = requested or Requested()
        is_cleanrl = self._requested.keys == "cleanrl"
        self._config = read_json(path / CONFIG)
        self._members = members_of_config(self._config)
        names = CLEANRL_NAMES if is_cleanrl else {}
        further = cleanrl_names(self._config) if is_cleanrl else {}
        self._run = LoggedRun(path, self._config, series_of(self._config), process, further)
        self._aggregation = Aggregation(self._members, self._run.series, names, self._config)
        self._file = state_file(path, name)
        self._file.parent.mkdir(exist_ok=True)
        self._lock = FileLock(self._file.with_name(f".{self._file.stem}.lock"), preserve_lock_file=True)
        self._reader = RowReader(path / METRICS)
        self._state = self._new_state()
        self._position = Position()  # of the rows that were read
        self._sent_before = Position()  # the rows up to here are not sent again
        self._skipped: list[list[dict[str, Any]]] = []  # the points before that
        self._group: list[dict[str, Any]] = []  # rows of the point that is being read
        self._unsettled: collections.deque[tuple[float, Position]] = collections.deque()
        self._flush_time = 0.0
        self._told: dict[str, str] = {}  # the last note and request to stop
        self.rows_sent = self.files_sent = 0  # by this process

    @contextlib.contextmanager
    def opened(self, patience: float = 0.0) -> Iterator[str]:
        """Hold the lock and open the logger; gives where the numbers can be seen.

        Args:
          patience: seconds to wait for another process that has locked the run, such as that of a killed trainer.
        Raises:
          ShoalError: another process logs the run by the same logger.
        """
        try:
            held = self._lock.acquire(timeout=patience)
        except Timeout:
            raise ShoalError(
                f"run {str(self._path)!r} is being logged by {self._name} in another process; wait until that has "
                "ended."
            ) from None
        with held:
            self._state = self._saved_state()
            self._sent_before = Position(self._state["rows"], self._state["sha256"])
            yield self._open()

    def _saved_state(self) -> dict[str, Any]:
        saved = read_if(self._file) or {}
        new = self._new_state()
        is_same = all(saved.get(name) == new[name] for name in ("schema", "settings", "requested"))
        return saved if is_same else new

    def _new_state(self) -> dict[str, Any]:
        """Return the state of a run of which nothing was sent."""
        requested = {"arguments": dict(self._requested.arguments), "keys": self._requested.keys}
        known = {"schema": SCHEMA, "name": self._name, "settings": settings_hash(self._config)}
        start = {"place": "", **Position()._asdict(), "files": [], "state": None, "finished": False}
        return {**known, "requested": requested, **start}

    def is_complete(self) -> bool:
        """Report whether an earlier process has sent a finished run to its end."""
        state, position = self._saved_state(), Position()
        for row in RowReader(self._path / METRICS).new_rows()[0]:
            position = position.after(row)
        names = [_file_key(self._path, "film", film, int(film.stem)) for film in self._films()]
        has_films = set(names) <= set(state["files"])
        return bool(state["finished"]) and has_films and position == (state["rows"], state["sha256"])

    def _open(self) -> str:
        self._state["place"] = self._logger.open(self._run, self._state["state"])
        self._add_file("config", self._path / CONFIG, 0)
        self.flush()  # so that a kill leaves no run of the logger that nobody knows
        return str(self._state["place"])

    @property
    def _is_skipping(self) -> bool:
        """Whether the rows that were read so far were sent by an earlier process."""
        return self._position.rows < self._sent_before.rows

    def follow(self, has_ended: Callable[[], bool]) -> None:
        """Send what is added until the run has ended, and what is there then.

        Args:
          has_ended: whether nothing is added any more.
        """
        while True:
            is_last = has_ended()
            self.send_new()
            self._tell_new()
            if is_last:
                return
            time.sleep(POLL_SECONDS)

    def _tell_new(self) -> None:
        for kind, text in (("note", self._logger.note), ("stop", self._logger.stop)):
            if text and text != self._told.get(kind):
                self._told[kind] = text
                self._tell(**{kind: f"{self._name}: {text}"})

    def send_new(self) -> None:
        """Send the rows and films that are new, and store the state if it is time."""
        rows, was_cut = self._reader.new_rows()
        if was_cut:
            self._restart_reading()
        for row in rows:
            self._group.append(row)
            if len(self._group) == len(self._members):
                self._take(self._group)
                self._group = []
        for film in self._films():
            self._add_file("film", film, int(film.stem))
        if time.monotonic() - self._flush_time >= FLUSH_SECONDS:
            self.flush()

    def _films(self) -> list[Path]:
        return sorted(x for x in self._path.glob(f"{FILMS}/*.gif") if x.stem.isdecimal())

    def _restart_reading(self) -> None:
        """Begin with the first row again; what was sent is skipped."""
        self._sent_before = max(self._sent_before, self._position)
        self._position, self._group, self._skipped = Position(), [], []
        self._aggregation = self._aggregation.restarted()
        self._unsettled.clear()

    def _take(self, group: list[dict[str, Any]]) -> None:
        """Send the rows of a point, or skip them where they were sent before."""
        was_skipping = self._is_skipping
        for row in group:
            self._position = self._position.after(row)
        if not was_skipping:
            self._send(group)
            return
        self._skipped.append(group)
        if self._is_skipping:
            return
        if self._position != self._sent_before:
            self._begin_anew()
        for skipped in self._skipped:
            list(self._aggregation.numbers(skipped))  # who failed, and whom halving stopped
        self._skipped = []

    def _begin_anew(self) -> None:
        """Send all to a new run of the logger, since the rows that were sent are not those of the file."""
        self._logger.close(None)
        self._state, self._sent_before = self._new_state(), Position()
        self._aggregation = self._aggregation.restarted()
        self._open()
        for group in self._skipped:
            self._send(group)
        self._skipped = []

    def _send(self, group: list[dict[str, Any]]) -> None:
        step, written = int(group[0]["step"]), float(group[0].get("time", "nan"))
        for series, numbers in self._aggregation.numbers(group):
            self._logger.add_scalars(series, step, numbers, written)
        self._unsettled.append((time.monotonic(), self._position))
        self.rows_sent += len(group)

    def _add_file(self, kind: str, path: Path, step: int) -> None:
        """Send a file, once."""
        name = _file_key(self._path, kind, path, step)
        if name in self._state["files"] or not path.is_file():
            return
        self._logger.add_file(kind, path, step)
        self.files_sent += 1
        self._state["files"].append(name)

    def flush(self) -> None:
        """Let the logger store what it was given, and store the position of what has settled."""
        self._state["state"] = self._logger.flush()
        self._flush_time = time.monotonic()
        settled = None
        while self._unsettled and self._unsettled[0][0] + self._logger.settle_seconds <= self._flush_time:
            settled = self._unsettled.popleft()[1]
        self._save({} if settled is None else settled._asdict())

    def _save(self, changes: Mapping[str, object]) -> None:
        self._state |= changes
        write_json(self._file, self._state)

    def finish(self) -> bool:
        """Send the last numbers and files of a run, and close the logger; return whether the run has finished."""
        summary = read_if(self._path / SUMMARY)
        if summary is not None and self._is_skipping:  # the file has fewer rows than were sent
            self._begin_anew()
        if summary is not None and (self.rows_sent or not self._state["finished"]):
            self._send_result(summary)
        self._state["state"] = self._logger.flush()
        self._logger.close(summary)
        self._tell_new()
        position = {} if self._is_skipping else self._position._asdict()
        self._save({**position, "finished": summary is not None})
        if summary is not None:
            RunDirectory(self._path).save_logger(self._name, COMPLETE)
        return summary is not None

    def _send_result(self, summary: Mapping[str, Any]) -> None:
        step = int(summary["steps_per_seed"])
        for series, numbers in self._aggregation.absolute(summary):
            self._logger.add_scalars(series, step, numbers, time.time())
        self._add_file("policy", RunDirectory(self._path).policy_path("best"), step)
        for picture in sorted(self._path.glob("*.png")):
            self._add_file("picture", picture, step)


def _file_key(run_path: Path, kind: str, path: Path, step: int) -> str:
    """Return the name of a file that was sent, in a state; that of a longer run is another one."""
    return f"{kind}:{path.relative_to(run_path)}:{step}"
