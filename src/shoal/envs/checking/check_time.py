"""Time limits of a check: a long activity is reported after some seconds, and stopped at the limit.

An environment's code cannot be interrupted from within its own thread, least of all a compiled program. So
the checks run in a separate thread; the caller's thread waits for it, reports, and continues without it at
the limit. The thread then ends with the activity that was too slow, or with the process, which does not wait for it.
"""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax

from shoal.envs.checking.check_findings import Finding

PATIENCE = 5.0  # seconds, after which a line reports the activity
# Bytes of the thread's stack, since deep programs need much and some systems give little.
STACK_BYTES = 64 * 2**20
CALLER_SETTINGS = {  # settings of JAX that a context manager may have changed for the caller's thread alone
    "jax_enable_x64": jax.enable_x64,
    "jax_default_device": jax.default_device,
    "jax_default_prng_impl": jax.default_prng_impl,
}


class _StopCheck(BaseException):
    """Ends the thread of a check after its time limit, between two activities."""


class Activity:
    """The current activity of a check, and its start; written by the checking thread, read by the waiting one."""

    def __init__(self) -> None:
        self.now = ("beginning", time.monotonic())
        self.stopped = False

    def __call__(self, doing: str) -> None:
        """Record that `doing`, such as "tracing reset", begins; end the thread if its time limit has passed."""
        if self.stopped:
            raise _StopCheck
        self.now = (doing, time.monotonic())


def run_with_time_limit(
    work: Callable[[Activity], Iterator[Finding]], seconds: float, progress: bool, patience: float = PATIENCE
) -> list[Finding]:
    """Return the findings of `work`, which names each of its activities; one activity may take at most `seconds`.

    Args:
      work: called in a thread of its own; in the caller's where `seconds` is infinite and nothing is to be reported.
      seconds: the limit of one activity, which is then stopped and becomes a finding, after the earlier findings.
      progress: whether a line on standard error names the activity, after `patience` seconds, and again
        each time that its duration has doubled.
    """
    activity = Activity()
    if math.isinf(seconds) and not progress:
        return list(work(activity))
    findings: list[Finding] = []
    errors: list[BaseException] = []

    def collect() -> None:
        for finding in work(activity):  # one by one, so that those made before a stop are kept
            findings.append(finding)

    thread = _start_thread(collect, errors)
    try:
        timeouts = list(_wait(thread, activity, seconds, patience if progress else math.inf))
    finally:  # after an interrupt by the user too
        activity.stopped = True
    if errors and not timeouts:
        raise errors[0]
    return findings + timeouts


def _wait(thread: threading.Thread, activity: Activity, seconds: float, patience: float) -> Iterator[Finding]:
    """Wait for the thread's end or the limit of one activity, and report one that takes long."""
    reported, pause = activity.now, patience
    while thread.is_alive():
        doing, since = now = activity.now
        if now != reported:
            reported, pause = now, patience
        elapsed = time.monotonic() - since
        if elapsed >= seconds:
            yield from _too_slow_findings(doing, seconds)
            return
        if elapsed >= pause:
            print(f"shoal check: still {doing}, for {elapsed:.0f} seconds now", file=sys.stderr, flush=True)
            pause *= 2
        thread.join(min(0.25, seconds - elapsed))


def _start_thread(work: Callable[[], None], errors: list[BaseException]) -> threading.Thread:
    """Start a daemon thread, which does not delay the end of the process, with the caller's settings of JAX."""
    settings = {name: getattr(jax.config, name) for name in CALLER_SETTINGS}

    def run() -> None:
        try:
            with contextlib.ExitStack() as stack:
                for name, value in settings.items():
                    stack.enter_context(CALLER_SETTINGS[name](value))
                work()
        except _StopCheck:
            pass
        except BaseException as error:  # raised again where the caller waits
            errors.append(error)

    thread = threading.Thread(target=run, name="shoal check", daemon=True)
    before = threading.stack_size(STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(before)
    return thread


def _too_slow_findings(doing: str, seconds: float) -> Iterator[Finding]:
    yield Finding(
        "too-slow",
        f"{doing} had not ended after {seconds:g} seconds and was given up; it should take about a second: compute "
        "what takes long once, outside of reset and step (or allow more seconds)",
    )
    yield Finding(
        "not-checked", "the rest of the checks was left out, because it needs what did not end (too-slow)"
    )
