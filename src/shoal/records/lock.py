"""The lock of a run directory: one process at a time writes to it.

A process that writes to a run directory has locked the file `.lock` in it by `flock`, and its name stands there. The
kernel releases the lock when the process ends, however it ends. Processes that it starts do not hold it; of those that
it forks, filelock closes the copy of the file. The file itself is never removed as long as there is a run: one process
could hold the removed file, and another one a new file of the same name.

What network file systems give is in `docs/durability.md`.
"""

import contextlib
import errno
import importlib
import os
import platform
import re
import stat
from pathlib import Path

from filelock import FileLock, Timeout

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors

LOCK = ".lock"
GRACE_SECONDS = 0.1  # within which `is_held` of another process has ended, which locks for microseconds

# The content of a lock file. The token tells apart processes of containers with the same number and host name.
_ENTRY = re.compile(rb"(process [1-9][0-9]{0,9} of host '[ -&(-~]+')\n[0-9a-f]{16}\n")
_TOKEN = os.urandom(8).hex()
_MAX_BYTES = 1000  # of a lock file that are read
# A link to elsewhere is not a lock, and opening a pipe must not wait for a writer.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Lock:
    """A run directory's lock, as a context manager; `what` is what a message calls it."""

    def __init__(self, directory: Path | str, what: str = "run directory"):
        self._name = f"{what} {str(directory)!r}"
        self._path = Path(directory) / LOCK
        self._lock = FileLock(
            self._path,
            blocking=False,
            thread_local=False,
            fallback_to_soft=False,
            preserve_lock_file=True,
            on_acquired=_write_entry,
        )

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
          ShoalError: another process, or another call of this one, uses the directory; or it cannot be locked.
        """
        with report_os_errors(f"{self._name} cannot be locked"):
            os.stat(os.path.join(self._path.parent, ""))  # filelock would make a directory that is gone
            try:
                self._lock.acquire(timeout=GRACE_SECONDS, poll_interval=GRACE_SECONDS / 10, blocking=True)
            except Timeout:
                raise ShoalError(
                    f"{self._name} is in use by {_holder(self._path)}; wait until that has ended, or name another "
                    "directory."
                ) from None

    def __exit__(self, *_: object) -> None:
        """Release the lock; never raises an error of the disk, since the kernel releases it at the process's end."""
        with contextlib.suppress(OSError):
            self._lock.release()


def is_held(directory: Path | str) -> bool:
    """Report whether a process, this one included, has locked a run directory; nothing is waited for or written.

    Where a file cannot be locked, such as on a file system without locks, it is not held. The shared lock that is tried
    for an instant keeps nobody out, since `Lock` tries again within that time.
    """
    try:
        descriptor = os.open(Path(directory) / LOCK, _READ)
    except PermissionError:
        return os.name == "nt"  # where others cannot read a file that is locked
    except OSError:
        return False
    try:
        if os.name == "nt":
            os.read(descriptor, 1)
        else:
            fcntl = importlib.import_module("fcntl")
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _own_entry() -> bytes:
    """Return the content of the lock file while this process has locked it."""
    return f"process {os.getpid()} of host {platform.node()!a}\n{_TOKEN}\n".encode()


def _write_entry(descriptor: int) -> None:
    """Write the name of this process into the file that it has locked."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, f"{LOCK!r} in it is not a regular file")
    os.ftruncate(descriptor, 0)
    os.write(descriptor, _own_entry())
    os.fsync(descriptor)  # other hosts see it then


def _holder(path: Path) -> str:
    """Say who holds a lock; "another process" where its file is damaged or not written yet.

    Raises:
      OSError: the file cannot be read; if there is none, it could not be made, or its run was just discarded.
    """
    try:
        descriptor = os.open(path, _READ)
        try:
            entry = os.read(descriptor, _MAX_BYTES)
        finally:
            os.close(descriptor)
    except PermissionError:  # Windows keeps others from reading a locked file
        entry = b""
    if entry == _own_entry():
        return "another call of this process"
    match = _ENTRY.fullmatch(entry)
    return match[1].decode() if match else "another process"
