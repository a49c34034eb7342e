"""Config files: a `config.json`, or a TOML file that a person wrote."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.algos import catalogue
from shoal.base.errors import ShoalError, nearest
from shoal.base.files import report_os_errors
from shoal.config import arguments
from shoal.envs.describing import decode_parameters
from shoal.records.json_files import read_json, report_wrong_types

NAMED = ("environment", "algorithm")  # parts of config.json that may be given by their names alone
PARTS = {*NAMED, "run"}
OF_ENVIRONMENT = {"name", "parameters", "gaps"}
FURTHER_PARTS = {
    *("schema", "from", "from_step", "variants", "eval_env", "halving", "evolution"),
    *("settings", "asked", "history", "resumed_from", "has_masks", "preset"),
}
SCHEMA = 3  # of config.json; counts up when a setting changes its meaning


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a `config.json`, by its own path or its run directory's, or a TOML file.

    An environment, or an algorithm, that is written as text is a name. A TOML file has the entries of a `config.json`,
    or those of a preset: a table of flat settings with the algorithm's name, to which `environment` may be added.

    Raises:
      ShoalError: there is none, or it is not one.
    """
    path = arguments.path("config", path)
    path = path / "config.json" if path.is_dir() else path
    what = name_of(path)
    saved = _read_toml(path, what) if path.suffix == ".toml" else read_json(path, what)
    for name in NAMED:
        if isinstance(saved.get(name), str):
            saved[name] = {"name": saved[name]}
    if isinstance(saved.get("environment"), dict):
        saved["environment"].setdefault("parameters", {})
    if lacking := sorted(PARTS - set(saved)):
        unknown = [name for name in saved if name not in (*PARTS, *FURTHER_PARTS, *catalogue.algorithms())]
        hint = f"; it has {unknown[0]!r}{nearest(unknown[0], catalogue.algorithms())}" if unknown else ""
        raise ShoalError(f"{what} lacks {', '.join(lacking)}{hint or '; is it a config.json?'}")
    schema = saved.get("schema", SCHEMA)  # a file that was written by hand has none
    if schema != SCHEMA:
        with report_wrong_types(what):
            made_by = "a newer" if schema > SCHEMA else "an earlier"
        raise ShoalError(
            f"{what} was made by {made_by} version of Shoal (schema={schema}, and this one reads {SCHEMA}); "
            "use the version that made it."
        )
    for name in (*PARTS, "eval_env", "preset"):
        if not isinstance(saved.get(name, {}), dict):
            kinds = "neither a name nor an object" if name in NAMED else "not an object"
            raise ShoalError(f"{what} has {name}={saved[name]!r:.100}, which is {kinds}.")
    if not isinstance(parameters := saved["environment"]["parameters"], dict):
        raise ShoalError(f"{what} has parameters={parameters!r:.100}, which is not an object.")
    # An entry of another name would otherwise count as left out, and the run be another one.
    for entries, known in ((saved, PARTS | FURTHER_PARTS), (saved["environment"], OF_ENVIRONMENT)):
        for name in entries:
            if name not in known:
                raise ShoalError(f"{what} has {name!r}, which no config has{nearest(name, known)}")
    return saved


def content_of(config_file: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the content of a config file, or as it was read before; an empty mapping for None."""
    if isinstance(config_file, Mapping):
        return config_file
    return read_config(config_file) if config_file else {}


def name_of(config_file: object) -> str:
    """Return the name of a config file, or of the content of one, for a message."""
    return "the config" if isinstance(config_file, Mapping) else f"config file {str(config_file)!r}"


def _read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file as the content of a `config.json`."""
    with report_os_errors(f"{what} cannot be read"):
        data = path.read_bytes()
    try:
        saved = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # of the text's encoding, too
        raise ShoalError(f"{what} is not TOML: {error}.") from None
    # A table with an algorithm's name is that of a preset: flat settings, the run's among them.
    for name in [name for name in catalogue.algorithms() if isinstance(saved.get(name), dict)]:
        saved = {"environment": "", "run": {}, "algorithm": {"name": name, **saved.pop(name)}} | saved
    return saved


def saved_evaluation_parameters(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters by which the environment of a run's evaluations is another one, from its `config.json`."""
    parameters = saved.get("eval_env", {})
    return decode_parameters(saved["environment"]["name"], parameters) if parameters else {}
