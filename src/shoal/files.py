"""Files that are complete or absent at any instant."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shoal.errors import ShoalError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def user_path(value: Any, what: str) -> Path:
    """Read a path that a user gave; a leading `~` is the home directory.

    Args:
      value: text or a path.
      what: the path's meaning, such as "run directory", for the message.
    Raises:
      ShoalError: it is neither, it holds a NUL byte, or there is no such home directory.
    """
    try:
        path = Path(value).expanduser()
    except TypeError:
        raise ShoalError(
            f"{what} {value!r} is a {type(value).__name__}, not a path; give it as text."
        ) from None
    except RuntimeError as error:  # `~nobody`
        raise ShoalError(f"{what} {str(value)!r} cannot be found: {error}") from None
    if "\0" in str(path):
        raise ShoalError(f"{what} {str(path)!r} is no path: it holds a NUL byte.")
    return path


@contextlib.contextmanager
def write_whole_file(
    path: Path, *, parents: bool = True, new: bool = False, needed: int | None = None
) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces the one at its path once it is complete, so that readers see no part of it.

    It is opened at once, so that a path that cannot be written is known before anything is computed for it.

    Args:
      path: the file.
      parents: whether missing parent directories are made.
      new: whether the file must not exist yet; of several processes that write it, one succeeds.
      needed: its size in bytes where that is known, for the message on a full disk.
    Raises:
      ShoalError: it cannot be written.
    """
    temporary = path.parent / temporary_name(path.name, os.getpid())
    with report_os_errors(f"{path} cannot be written", needed):
        if "\0" in str(path):
            raise OSError(errno.EINVAL, "its name holds a NUL byte")
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if new:
                link_new(temporary, path)
            else:
                os.replace(temporary, path)
            sync_directory(path.parent)
        finally:
            with contextlib.suppress(OSError):  # the first failure is the one to report
                temporary.unlink(missing_ok=True)


def temporary_name(name: str, process: int | str) -> str:
    """Name the file in which a process writes before it has its name; a killed process leaves it behind."""
    return f".{name}.{process}.tmp"


def link_new(temporary: Path, path: Path) -> None:
    """Give a file its name, unless a file of that name exists; of several processes and hosts, one succeeds.

    The caller removes the temporary name, if it is still there.

    Raises:
      FileExistsError: it exists.
      OSError: it cannot be made.
    """
    try:
        os.link(temporary, path)
    except FileNotFoundError:
        raise
    except FileExistsError:
        # Over a network the server's answer may be lost, and the question be asked again, after the link was made.
        if not _is_same_file(temporary, path):
            raise
    except OSError:  # a file system without hard links: reserve the name, then write the content
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            os.replace(temporary, path)
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _is_same_file(first: Path, second: Path) -> bool:
    """Return whether two names are of one file; links to elsewhere are not followed."""
    try:
        return os.path.samestat(first.lstat(), second.lstat())
    except OSError:
        return False


def sync_directory(path: Path) -> None:
    """Make renames within a directory persist through a power failure, where the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Flush all files and folders below a folder, and itself, so that they persist through a power failure."""
    for folder, _, names in os.walk(path, topdown=False, onerror=_raise):
        for name in names:
            # Opened for writing, since some systems flush nothing through a file that can only be read.
            with open(os.path.join(folder, name), "rb+", buffering=0) as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))


def _raise(error: OSError) -> None:
    raise error


@contextlib.contextmanager
def report_os_errors(what: str, needed: int | None = None) -> Iterator[None]:
    """Convert an error of the operating system to one sentence: what failed, and why.

    Args:
      what: the action that failed.
      needed: the number of bytes it needs, which the sentence names if the disk is full.
    Raises:
      ShoalError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        size = f"; it takes {needed:,} bytes" if needed is not None and error.errno in NO_SPACE else ""
        raise ShoalError(f"{what}: {error.strerror or error}{size}.") from error


def free_bytes(path: Path) -> int | None:
    """Return the bytes that may still be written beside a file or directory that exists; None where this is unknown."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return usage.free if usage.total else None
