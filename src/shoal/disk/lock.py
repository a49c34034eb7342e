"""The lock of a run directory: one process at a time writes to it.

The file `.lock` names the process that holds it, and that process touches it every 10 seconds. A lock is stale

- on the same host (same name, same boot, same namespace of process ids), when its process has ended: at once;
- otherwise, or if the file is damaged, when it has not been touched for 60 seconds by the file system's own clock, so
  that clocks that differ between hosts do not matter. A younger one is waited for.

A stale lock is taken over. What this does not prevent:

- A process that another host judges by its touches loses its lock if it (or its network) stops for 60 seconds, and
  learns this when it looks at the file again (`Lock.lost`): what it writes until then goes into the other's directory.
- Two processes may find the same lock stale. If the slower one looks a last time before the faster one has made its
  lock, and moves it aside after that, it sees that it is not the stale one, and puts it back. Meanwhile a third process
  may find no lock and make its own. The faster one looks again after `SETTLE_SECONDS`, and is then refused; if the
  others took longer, it finds its lock lost within `TOUCH_SECONDS`. Where a directory can be locked by `flock` (local
  disks of Linux and macOS), the processes of a host look and change one after the other, and none of this happens
  among them.
- Two hosts that were restored from one snapshot have equal names, boots and processes.
- A copy of the directory of a running process has a copy of its lock, and is refused until that process has ended or
  the file is deleted.
- On a file system without hard links, a process that is killed while it makes the lock leaves an empty file, which is
  waited for as a lock of another host.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from shoal.base.errors import ShoalError
from shoal.base.files import link_new, report_os_errors
from shoal.disk.processes import Process, is_running, this_process

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"
TOUCH_SECONDS = 10.0  # from one touch by the owner to the next
STALE_SECONDS = 60.0  # without a touch, for a lock of another host
LOOK_SECONDS = 1.0  # from one look at a lock that is waited for, or that seems lost, to the next
TURN_SECONDS = 2.0  # the longest wait for other processes of this host that look at the same lock
SETTLE_SECONDS = 0.1  # after a takeover, for slower processes to put back what they moved aside by mistake
JOIN_SECONDS = 2.0  # the longest wait for the thread, which a disk that hangs may hold up

_MAX_BYTES = 65536  # of a lock file that are read
_MAX_NUMBER = 2**31  # of processes
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)  # the last: removed by another host of a network's disk
# A link to elsewhere is no lock, and opening a pipe must not wait for a writer.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Lock:
    """A run directory's lock, for one use as a context manager; a thread touches it while it is held."""

    def __init__(
        self,
        directory: Path | str,
        note: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Prepare a lock; `note` receives one line if a lock of another host is waited for."""
        # Absolute, so that it is found after a change of the working directory.
        self.path = Path(os.path.abspath(directory)) / LOCK
        self._name = f"run directory {str(directory)!r}"
        self._note, self._clock, self._sleep = note, clock, sleep
        self._process = this_process()
        self._token = secrets.token_hex(16)
        self._thread: threading.Thread | None = None
        self._is_used = False
        self._ended = threading.Event()
        self._lost = False

    @property
    def lost(self) -> bool:
        """Whether the lock was found removed or another process's while it was held; nothing must be written then.

        As the file was at the last look, at most `TOUCH_SECONDS + LOOK_SECONDS` ago unless the disk hangs;
        it reads no file.
        """
        return self._lost

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock; a stale one is taken over, and one of another host that may be stale is waited for.

        Raises:
          ShoalError: another process uses the directory, or it cannot be written to.
          RuntimeError: this object was used before.
        """
        if self._is_used:
            raise RuntimeError("a lock is acquired once; make a new one")
        self._is_used = True
        try:
            while self._take() and not self._has_settled():
                pass  # another process moved it aside by mistake, and perhaps made its own
            self._thread = threading.Thread(target=self._touch_until_released, name="shoal-lock", daemon=True)
            self._thread.start()
            self._remove_leftovers()
        except BaseException:  # a Ctrl-C too
            self.release()
            raise

    def release(self) -> None:
        """Remove the lock if it is still this one; never raises an error of the disk.

        A lock that cannot be removed is stale as soon as this process has ended.
        """
        self._ended.set()
        if self._process.number != os.getpid():  # a forked copy does not hold it
            return
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        with contextlib.suppress(OSError), _in_turn(self.path.parent):
            found = _look(self.path)
            if found is not None and self._is_own(found):
                self._remove(found)

    def _take(self) -> bool:
        """Make the lock file, once there is none or only a stale one.

        Returns:
          whether it replaced a stale one.
        """
        awaited: _Found | None = None
        stale_at = 0.0
        while True:
            with report_os_errors(f"{self._name} cannot be locked"), _in_turn(self.path.parent):
                found = _look(self.path)
                if found is None:
                    if self._create():
                        return False
                    continue
                if self._is_own(found):  # put back after `_has_settled` had looked
                    return False
                if awaited is None:
                    stale_at = self._stale_at(found)
                elif found != awaited:  # touched, or another process was faster
                    raise self._refusal(found)
                if self._clock() >= stale_at:
                    if self._remove(found) and self._create():
                        return True
                    continue
            if awaited is None:
                seconds = math.ceil(stale_at - self._clock())
                self._note(
                    f"waiting up to {seconds} s for the lock of {found.holder} on {self._name}, "
                    "which is taken over unless it is touched"
                )
            awaited = found
            self._sleep(min(LOOK_SECONDS, max(0.0, stale_at - self._clock())))

    def _has_settled(self) -> bool:
        """Wait for slower processes that found the same lock stale; return whether the lock is still this one."""
        self._sleep(SETTLE_SECONDS)
        with report_os_errors(f"{self._name} cannot be locked"), _in_turn(self.path.parent):
            return self._is_own(_look(self.path))

    def _stale_at(self, found: "_Found") -> float:
        """Return the time of the clock from which on a lock is stale if nobody touches it.

        Raises:
          ShoalError: its process is running.
        """
        owner = found.process
        if owner is not None and owner.numbers_as(self._process):
            if is_running(owner):
                raise self._refusal(found)
            return -math.inf
        age = self._age(found)  # below 0 if the disk's clock was set back
        return self._clock() + STALE_SECONDS - max(0.0, age)

    def _age(self, found: "_Found") -> float:
        """Return the seconds since a lock was touched, by the clock that the file system gives its files times by."""
        with self._own_file() as probe:
            os.utime(probe)
            now = _look(probe)
        return 0.0 if now is None else (now.touched - found.touched) / 1e9

    def _create(self) -> bool:
        """Make the lock file; return False if there is one."""
        with self._own_file() as temporary:  # anew each time, since its time becomes the lock's
            try:
                link_new(temporary, self.path)
            except FileExistsError:
                return False
        return True

    def _remove(self, expected: "_Found") -> bool:
        """Remove the lock file that was looked at; return False, and leave it, if it is another one or was touched.

        It is renamed before it is compared, since between a comparison and a removal another process may replace it.
        The comparison before that makes it rare that another's is moved.
        """
        if _look(self.path) != expected:
            return False
        aside = self.path.with_name(f"{LOCK}.{self._token}.stale")
        try:
            os.rename(self.path, aside)
        except FileNotFoundError:
            return False
        is_expected = False
        try:
            is_expected = _look(aside) == expected
        finally:
            if not is_expected:
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    link_new(aside, self.path)
            aside.unlink(missing_ok=True)
        return is_expected

    @contextlib.contextmanager
    def _own_file(self) -> Iterator[Path]:
        """Write what the lock will hold to a file of a name that nobody else uses, and remove that name at the end."""
        path = self.path.with_name(f"{LOCK}.{self._token}.tmp")
        try:
            path.write_text(json.dumps(dataclasses.asdict(self._process) | {"token": self._token}) + "\n")
            yield path
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Remove old files that processes left which were killed while they took a lock."""
        with contextlib.suppress(OSError):
            now = self.path.stat().st_mtime
            for leftover in self.path.parent.glob(f"{LOCK}.*"):
                if now - leftover.lstat().st_mtime > STALE_SECONDS:
                    leftover.unlink(missing_ok=True)

    def _touch_until_released(self) -> None:
        """Touch the lock file regularly; stop when it is no longer this lock's.

        It is looked at twice before it counts as lost, since another process may have moved it aside by mistake.
        """
        seems_lost = False
        while not self._ended.wait(LOOK_SECONDS if seems_lost else TOUCH_SECONDS):
            with contextlib.suppress(OSError):  # a disk that fails is tried again
                if self._is_own(_look(self.path)):
                    seems_lost = False
                    os.utime(self.path)
                elif seems_lost:
                    self._lost = True
                    return
                else:
                    seems_lost = True

    def _is_own(self, found: "_Found | None") -> bool:
        return found is not None and found.token == self._token

    def _refusal(self, found: "_Found") -> ShoalError:
        holder = "another call of this process" if found.process == self._process else found.holder
        return ShoalError(
            f"{self._name} is in use by {holder}; wait until that has ended, or name another directory."
        )


@dataclasses.dataclass(frozen=True)
class _Found:
    """A lock file at one instant; equal to an earlier look if it is the same one and was not touched."""

    content: bytes
    touched: int  # nanoseconds of the file system's clock
    process: Process | None  # None: damaged
    token: str

    @property
    def holder(self) -> str:
        """The process that holds it, for messages."""
        if self.process is None:
            return f"a process that its damaged lock file {LOCK!r} does not name"
        return f"process {self.process.number} of host {self.process.host!r}"


def _look(path: Path) -> _Found | None:
    """Read a lock file; None if there is none.

    It is opened each time: a network's disk then asks its server for the file's current time and content.
    """
    try:
        descriptor = os.open(path, _READ)
        try:
            content = os.read(descriptor, _MAX_BYTES)
            touched = os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    return _Found(content, touched, *_parse(content))


def _parse(content: bytes) -> tuple[Process | None, str]:
    """Return the process and the token that a lock file names; None and an empty token if it is damaged."""
    try:
        fields = json.loads(content)
        token = fields.pop("token")
        process = Process(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, ""
    number = process.number
    texts = (process.host, process.boot, process.namespace, process.start, token)
    is_valid = type(number) is int and 0 < number < _MAX_NUMBER and all(type(text) is str for text in texts)
    return (process, token) if is_valid else (None, "")


@contextlib.contextmanager
def _in_turn(directory: Path) -> Iterator[None]:
    """Let the processes of this host look at a directory's lock and change it one after the other.

    Without effect where the system or the file system cannot do this, and after `TURN_SECONDS`: a process may have been
    stopped in its turn. Other hosts take no notice.
    """
    descriptor = None
    try:
        with contextlib.suppress(OSError):  # Windows opens no directories
            descriptor = os.open(directory, os.O_RDONLY)
            end = time.monotonic() + TURN_SECONDS
            while not _flock(descriptor) and time.monotonic() < end:
                time.sleep(0.005)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)  # which ends the turn


def _flock(descriptor: int) -> bool:
    """Lock a directory until it is closed; return False if another process has locked it."""
    if sys.platform != "win32":
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
