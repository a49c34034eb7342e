"""Processes beside a run, which follow its files: its loggers, and one that films its policies.

Each is a child of the process that trains, and holds a pipe from it, so that it knows of the run's end however the run
ends. Training never waits for one: messages come by a thread, and the loop reads an attribute.
"""

import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from shoal.base.errors import ShoalError

READY_SECONDS = 20.0  # the wait for what all companions need, before a run compiles
CLOSING_SECONDS = 10.0  # the wait at the end of a run, of which the first companions have a half
FAILING_SECONDS = 0.5  # that at an error or an interruption
PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main()"


class Companion(NamedTuple):
    """A process that goes beside a run."""

    name: str  # as sentences call it
    module: str  # with a `main`
    request: Mapping[str, Any]  # its first line of input
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
        self._processes = [_Process(companion, self._ask_to_stop) for companion in (*first, *companions)]
        self._groups = self._processes[: len(first)], self._processes[len(first) :]
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

    def require(self) -> None:
        """Require that each has what it needs.

        Raises:
          ShoalError: one has not, such as a package or a key.
        """
        deadline = time.monotonic() + READY_SECONDS
        for process in self._processes:
            process.require(deadline)

    def begin(self, path: Path, note: Callable[[str], None]) -> None:
        """Tell them the directory of the run.

        Args:
          note: shows a line.
        """
        for process in self._processes:
            process.begin(path, note)

    def abandon(self) -> None:
        """End them at once, since nothing of the run is kept."""
        for process in self._processes:
            process.abandon()

    def _ask_to_stop(self, text: str) -> None:
        self.stop = self.stop or text


class _Process:
    """One companion's process, and the thread that reads what it says."""

    def __init__(self, companion: Companion, ask_to_stop: Callable[[str], None]):
        self._companion, self._ask_to_stop = companion, ask_to_stop
        self._process: Any = None
        self._first: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()  # its first message
        self._note: Callable[[str], None] = lambda text: None
        self._path = ""
        self._has_failed = False

    def start(self) -> None:
        program = PROGRAM.format(module=self._companion.module)
        command = [sys.executable, "-c", program, json.dumps(sys.path)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **self._companion.variables},
            start_new_session=True,  # Ctrl-C and the end of a terminal are for the trainer alone
        )
        self._send({"process": os.getpid(), "folder": os.getcwd(), **self._companion.request})
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def require(self, deadline: float) -> None:
        with contextlib.suppress(queue.Empty):
            message = self._first.get(timeout=max(deadline - time.monotonic(), 0.0))
            if "error" in message:
                raise ShoalError(message["error"])

    def begin(self, path: Path, note: Callable[[str], None]) -> None:
        self._note, self._path = note, str(path)
        self._send({"run": str(path.absolute())})

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def wait(self, deadline: float) -> None:
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        if self._thread.is_alive() and self._path:
            number = self._process.pid
            self._note(
                f"{self._companion.name} has not ended yet, and process {number} goes on; {self._later()}"
            )

    def abandon(self) -> None:
        self._path = ""  # so that its end is not reported
        self._process.kill()
        self._thread.join()

    def _later(self) -> str:
        return self._companion.later.format(path=shlex.quote(str(self._path)))

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, which `_listen` reports
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def _listen(self) -> None:
        """Read messages until the process has ended."""
        is_first, has_ended = True, False
        with self._process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                self._first.put(message) if is_first else self._react(message)
                is_first, has_ended = False, has_ended or bool({"ended", "error"} & message.keys())
        self._process.wait()
        if is_first:
            self._first.put({"error": f"the process of {self._companion.name} ended before it began."})
        elif not has_ended:
            self._report("its process has ended")

    def _react(self, message: Mapping[str, Any]) -> None:
        if "error" in message:
            self._report(message["error"])
        if "note" in message:
            self._note(message["note"])
        if "stop" in message:
            self._ask_to_stop(message["stop"])

    def _report(self, reason: str) -> None:
        if not self._has_failed and self._path:
            self._has_failed = True
            text = " ".join(reason.split()).rstrip(".")
            self._note(f"{self._companion.name}: {text}; the run is not affected, and {self._later()}")
