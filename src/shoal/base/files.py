"""Files that are complete or absent at any instant."""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from shoal.base.errors import ShoalError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
LONG_NAME = 100  # bytes


def user_path(value: str | os.PathLike[str], what: str) -> Path:
    """Read a path that a user gave; a leading `~` is the home directory.

    Args:
      what: the path's meaning, such as "run directory", for the message.
    Raises:
      ShoalError: it is neither, no file can have such a name, or there is no such home directory.
    """
    try:
        path = Path(value).expanduser()
        os.fsencode(path)
    except TypeError:
        raise ShoalError(
            f"{what} {value!r} is a {type(value).__name__}, not a path; give it as text."
        ) from None
    except (RuntimeError, UnicodeError) as error:  # `~nobody`
        raise ShoalError(f"{what} {str(value)!r} cannot be found: {error}") from None
    return path


def cache_folder() -> Path:
    """Return Shoal's folder for what can be computed or downloaded again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"


@contextlib.contextmanager
def write_whole_file(
    path: Path, *, parents: bool = True, new: bool = False, needed: int | None = None
) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces the one at its path once it is complete, so that readers see no part of it.

    It is opened at once, so that a path that cannot be written is known before anything is computed for it. Only a
    regular file is replaced, and its mode stays: links are followed, and a device or a FIFO receives the content.

    Args:
      new: whether the file must not exist yet; of several processes that write it, one succeeds.
      needed: its size in bytes where that is known, for the message on a full disk.
    Raises:
      ShoalError: it cannot be written.
    """
    with report_os_errors(f"{path} cannot be written", needed):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        if new:
            with _replacing(path, link_new) as file:
                yield file
        elif path.exists() and not path.is_file():
            with _spooled_into(path) as file:
                yield file
        else:
            with _replacing(Path(os.path.realpath(path)), os.replace) as file:  # which links lead to
                yield file


@contextlib.contextmanager
def _replacing(path: Path, put: Callable[[Path, Path], None]) -> Iterator[IO[bytes]]:
    """Open a temporary file that `put` gives its name once it is complete; it has the mode of the one it replaces."""
    temporary = path.parent / temporary_name(path.name, os.getpid())
    try:
        with open(temporary, "wb") as file:
            if path.exists():
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path)
        sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):  # the first failure is the one to report
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _spooled_into(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file whose content is written, once it is complete, to a device or a FIFO.

    A writer may seek in it, and open it by its name.
    """
    with (
        open(path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY)) as target,
        tempfile.NamedTemporaryFile() as file,
    ):
        yield file
        file.flush()
        file.seek(0)
        shutil.copyfileobj(file, target)


def find_obstacle(path: Path) -> str:
    """Return a clause that says why a file cannot be written, before anything is computed for it; "" if it seems to be.

    Args:
      path: the file; its directory must exist.
    """
    if path.is_dir():
        return "it is a directory"
    if path.exists() and not path.is_file():
        return "" if os.access(path, os.W_OK) else "it is not a regular file, and read-only"
    parent = Path(os.path.realpath(path)).parent
    if not parent.is_dir():
        return f"there is no directory {str(parent if path.is_symlink() else path.parent)!r}"
    return "" if os.access(parent, os.W_OK) else f"{str(path.parent)!r} is read-only"


def require_output(path: Path, force: bool, argument: str) -> None:
    """Require that a file can be written, and does not exist unless it is to be replaced.

    Args:
      argument: the beginning of the sentence, such as "out='page.html'".
    Raises:
      ShoalError: it exists without `force`, or something is in the way.
    """
    if os.path.lexists(path) and not path.is_dir() and not force:  # a link to nothing exists too
        raise ShoalError(f"{argument} exists; give another name, or --force (force=True) to replace it.")
    if obstacle := find_obstacle(path):
        raise ShoalError(f"{argument} cannot be written: {obstacle}.")


def temporary_name(name: str, process: int | str) -> str:
    """Name the temporary file that a process writes and then renames; a killed process leaves it behind.

    File systems limit names to 255 bytes or less, so that a long one is replaced by its checksum.
    """
    data = os.fsencode(name)
    return f".{name if len(data) <= LONG_NAME else hashlib.sha256(data).hexdigest()}.{process}.tmp"


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


@contextlib.contextmanager
def report_os_errors(what: str, needed: int | None = None) -> Iterator[None]:
    """Convert an error of the operating system to one sentence: what failed, and why.

    Args:
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
    """Return the free bytes of the file system of an existing file or directory; None where this is unknown."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return usage.free if usage.total else None
