"""Signals that end a run, answered while the main thread is inside a compiled program.

Python calls a signal's handler when the main thread is back in the interpreter, and a compiled program keeps it for
seconds. So the number of each signal is also written to a socket, at once and by C (`signal.set_wakeup_fd`), and a
thread reads it. That thread can run, since compiled programs release the interpreter's lock.

    with signals.handle() as stop:
        ...                                # import and compile: nothing has to be saved yet
        stop.phase(Phase.TRAINING)
        while ...:
            ...                            # a piece of training, of a few seconds at most
            if stop.requested:
                stop.saving()
                ...                        # save the run
                raise stop.saved(path)

Within a command, and when called from Python, a run is interrupted by different rules (see `handle`).
"""

import contextlib
import enum
import math
import os
import selectors
import shlex
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

RESUMABLE = 75  # exit status after an interruption: EX_TEMPFAIL of sysexits.h, "try again later"
INTERRUPTED = 130  # exit status after a second Ctrl-C: 128 + SIGINT, as shells count
# Sent by schedulers before they kill a job, by a terminal that is closed, and at the limit of CPU time; not every
# system has all of them.
SAVING_SIGNALS: list[int] = [
    getattr(signal, name)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
    if hasattr(signal, name)
]
# Seconds that saving may take, so that the process has ended 30 seconds after the signal: a piece of training before
# takes 5 (or is one update), and the end itself at most 3 (the next two constants).
SAVING_SECONDS = 22.0
CLEANUP_SECONDS = 2.0
WRITING_SECONDS = 0.5  # for a line on standard error, whose reader may hang
# Two SIGINTs within this time are one Ctrl-C: `timeout` and other parents pass it on to a process that the terminal
# has sent it to as well.
ONE_PRESS_SECONDS = 0.1
SHOW_CURSOR = "\x1b[?25h"  # a live line of progress has hidden it


class Phase(enum.Enum):
    """The phases of a run; the value of each is the answer to an interruption."""

    STARTING = "shoal: interrupted while importing or compiling; there was nothing new to save."
    """Importing and compiling: the process ends at once, with 75."""
    UNSAVED = "shoal: interrupted; this run has no checkpoints, so nothing was saved."
    """A run without checkpoints: the process ends at once, with 128 + the signal's number."""
    TRAINING = "finishing the current piece of training, then saving"
    EVALUATING = "finishing the current piece of the evaluation, then saving"
    SAVING = "finishing what is being written"


ENDS_AT_ONCE = (Phase.STARTING, Phase.UNSAVED)


class Interrupted(KeyboardInterrupt):
    """A run was interrupted after all of its state had been saved; the command line ends with 75.

    Attributes:
      continued_by: what goes on with it; empty for `shoal resume`.
    """

    def __init__(self, path: str | Path, continued_by: str = ""):
        continued_by = continued_by or f"`shoal resume {shlex.quote(str(path))}`"
        super().__init__(f"interrupted; the run is saved, and {continued_by} continues it.")
        self.path = Path(path)


