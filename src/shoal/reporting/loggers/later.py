"""Logging of runs that were trained before, or whose logger has not received all."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.user_errors import reports_user_code
from shoal.disk.lock import is_held
from shoal.reporting import records
from shoal.reporting.loggers.child import make_logger
from shoal.reporting.loggers.follower import Follower, Requested
from shoal.reporting.loggers.requests import arguments_of, keys_of
from shoal.reporting.run_record import RunRecord


@reports_user_code
def send(path: Path | str, name: str, own: Mapping[str, Any]) -> Iterator[str]:
    """Send to a logger what it lacks of a run, or of all runs of a sweep; one that trains is followed to its end.

    Args:
      own: the logger's arguments; none takes those by which the run was logged before.
    Returns:
      a line about each run.
    Raises:
      ShoalError: there is no such run, another process logs it, or the logger lacks something that it needs.
    """
    record = records.read(path)
    runs = [record] if isinstance(record, RunRecord) else [*record.runs, *record.confirmation]
    for run in runs:
        yield f"{run.path}: {_send_run(run.path, name, own)}"


def _send_run(path: Path, name: str, own: Mapping[str, Any]) -> str:
    requested = Requested(arguments_of(own), keys_of(own)).or_saved(path, name)
    follower = Follower(path, name, make_logger(name, requested.arguments), requested)
    if follower.is_complete():
        return "all was sent before"
    with follower.opened() as place:
        follower.follow(lambda: not is_held(path), lambda text: None)
        follower.finish()
    sent = f"{follower.rows_sent:,} rows and {follower.files_sent} files sent"
    return f"{sent}{place and f'; {place}'}"
