"""The settings that a run has where its caller gives none: of the classes, of a preset, or of a config file."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Set
from typing import Any, NamedTuple, TypeVar

from shoal.algos import catalogue
from shoal.base.errors import ShoalError
from shoal.base.imports import import_name
from shoal.base.user_errors import reports_user_code
from shoal.config import settings
from shoal.config.arguments import short_repr
from shoal.config.traced import check_traced
from shoal.config.values import cast_to_declared
from shoal.envs.describing import from_json
from shoal.envs.registry import TRIAL
from shoal.records.json_files import report_wrong_types
from shoal.records.run_config import RunConfig
from shoal.runs.plan.config_files import ConfigFile, content_of, name_of
from shoal.runs.plan.presets import preset
from shoal.types import AlgorithmConfig

Config = TypeVar("Config", bound=AlgorithmConfig)


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
    config: AlgorithmConfig
    origin: str
    preset: Mapping[str, Any]
    of: tuple[str, bool]
    is_plain: bool


@reports_user_code
def defaults(
    environment: str = "",
    *,
    algorithm: str | type | AlgorithmConfig = "",
    config_file: ConfigFile = None,
    environment_parameters: Mapping[str, Any] | None = None,
    use_preset: bool = True,
    choices: Mapping[str, object] | None = None,
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
    saved = content_of(config_file, _name_of(algorithm))
    given = algorithm if settings.is_nested(algorithm) else None
    named: str = _name_of(algorithm) or saved.get("algorithm", {}).get("name", "ppo")
    with report_wrong_types(name_of(config_file)) if saved else contextlib.nullcontext():
        config: Any = given or catalogue.config_class(named)()
    named = catalogue.portable_name(named)
    trials = bool((environment_parameters or {}).get(TRIAL))
    if preset_settings is None:
        preset_settings = _preset_of(saved, environment, named, trials)
    # Settings of the run that suit an algorithm better than those of `RunConfig`; a preset's come after them.
    values: dict[str, Any] = dict(getattr(config, "run_defaults", None) or {})
    values |= _saved_values(saved, named) if saved else preset_settings if use_preset else {}
    if given is not None:  # its settings are the caller's, those with their default values too
        values = {k: v for k, v in values.items() if k not in settings.all_names(config)}
    # A preset or a file chooses the parts of a config first, and then the caller.
    as_saved = settings.with_choices(config, values)
    config = settings.with_choices(as_saved, choices or {})
    is_chosen = config is not as_saved
    is_plain = not (saved or is_chosen) and given is None and (use_preset or not preset_settings)
    run, config = with_values(RunConfig(), config, _still_there(values, as_saved, config, set(choices or ())))
    if saved:  # values of a wrong type would otherwise be the defaults of a command's flags
        settings.check_fields(run)
        settings.check_fields(config)
    origin = "config file" if saved else "preset" if use_preset and preset_settings else "defaults"
    is_plain = is_plain and catalogue.is_builtin(named)
    return Defaults(named, run, config, origin, preset_settings, (environment, trials), is_plain)


def _name_of(algorithm: str | type | AlgorithmConfig) -> str:
    """Return the name of an algorithm, which may be given as its config or the class of that."""
    if isinstance(algorithm, str):
        return algorithm
    return import_name(algorithm) if isinstance(algorithm, type) else catalogue.name_of(algorithm)


def _saved_values(saved: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Return the settings in a config file: the run's, and the algorithm's if it is the one that trains."""
    own = {name: x for name, x in saved["algorithm"].items() if name != "name"}
    is_same = algorithm == catalogue.portable_name(saved["algorithm"].get("name", "ppo"))
    # A run that has another one's settings gets a directory of its own.
    return saved["run"] | {"run_dir": ""} | (own if is_same else {})


def _preset_of(saved: Mapping[str, Any], environment: str, algorithm: str, trials: bool) -> Mapping[str, Any]:
    """Return the preset that a config file has of the same environment and algorithm, else today's."""
    names = [saved[part].get("name") for part in ("environment", "algorithm") if "preset" in saved]
    if names == [environment, algorithm]:
        return saved["preset"]
    return preset(environment, algorithm, trials=trials)


def _still_there(
    values: Mapping[str, Any], as_saved: AlgorithmConfig, config: AlgorithmConfig, choices: Set[str]
) -> dict[str, Any]:
    """Return the values without those that are settings of a part that is not chosen, or choose such a part.

    Args:
      values: of a preset or a file.
      as_saved: the config with the parts that these choose.
      config: the config with the parts that the caller chooses.
      choices: the names of the caller's settings.
    """
    known = settings.settings_of(config)
    elsewhere = settings.all_names(as_saved) - set(known)
    chosen = {name for name in choices if name in known and known[name].field.choice}
    return {k: v for k, v in values.items() if k not in elsewhere | chosen}


def with_values(
    run: RunConfig, config: Config, values: Mapping[str, object], parameters: Collection[str] = ()
) -> tuple[RunConfig, Config]:
    """Replace settings of a run and of its algorithm, each by its name, whichever of the two has it.

    Numbers are made those of Python that the field declares: whole ones such as 1e5 or `numpy.int64(8)` are taken
    for an int.

    Args:
      config: the algorithm's, whose parts are chosen.
      values: settings by name.
      parameters: the names of the environment's parameters, for the message where one is given as a setting.

    Raises:
      ShoalError: a name that neither has, or a traced value where none can be.
    """
    of_run = settings.settings_of(run)
    known = settings.settings_of(config) | of_run
    for name, value in values.items():
        if name not in known and (keyed := settings.find(config, name)):
            known[name] = keyed
        if name not in known and name in parameters:
            raise ShoalError(
                f"{name} is a parameter of the environment, not a setting; "
                f"environment_parameters={{{name!r}: {short_repr(value)}}} gives it."
            )
        if name not in known:
            raise settings.unknown_setting(name, value, config, [*known, "algorithm"])
    cast = {name: cast_to_declared(from_json(value), known[name].declared) for name, value in values.items()}
    own: dict[str, Any] = {name: value for name, value in cast.items() if name in of_run}
    run = dataclasses.replace(run, **own)
    config = settings.with_settings(config, **{name: x for name, x in cast.items() if name not in of_run})
    # A budget in updates is read here, so that a traced one must be refused before.
    for part in (run, config):
        check_traced(part)
    return run.with_total_steps(is_given="total_steps" in own), config
