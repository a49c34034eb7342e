"""Processes beside a run, which follow its files: its loggers, and one that films its policies.

Each is a child of the process that trains, and holds a pipe from it, so that it knows of the run's end however the run
ends. Training never waits for one: messages come by a thread, and the loop reads an attribute. They are lines of JSON:

-> {"module": "shoal.monitor.loggers.child", "process": 123, "folder": "/home/me", "logger": "wandb", ...}
<- {"ready": true}, or {"error": "why the run should not begin"}
-> {"run": "/home/me/runs/first"}
<- {"note": "wandb: https://..."}
<- {"stop": "why the run should stop"}
-> (the pipe ends)
<- {"ended": {"complete": true, ...}}, or {"error": "why it has failed"}
"""

import contextlib
import faulthandler
import importlib
import json
import math
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from shoal.base.errors import ShoalError
from shoal.base.imports import find_user_modules
from shoal.base.user_errors import describe_error, user_code_error
from shoal.records.directory import COMPLETE, LOGGERS, RunDirectory
from shoal.records.json_files import read_json

READY_SECONDS = 60.0  # from the start of a process until it has what it needs; no run compiles before
QUIET_SECONDS = 3.0  # of these, before a line says what is waited for
CLOSING_SECONDS = 10.0  # the wait at the end of a run, of which the first companions have a half
FAILING_SECONDS = 0.5  # that at an error or an interruption
PROGRAM = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import main; main()"


class Companion(NamedTuple):
    """A process that goes beside a run."""

    name: str  # as sentences call it
    title: str  # its name with what it is
    module: str  # with a function `follow`, which is given the `Trainer` and returns what has ended
    request: Mapping[str, object]  # what that is to do
    later: str  # a clause that says how the rest is done later; "{path}" is the run's directory
    variables: Mapping[str, str] = {}  # of its environment, besides the trainer's


class Companions:
    """The processes beside one run; a context manager, at whose end they are told that the run has ended.

    Args:
      first: those that are told first, since the others read what they make.
    Attributes:
      stop: the text by which one asks the run to stop; "" for none.
    """

    def __init__(self, companions: Sequence[Companion] = (), first: Sequence[Companion] = ()):
        self._processes = [Process(companion, self._ask_to_stop) for companion in (*first, *companions)]
        self._groups = self._processes[: len(first)], self._processes[len(first) :]
        self._left_out: dict[str, str] = {}
        self.stop = ""

    def __enter__(self) -> "Companions":
        for process in self._processes:
            process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let them do the rest; a run that has ended well waits for them for some seconds."""
        now, seconds = time.monotonic(), CLOSING_SECONDS if kind is None else FAILING_SECONDS
        for group, deadline in zip(self._groups, (now + seconds / 2, now + seconds), strict=True):
            for process in group:
                process.end()
            for process in group:
                process.wait(deadline)
        for process in self._groups[1]:
            process.save_failure()

    def require(self, note: Callable[[str], None]) -> None:
        """Require that each has what it needs, and wait for that.

        Args:
          note: shows a line of information.
        Raises:
          ShoalError: one has not, such as a package or a key, or has not begun in a minute.
        """
        for process in self._processes:
            process.require(note)

    def begin(self, path: Path, note: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """Tell them the directory of the run.

        Args:
          note: shows a line of information.
          warn: shows a line about what went wrong.
        """
        for process in self._processes:
            process.begin(path, note, warn)
        self._left_out = _left_out(path, [process.name for process in self._processes])
        for name, state in self._left_out.items():
            warn(f"{name}: {state}")

    def summary(self) -> dict[str, dict[str, str]]:
        """Return the entry in the summary of a finished run: what each logger has of it, `COMPLETE` or a sentence."""
        states = {process.name: process.state for process in self._groups[1]} | self._left_out
        return {LOGGERS: states} if states else {}

    def abandon(self) -> None:
        """End them at once, since nothing of the run is kept."""
        for process in self._processes:
            process.abandon()

    def _ask_to_stop(self, text: str) -> None:
        self.stop = self.stop or text


def _left_out(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Say of each logger that followed a run before it was resumed, and is none of these, what it lacks."""
    earlier = set()
    for file in (path / LOGGERS).glob("*.json"):
        with contextlib.suppress(ShoalError, KeyError):  # damaged, or no logger's
            earlier.add(read_json(file)["name"])
    clause = f"the run was resumed without it; `shoal log {shlex.quote(str(path))} --logger {{}}` sends what is missing"
    return {name: clause.format(name) for name in sorted(earlier.difference(names))}


