"""The standard streams of a command, and what their failure means for its exit status.

The result of a run is in its directory: where it cannot be printed, one warning says so, and the status is the run's.
The result of any other command is its output, so that losing it is an error; only a reader that has gone away, as
in `shoal envs | head -1`, is none.
"""

import errno
import io
import os
import sys
from pathlib import Path

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.base.terminal import harmless


class ProtectedStream(io.TextIOWrapper):
    """A standard stream whose writes cannot fail: the first error is kept, and from then on everything is dropped.

    The layers below are the standard library's: a signal within a `write` of Python's would make them write twice.

    Attributes:
      error: the error that was not reported yet.
      is_result: whether it has results alone, and no live line.
    """

    error: OSError | None = None
    is_result = False

    def write(self, text: str) -> int:
        """Write, to the null device after an error; what is a result cannot control the terminal."""
        try:
            return super().write(harmless(text) if self.is_result else text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Write buffered output, to the null device after an error."""
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.error = error
        drop(self.fileno())
        super().flush()


def drop(descriptor: int) -> None:
    """Drop all later output of a stream."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def protect_streams() -> None:
    """Replace standard output and standard error of this process by streams whose writes cannot fail.

    A stream that is closed is opened for reading, so that writing is an error, and no file of a run takes its place.
    """
    if os.name != "posix":
        return
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # the lowest that is free, which is this
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        former = getattr(sys, name)
        # A path or a text that the terminal's encoding lacks is not an error.
        errors = former.errors if former and former.errors != "strict" else "backslashreplace"
        lines = name == "stderr" or former is None or former.line_buffering or former.write_through
        stream = ProtectedStream(
            io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False)),
            encoding=getattr(former, "encoding", None),
            errors=errors,
            line_buffering=lines,
        )
        stream.is_result = name == "stdout"
        setattr(sys, name, stream)


def print_result(text: str, path: Path) -> None:
    """Print the result of a run or a search, all of which is saved in a directory."""
    print(text)
    if error := _take_error():
        signals.say(
            f"shoal: the result cannot be written to standard output: {error.strerror}; it is in {path}."
        )


def require_printed() -> None:
    """Require that all of a command's output was written, unless its reader has gone away.

    Raises:
      ShoalError: it was not.
    """
    error = _take_error()
    if error is not None and error.errno != errno.EPIPE:
        raise ShoalError(f"the result cannot be written to standard output: {error.strerror}.")


def _take_error() -> OSError | None:
    """Flush, and return the error of standard output that was not reported yet."""
    if sys.stdout is None:  # a process without a console
        return None
    try:
        sys.stdout.flush()
    except OSError as error:  # the streams are not those of `protect_streams`
        drop(sys.stdout.fileno())
        return error
    stream = sys.stdout
    if not isinstance(stream, ProtectedStream):
        return None
    lost, stream.error = stream.error, None
    return lost