class Interruption:
    """The signals that arrived, and what the run is doing; made by `handle`.

    Attributes:
      cleanups: functions to call before the process is ended from another thread, last first: what `finally` would
        have done. Together they have `CLEANUP_SECONDS`. Add one, and remove it when it is no longer needed.
    """

    def __init__(self, command_line: bool = False):
        self.cleanups: list[Callable[[], None]] = []
        self._command_line = command_line
        self._phase = Phase.STARTING
        self._requested = False
        self._ctrl_c_time = -math.inf  # of the last Ctrl-C that counted
        self._saved: Interrupted | None = None
        self._deadline = math.inf  # when the process is ended, if it has not ended by itself
        # Two read the socket, the thread and Python's handler; the lock is reentrant, since the handler may interrupt
        # a main thread that holds it. What a signal asks for is left for one of them:
        self._lock = threading.RLock()
        self._lines: deque[str] = deque()  # the thread writes them
        self._end: tuple[int, str] | None = None  # the thread ends the process by this status, with this line
        self._raises = False  # the handler raises KeyboardInterrupt
        self._hands_on = False  # the handler calls the one from before
        self._has_news = False  # the handler need not wait for the signal's number
        self._former: dict[int, Any] = {}  # handlers from before, by signal
        self._former_fd = -1
        self._reader: socket.socket
        self._writer: socket.socket
        self._stopping = False

    @property
    def requested(self) -> bool:
        """Whether the run shall save and end; to be asked between two pieces of training."""
        return self._requested

    def phase(self, phase: Phase) -> None:
        """Set what the run is doing from now on."""
        self._phase = phase

    def saving(self) -> None:
        """Note that the piece of training has returned, so that the process ends even if saving hangs.

        On the command line it ends `SAVING_SECONDS` later, with 75; from Python there is no such limit.
        """
        if self._requested and self._command_line and self._deadline == math.inf:
            self._deadline = time.monotonic() + SAVING_SECONDS
            self._wake()

    def saved(self, path: str | Path) -> Interrupted:
        """Note that all has been saved in a run directory, and return the exception to raise."""
        self._saved = Interrupted(path)
        return self._saved

    def install(self, undo: contextlib.ExitStack) -> None:
        """Receive the signals until `undo` is closed; the main thread only."""
        numbers: list[int] = [signal.SIGINT, *(SAVING_SIGNALS if self._command_line else [])]
        # A signal that is ignored (a shell's background job, nohup) stays so; one handled by C code (None) could not be
        # restored; and from Python, one that ends the process shall do so.
        left_alone = [signal.SIG_IGN, None] if self._command_line else [signal.SIG_IGN, None, signal.SIG_DFL]
        handlers = {number: signal.getsignal(number) for number in numbers}
        former = {number: handler for number, handler in handlers.items() if handler not in left_alone}
        if not former:
            return
        self._reader, self._writer = socket.socketpair()
        undo.callback(self._reader.close)
        undo.callback(self._writer.close)
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        selector = undo.enter_context(selectors.DefaultSelector())
        selector.register(self._reader, selectors.EVENT_READ)
        try:
            self._former_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        except ValueError:  # not the main interpreter
            return
        thread = threading.Thread(target=self._watch, args=(selector,), name="interruption", daemon=True)
        undo.callback(self._stop, thread)  # after the next one, so that nothing stays unread
        undo.callback(_restore_wakeup_fd, self._former_fd)
        thread.start()
        undo.callback(self.restore_handlers)
        self._former = former
        for number in former:
            signal.signal(number, self._on_signal)

    def restore_handlers(self) -> None:
        """Restore the handlers from before."""
        try:
            for number, handler in self._former.items():
                try:
                    signal.signal(number, handler)
                finally:  # it handles signals that are pending first, which may raise KeyboardInterrupt
                    signal.signal(number, handler)
        finally:
            self._former = {}

    def _stop(self, thread: threading.Thread) -> None:
        self._stopping = True
        self._wake()
        thread.join()

    def _wake(self) -> None:
        """Let the thread look at what there is to do."""
        with contextlib.suppress(BlockingIOError):  # the socket is full, so that the thread wakes anyway
            self._writer.send(b"\0")

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Do what the signals ask for, until the handlers are restored; runs in a thread of its own."""
        while not self._stopping:
            selector.select(None if self._deadline == math.inf else self._deadline - time.monotonic())
            self._receive()
            while self._lines:
                say(self._lines.popleft())
            if self._end is None and time.monotonic() >= self._deadline:
                self._end = RESUMABLE, self._last_line(f"saving has not ended in {SAVING_SECONDS:g} seconds")
            if self._end is not None:
                end_process(*self._end, cleanups=self.cleanups)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread, as soon as that is back in the interpreter."""
        current = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        if current == self._writer.fileno():
            self._await_number()
        else:  # replaced meanwhile, by an event loop: the signal's number was not written to the socket
            if current != -1:
                signal.set_wakeup_fd(current)
            with self._lock:
                self._note(number)
        self._has_news = False
        self._wake()
        if self._raises:
            self._raises = False
            raise KeyboardInterrupt
        if self._hands_on:
            self._hands_on = False
            self._former[number](number, frame)

    def _await_number(self) -> None:
        """Receive the number of the signal that is being handled; another thread may be about to write it."""
        for _ in range(20):
            self._receive()
            if self._has_news:
                return
            time.sleep(0.001)

    def _receive(self) -> None:
        """Note all signals that were written to the socket."""
        with self._lock, contextlib.suppress(BlockingIOError):
            for number in self._reader.recv(4096):
                self._note(number)

    def _note(self, number: int) -> None:
        """Decide what a signal asks for."""
        if number == 0 or self._end is not None:  # 0 is written by `_wake`
            return
        self._has_news = self._has_news or number in self._former
        if number not in self._former:
            self._forward(number)
        elif self._phase in ENDS_AT_ONCE and not self._requested:
            if self._command_line:
                status = RESUMABLE if self._phase is Phase.STARTING else 128 + number
                self._end = status, self._phase.value
            else:
                self._hands_on = True
                self._forward(number)
        elif number == signal.SIGINT:
            self._note_ctrl_c()
        elif not self._requested:
            self._request(f"shoal: interrupted by {signal.Signals(number).name}; {self._phase.value}.")

    def _note_ctrl_c(self) -> None:
        since_last = time.monotonic() - self._ctrl_c_time
        if since_last < ONE_PRESS_SECONDS:
            return
        self._ctrl_c_time = time.monotonic()
        if since_last == math.inf:
            self._request(
                f"shoal: interrupted; {self._phase.value}. Ctrl-C again ends at once without saving."
            )
        elif not self._command_line:
            self._raises = True
        elif self._saved is not None:
            self._end = RESUMABLE, self._last_line("")
        else:
            self._end = INTERRUPTED, self._last_line("ended by a second Ctrl-C without saving")

    def _request(self, line: str) -> None:
        self._requested = True
        self._lines.append(line)

    def _last_line(self, why: str) -> str:
        return f"shoal: {self._saved or f'{why}; the last checkpoint, if there is one, stands.'}"

    def _forward(self, number: int) -> None:
        """Pass a signal on to the wakeup file descriptor from before."""
        if self._former_fd == -1:
            return
        with contextlib.suppress(OSError):
            if os.name == "nt":  # there it is the handle of a socket
                former = socket.socket(fileno=self._former_fd)
                try:
                    former.send(bytes([number]))
                finally:
                    former.detach()
            else:
                os.write(self._former_fd, bytes([number]))


