"""The process of a logger, which follows the files of a run (see `monitor/companions.py`).

Without a process that trains it follows the run by its lock.
"""

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.monitor.companions import Trainer
from shoal.monitor.loggers import logger_names
from shoal.monitor.loggers.follower import Follower, saved_request, state_file
from shoal.monitor.loggers.logger import Logger
from shoal.monitor.loggers.requests import Requested
from shoal.records.directory import LOGGERS
from shoal.records.lock import is_held

TRACE_SECONDS = 10.0  # after the end of a run, until the log has where a logger is that has not ended
LAST_SECONDS = 600.0  # that a logger may take then, before its process is ended
PATIENCE_SECONDS = 60.0  # for the logger of a trainer that was killed
LOG_BYTES = 1_000_000  # that a logger may print before what it printed is dropped
CHECK_SECONDS = 0.2  # from one look at the size of the log to the next


def follow(trainer: Trainer) -> Mapping[str, object]:
    """Send the rows and files of a run to a logger until the run has ended; return how many there were."""
    name = trainer.request["logger"]
    requested = Requested(trainer.request["arguments"], trainer.request["keys"])
    logger = _usable_logger(name, requested)
    path, is_open = trainer.await_run(), False
    threading.Thread(target=_limit_time, args=(trainer.ended,), daemon=True).start()
    log = state_file(path, name).with_suffix(".log")
    with _printing_into(log):
        try:
            if (saved := saved_request(path, name, requested)) != requested:
                requested, logger = saved, _usable_logger(name, saved)
            follower = Follower(path, name, logger, requested, trainer.process, trainer.tell)
            has_ended = trainer.ended.is_set if trainer.process else lambda: not is_held(path)
            with follower.opened(PATIENCE_SECONDS if trainer.process else 0.0) as place:
                is_open = True
                if place and trainer.process:
                    trainer.tell(note=f"{name}: {place}")
                follower.follow(has_ended)
                is_complete = follower.finish()
        except BaseException as error:
            is_sentence = isinstance(error, ShoalError)
            trainer.tell_failure(error, "" if is_sentence else f"; {LOGGERS}/{log.name} has its traceback")
            with contextlib.suppress(Exception):  # after it was told, since this may hang
                if is_open:
                    logger.close(None)
            os._exit(1)
    sent = {"rows": follower.rows_sent, "files": follower.files_sent}
    return {"complete": is_complete, "place": place, **sent}


def _usable_logger(name: str, requested: Requested) -> Logger:
    """Make a logger, and require what it needs.

    Raises:
      ShoalError: there is none of that name, it does not take the arguments, or something that it needs is missing.
    """
    logger = logger_names.make(name, requested.arguments)
    logger.check()
    return logger


def _limit_time(ended: threading.Event) -> None:
    """End a logger that hangs long after the end of the run."""
    ended.wait()
    time.sleep(TRACE_SECONDS)
    faulthandler.dump_traceback()
    time.sleep(LAST_SECONDS)
    os._exit(1)


@contextlib.contextmanager
def _printing_into(path: Path) -> Iterator[None]:
    """Write what is printed into a file, what was printed before too; what is more than some bytes is dropped."""
    path.parent.mkdir(exist_ok=True)
    file = open(path, "ab")  # noqa: SIM115 (it stays open until the process has ended)
    with contextlib.suppress(OSError):  # standard error is no file
        file.write(os.pread(2, LOG_BYTES, 0))
        file.flush()
    for descriptor in (1, 2):
        os.dup2(file.fileno(), descriptor)
    most = file.tell() + LOG_BYTES

    def limit() -> None:
        if os.fstat(file.fileno()).st_size > most:
            os.ftruncate(file.fileno(), most)
            with open(os.devnull, "wb") as null:
                for descriptor in (1, 2):
                    os.dup2(null.fileno(), descriptor)

    def watch() -> None:
        while True:
            time.sleep(CHECK_SECONDS)
            limit()

    threading.Thread(target=watch, daemon=True).start()
    yield
    limit()
