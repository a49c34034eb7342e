"""The processor cores and threads that this process may use."""

import os


def cores() -> int:
    """Count the cores that this process may use; fewer than the machine's if it is bound to some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Count the threads on which XLA runs programs on the CPU: `NPROC` where it is set, else one per core."""
    number = os.environ.get("NPROC", "")
    return max(1, int(number)) if number.isdecimal() else cores()