_active: Interruption | None = None  # that of this process, whose signals there are only once


@contextlib.contextmanager
def handle(*, command_line: bool = False) -> Iterator[Interruption]:
    """Receive the signals that interrupt a run, and restore the former handlers at the end.

    A call within another one in the main thread yields what the outer one yielded: a run that a command trains goes by
    the command's rules. In another thread, which receives no signals, `requested` is never true.

    `command_line`: Ctrl-C and `SAVING_SIGNALS`. While the run is starting, the process ends at once, with 75. Later a
    line says what is happening, and `requested` becomes true; a second Ctrl-C ends the process at once, with 130; any
    other further signal changes nothing.

    Else, from Python: Ctrl-C only. While the run is starting, it does what it always does in Python: it raises
    KeyboardInterrupt. Later a line says what is happening, and `requested` becomes true; a second one raises
    KeyboardInterrupt as soon as the main thread is back in the interpreter.
    """
    global _active  # noqa: PLW0603 (signals are the process's)
    if threading.current_thread() is not threading.main_thread():
        yield Interruption()
        return
    if _active is not None:
        yield _active
        return
    with contextlib.ExitStack() as undo:
        undo.callback(_forget)
        _active = Interruption(command_line)
        _active.install(undo)
        yield _active


def say(line: str) -> None:
    """Write a line to standard error; give up if that is closed, or if nobody reads it."""

    def write() -> None:
        if sys.stderr is not None:  # a process without a console has none
            start = "\n" if sys.stderr.isatty() else ""  # behind the ^C that the terminal has shown
            print(f"{start}{line}", file=sys.stderr, flush=True)

    _within(WRITING_SECONDS, write)


def end_process(status: int, line: str, cleanups: Sequence[Callable[[], None]] = ()) -> None:
    """End the process at once, without waiting for its threads: a compiled program cannot be interrupted.

    Args:
      cleanups: functions to call before, last first; given up after `CLEANUP_SECONDS`.
    """

    def clean_up() -> None:
        for cleanup in reversed(cleanups):
            with contextlib.suppress(Exception):
                cleanup()

    def flush() -> None:
        if sys.stdout is not None:
            sys.stdout.flush()
        if os.name == "posix" and sys.__stderr__ is not None and sys.__stderr__.isatty():
            print(SHOW_CURSOR, end="", file=sys.__stderr__, flush=True)

    try:
        say(line)
        _within(CLEANUP_SECONDS, clean_up)
        _within(WRITING_SECONDS, flush)
    finally:
        os._exit(status)


def _within(seconds: float, function: Callable[[], None]) -> None:
    """Call a function and wait so long for it; whatever it raises is dropped."""

    def call() -> None:
        with contextlib.suppress(Exception):
            function()

    thread = threading.Thread(target=call, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there can be no further thread
        call()
    else:
        thread.join(seconds)


def _restore_wakeup_fd(former: int) -> None:
    try:
        signal.set_wakeup_fd(former)
    except (OSError, ValueError):  # it was closed meanwhile
        signal.set_wakeup_fd(-1)


def _forget() -> None:
    global _active  # noqa: PLW0603
    _active = None


def _forget_in_child() -> None:
    """Leave the signals of a forked child to the handlers from before: the socket is its parent's."""
    if _active is not None:
        _active.restore_handlers()
        _restore_wakeup_fd(-1)
        _forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
