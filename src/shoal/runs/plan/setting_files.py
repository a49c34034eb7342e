"""Files of settings in TOML, YAML or JSON, and the folders in which those that have a name are found."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors
from shoal.base.imports import import_package
from shoal.records.json_files import read_json

# A variable of the environment that names folders of presets, as PATH names its own.
OWN_FOLDERS = "SHOAL_PRESETS"
YAML = (".yaml", ".yml")
SUFFIXES = (".toml", *YAML, ".json")
# YAML 1.2 has 1e-3 for a number, and PyYAML, which reads YAML 1.1, for a text.
EXPONENTIAL = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")


def own_folders() -> list[Path]:
    """Return the caller's folders of presets, in the order of their precedence.

    Raises:
      ShoalError: one of them is no folder.
    """
    names = filter(None, os.environ.get(OWN_FOLDERS, "").split(os.pathsep))
    folders = [Path(name).expanduser() for name in names]
    for folder in folders:
        if not folder.is_dir():
            raise ShoalError(f"{OWN_FOLDERS} names {str(folder)!r}, which is not a folder.")
    return folders


def find(name: str, folder: Path) -> Path | None:
    """Return the file of a name, such as `mpe/Spread-v0`, in a folder; None if there is none."""
    if {"", ".", ".."} & set(name.split("/")):  # so that a name is never a path out of the folder
        return None
    for suffix in SUFFIXES:
        if os.path.isfile(file := folder / (name + suffix)):
            return file
    return None


def names_in(folder: Path) -> Iterator[str]:
    """Yield the names of the files of settings in a folder, at any depth."""
    for file in folder.rglob("*"):
        if file.suffix in SUFFIXES:
            yield file.relative_to(folder).with_suffix("").as_posix()


def read_settings(file: Path, what: str) -> dict[str, Any]:
    """Read a file of settings; one of another suffix is JSON.

    Args:
      what: its name in messages.
    Raises:
      ShoalError: it cannot be read, or is not what its suffix says.
    """
    if file.suffix not in (".toml", *YAML):
        return read_json(file, what)
    with report_os_errors(f"{what} cannot be read"):
        data = file.read_bytes()
    yaml = import_package(f"{what} needs", "PyYAML", "yaml", "6.0", "yaml") if file.suffix in YAML else None
    try:
        saved = _read_toml(data.decode()) if yaml is None else _read_yaml(yaml, data.decode())
    except (ValueError, RecursionError) as error:  # of the text's encoding, too
        raise ShoalError(f"{what} is not {'TOML' if yaml is None else 'YAML'}: {error}.") from None
    if not isinstance(saved, dict):
        raise ShoalError(f"{what} holds a {type(saved).__name__}, not settings by their names.")
    return saved


def _read_toml(text: str) -> Any:
    tables = tomllib.loads(text)
    return _with_nulls(tables) if "None" in text else tables


def _with_nulls(value: Any) -> Any:
    """Read the text "None" as the value that TOML does not have, as on the command line."""
    if isinstance(value, dict):
        return {name: _with_nulls(x) for name, x in value.items()}
    return None if value == "None" else value


def _read_yaml(yaml: Any, text: str) -> Any:
    """Read YAML as the values of JSON, so that names are texts."""
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENTIAL, list("-+0123456789"))
    try:
        return json.loads(json.dumps(yaml.load(text, loader), default=str))
    except (yaml.YAMLError, TypeError) as error:  # its sentences have several lines
        raise ValueError(" ".join(str(error).split())) from None
