"""The processor cores and threads that this process may use."""

import contextlib
import os
import sys
import threading

LOWEST_PRIORITY = 19  # of a thread, as `nice` counts


def cores() -> int:
    """Count the cores that this process may use; fewer than the machine's if it is bound to some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Count the threads on which XLA runs programs on the CPU: `NPROC` where it is set, else one per core."""
    number = os.environ.get("NPROC", "")
    return max(1, int(number)) if number.isdecimal() else cores()


def lower_priority(nice: int = LOWEST_PRIORITY) -> None:
    """Lower the priority of the calling thread and of threads that it will start; by default to the lowest.

    A thread that runs much Python should not have the lowest: where other processes use the machine, it would hold the
    interpreter's lock without running.

    Only Linux gives each thread a priority of its own; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