class Process:
    """One companion's process, and the thread that reads what it says.

    Attributes:
      failure: why it has failed; "" as long as it has not.
      result: the `ended` of its last message; {} before.
    """

    def __init__(self, companion: Companion, ask_to_stop: Callable[[str], None]):
        self.name = companion.name
        self.failure = ""
        self.result: Mapping[str, Any] = {}
        self._companion, self._ask_to_stop = companion, ask_to_stop
        self._process: Any = None
        self._first: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()  # its first message
        self._note: Callable[[str], None] = lambda text: None
        self._warn: Callable[[str], None] = self._note
        self._path = ""

    def start(self) -> None:
        """Start it."""
        command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (`_listen` closes it)
        self._start_time = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self._companion.variables},
            start_new_session=True,  # Ctrl-C and the end of a terminal are for the trainer alone
        )
        place = {"module": self._companion.module, "process": os.getpid(), "folder": os.getcwd()}
        self._send({**place, **self._companion.request})
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def require(self, note: Callable[[str], None]) -> None:
        """Require that it has what it needs; one that does not say so in a minute is killed."""
        message = self._first_message(QUIET_SECONDS)
        if message is None:
            note(f"waiting for {self._companion.title}")
            message = self._first_message(READY_SECONDS)
        if message is None:
            self._process.kill()
            raise ShoalError(f"{self._companion.title} has not begun within {READY_SECONDS:g} seconds.")
        if "error" in message:
            raise ShoalError(message["error"])

    def _first_message(self, seconds: float) -> Mapping[str, Any] | None:
        """Return its first message; None if there is none within these seconds from its start."""
        with contextlib.suppress(queue.Empty):
            return self._first.get(timeout=max(self._start_time + seconds - time.monotonic(), 0.0))
        return None

    def begin(self, path: Path, note: Callable[[str], None], warn: Callable[[str], None]) -> None:
        """Tell it the directory of the run; see `Companions.begin`."""
        self._note, self._warn, self._path = note, warn, str(path)
        self._send({"run": str(path.absolute())})

    def end(self) -> None:
        """Tell it that the run has ended."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, deadline: float = math.inf) -> None:
        """Wait until it has ended, and say so if it has not."""
        seconds = max(deadline - time.monotonic(), 0.0)
        self._thread.join(None if seconds == math.inf else seconds)
        if self._thread.is_alive() and self._path and not self.failure:
            number = self._process.pid
            self._warn(f"{self.name} has not ended yet, and process {number} goes on; {self._later()}")

    def abandon(self) -> None:
        """End it at once."""
        self._path = ""  # so that its end is not reported
        self._process.kill()
        self._thread.join()

    @property
    def state(self) -> str:
        """`COMPLETE` where a logger has all of a finished run; else why it lacks some, and how that is sent."""
        if self.result.get(COMPLETE):
            return COMPLETE
        return f"{self.failure or 'it has not ended yet'}; {self._later()}"

    def save_failure(self) -> None:
        """Write into the summary why a logger has failed; one that has not writes itself that it is complete."""
        if self.failure:
            with contextlib.suppress(ShoalError):  # what the summary has instead is that it has not ended
                RunDirectory(Path(self._path)).save_logger(self.name, self.state)

    def _later(self) -> str:
        return self._companion.later.format(path=shlex.quote(str(self._path)))

    def _send(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, which `_listen` reports
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def _listen(self) -> None:
        """Read messages until the process has ended."""
        is_first = True
        with self._process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                self._first.put(message) if is_first else self._react(message)
                is_first = False
        code = self._process.wait()
        if is_first:
            self._first.put({"error": f"{self._companion.title} ended before it began{self._last_error()}."})
        elif not self.result:
            self._report(f"its process {_described(code)}")
        self._errors.close()
        self.end()

    def _last_error(self) -> str:
        """Return the last line that it has written to standard error, behind a colon."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1].rstrip('.')}" if lines else ""

    def _react(self, message: Mapping[str, Any]) -> None:
        if "error" in message:
            self._report(message["error"])
        if "note" in message:
            self._note(message["note"])
        if "stop" in message:
            self._ask_to_stop(message["stop"])
        self.result = message.get("ended", self.result)

    def _report(self, reason: str) -> None:
        if not self.failure and self._path:
            self.failure = " ".join(reason.split()).rstrip(".")
            self._warn(f"{self.name}: {self.failure}; the run is not affected, and {self._later()}")


def _described(code: int) -> str:
    """Say how a process has ended."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


class Trainer:
    """The process that trains, as a process beside it sees it.

    Attributes:
      request: what it asked for.
      process: its number; None where no process trains, and the companion ends with the pipe.
      ended: set when the run has ended, however it has.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what a companion prints goes where its errors go
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        self.request: Mapping[str, Any] = json.loads(sys.stdin.readline())
        self.process: int | None = self.request["process"]
        self.ended = threading.Event()
        self._run: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, **message: object) -> None:
        """Send a message: a `note` to show, or a `stop` by which a companion asks the run to stop."""
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more
            print(json.dumps(message), file=self._answers, flush=True)

    def await_run(self) -> Path:
        """Tell that all is there that the companion needs, and wait for the directory of the run."""
        self.tell(ready=True)
        return Path(self._run.get())

    def tell_failure(self, error: BaseException, where: str = "") -> None:
        """Tell why the companion has failed, in a sentence.

        Args:
          where: a clause at its end.
        """
        traceback.print_exception(error)
        reported = error if isinstance(error, ShoalError) else user_code_error(error)
        sentence = describe_error(error) if reported is None else str(reported)
        self.tell(error=f"{sentence.rstrip('.')}{where}.")

    def _listen(self) -> None:
        """Receive the directory of the run, and its end; without a run, or a trainer, the pipe's end is that of all."""
        if not (message := sys.stdin.readline()):
            os._exit(1)  # whatever the companion hangs in
        self._run.put(json.loads(message)["run"])
        sys.stdin.read()
        if self.process is None:
            os._exit(1)
        self.ended.set()


def main() -> None:
    """Follow a run, in a process of its own."""
    faulthandler.enable()
    trainer, status = Trainer(), 0
    find_user_modules(trainer.request["folder"])
    try:
        trainer.tell(ended=importlib.import_module(trainer.request["module"]).follow(trainer))
    except BaseException as error:
        trainer.tell_failure(error)
        status = 1
    os._exit(status)  # whatever threads a logger has left
