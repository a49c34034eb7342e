"""Parts that several loggers share: the settings and names of a run, its result, and the import of packages."""

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.files import user_path
from shoal.base.imports import import_package
from shoal.monitor.loggers.fitted_names import shorten_middle
from shoal.monitor.loggers.logger import LoggedRun, Series
from shoal.records.directory import LOGGERS
from shoal.records.members import ENVIRONMENT
from shoal.records.run_config import identifying


def require_package(name: str, module: str = "", oldest: str = "") -> ModuleType:
    """Import a package that a logger needs.

    Args:
      name: of the logger, its package and the extra of Shoal that installs it.
      module: the module to return, if it is not the package itself.
      oldest: the first version that has what is used.
    Raises:
      ShoalError: it is missing, too old, or cannot be imported.
    """
    return import_package(f"the logger {name} needs", name, name, oldest, module)


def flat_settings(run: LoggedRun, series: Series) -> dict[str, object]:
    """Return the settings of a run under their own names, parameters of the environment as `env.NAME`.

    Those of a series' members stand in the place of the run's.
    """
    config = run.config
    algorithm, environment = dict(config["algorithm"]), config["environment"]
    parameters = {f"{ENVIRONMENT}{key}": x for key, x in environment.get("parameters", {}).items()}
    names = {"environment": environment["name"], "algorithm": algorithm.pop("name", "")}
    own: dict[str, object] = {} if series.seed is None else {"seed": series.seed}
    own |= {"label": series.label} if series.label else {}
    return {**names, **parameters, **algorithm, **config["run"], **run.names, **own, **series.settings}


def as_text(value: object) -> str:
    """Return a setting as text: lists and the like as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def settings_hash(config: Mapping[str, Any]) -> str:
    """Return a checksum of what makes a run the one it is: all settings but the length and where it runs."""
    run = identifying(config["run"])
    parts = [config["algorithm"], config["environment"], run, config.get("variants", [])]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def title(run: LoggedRun, series: Series, name: str = "") -> str:
    """Name a series among those of all runs.

    Args:
      name: of the run; its directory's if it is empty.
    """
    name = name or run.path.name
    return name if series.is_main else f"{name}, {series.name}"


def file_name(text: str) -> str:
    """Return a text as the name of one file, which leaves room for a suffix."""
    return shorten_middle(re.sub(r"[/\\:]", "-", text), 200).strip(". ") or "-"


def folder(run: LoggedRun, name: str, directory: str) -> Path:
    """Return the directory for what a logger writes: within the run's, or one that the user names."""
    return user_path(directory, f"{name}.dir") if directory else run.path / LOGGERS / name


def check_folder(name: str, directory: str) -> None:
    """Require that the directory that a user names for a logger, if one is named, can be made and written to.

    Raises:
      ShoalError: it cannot.
    """
    path = user_path(directory, f"{name}.dir").absolute()
    existing = next(x for x in (path, *path.parents) if x.exists())
    if directory and not (existing.is_dir() and os.access(existing, os.W_OK)):
        why = "cannot be written to" if existing.is_dir() else "is no directory"
        raise ShoalError(f"{name}.dir={directory!r} cannot be used, since {str(existing)!r} {why}.")


def unused(path: Path, is_used: Callable[[Path], bool]) -> Path:
    """Return a path that nobody uses: this one, or the first of `NAME-2`, `NAME-3`, ... that is free."""
    others = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    return next(x for x in itertools.chain([path], others) if not is_used(x))


def main_series(run: LoggedRun) -> Series:
    """Return the series that stands for the whole run."""
    return next(series for series in run.series if series.is_main)


def split(words: str) -> list[str]:
    """Return the words of a list such as "a,b"."""
    return [word.strip() for word in words.split(",") if word.strip()]


def finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that are not NaN: a missing number is not a point of a chart."""
    return {name: x for name, x in numbers.items() if math.isfinite(x)}


def result_numbers(summary: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the numbers of a finished run's result; none of a run that has not finished."""
    summary = summary or {}
    found = {f"{part}/iqm": (summary.get(part) or {}).get("iqm") for part in ("final", "absolute")}
    found["steps_per_second"] = summary.get("steps_per_second")
    found["failed"] = len(summary.get("failed", ())) or None
    return {name: float(x) for name, x in found.items() if x is not None}


def has_succeeded(run: LoggedRun, summary: Mapping[str, Any] | None) -> bool:
    """Report whether a run has finished with a member that did not fail."""
    members = run.config["run"]["seeds"] * max(1, len(run.config.get("variants", ())))
    return summary is not None and len(summary.get("failed", ())) < members
