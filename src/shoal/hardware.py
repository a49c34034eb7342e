"""The processor as this process may use it."""

import os


def cores() -> int:
    """The number of cores that this process may use; fewer than the machine's where it is bound to some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """The number of threads on which XLA runs programs on the CPU: `NPROC` where it is set, else one for each core."""
    number = os.environ.get("NPROC", "")
    return max(1, int(number)) if number.isdecimal() else cores()
