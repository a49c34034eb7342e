"""Signals that end a run.

    with signals.handle() as stop:
        ...                                # import and compile: nothing has to be saved yet
        stop.phase(Phase.TRAINING)
        while ...:
            ...                            # a piece of training, of a few seconds at most
            if stop.requested:
                stop.saving()
                ...                        # save the run
                raise stop.saved(path)

Python calls a signal's handler when the main thread is back in the interpreter, and a compiled program keeps it for
seconds. A call from Python is answered then. A command is answered at once: the numbers of signals are also written to
a socket, by C (`signal.set_wakeup_fd`), and a thread reads it, which compiled programs let run.
"""

import _thread
import contextlib
import enum
import math
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from shoal.base.terminal import harmless

RESUMABLE = 75  # exit status after an interruption: EX_TEMPFAIL of sysexits.h, "try again later"
INTERRUPTED = 130  # exit status after a second Ctrl-C: 128 + SIGINT, as shells count
# Sent by schedulers before they kill a job, by a terminal that is closed, and at the limit of CPU time; not every
# system has all of them.
SAVING_SIGNALS = [
    x for x in signal.Signals if x.name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
]
# Seconds that saving may take, so that the process has ended 30 seconds after the signal: a piece of training before
# takes 5 (or is one update), and the end itself at most 1 (a line is written, and buffered output).
SAVING_SECONDS = 22.0
WRITING_SECONDS = 0.5  # for a line on standard error, whose reader may hang
POLLING_SECONDS = 0.1  # between two looks at the limit of saving
# Two SIGINTs within this time are one Ctrl-C: `timeout` and other parents pass it on to a process that the terminal
# has sent it to as well.
ONE_PRESS_SECONDS = 0.1
SHOW_CURSOR = "\x1b[?25h"  # a live line of progress has hidden it


class Phase(enum.Enum):
    """The phases of a run; the value of each is the answer to an interruption."""

    STARTING = "shoal: interrupted while importing or compiling; there was nothing new to save."
    """Importing and compiling: a command ends at once, with 75."""
    UNSAVED = "shoal: interrupted; this run has no checkpoints, so nothing was saved."
    """A run without checkpoints: a command ends at once, with 128 + the signal's number."""
    TRAINING = "finishing the current piece of training, then saving"
    EVALUATING = "finishing the current piece of the evaluation, then saving"
    SAVING = "finishing what is being written"


ENDS_AT_ONCE = (Phase.STARTING, Phase.UNSAVED)


class Interrupted(KeyboardInterrupt):
    """A run was interrupted after all of its state had been saved; the command line ends with 75.

    Attributes:
      continued_by: the command that resumes it; empty for `shoal resume`.
    """

    def __init__(self, path: str | Path, continued_by: str = ""):
        continued_by = continued_by or f"`shoal resume {shlex.quote(str(path))}`"
        super().__init__(f"interrupted; the run is saved, and {continued_by} continues it.")
        self.path = Path(path)


