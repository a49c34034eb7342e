"""Files about a run in progress, written during its training by a thread that nobody waits for."""

import threading
import time
from collections.abc import Callable

from shoal.base import cpu
from shoal.base.errors import ShoalError

PRIORITY = 5  # as `nice` counts
REST = 30  # the pause after a piece of work is this many times its duration


class InterimWriter:
    """A thread of low priority that does the newest work it was given, and skips work replaced meanwhile.

    It works for one part in `REST` of the time, since drawing holds Python's lock. It begins with the first work, and
    is a daemon, so that it does not hold up the end of the process.

    Attributes:
      failure: the first one; whoever reports it removes it.
    """

    def __init__(self) -> None:
        self.failure: ShoalError | None = None
        self._changed = threading.Condition()
        self._work: Callable[[], None] | None = None
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="interim-writer", daemon=True)

    def submit(self, work: Callable[[], None]) -> None:
        """Request work, in place of work that still waits; for any thread."""
        with self._changed:
            self._work = work
            if not self._thread.ident:
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float, *, cancel: bool = False) -> None:
        """Let the thread end after the work that waits (left out with `cancel`), and wait for it for at most
        `timeout` seconds.
        """
        with self._changed:
            self._is_ending = True
            self._work = None if cancel else self._work
            self._changed.notify()
        if self._thread.ident:
            self._thread.join(timeout)

    def _run(self) -> None:
        cpu.lower_priority(PRIORITY)
        has_failed = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work is not None or self._is_ending)
                work, self._work = self._work, None
            if work is None:
                return
            start_time = time.perf_counter()
            try:
                work()
            except Exception as error:  # of whichever kind, since a picture must not end the run
                reason = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
                if not has_failed:
                    self.failure = ShoalError(f"the files about the run so far: {' '.join(reason.split())}")
                has_failed = True
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending, REST * (time.perf_counter() - start_time))
