"""The process of a logger: it follows the files of a run, and is told by a pipe where it is and that it has ended.

-> {"logger": "wandb", "arguments": {...}, "keys": "shoal", "process": 123}
<- {"ready": ""}, or {"error": "why the run should not begin"}
-> {"run": "runs/first"}
<- {"note": "wandb: https://..."}
<- {"stop": "why the run should stop"}
-> (the pipe ends)
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.imports import find_user_modules
from shoal.base.user_errors import describe_error, reports_user_code, user_code_error
from shoal.reporting.loggers import logger_names
from shoal.reporting.loggers.follower import Follower, Requested
from shoal.reporting.loggers.logger import Logger

LAST_SECONDS = 600.0  # that a logger may take after the run has ended, before its process is ended
PATIENCE_SECONDS = 60.0  # for the logger of a trainer that was killed
LOG_BYTES = 1_000_000  # that a logger may print before what it printed is dropped


def main() -> None:
    """Follow a run until the pipe ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)

    def tell(**message: Any) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            print(json.dumps(message), file=answers, flush=True)

    request = json.loads(sys.stdin.readline())
    find_user_modules(request["folder"])
    try:
        _serve(request, tell)
    except BaseException as error:
        tell(error=_sentence(error))
        os._exit(1)  # whatever threads a logger has left
    tell(ended=True)
    os._exit(0)


def _serve(request: dict[str, Any], tell: Callable[..., None]) -> None:
    name = request["logger"]
    requested = Requested(request["arguments"], request["keys"])
    logger = make_logger(name, requested.arguments)
    tell(ready=name)
    told = sys.stdin.readline()
    if not told:
        return
    path = Path(json.loads(told)["run"])
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    if (saved := requested.or_saved(path, name)) != requested:
        requested, logger = saved, make_logger(name, saved.arguments)
    follower = Follower(path, name, logger, requested, request["process"])
    with _printing_into(follower.log), follower.opened(PATIENCE_SECONDS) as place:
        if place:
            tell(note=f"{name}: {place}")
        follower.follow(ended.is_set, lambda text: tell(stop=f"{name}: {text}"))
        follower.finish()


@reports_user_code
def make_logger(name: str, arguments: Mapping[str, str]) -> Logger:
    """Make a logger, and require what it needs.

    Raises:
      ShoalError: there is none of that name, it does not take the arguments, or something that it needs is missing.
    """
    logger = logger_names.make(name, arguments)
    logger.check()
    return logger


def _sentence(error: BaseException) -> str:
    reported = error if isinstance(error, ShoalError) else user_code_error(error)
    return describe_error(error) if reported is None else str(reported)


def _wait_for_end(ended: threading.Event) -> None:
    """Note that the pipe has ended; a logger that has not ended long after that is ended."""
    sys.stdin.read()
    ended.set()
    threading.Timer(LAST_SECONDS, os._exit, (1,)).start()


@contextlib.contextmanager
def _printing_into(path: Path) -> Iterator[None]:
    """Write the first bytes that are printed into a file, and drop the rest."""
    reader, writer = os.pipe()
    for descriptor in (1, 2):
        os.dup2(writer, descriptor)
    os.close(writer)

    def copy() -> None:
        left = LOG_BYTES
        with open(path, "ab", buffering=0) as file:
            while printed := os.read(reader, 65536):
                file.write(printed[:left])
                left -= len(printed[:left])

    threading.Thread(target=copy, daemon=True).start()
    yield


if __name__ == "__main__":
    main()
