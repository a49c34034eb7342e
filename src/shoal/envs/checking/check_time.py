"""Name the activity of a check on standard error where it takes long."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 5.0  # seconds, after which a line names the activity


class Activity:
    """The current activity of a check, and its start; written by the checking thread, read by the one that reports."""

    def __init__(self) -> None:
        self.now = ("beginning", time.monotonic())

    def __call__(self, doing: str) -> None:
        """Record that `doing`, such as "tracing reset", begins."""
        self.now = (doing, time.monotonic())


@contextmanager
def reported_activity(progress: bool, patience: float = PATIENCE) -> Iterator[Activity]:
    """Give an activity, which is named after `patience` seconds, and again each time that its duration has doubled.

    Args:
      progress: whether it is.
    """
    activity, has_ended = Activity(), threading.Event()

    def report() -> None:
        reported, pause = activity.now, patience
        while not has_ended.wait(patience / 20):
            doing, since = now = activity.now
            if now != reported:
                reported, pause = now, patience
            elapsed = time.monotonic() - since
            if elapsed >= pause:
                print(
                    f"shoal check: still {doing}, for {elapsed:.0f} seconds now", file=sys.stderr, flush=True
                )
                pause *= 2

    if progress:
        threading.Thread(target=report, name="shoal check", daemon=True).start()
    try:
        yield activity
    finally:
        has_ended.set()
