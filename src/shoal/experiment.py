"""What is to be run: an environment, an algorithm's config and a run's, from names and overrides.

Nothing here starts a device: how many a process has is settled after the experiment is decided.

The order of precedence is: what the caller gives, then a config file (complete), or else the preset of the
environment, then the defaults of the classes.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal import arguments, envs
from shoal.algos import registry
from shoal.envs.registry import TIME_LIMIT, TRIAL, lasting
from shoal.errors import ShoalError, nearest
from shoal.imports import import_name, imported
from shoal.presets import preset
from shoal.runtime.config import RunConfig
from shoal.types import Environment, spec_of

SCHEMA = 1
LARGEST_ARRAY = 50_000  # numbers; what is larger is no parameter to write down in a config


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run that is fully decided: with the same versions it can be made again."""

    environment_name: str
    environment_parameters: Mapping[str, Any]
    environment: Environment
    algorithm: str
    config: Any
    run: RunConfig
    started_from: str = ""

    def validate(self) -> None:
        """Raises one sentence for the first setting that cannot work, before anything compiles."""
        self.run.validate()
        if hasattr(self.config, "validate"):  # an algorithm need not have one
            num_envs = self.run.num_envs // max(self.run.env_groups, 1)
            self.config.validate(spec_of(self.environment), num_envs, self.run.num_steps)

    def as_json(self) -> dict[str, Any]:
        """What `config.json` holds; `load` reads it back."""
        return {
            "schema": SCHEMA,
            "environment": {"name": self.environment_name, "parameters": dict(self.environment_parameters)},
            "algorithm": {"name": self.algorithm, **_plain(self.config)},
            "run": _plain(self.run),
            "from": self.started_from,
        }


def decide(
    environment: str | Environment | None,
    *,
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config_file: str | Path | None = None,
    use_preset: bool = True,
    started_from: str = "",
    overrides: Mapping[str, Any],
) -> Experiment:
    """Decides every setting of a run.

    Args:
      environment: a name, `module:Name`, or an environment itself; None takes the config file's.
      algorithm: a name, `module:Name`, or a config itself; empty takes the config file's, or ppo.
      environment_parameters: of an environment given by name.
      config_file: a `config.json` to start from, or a run directory that holds one.
      use_preset: whether the environment's preset is taken, where there is one and no config file.
      started_from: a run whose parameters are taken over.
      overrides: settings of the run and of the algorithm by name, which win over all else.

    Raises:
      ShoalError: an unknown name, with the nearest one.
    """
    saved = read_config(config_file) if config_file else {}
    if environment is None and not saved:
        raise ShoalError("no environment was named; give one such as CartPole-v1, or a config file.")
    if isinstance(environment, str) or environment is None:
        name = environment or saved["environment"]["name"]
        same = saved and name == saved["environment"]["name"]
        parameters = {
            **({k: _from_json(x) for k, x in saved["environment"]["parameters"].items()} if same else {}),
            **(environment_parameters or {}),
        }
        environment = envs.make(name, **parameters)
        parameters = lasting(name, parameters)
    else:
        name, parameters = described(environment)
    algorithm, default_run, default_config = defaults(
        name,
        algorithm=algorithm,
        config_file=config_file,
        use_preset=use_preset,
        environment_parameters=parameters,
    )
    run_settings, algorithm_settings = split(type(default_config), overrides)
    run = dataclasses.replace(default_run, **run_settings)
    config = dataclasses.replace(default_config, **algorithm_settings)
    return Experiment(name, parameters, environment, algorithm, config, run, started_from)


def described(environment: Environment) -> tuple[str, dict[str, Any]]:
    """The name and the parameters by which `make` makes an environment again.

    Without parameters where none do, as for a wrapper of the user's own: then the policies of a run can only be
    loaded beside their environment.
    """
    inner, around = _unwrapped(environment)
    for name in (*envs.environments(), import_name(type(inner))):
        try:
            plain, plain_around = _unwrapped(envs.make(name))
            if type(plain) is not type(inner):
                continue
            parameters = {k: v for k, v in _fields(inner).items() if v != _fields(plain)[k]}
            parameters |= {k: v for k, v in around.items() if v != plain_around[k]}
            if _same(envs.make(name, **parameters), environment):
                return name, parameters
        except Exception:  # whatever keeps an environment from being made by its name alone
            continue
    return import_name(type(environment)), {}


def _unwrapped(environment: Any) -> tuple[Any, dict[str, int | None]]:
    """The environment without the wrappers that `make` may put around any, and the parameters for them."""
    around: dict[str, int | None] = {TIME_LIMIT: None, TRIAL: None}
    if isinstance(environment, envs.Trial):
        environment, around[TRIAL] = environment.env, environment.episodes
    if isinstance(environment, envs.TimeLimit):
        environment, around[TIME_LIMIT] = environment.env, environment.max_steps
    return environment, around


