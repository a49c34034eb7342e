"""The decision of a run's settings: an environment, an algorithm's config and a run's, from names and overrides.

Nothing here starts a device, since how many a process has is settled after the experiment is decided; but an
environment of another package may do so when it is imported, so that the machine is prepared before.

The order of precedence is: what the caller gives, then a config file (complete), or else the preset of the
environment, then the defaults of the classes.
"""

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal import arguments, envs, settings
from shoal.algos import catalogue
from shoal.envs import describing, registry
from shoal.envs.base import unwrapped
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.describing import Description, from_json
from shoal.envs.parameters import check_parameters
from shoal.envs.registry import TRIAL
from shoal.errors import ShoalError
from shoal.imports import import_name, import_object
from shoal.needs import check_needs
from shoal.presets import preset
from shoal.runtime import machine
from shoal.runtime.config import RunConfig
from shoal.types import Environment, spec_of
from shoal.user_code import reports_user_code

SCHEMA = 2  # of config.json; in 1, some settings had 0 or empty for "off" and "the same as the actor's"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run whose settings are all decided, so that the same versions can run it again."""

    environment_name: str
    environment_parameters: Mapping[str, Any]
    environment: Environment
    algorithm: str
    config: Any
    run: RunConfig
    started_from: str = ""
    from_step: str = ""  # of the checkpoint of `started_from` that is used; empty for its last policies
    environment_gaps: Mapping[str, str] = dataclasses.field(default_factory=dict)  # see `Description`
    unresolved_config: Any = (
        None  # the algorithm's, before what it implies was filled in; None is `config` itself
    )

    def validate(self) -> None:
        """Raises one sentence for the first setting that cannot work, before anything compiles."""
        self.run.validate()
        require_contract(self.environment, self.environment_name)
        _check_discount(self.environment, self.config)
        if hasattr(self.config, "validate"):  # an algorithm need not have one
            num_envs = self.run.num_envs // max(self.run.env_groups, 1)
            self.config.validate(spec_of(self.environment), num_envs, self.run.num_steps)

    def as_json(self) -> dict[str, Any]:
        """Return the content of `config.json`; `load` reads it back.

        A setting that was left at None stays so, since it follows another one, which may be changed later.
        """
        config = self.config if self.unresolved_config is None else self.unresolved_config
        unresolved = [name for name, value in settings.flat(config).items() if value is None]
        return {
            "schema": SCHEMA,
            "environment": describing.description_to_json(
                Description(self.environment_name, self.environment_parameters, self.environment_gaps)
            ),
            "algorithm": {"name": self.algorithm, **_json_fields(self.config), **dict.fromkeys(unresolved)},
            "run": _json_fields(self.run),
            "from": self.started_from,
            "from_step": self.from_step,
        }


@reports_user_code
def decide(
    environment: str | Environment | None,
    *,
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config_file: str | Path | None = None,
    use_preset: bool = True,
    started_from: str = "",
    from_step: str = "",
    overrides: Mapping[str, Any],
) -> Experiment:
    """Decide every setting of a run.

    Args:
      environment: a name, `module:Name`, or an environment itself; None uses the config file's.
      algorithm: a name, `module:Name`, or a config itself; empty uses the config file's, or ppo.
      environment_parameters: of an environment given by name.
      config_file: a `config.json` to start from, or a run directory that holds one.
      use_preset: whether the environment's preset is used, where there is one and no config file.
      started_from: a run whose parameters are inherited.
      from_step: the checkpoint of that run: its environment steps, "best" or "last"; empty for its last policies.
      overrides: settings of the run and of the algorithm by name, which have precedence over all others.
    Raises:
      ShoalError: an unknown name, with the nearest one; an override that has no effect with the other settings.
    """
    saved = read_config(config_file) if config_file else {}
    if environment is None and not saved:
        raise ShoalError("no environment was named; give one such as CartPole-v1, or a config file.")
    named = saved["environment"]["name"] if environment is None else environment
    if isinstance(named, str) and registry.family_of(named):
        devices = overrides.get("devices", saved.get("run", {}).get("devices", 0))
        machine.prepare(min(arguments.whole_number("devices", devices, 0), machine.max_devices()))
    environment, description = _make_environment(environment, environment_parameters or {}, saved)
    name, parameters, gaps = description
    algorithm, default_run, default_config = defaults(
        name,
        algorithm=algorithm,
        config_file=config_file,
        use_preset=use_preset,
        environment_parameters=parameters,
        choices=overrides,
    )
    run_settings, algorithm_settings = split_settings(default_config, overrides)
    run = dataclasses.replace(default_run, **run_settings)
    config = settings.with_settings(default_config, **algorithm_settings)
    _check_effects(overrides, environment, run, config)
    if from_step and not started_from:
        raise ShoalError(
            f"from_step={from_step!r} has no effect without a run to start from; give that too (from)."
        )
    return Experiment(
        name, parameters, environment, algorithm, config, run, started_from, from_step, environment_gaps=gaps
    )


