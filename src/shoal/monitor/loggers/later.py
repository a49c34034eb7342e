"""Logging of runs that were trained before, or whose logger has not received all."""

from collections.abc import Iterator
from pathlib import Path

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.monitor.companions import Process
from shoal.monitor.loggers.follower import Follower, saved_request
from shoal.monitor.loggers.logger import Logger
from shoal.monitor.loggers.requests import Requested, companion_of
from shoal.reports import records
from shoal.reports.run_record import RunRecord


def send(path: Path | str, name: str, requested: Requested) -> Iterator[str]:
    """Send to a logger what it lacks of a run, or of all runs of a sweep; one that trains is followed to its end.

    Args:
      requested: how the logger is asked for; nothing takes how the run was logged before.
    Returns:
      a line about each run.
    Raises:
      ShoalError: there is no such run, another process logs it, or the logger fails.
    """
    record = records.read(path)
    runs = [record] if isinstance(record, RunRecord) else [*record.runs, *record.confirmation]
    for run in runs:
        yield f"{run.path}: {_send_run(run.path, name, requested)}"


def _send_run(path: Path, name: str, requested: Requested) -> str:
    before = saved_request(path, name, requested)
    if Follower(path, name, Logger(), before).is_complete():
        return "all was sent before"
    process = Process(companion_of(name, requested, process=None), signals.say)
    process.start()
    try:
        process.require(signals.say)
        process.begin(path, signals.say, lambda text: None)
        process.wait()
    except BaseException:
        process.abandon()
        raise
    if process.failure:
        raise ShoalError(f"{name}: {process.failure}.")
    sent, place = "{rows:,} rows and {files} files sent".format(**process.result), process.result["place"]
    return f"{sent}{place and f'; {place}'}"
