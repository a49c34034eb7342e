"""`metrics.jsonl`: one line per log point and member, appended, with a checksum of all that was written."""

import contextlib
import hashlib
import io
import json
import os
import queue
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors, sync_directory
from shoal.records.json_files import parse_json, to_jsonable, to_null

METRICS = "metrics.jsonl"
READ_BYTES = 100_000  # more than a row has


class Mark(NamedTuple):
    """The end of the rows at some instant, which a checkpoint records."""

    bytes: int
    sha256: str  # the checksum of all bytes before


NOTHING = Mark(0, hashlib.sha256().hexdigest())


class MetricsFile:
    """The metrics of a run, in the one process that writes them.

    Rows are added in memory and written to the disk apart from that, so that the two may happen in different threads.

    Args:
      mark: the end of the rows that are continued; later rows of the file are removed with the first rows that
        are written. None continues all whole lines of the file; an incomplete one, which a crash leaves, is removed.
    """

    def __init__(self, run_path: Path, mark: Mark | None = None):
        self.path = run_path / METRICS
        content = self._read() if mark is None or mark.bytes else b""
        self._bytes = content.rfind(b"\n") + 1 if mark is None else mark.bytes
        self._digest = hashlib.sha256(content[: self._bytes])
        if mark is not None and self._digest.hexdigest() != mark.sha256:
            raise ShoalError(f"{self.path} is damaged: {find_damage(content, mark)}.")
        self._lock = threading.Lock()  # for the three fields above and below; held for an instant only
        self._unwritten = b""
        self._disk_lock = threading.Lock()  # for the file; a disk that hangs may hold it for long

    @property
    def mark(self) -> Mark:
        """The end of the rows so far, written or not."""
        with self._lock:
            return Mark(self._bytes, self._digest.hexdigest())

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add lines, one per row, without touching the disk; numbers that are not finite become null."""
        lines = [json.dumps(to_jsonable(row, not_finite=to_null), allow_nan=False) for row in rows]
        data = "".join(line + "\n" for line in lines).encode()
        with self._lock:
            self._bytes += len(data)
            self._digest.update(data)
            self._unwritten += data

    def write(self) -> None:
        """Write the rows that were added; for any thread.

        Raises:
          ShoalError: they cannot be written, and are tried again by the next call; or the file has become shorter
            meanwhile.
        """
        with self._disk_lock:
            with self._lock:
                data, start = self._unwritten, self._bytes - len(self._unwritten)
            with (
                report_os_errors(f"{self.path} cannot be written", len(data)),
                open(self.path, "ab", buffering=0) as file,
            ):
                end = file.seek(0, os.SEEK_END)
                if end < start:
                    raise ShoalError(f"{self.path} is damaged: it has become shorter than what was written.")
                # What a killed process, or a write that failed, left behind the rows that count.
                if end > start:
                    file.truncate(start)
                if data:
                    _append(file, data)
            with self._lock:
                self._unwritten = self._unwritten[len(data) :]

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add rows and write them.

        Raises:
          ShoalError: as `write`.
        """
        self.add(rows)
        self.write()

    def flush(self) -> None:
        """Make the rows so far persist through a power failure, and remove all after them; for any thread.

        Raises:
          ShoalError: that is not possible.
        """
        self.write()
        with report_os_errors(f"{self.path} cannot be written"), open(self.path, "ab") as file:
            os.fsync(file.fileno())
            sync_directory(self.path.parent)

    def _read(self) -> bytes:
        with report_os_errors(f"{self.path} cannot be read"):
            return self.path.read_bytes() if self.path.exists() else b""


class MetricsWriter:
    """A thread that writes rows when they are added, so that a disk that hangs does not hold up training.

    It is a daemon, so that it does not hold up the end of the process either.
    """

    def __init__(self, metrics: MetricsFile):
        self._metrics = metrics
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False ends the thread
        self._failures: queue.SimpleQueue[ShoalError] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metrics-writer", daemon=True)
        self._thread.start()

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add rows, which are written soon."""
        self._metrics.add(rows)
        self._requests.put(True)

    def take_failure(self) -> ShoalError | None:
        """Return the oldest failure that was not taken yet, or None; of failures in a row there is only the first."""
        try:
            return self._failures.get_nowait()
        except queue.Empty:
            return None

    def close(self, timeout: float) -> None:
        """Ask the thread to end, and wait for it for at most `timeout` seconds."""
        self._requests.put(False)
        self._thread.join(timeout)

    def _run(self) -> None:
        has_failed = False
        while self._requests.get():
            try:
                self._metrics.write()
                has_failed = False
            except ShoalError as error:
                if not has_failed:
                    self._failures.put(error)
                has_failed = True


def row_at(run_path: Path, place: Literal[0, -1]) -> dict[str, Any]:
    """Read the first or the last whole row of a run's metrics without the others; {} where there is none.

    Raises:
      ShoalError: it cannot be read, or is damaged.
    """
    path, lines = run_path / METRICS, list[bytes]()
    if path.exists():
        with report_os_errors(f"{path} cannot be read"), open(path, "rb") as file:
            if place < 0:
                file.seek(max(0, file.seek(0, os.SEEK_END) - READ_BYTES))
            lines = file.read(READ_BYTES).split(b"\n")[:-1]
    what = f"{'the last line' if place else 'line 1'} of {path}"
    row = parse_json(lines[place], what) if lines else {}
    if not isinstance(row, dict):
        raise ShoalError(f"{path} is damaged: a row is no object.")
    return row


def by_updates(rows: Iterable[Mapping[str, Any]], kind: str) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """Group the rows of a kind by the number of updates after which they were made, ascending."""
    grouped: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == kind:
            grouped.setdefault(row["updates"], []).append(row)
    return sorted(grouped.items())


def find_damage(content: bytes, mark: Mark) -> str:
    """Compare the content of a file with the end of rows that were written; "" if they are there, unaltered."""
    if len(content) < mark.bytes:
        return f"it has {len(content):,} bytes, and {mark.bytes:,} were written"
    if hashlib.sha256(content[: mark.bytes]).hexdigest() != mark.sha256:
        return f"its first {mark.bytes:,} bytes are not those that were written"
    return ""


def _append(file: io.FileIO, data: bytes) -> None:
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
