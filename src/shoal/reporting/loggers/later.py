"""Logging of runs that were trained before, or whose logger has not received all."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.user_errors import reports_user_code
from shoal.disk.lock import is_held
from shoal.reporting import records
from shoal.reporting.loggers.child import make_logger
from shoal.reporting.loggers.follower import Follower
from shoal.reporting.loggers.requests import arguments_of, keys_of
from shoal.reporting.run_record import RunRecord


@reports_user_code
def send(path: Path | str, name: str, own: Mapping[str, Any]) -> Iterator[str]:
    """Send to a logger what it lacks of a run, or of all runs of a sweep; one that trains is followed to its end.

    Args:
      own: the logger's arguments.
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
    logger = make_logger(name, arguments_of(own))
    follower = Follower(path, name, logger, keys=keys_of(own))
    if follower.is_complete():
        return "all was sent before"
    with follower.opened() as place:
        follower.follow(lambda: not is_held(path), lambda text: None)
        follower.finish()
    return f"{follower.rows_sent:,} rows sent{place and f'; {place}'}"