def _check_discount(environment: Environment, config: Any) -> None:
    """Raise ShoalError if an environment shapes its rewards with another discount than the algorithm's."""
    discount = getattr(unwrapped(environment), "shaping_discount", None)
    gamma = settings.flat(config).get("gamma")
    if discount is None or gamma is None or np.allclose(discount, gamma, rtol=0, atol=1e-6):
        return
    raise ShoalError(
        f"gamma={float(np.ravel(gamma)[0]):g} differs from {float(np.ravel(discount)[0]):g}, the `gamma` of the "
        "environment, by which it shapes its rewards; give both the same value."
    )


def _check_effects(
    overrides: Mapping[str, Any], environment: Environment, run: RunConfig, config: Any
) -> None:
    """Raise ShoalError for a setting that the caller gave and that has no effect with the others."""
    values: dict[str, Any] = {
        "action_space": environment.action_space,
        "observation_space": environment.observation_space,
        "num_agents": environment.num_agents,
    }
    values |= settings.flat(run) | settings.flat(config)
    values["has_memory"] = bool(getattr(getattr(config, "network", None), "has_memory", False))
    check_needs(overrides, values, {**run.needs, **settings.needs_of(config)})


def _make_environment(
    environment: str | Environment | None, parameters: Mapping[str, Any], saved: Mapping[str, Any]
) -> tuple[Environment, Description]:
    """The environment that is named, given itself, or a config file's, and its description.

    Raises:
      ShoalError: it cannot be made, or a parameter is out of its bounds.
    """
    if environment is None:
        return describing.rebuild(saved["environment"], parameters)
    if isinstance(environment, str):
        if saved and environment == saved["environment"]["name"]:
            return describing.rebuild(saved["environment"], parameters)
        return envs.make(environment, **parameters), describing.describe_named(environment, parameters)
    check_parameters(environment)
    return environment, describing.describe(environment)


@reports_user_code
def defaults(
    environment: str = "",
    *,
    algorithm: str | Any = "",
    config_file: str | Path | None = None,
    environment_parameters: Mapping[str, Any] | None = None,
    use_preset: bool = True,
    choices: Mapping[str, Any] | None = None,
) -> tuple[str, RunConfig, Any]:
    """The settings of a run for which nothing is overridden, as a command's help shows them.

    Args:
      environment: its name, for the preset.
      algorithm: as in `decide`.
      config_file: as in `decide`.
      environment_parameters: as in `decide`; trials of several episodes have other presets than single ones.
      use_preset: as in `decide`.
      choices: settings that choose a part of the algorithm's config, such as its network, whose settings are then
        others; what a preset or a file says of another part is left out. Other settings are not read.

    Returns:
      the algorithm's name, the run's config, and the algorithm's.

    Raises:
      ShoalError: an unknown name, with the nearest one.
    """
    saved = read_config(config_file) if config_file else {}
    saved_algorithm = dict(saved.get("algorithm", {}))
    saved_name = saved_algorithm.pop("name", "ppo")
    config: Any = algorithm if settings.is_nested(algorithm) else None
    if config is not None:
        algorithm = catalogue.name_of(config)
    elif isinstance(algorithm, type):
        algorithm = import_name(algorithm)
    algorithm = algorithm or saved_name
    is_given = config is not None
    config = config or catalogue.config_class(algorithm)()
    values: dict[str, Any] = {}
    if saved:
        if hasattr(config, "upgraded"):  # settings of an earlier version may have had other meanings
            saved_algorithm = config.upgraded(saved_algorithm, saved.get("schema", 1))
        values |= saved["run"] | {"run_dir": ""}
        values |= saved_algorithm if algorithm == saved_name else {}
    elif use_preset:
        trials = bool((environment_parameters or {}).get(TRIAL))
        values |= preset(environment, algorithm, trials=trials)
    if is_given:
        values = {k: v for k, v in values.items() if k not in settings.all_names(config)}
    config, values = _with_choices(config, values, choices or {})
    run_settings, algorithm_settings = split_settings(config, values)
    config = settings.with_settings(config, **algorithm_settings)
    run = dataclasses.replace(RunConfig(), **run_settings)
    if saved:  # values of a wrong type would otherwise be the defaults of a command's flags
        settings.check_fields(run)
        settings.check_fields(config)
    return algorithm, run, config


