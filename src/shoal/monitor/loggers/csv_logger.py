"""A table of all numbers of a run, in one CSV file, which pandas, R and spreadsheets read."""

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.base.files import report_os_errors
from shoal.monitor.loggers.logged_settings import check_folder, file_name, folder, unused
from shoal.monitor.loggers.logger import LoggedRun, Logger, Series

COLUMNS = ("series", "kind", "seed", "label", "step", "time", "name", "value")


class CsvLogger(Logger):
    """Appends a line for each number; the columns never change, and a line is whole or absent.

    Args:
      dir: the directory of the file, which has the name of the run.
    """

    def __init__(self, dir: str = ""):
        self._directory = dir
        self._rows = io.StringIO()  # that are not in the file yet
        self._size = 0  # bytes of whole lines in the file

    def check(self) -> None:
        """Require the directory."""
        check_folder("csv", self._directory)

    def open(self, run: LoggedRun, state: Any) -> str:
        """Cut the file to what was stored for certain; begin a new one where nothing was."""
        saved, directory = state or {}, folder(run, "csv", self._directory)
        path = directory / f"{file_name(run.path.name)}.csv"
        self._path = directory / saved["file"] if saved else unused(path, Path.exists)
        with report_os_errors(f"{str(self._path)!r} cannot be written"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            size = self._file.seek(0, io.SEEK_END)
            self._size = min(size, int(saved.get("bytes", 0)))
            self._file.truncate(self._size)
        self._rows = io.StringIO()
        if not self._size:
            self._write(COLUMNS)
        return str(self._path)

    def _write(self, row: tuple[object, ...]) -> None:
        csv.writer(self._rows, lineterminator="\n").writerow(row)

    def add_scalars(self, series: Series, step: int, numbers: Mapping[str, float], time: float) -> None:
        """Add a line for each number; one that is not finite is `NaN`, as R and pandas read it."""
        who = (series.name, series.kind, "" if series.seed is None else series.seed, series.label)
        for name, value in numbers.items():
            self._write((*who, step, _text(time), name, _text(value)))

    def flush(self) -> dict[str, object]:
        """Write the lines, and return the file and its size."""
        data = self._rows.getvalue().encode()
        self._rows = io.StringIO()
        with report_os_errors(f"{str(self._path)!r} cannot be written"):
            while data:
                written = self._file.write(data)
                self._size, data = self._size + written, data[written:]
        return {"file": self._path.name, "bytes": self._size}

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Write the last lines."""
        self.flush()
        self._file.close()


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(float(value))
