"""The settings that a run has where its caller gives none: of the classes, of a preset, or of a config file."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.algos import catalogue
from shoal.base.imports import import_name
from shoal.base.user_errors import reports_user_code
from shoal.config import settings
from shoal.config.values import cast_to_declared
from shoal.envs.describing import from_json
from shoal.envs.registry import TRIAL
from shoal.records.json_files import report_wrong_types
from shoal.records.run_config import RunConfig
from shoal.runs.plan.config_files import content_of, name_of
from shoal.runs.plan.presets import preset


class Defaults(NamedTuple):
    """The settings that a run has where its caller gives none.

    Attributes:
      algorithm: its name.
      run: of the run.
      config: of the algorithm.
      origin: where they come from: "defaults" (of the classes), "preset" or "config file".
      preset: the tuned settings of the environment, used or not; empty if there are none.
      of: the environment's name, and whether it makes trials.
      is_plain: whether they are the preset's, or those of the classes where there is none, and nothing else's.
    """

    algorithm: str
    run: RunConfig
    config: Any
    origin: str
    preset: Mapping[str, Any]
    of: tuple[str, bool]
    is_plain: bool


@reports_user_code
def defaults(
    environment: str = "",
    *,
    algorithm: str | Any = "",
    config_file: str | Path | Mapping[str, Any] | None = None,
    environment_parameters: Mapping[str, Any] | None = None,
    use_preset: bool = True,
    choices: Mapping[str, Any] | None = None,
    preset_settings: Mapping[str, Any] | None = None,
) -> Defaults:
    """Return the settings of a run without overrides, as a command's help shows them.

    Args:
      environment: its name, for the preset.
      algorithm: as in `decide`.
      config_file: as in `decide`.
      environment_parameters: as in `decide`; trials of several episodes have other presets than single ones.
      use_preset: as in `decide`.
      choices: settings that choose a part of the algorithm's config, such as its network; a preset's or file's settings
        of another part are left out. Other settings are not read.
      preset_settings: the preset; None takes that of the file, or else today's.
    Raises:
      ShoalError: an unknown name, with the nearest one.
    """
    saved = content_of(config_file)
    given: Any = algorithm if settings.is_nested(algorithm) else None
    algorithm = _name_of(algorithm) or saved.get("algorithm", {}).get("name", "ppo")
    with report_wrong_types(name_of(config_file)) if saved else contextlib.nullcontext():
        config = given or catalogue.config_class(algorithm)()
    trials = bool((environment_parameters or {}).get(TRIAL))
    if preset_settings is None:
        preset_settings = _preset_of(saved, environment, algorithm, trials)
    values: dict[str, Any] = dict(getattr(config, "run_defaults", None) or {})
    values |= _saved_values(saved, algorithm) if saved else preset_settings if use_preset else {}
    if given is not None:
        values = {k: v for k, v in values.items() if k not in settings.all_names(config)}
    config, values, is_chosen = _with_choices(config, values, choices or {})
    is_plain = not (saved or is_chosen) and given is None and (use_preset or not preset_settings)
    run_settings, algorithm_settings = split_settings(config, values)
    config = settings.with_settings(config, **algorithm_settings)
    run = dataclasses.replace(RunConfig(), **run_settings)
    run = run.with_total_steps(is_given="total_steps" in run_settings)
    if saved:  # values of a wrong type would otherwise be the defaults of a command's flags
        settings.check_fields(run)
        settings.check_fields(config)
    origin = "config file" if saved else "preset" if use_preset and preset_settings else "defaults"
    return Defaults(
        algorithm,
        run,
        config,
        origin,
        preset_settings,
        (environment, trials),
        is_plain and catalogue.is_builtin(algorithm),
    )


def _name_of(algorithm: Any) -> str:
    """Return the name of an algorithm, which may be given as its config or the class of that."""
    if settings.is_nested(algorithm):
        return catalogue.name_of(algorithm)
    return import_name(algorithm) if isinstance(algorithm, type) else algorithm


def _saved_values(saved: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return the settings in a config file: the run's, and the algorithm's if it is the one that trains."""
    own = {name: x for name, x in saved["algorithm"].items() if name != "name"}
    is_same = algorithm == saved["algorithm"].get("name", "ppo")
    return saved["run"] | {"run_dir": ""} | (own if is_same else {})


def _preset_of(saved: Mapping[str, Any], environment: str, algorithm: str, trials: bool) -> Mapping[str, Any]:
    """Return the preset that a config file has of the same environment and algorithm, else today's."""
    names = [saved[part].get("name") for part in ("environment", "algorithm") if "preset" in saved]
    if names == [environment, algorithm]:
        return saved["preset"]
    return preset(environment, algorithm, trials=trials)


def _with_choices(
    config: Any, values: Mapping[str, Any], choices: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], bool]:
    """Choose the parts of a config, first as a preset or a file says, then as the caller does.

    Returns:
      the config, the values without those that are settings of a part that is not chosen, and whether the caller chose.
    """
    as_saved = settings.with_choices(config, values)
    config = settings.with_choices(as_saved, choices)
    known = settings.settings_of(config)
    elsewhere = settings.all_names(as_saved) - set(known)
    chosen = {name for name in choices if name in known and known[name].field.choice}
    return config, {k: v for k, v in values.items() if k not in elsewhere | chosen}, config is not as_saved


def split_settings(config: Any, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings by name into the run's and the algorithm's.

    Numbers are made those of Python that the field declares: whole ones such as 1e5 or `numpy.int64(8)` are taken
    for an int.

    Args:
      config: the algorithm's, whose parts are chosen.
      values: settings by name.

    Raises:
      ShoalError: a name that neither has.
    """
    run_settings, algorithm_settings = settings.settings_of(RunConfig()), settings.settings_of(config)
    known = algorithm_settings | run_settings
    for name, value in values.items():
        if name not in known and (keyed := settings.find(config, name)):
            known[name] = keyed
        if name not in known:
            raise settings.unknown_setting(name, value, config, [*known, "algorithm"])
    cast = {name: cast_to_declared(from_json(value), known[name].declared) for name, value in values.items()}
    return (
        {name: value for name, value in cast.items() if name in run_settings},
        {name: value for name, value in cast.items() if name not in run_settings},
    )