def _with_choices(
    config: Any, values: Mapping[str, Any], choices: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Choose the parts of a config, first as a preset or a file says, then as the caller does.

    Returns:
      the config, and the values without those that are settings of a part that is not chosen.
    """
    as_saved = settings.with_choices(config, values)
    config = settings.with_choices(as_saved, choices)
    known = settings.settings_of(config)
    elsewhere = settings.all_names(as_saved) - set(known)
    chosen = {name for name in choices if name in known and known[name].choice}
    return config, {k: v for k, v in values.items() if k not in elsewhere | chosen}


def resolve(config: Any) -> Any:
    """Fill in what an algorithm's config implies, and what depends on the machine, if it has a method for it.

    Raises:
      ShoalError: a setting cannot work.
    """
    resolved = config.resolved() if hasattr(config, "resolved") else config
    if type(resolved) is not type(config):
        name = type(config).__name__
        raise ShoalError(f"{name}.resolved returns a {type(resolved).__name__}; it must return a {name}.")
    return resolved


def split_settings(config: Any, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings by name, parted into the run's and the algorithm's.

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
        if name not in known:
            raise settings.unknown_setting(name, value, config, known)
    cast = {name: cast_to_declared(from_json(value), known[name].declared) for name, value in values.items()}
    return (
        {name: value for name, value in cast.items() if name in run_settings},
        {name: value for name, value in cast.items() if name in algorithm_settings},
    )


def read_config(path: str | Path) -> dict[str, Any]:
    """A `config.json`, by its own path or its run directory's.

    Raises:
      ShoalError: there is none, or it is not one.
    """
    path = arguments.path("config", path)
    path = path / "config.json" if path.is_dir() else path
    try:
        saved = json.loads(path.read_text())
    except OSError as error:
        raise ShoalError(f"config file {str(path)!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ShoalError(f"config file {str(path)!r} is not JSON: {error}.") from error
    if not isinstance(saved, dict) or not {"environment", "algorithm", "run"} <= set(saved):
        raise ShoalError(
            f"config file {str(path)!r} lacks environment, algorithm or run; is it a config.json?"
        )
    if saved.get("schema", 1) > SCHEMA:
        raise ShoalError(
            f"config file {str(path)!r} has schema={saved['schema']}, and this version of Shoal reads up to {SCHEMA}; "
            "use the version that made it, or a newer one."
        )
    return saved


def load_function(setting: str, value: str | Callable) -> Callable:
    """A user's function, given itself or as `module:function`.

    Raises:
      ShoalError: it cannot be imported, or called.
    """
    function = import_object(value) if isinstance(value, str) else value
    if not callable(function):
        raise ShoalError(f"{setting}={value!r} is not a function.")
    return function


def cast_to_declared(value: Any, declared: Any) -> Any:
    """A number as the type that its field declares, where it can be without loss; other values as they are.

    `1e5` becomes `100000` for an `int` (also within a tuple, beside None, or both), and NumPy's numbers become
    Python's.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    kinds = typing.get_args(declared)
    if isinstance(value, tuple):
        for kind in (declared, *kinds):
            if typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,):
                return tuple(cast_to_declared(part, typing.get_args(kind)[0]) for part in value)
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, float) and value.is_integer() and int in (declared, *kinds) and float not in kinds:
        return int(value)
    return value


def _json_fields(config: Any) -> dict[str, Any]:
    """A config's fields as JSON can hold them; classes and functions by their import names."""

    def json_value(value: Any) -> Any:
        if isinstance(value, tuple):
            return [json_value(part) for part in value]
        if callable(value):
            return import_name(value)
        return float(value) if hasattr(value, "dtype") else value

    return {name: json_value(value) for name, value in settings.flat(config).items()}