class Interruption:
    """The phase of a run, and whether a signal asks it to end; made by `handle`."""

    def __init__(self) -> None:
        self.handlers = contextlib.ExitStack()  # restores those from before
        self._phase = Phase.STARTING
        self._requested = False
        self._ctrl_c_time = -math.inf  # of the last Ctrl-C that counted
        self._deadline = math.inf  # when a command is ended, if it has not ended by itself
        self._saved: Interrupted | None = None
        self._stopping = False

    @property
    def requested(self) -> bool:
        """Whether the run should save and end; read between two pieces of training."""
        return self._requested

    def phase(self, phase: Phase) -> None:
        """Set the phase of the run."""
        self._phase = phase

    def saving(self) -> None:
        """Note that the piece of training has returned: a command that has not ended in `SAVING_SECONDS` is ended."""
        if self._requested:
            self._deadline = min(self._deadline, time.monotonic() + SAVING_SECONDS)

    def saved(self, path: str | Path) -> Interrupted:
        """Note that all has been saved in a run directory, and return the exception to raise."""
        self._saved = Interrupted(path)
        return self._saved

    def receive_ctrl_c(self) -> None:
        """Answer Ctrl-C by the rules for Python until `handlers` are closed; ValueError in a subinterpreter."""
        former = signal.getsignal(signal.SIGINT)
        if not callable(former):  # it is ignored, ends the process, or is handled by C code
            return

        def on_ctrl_c(number: int, frame: FrameType | None) -> None:
            if self._phase in ENDS_AT_ONCE and not self._requested:
                former(number, frame)
            elif self._note(number):
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, former)  # raises the ValueError while there is nothing to undo
        self._replace_handler(signal.SIGINT, on_ctrl_c)

    def receive_all(self, undo: contextlib.ExitStack) -> None:
        """Answer signals by the rules for a command until `handlers`, then `undo` are closed; ValueError as above."""
        left_alone = (signal.SIG_IGN, None)  # ignored, as in a background job; handled by C code
        numbers = [x for x in (signal.SIGINT, *SAVING_SIGNALS) if signal.getsignal(x) not in left_alone]
        reader, writer = (undo.enter_context(end) for end in socket.socketpair())
        writer.setblocking(False)
        former_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(reader, numbers), daemon=True)
        undo.callback(self._stop, thread, writer)
        self.handlers.callback(signal.set_wakeup_fd, former_descriptor)
        thread.start()
        for number in numbers:  # C writes the numbers only of signals that have a handler
            self._replace_handler(number, lambda number, frame: None)

    def _replace_handler(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        former = signal.getsignal(number)
        for _ in range(2):  # the first handles a pending Ctrl-C before, which may raise KeyboardInterrupt
            self.handlers.callback(lambda: signal.signal(number, former))
        signal.signal(number, handler)

    def _stop(self, thread: threading.Thread, writer: socket.socket) -> None:
        self._stopping = True
        with contextlib.suppress(BlockingIOError):  # the socket is full, so that the thread wakes anyway
            writer.send(b"\0")  # no signal's number
        thread.join()

    def _watch(self, reader: socket.socket, numbers: list[int]) -> None:
        """Answer the signals of a command; runs in a thread of its own."""
        while not self._stopping:
            reader.settimeout(POLLING_SECONDS if self._requested else None)
            with contextlib.suppress(TimeoutError):
                for number in reader.recv(4096):
                    if number in numbers:
                        self._answer(number)
            if time.monotonic() >= self._deadline:
                self._end(RESUMABLE, f"saving has not ended in {SAVING_SECONDS:g} seconds")

    def _answer(self, number: int) -> None:
        phase = self._phase
        if phase in ENDS_AT_ONCE and not self._requested:
            end_process(RESUMABLE if phase is Phase.STARTING else 128 + number, phase.value)
        elif self._note(number):
            self._end(INTERRUPTED, "ended by a second Ctrl-C without saving")

    def _end(self, status: int, why: str) -> None:
        if self._saved is not None:
            end_process(RESUMABLE, f"shoal: {self._saved}")
        end_process(status, f"shoal: {why}; the last checkpoint, if there is one, stands.")

    def _note(self, number: int) -> bool:
        """Ask the run to end, with a line, and report whether this is a second Ctrl-C."""
        now, is_ctrl_c = time.monotonic(), number == signal.SIGINT
        is_first = self._ctrl_c_time == -math.inf
        if now - self._ctrl_c_time < ONE_PRESS_SECONDS or (self._requested and not is_ctrl_c):
            return False
        if is_ctrl_c:
            self._ctrl_c_time = now
        if is_first:
            self._requested = True
            sender = "" if is_ctrl_c else f" by {signal.Signals(number).name}"
            hint = " Ctrl-C again ends at once without saving." if is_ctrl_c else ""
            say(f"shoal: interrupted{sender}; {self._phase.value}.{hint}")
        return not is_first


_active: list[Interruption] = []  # at most one, since a process has its signals only once


@contextlib.contextmanager
def handle(*, command_line: bool = False) -> Iterator[Interruption]:
    """Receive the signals that interrupt a run, and restore the former handlers at the end.

    A call within another one in the main thread yields the same object: a run that a command trains follows the
    command's rules. In another thread, which receives no signals, `requested` is never true.

    `command_line`: Ctrl-C and `SAVING_SIGNALS`, answered at once. While the run is starting, the process ends, with 75.
    Later a line names the current phase, and `requested` becomes true; a second Ctrl-C ends the process, with 130; any
    other further signal changes nothing.

    Else, from Python: Ctrl-C only, answered when the main thread is back in the interpreter. While the run is starting,
    the former handler is called, which usually raises KeyboardInterrupt. Later a line names the current phase, and
    `requested` becomes true; a second one raises KeyboardInterrupt.
    """
    stop = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield stop
    elif _active:
        yield _active[0]
    else:
        with contextlib.ExitStack() as undo, stop.handlers:
            undo.callback(_active.clear)
            _active.append(stop)
            with contextlib.suppress(ValueError):  # only the main interpreter receives signals
                stop.receive_all(undo) if command_line else stop.receive_ctrl_c()
            yield stop


def say(line: str) -> None:
    """Write a line to standard error; give up if there is none, if it is closed, or if nobody reads it."""

    def write() -> None:
        start = "\n" if sys.stderr.isatty() else ""  # behind the ^C that the terminal has shown
        print(f"{start}{harmless(line)}", file=sys.stderr, flush=True)

    _try_to(write)


def end_process(status: int, line: str) -> None:
    """End the process at once, without waiting for its threads: a compiled program cannot be interrupted."""

    def flush() -> None:
        if sys.stdout is not None:
            sys.stdout.flush()
        if os.name == "posix" and sys.__stderr__ is not None and sys.__stderr__.isatty():
            print(SHOW_CURSOR, end="", file=sys.__stderr__, flush=True)

    try:
        say(line)
        _try_to(flush)
    finally:
        os._exit(status)


def _try_to(write: Callable[[], None]) -> None:
    """Call a function and wait `WRITING_SECONDS` for it; whatever it raises is dropped.

    It runs in a thread of `_thread`: a handler may interrupt a main thread that holds locks, a stream's or those of
    `threading.Thread`.
    """
    ended = threading.Event()

    def call() -> None:
        with contextlib.suppress(Exception):
            write()
        ended.set()

    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:  # there can be no further thread
        call()
    ended.wait(WRITING_SECONDS)


def _leave_to_former_handlers() -> None:
    """Restore the handlers in a forked child: the socket is its parent's."""
    for stop in _active:
        stop.handlers.close()
    _active.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_former_handlers)
