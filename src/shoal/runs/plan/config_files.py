"""Config files: a `config.json`, or files of settings that a person wrote, each over those before it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.algos import catalogue
from shoal.base.errors import ShoalError, nearest
from shoal.config import arguments
from shoal.records.json_files import report_wrong_types
from shoal.runs.plan.setting_files import SUFFIXES, find, names_in, own_folders, read_settings

NAMED = ("environment", "algorithm")  # parts of config.json that may be given by their names alone
PARTS = {*NAMED, "run"}
ROLLOUT = "rollout"  # what `shoal rollout` reads instead of an algorithm and a run
OF_ENVIRONMENT = {"name", "parameters", "gaps"}
FURTHER_PARTS = {
    *("schema", "from", "from_step", "variants", "eval_env", "halving", "evolution"),
    *("settings", "asked", "history", "resumed_from", "has_masks", "preset", ROLLOUT),
}
SCHEMA = 3  # of config.json; counts up when a setting changes its meaning
RECIPES = Path(__file__).parent / "recipes"
# A path or the name of a recipe, several of them, or the content that was read before.
ConfigFile = str | Path | Sequence[str | Path] | Mapping[str, Any] | None


def read_config(*files: str | Path, algorithm: str = "") -> dict[str, Any]:
    """Read a `config.json`, by its own path or its run directory's, or files of settings, each over those before it.

    A file may also be given by its name in a folder of presets, or among the recipes. It has the entries of a
    `config.json`, or those of a preset: a table of flat settings with the algorithm's name, to which `environment` may
    be added. An environment, or an algorithm, that is written as text is a name.

    Args:
      algorithm: whose table is read of a file that has several; the first where it has none of that.
    Raises:
      ShoalError: there is none, or it is not one.
    """
    saved = read_layers(*files, algorithm=algorithm)
    what, known = name_of([path_of(file) for file in files]), {*PARTS, *FURTHER_PARTS}
    unknown = [name for name in saved if name not in known]
    if lacking := sorted(PARTS - set(saved)):
        others = [name for name in unknown if name not in catalogue.algorithms()]
        hint = f"; it has {others[0]!r}{nearest(others[0], catalogue.algorithms())}" if others else ""
        hint = f"; it is for `shoal rollout --config {files[-1]}`" if ROLLOUT in saved else hint
        raise ShoalError(f"{what} lacks {', '.join(lacking)}{hint or '; is it a config.json?'}")
    # An entry of another name would otherwise count as left out, and the run be another one.
    for names, options in ((unknown, known), (saved["environment"], OF_ENVIRONMENT)):
        for name in names:
            if name not in options:
                raise ShoalError(f"{what} has {name!r}, which no config has{nearest(name, options)}")
    saved["environment"].setdefault("name", "")
    return saved


def read_layers(*files: str | Path, algorithm: str = "") -> dict[str, Any]:
    """Read files of settings, each over those before it, as `read_config` does; they need not have all that it has."""
    first, *others = [_read_layer(file, algorithm) for file in files]
    for layer in others:
        first = _laid_over(first, layer)
    return first


def _read_layer(file: str | Path, algorithm: str) -> dict[str, Any]:
    path = path_of(file)
    what = name_of(path)
    saved = read_settings(path, what)
    if tables := [name for name in saved if name in catalogue.algorithms() and isinstance(saved[name], dict)]:
        name = algorithm if algorithm in tables else tables[0]
        others = {entry: x for entry, x in saved.items() if entry not in tables}
        saved = {"environment": {}, "run": {}, "algorithm": {"name": name, **saved[name]}} | others
    for name in NAMED:
        if isinstance(saved.get(name), str):
            saved[name] = {"name": saved[name]} if saved[name] else {}
    schema = saved.get("schema", SCHEMA)  # a file that was written by hand has none
    if schema != SCHEMA:
        with report_wrong_types(what):
            made_by = "a newer" if schema > SCHEMA else "an earlier"
        raise ShoalError(
            f"{what} was made by {made_by} version of Shoal (schema={schema}, and this one reads {SCHEMA}); "
            "use the version that made it."
        )
    if isinstance(saved.get("eval_env"), str):
        saved["eval_env"] = {"name": saved["eval_env"], "parameters": {}}
    for name in (*PARTS, "eval_env", "preset", ROLLOUT):
        if not isinstance(saved.get(name, {}), dict):
            kinds = "neither a name nor an object" if name in (*NAMED, "eval_env") else "not an object"
            raise ShoalError(f"{what} has {name}={saved[name]!r:.100}, which is {kinds}.")
    if "environment" in saved:
        parameters = saved["environment"].setdefault("parameters", {})
        if not isinstance(parameters, dict):
            raise ShoalError(f"{what} has parameters={parameters!r:.100}, which is not an object.")
    return saved


def path_of(file: str | Path) -> Path:
    """Return the path of a config file, which may be given by its run directory or its name.

    Raises:
      ShoalError: there is none of that name.
    """
    path, name = arguments.path("config", file), str(file)
    if path.is_file() or (path / "config.json").is_file():
        return path if path.is_file() else path / "config.json"
    folders = (*own_folders(), RECIPES)
    if found := next(filter(None, (find(name, folder) for folder in folders)), None):
        return found
    # Of a path reading says what is wrong.
    if path.exists() or len(path.parts) > 1 or path.suffix in SUFFIXES:
        return path / "config.json" if path.is_dir() else path
    known = sorted({name for folder in folders for name in names_in(folder)})
    hint = nearest(name, known) or f"; there are {', '.join(known)}"
    raise ShoalError(f"there is no recipe {name!r}, and no run or file of that name{hint}")


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the entries of a file over those of another; of another environment or algorithm nothing stays."""
    joined = {**below, **above}
    for part in {*PARTS, ROLLOUT} & below.keys() & above.keys():
        under, over = below[part], above[part]
        if part in NAMED and under.get("name") and over.get("name", under["name"]) != under["name"]:
            joined.pop("preset", None)  # which is that of what was replaced
            continue
        joined[part] = {**under, **over}
        if part == "environment":
            joined[part]["parameters"] = {**under["parameters"], **over["parameters"]}
    # Settings of the run may stand in the table of an algorithm, from which others of the run are taken.
    replaced = above.get("run", {}).keys() - above.get("algorithm", {}).keys()
    if "algorithm" in joined:
        joined["algorithm"] = {k: x for k, x in joined["algorithm"].items() if k not in replaced}
    return joined


def content_of(config_file: ConfigFile, algorithm: str = "") -> Mapping[str, Any]:
    """Return the content of config files (see `read_config`), or as it was read before; an empty mapping for none."""
    if isinstance(config_file, Mapping):
        return config_file
    files = [config_file] if isinstance(config_file, str | Path) else config_file
    return read_config(*files, algorithm=algorithm) if files and files != [""] else {}


def name_of(config_file: object) -> str:
    """Return the name of config files, or of the content of one, for a message."""
    if isinstance(config_file, Sequence) and not isinstance(config_file, str):
        names = ", ".join(repr(str(file)) for file in config_file)
        return f"config file{'s' * (len(config_file) > 1)} {names}"
    return "the config" if isinstance(config_file, Mapping) else f"config file {str(config_file)!r}"