def _fields(environment: Any) -> dict[str, Any]:
    """The fields as JSON can hold them; a wrapper's after those of the environment that it holds."""
    values = {field.name: getattr(environment, field.name) for field in dataclasses.fields(environment)}
    if isinstance(environment, envs.Wrapper):
        values = _fields(values.pop("env")) | values
    return {name: _as_lists(x) for name, x in values.items()}


def _as_lists(value: Any) -> Any:
    """Arrays, and tuples of arrays such as rulesets, as JSON can hold them.

    Raises:
      ShoalError: they are too many numbers for a config.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [_as_lists(part) for part in value]
    if not hasattr(value, "dtype"):
        return value
    if value.size > LARGEST_ARRAY:
        raise ShoalError(f"an array of {value.size:,} numbers is too large to be written down")
    return value.tolist()


def _same(one: Any, other: Any) -> bool:
    leaves = jax.tree.leaves(one), jax.tree.leaves(other)
    structures: list[Any] = [jax.tree.structure(tree) for tree in (one, other)]
    return structures[0] == structures[1] and all(np.array_equal(x, y) for x, y in zip(*leaves, strict=True))


def defaults(
    environment: str = "",
    *,
    algorithm: str | Any = "",
    config_file: str | Path | None = None,
    environment_parameters: Mapping[str, Any] | None = None,
    use_preset: bool = True,
) -> tuple[str, RunConfig, Any]:
    """The settings of a run for which nothing is overridden, as a command's help shows them.

    Args:
      environment: its name, for the preset.
      algorithm: as in `decide`.
      config_file: as in `decide`.
      environment_parameters: as in `decide`; trials of several episodes have other presets than single ones.
      use_preset: as in `decide`.

    Returns:
      the algorithm's name, the run's config, and the algorithm's.

    Raises:
      ShoalError: an unknown name, with the nearest one.
    """
    saved = read_config(config_file) if config_file else {}
    saved_algorithm = dict(saved.get("algorithm", {}))
    saved_name = saved_algorithm.pop("name", "ppo")
    config = algorithm if dataclasses.is_dataclass(algorithm) and not isinstance(algorithm, type) else None
    if config is not None:
        algorithm = registry.name_of(config)
    elif isinstance(algorithm, type):
        algorithm = import_name(algorithm)
    algorithm = algorithm or saved_name
    config_class = type(config) if config is not None else registry.config_class(algorithm)
    settings: dict[str, Any] = {}
    if saved:
        settings |= saved["run"] | {"run_dir": ""}
        settings |= saved_algorithm if algorithm == saved_name else {}
    elif use_preset:
        trials = bool((environment_parameters or {}).get(TRIAL))
        settings |= preset(environment, algorithm, trials=trials)
    if config is not None:
        settings = {k: v for k, v in settings.items() if k not in _names(config_class)}
    run_settings, algorithm_settings = split(config_class, settings)
    config = dataclasses.replace(config or config_class(), **algorithm_settings)
    return algorithm, dataclasses.replace(RunConfig(), **run_settings), config


def split(config_class: type, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings by name, parted into the run's and the algorithm's.

    Raises:
      ShoalError: a name that neither has.
    """
    run_names, algorithm_names = _names(RunConfig), _names(config_class)
    for name in settings:
        if name not in run_names | algorithm_names:
            raise ShoalError(f"there is no setting {name!r}{nearest(name, run_names | algorithm_names)}.")
    values = {name: _from_json(value) for name, value in settings.items()}
    return (
        {name: value for name, value in values.items() if name in run_names},
        {name: value for name, value in values.items() if name in algorithm_names},
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
    return saved


def function_named(setting: str, value: str | Callable) -> Callable:
    """A user's function, given itself or as `module:function`.

    Raises:
      ShoalError: it cannot be imported, or called.
    """
    found = imported(value) if isinstance(value, str) else value
    if not callable(found):
        raise ShoalError(f"{setting}={value!r} is not a function.")
    return found


def _names(config_class: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class)}


def _from_json(value: Any) -> Any:
    """What JSON cannot hold: tuples (static values must be hashable), and numbers that are not finite."""
    if isinstance(value, list):
        return tuple(_from_json(part) for part in value)
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


def _plain(config: Any) -> dict[str, Any]:
    """A config's fields as JSON can hold them; classes and functions by their import names."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(part) for part in value]
        if callable(value):
            return import_name(value)
        return float(value) if hasattr(value, "dtype") else value

    return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}
