"""The directory of a sweep: its request, and which run trains which settings (see `records.search_files`)."""

import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.config import arguments, settings
from shoal.records import new_directory
from shoal.records.json_files import read_json, report_wrong_types, to_jsonable, write_json
from shoal.records.run_config import RunConfig
from shoal.records.search_files import SWEEP, holds_sweep

SCHEMA = 1


class SweepDirectory:
    """A directory that holds one sweep, or will hold it.

    Args:
      asked: the request; the one in the directory must be the same.
    Raises:
      ShoalError: it holds another sweep, or other files; or it cannot be written to.
    """

    def __init__(self, path: str | Path, asked: Mapping[str, object]):
        self._given = arguments.path("run_dir", path) if path else None
        self._asked = json.loads(json.dumps(to_jsonable(asked, not_finite=str)))
        self._runs: dict[str, list[str]] = {}
        self._path: Path | None = None
        if self._given is not None and holds_sweep(self._given):
            self._path = self._given
            file = self._path / SWEEP
            saved = read_json(file)
            _check_same(self._path, saved["asked"], self._asked)
            with report_wrong_types(str(file)):
                self._runs = {run["path"]: run["labels"] for run in saved["runs"]}
        elif self._given is not None:
            new_directory.check_vacant(self._given, SWEEP)
        else:
            new_directory.check_vacant(new_directory.RUNS_DIR, None)

    @property
    def path(self) -> Path:
        """The directory; it must have been created."""
        assert self._path is not None
        return self._path

    def plan(self) -> dict[str, list[str]]:
        """Return the labels of the settings of each run, by the run's path within the directory."""
        return dict(self._runs)

    def create(self, environment: str, algorithm: str, kind: str = "sweep") -> None:
        """Make the directory, unless it exists.

        Raises:
          ShoalError: it cannot be made.
        """
        if self._path is not None:
            return
        if self._given is None:
            self._path, _ = new_directory.make_named_directory(environment, f"{algorithm}-{kind}")
        else:
            new_directory.make_directory(self._given, SWEEP)
            self._path = self._given

    def save_plan(self, runs: Mapping[str, Sequence[str]]) -> None:
        """Write down which run trains which settings.

        Raises:
          ShoalError: it cannot be written.
        """
        self._runs = {path: list(labels) for path, labels in runs.items()}
        content = {
            "schema": SCHEMA,
            "asked": self._asked,
            "runs": [{"path": path, "labels": labels} for path, labels in self._runs.items()],
        }
        write_json(self.path / SWEEP, content)


def _check_same(path: Path, saved: Mapping[str, object], asked: Mapping[str, object]) -> None:
    """Raise ShoalError, with the first difference, unless a directory holds the sweep that is asked for."""
    descriptive = {f"run.{x}" for x in settings.names_where(RunConfig(), lambda x: x.field.use.describes)}
    if found := first_difference(saved, asked, descriptive):
        name, before, now = found
        raise ShoalError(
            f"sweep directory {str(path)!r} holds another sweep: {name} is {before} there, and {now} was asked for; "
            "name a new directory."
        )


def first_difference(
    saved: Mapping[str, object], asked: Mapping[str, object], descriptive: Container[str] = ()
) -> tuple[str, str, str] | None:
    """Return the first value in which nested mappings differ: its name, and both as texts; None if they are the same.

    Args:
      descriptive: names of values that may differ.
    """
    before, now = _flat(saved), _flat(asked)
    for name in dict.fromkeys([*before, *now]):
        values = before.get(name), now.get(name)
        if name not in descriptive and values[0] != values[1]:
            shown = ["not there" if x is None else arguments.short_repr(x) for x in values]
            return name, shown[0], shown[1]
    return None


def _flat(tree: object, name: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by the names of their paths, without those of the first level."""
    if not isinstance(tree, Mapping) or not tree:
        return {name.split(".", 1)[-1]: tree}
    return {k: x for key, part in tree.items() for k, x in _flat(part, f"{name}.{key}".strip(".")).items()}
