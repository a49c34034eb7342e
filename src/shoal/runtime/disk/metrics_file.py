"""`metrics.jsonl`: one line per log point and seed, appended, with a checksum of all that was written."""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.files import report_os_errors, sync_directory
from shoal.runtime.disk.json_files import to_jsonable, to_null

METRICS = "metrics.jsonl"


class Mark(NamedTuple):
    """The end of the rows at some instant, which a checkpoint records."""

    bytes: int
    sha256: str  # of all before


NOTHING = Mark(0, hashlib.sha256().hexdigest())


class MetricsFile:
    """The metrics of a run, as the one process that writes them knows them.

    Args:
      run_path: the run directory.
      mark: the end of the rows that are continued; what the file holds after it is removed with the first rows that
        are appended. None continues all whole lines of the file; an incomplete one, which a crash leaves, is removed.
    """

    def __init__(self, run_path: Path, mark: Mark | None = None):
        self.path = run_path / METRICS
        self._lock = threading.Lock()  # rows that are being appended must not look like leftovers to `flush`
        content = self._read() if mark is None or mark.bytes else b""
        self._bytes = content.rfind(b"\n") + 1 if mark is None else mark.bytes
        self._digest = hashlib.sha256(content[: self._bytes])
        if mark is not None and self._digest.hexdigest() != mark.sha256:
            raise ShoalError(f"{self.path} is damaged: {find_damage(content, mark)}.")

    @property
    def mark(self) -> Mark:
        """The end of the rows so far."""
        return Mark(self._bytes, self._digest.hexdigest())

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append lines, one per row; numbers that are not finite become null.

        Raises:
          ShoalError: they cannot be written; then none of them is. Or the file has become shorter meanwhile.
        """
        lines = [json.dumps(to_jsonable(row, not_finite=to_null), allow_nan=False) for row in rows]
        data = "".join(line + "\n" for line in lines).encode()
        with (
            self._lock,
            report_os_errors(f"{self.path} cannot be written", len(data)),
            open(self.path, "ab", buffering=0) as file,
        ):
            if file.seek(0, os.SEEK_END) < self._bytes:
                raise ShoalError(f"{self.path} is damaged: it has become shorter than what was written.")
            file.truncate(self._bytes)
            _append(file, data)
            self._bytes += len(data)
            self._digest.update(data)

    def flush(self) -> None:
        """Make the rows so far persist through a power failure, and remove what follows them; for any thread.

        Raises:
          ShoalError: that is not possible.
        """
        with report_os_errors(f"{self.path} cannot be written"), open(self.path, "ab") as file:
            with self._lock:  # not while the disk flushes, which may take long
                if file.seek(0, os.SEEK_END) > self._bytes:
                    file.truncate(self._bytes)
            os.fsync(file.fileno())
            sync_directory(self.path.parent)

    def _read(self) -> bytes:
        with report_os_errors(f"{self.path} cannot be read"):
            return self.path.read_bytes() if self.path.exists() else b""


def find_damage(content: bytes, mark: Mark) -> str:
    """Compare the content of a file with the end of rows that were written; "" if they are there, unaltered."""
    if len(content) < mark.bytes:
        return f"it has {len(content):,} bytes, and {mark.bytes:,} were written"
    if hashlib.sha256(content[: mark.bytes]).hexdigest() != mark.sha256:
        return f"its first {mark.bytes:,} bytes are not those that were written"
    return ""


def _append(file: Any, data: bytes) -> None:
    """Append bytes to an unbuffered file, or none of them if that fails."""
    end = file.seek(0, os.SEEK_END)
    try:
        written = 0
        while written < len(data):  # a disk that becomes full accepts a part first
            written += file.write(data[written:])
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise
