"""Reading of `metrics.jsonl` while it is written, and the position of a logger in it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from shoal.records.json_files import parse_json

# Words in the names of entries that differ where rows are made again.
WALL_TIME = ("seconds", "time", "per_second")


class Position(NamedTuple):
    """A number of rows and a checksum of them; never of bytes, since rows that are made again differ in length."""

    rows: int = 0
    sha256: str = hashlib.sha256().hexdigest()

    def after(self, row: Mapping[str, object]) -> "Position":
        """Return the position after a further row; what measures time has no part in it."""
        lasting = {name: x for name, x in row.items() if not any(word in name for word in WALL_TIME)}
        text = self.sha256 + json.dumps(lasting, sort_keys=True)
        return Position(self.rows + 1, hashlib.sha256(text.encode()).hexdigest())


class RowReader:
    """Reads the whole lines that were added to a file of rows; after it was cut, from its start.

    A resumed run cuts the file and makes rows again, which differ from the former ones in their `time`.
    """

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0
        self._last = b""  # the line before the offset

    def new_rows(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the rows that were added, and whether they are those from the start since the file was cut."""
        if not self._path.is_file():
            return [], False
        with open(self._path, "rb") as file:
            was_cut = self._offset > 0 and not self._is_unchanged(file)
            if was_cut:
                self._offset = 0
            file.seek(self._offset)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines:
            self._offset += sum(map(len, lines))
            self._last = lines[-1]
        return [parse_json(line, f"a line of {self._path}") for line in lines], was_cut

    def _is_unchanged(self, file: IO[bytes]) -> bool:
        start = self._offset - len(self._last)
        file.seek(start)
        return bool(file.read(len(self._last)) == self._last)
