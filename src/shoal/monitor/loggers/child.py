"""The process of a logger: it follows the files of a run, and is told by a pipe where it is and that it has ended.

-> {"logger": "wandb", "arguments": {...}, "keys": "shoal", "process": 123}
<- {"ready": ""}, or {"error": "why the run should not begin"}
-> {"run": "runs/first"}
<- {"note": "wandb: https://..."}
<- {"stop": "why the run should stop"}
-> (the pipe ends)
<- {"ended": {"complete": true, "rows": 8, "files": 3, "place": "https://..."}}, or {"error": "why it has failed"}

Without the number of a process that trains it follows the run by its lock, and ends with the pipe.
"""

import contextlib
import faulthandler
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from shoal.base.errors import ShoalError
from shoal.base.imports import find_user_modules
from shoal.base.user_errors import describe_error, reports_user_code, user_code_error
from shoal.monitor.loggers import logger_names
from shoal.monitor.loggers.follower import Follower, Requested, state_file
from shoal.monitor.loggers.logger import Logger
from shoal.records.directory import LOGGERS
from shoal.records.lock import is_held

TRACE_SECONDS = 10.0  # after the end of a run, until the log has where a logger is that has not ended
LAST_SECONDS = 600.0  # that a logger may take then, before its process is ended
PATIENCE_SECONDS = 60.0  # for the logger of a trainer that was killed
LOG_BYTES = 1_000_000  # that a logger may print before what it printed is dropped
CHECK_SECONDS = 0.2  # from one look at the size of the log to the next


def main() -> None:
    """Follow a run until the pipe ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a logger prints goes where its errors go
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()

    def tell(**message: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            print(json.dumps(message), file=answers, flush=True)

    request, run, ended = json.loads(sys.stdin.readline()), queue.SimpleQueue[str](), threading.Event()
    threading.Thread(target=_listen, args=(run, ended, request["process"]), daemon=True).start()
    find_user_modules(request["folder"])
    try:
        _serve(request, run, ended, tell)
    except BaseException as error:
        _fail(error, tell)
    os._exit(0)  # whatever threads a logger has left


def _serve(
    request: dict[str, Any], run: queue.SimpleQueue[str], ended: threading.Event, tell: Callable[..., None]
) -> None:
    name, trainer = request["logger"], request["process"]
    requested = Requested(request["arguments"], request["keys"])
    logger = make_logger(name, requested.arguments)
    tell(ready=name)
    path, opened = Path(run.get()), None
    log = state_file(path, name).with_suffix(".log")
    with _printing_into(log):
        if (saved := requested.or_saved(path, name)) != requested:
            requested, logger = saved, make_logger(name, saved.arguments)
        follower = Follower(path, name, logger, requested, trainer, tell)
        has_ended = ended.is_set if trainer else lambda: not is_held(path)
        try:
            with follower.opened(PATIENCE_SECONDS if trainer else 0.0) as place:
                opened = logger
                if place and trainer:
                    tell(note=f"{name}: {place}")
                follower.follow(has_ended)
                is_complete = follower.finish()
        except BaseException as error:
            _fail(error, tell, opened, log)
    sent = {"rows": follower.rows_sent, "files": follower.files_sent}
    tell(ended={"complete": is_complete, "place": place, **sent})


@reports_user_code
def make_logger(name: str, arguments: Mapping[str, str]) -> Logger:
    """Make a logger, and require what it needs.

    Raises:
      ShoalError: there is none of that name, it does not take the arguments, or something that it needs is missing.
    """
    logger = logger_names.make(name, arguments)
    logger.check()
    return logger


def _fail(
    error: BaseException, tell: Callable[..., None], logger: Logger | None = None, log: Path | None = None
) -> NoReturn:
    """Say why a logger has failed, let it end its runs of a tool, and end the process."""
    traceback.print_exception(error)
    where = (
        "" if log is None or isinstance(error, ShoalError) else f"; {LOGGERS}/{log.name} has its traceback"
    )
    tell(error=f"{_sentence(error).rstrip('.')}{where}.")
    if logger is not None:
        with contextlib.suppress(Exception):
            logger.close(None)
    os._exit(1)


def _sentence(error: BaseException) -> str:
    reported = error if isinstance(error, ShoalError) else user_code_error(error)
    return describe_error(error) if reported is None else str(reported)


def _listen(run: queue.SimpleQueue[str], ended: threading.Event, trainer: int | None) -> None:
    """Receive the directory of a run, and its end; a logger that hangs before it, or long after it, is ended."""
    told = sys.stdin.readline()
    if not told:
        os._exit(1)
    run.put(json.loads(told)["run"])
    sys.stdin.read()
    if trainer is None:
        os._exit(1)
    ended.set()
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


if __name__ == "__main__":
    main()
