"""Name what a check is doing on standard error where it takes long."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Announce = Callable[[str], None]  # is told what begins, such as "tracing reset"
PATIENCE = 5.0  # seconds, after which a line names the activity


@contextmanager
def reported_activity(progress: bool, patience: float = PATIENCE) -> Iterator[Announce]:
    """Give a function that is told what begins.

    That is named after `patience` seconds, and again each time that its duration has doubled.

    Args:
      progress: whether it is.
    """
    now = ("beginning", time.monotonic())
    has_ended = threading.Event()

    def begin(doing: str) -> None:
        nonlocal now
        now = (doing, time.monotonic())

    def report() -> None:
        reported, pause = now, patience
        while not has_ended.wait(patience / 20):
            if now != reported:
                reported, pause = now, patience
            doing, since = reported
            elapsed = time.monotonic() - since
            if elapsed >= pause:
                text = f"shoal check: still {doing}, for {elapsed:.0f} seconds now"
                print(text, file=sys.stderr, flush=True)
                pause *= 2

    if progress:
        # A thread beside the check, which may be compiling for minutes; a daemon ends with the process.
        threading.Thread(target=report, name="shoal check", daemon=True).start()
    try:
        yield begin
    finally:
        has_ended.set()
