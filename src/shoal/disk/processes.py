"""Identities of processes: which process of which host, and whether it is still running."""

import dataclasses
import os
import platform
import subprocess
import sys
from pathlib import Path

PROC = Path("/proc")  # of Linux


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, which is not confused with a later one that has the same number.

    Attributes:
      boot: an identifier that the host's kernel draws when it starts; empty where it is not known.
      namespace: the namespace that the number belongs to, since each container may count its own; empty outside of
        Linux.
      start: when it was started, in the system's own words; empty where it is not known.
    """

    host: str
    boot: str
    namespace: str
    number: int
    start: str

    def numbers_as(self, other: "Process") -> bool:
        """Return whether the numbers of two processes are of the same host, boot and namespace.

        Not known is different, so that nobody concludes from a number that means another process.
        """
        here, there = ((p.host, p.boot, p.namespace) for p in (self, other))
        return bool(self.boot) and here == there


def this_process() -> Process:
    """Return the identity of the calling process."""
    boot, namespace = _boot_and_namespace()
    number = os.getpid()
    start = _state_and_start(number)[1] if boot else ""
    return Process(platform.node(), boot, namespace, number, start)


def is_running(process: Process) -> bool:
    """Return whether a process whose number is of this host, boot and namespace is running.

    One that was killed and whose parent has not asked for its exit status yet is not. If the system does not tell
    when the process of that number was started, it counts as running.
    """
    try:
        os.kill(process.number, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        pass
    is_dead, start = _state_and_start(process.number)
    is_other = bool(start and process.start) and start != process.start
    return not (is_dead or is_other)


def _boot_and_namespace() -> tuple[str, str]:
    """Return the identifiers of the kernel's boot and of the namespace of process ids; empty where not known."""
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "kern.bootsessionuuid"), ""
    try:
        if os.readlink(PROC / "self") != str(os.getpid()):  # mounted for another namespace
            return "", ""
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink(PROC / "self/ns/pid")
    except OSError:  # Windows, or a Linux without these files
        return "", ""


def _state_and_start(number: int) -> tuple[bool, str]:
    """Return whether a process has ended and only waits to be removed, and when it was started ("": not known)."""
    if sys.platform == "darwin":
        return _state_and_start_by_ps(number)
    try:
        text = (PROC / str(number) / "stat").read_text(errors="replace")
    except OSError:
        return False, ""
    # The second field is the program's name in brackets, which may itself hold blanks and brackets.
    fields = text.rpartition(")")[2].split()
    state, num_threads, start = fields[0], int(fields[17]), fields[19]
    # The first thread of a process that is being killed ends before others, which may still be in a write.
    return state in "ZXx" and num_threads <= 1, start


def _state_and_start_by_ps(number: int) -> tuple[bool, str]:
    """Return what `_state_and_start` does, for systems without /proc."""
    state, _, start = _output("ps", "-o", "stat=", "-o", "lstart=", "-p", str(number)).partition(" ")
    return state.startswith("Z"), " ".join(start.split())


def _output(*command: str) -> str:
    """Return what a system's command prints, in one language and time zone; empty if it fails."""
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}
    try:
        result = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()
