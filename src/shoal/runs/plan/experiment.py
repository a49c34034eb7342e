"""The decision of a run's settings: an environment, an algorithm's config and a run's, from names and overrides.

Nothing here starts a device, since how many a process has is settled after the experiment is decided; but an
environment of another package may do so when it is imported, so that the machine is prepared before.

The order of precedence is: the caller's settings, then a config file (complete), or else the preset of the
environment, then the defaults of the classes.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal import envs
from shoal.algos import catalogue
from shoal.base.errors import ShoalError, nearest
from shoal.base.files import report_os_errors
from shoal.base.imports import import_name
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments, settings, struct
from shoal.config.requirements import check_needs
from shoal.envs import describing, registry
from shoal.envs.base import unwrapped
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.describing import Description, decode_parameters, from_json
from shoal.envs.parameters import check_parameters
from shoal.envs.registry import TRIAL
from shoal.envs.trials import consecutive
from shoal.envs.wrappers import Shown
from shoal.records import pbt_settings as evolutions
from shoal.records.halving import Halving
from shoal.records.json_files import read_json, report_wrong_types
from shoal.records.members import Members, Variant, members_of
from shoal.records.pbt_settings import Evolution
from shoal.records.run_config import RunConfig
from shoal.runs.plan.presets import preset
from shoal.runs.plan.variants import check_variants, named, number, with_first_settings
from shoal.types import Environment, spec_of
from shoal.types.spaces import Dict
from shoal.xla import machine
from shoal.xla.jax_settings import require_usable

PARTS = {"environment", "algorithm", "run"}  # of config.json
FURTHER_PARTS = {
    *("schema", "from", "from_step", "variants", "eval_env", "halving", "evolution"),
    *("settings", "asked", "history", "resumed_from", "has_masks", "preset"),
}
SCHEMA = 3  # of config.json; counts up when a setting changes its meaning


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run whose settings are all decided, so that the same versions can run it again."""

    environment_name: str
    environment_parameters: Mapping[str, Any]
    environment: Environment
    algorithm: str
    config: Any
    run: RunConfig
    # The origin of the settings that the caller did not give: "defaults", "preset" or "config file".
    settings_from: str = dataclasses.field(default="defaults", compare=False)
    started_from: str = ""
    from_step: str = ""  # the step of the checkpoint of `started_from`; empty for its last policies
    # The `run` and the `step` of the checkpoint of another run that this one resumes; empty for a run of its own.
    resumed_from: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment_gaps: Mapping[str, str] = dataclasses.field(default_factory=dict)  # see `Description`
    unresolved_config: Any = (
        None  # the algorithm's config before implied settings were filled in; None is `config` itself
    )
    variants: tuple[Variant, ...] = ()  # the members' settings; empty where only their seeds differ
    # The parameters of the environment of evaluations that differ from the environment's.
    evaluation_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    halving: Halving | None = None  # when members stop early
    evolution: Evolution = evolutions.NONE  # the settings that change while the run trains
    # The preset of the environment and the algorithm, whether it is used or not: today's, or that of the config file.
    preset: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def members(self) -> Members:
        """The members that are trained."""
        return members_of(range(self.run.seed, self.run.seed + self.run.seeds), self.variants)

    @property
    def num_members(self) -> int:
        """The number of members; of a number of seeds that no memory can hold, the table is not made."""
        return self.run.seeds * max(len(self.variants), 1)

    @functools.cached_property
    def solo(self) -> tuple["Experiment", ...]:
        """The experiment of each variant, as one that trains its members alone.

        Raises:
          ShoalError: a setting cannot work, or is not data; the sentence names the variant.
        """
        if not self.variants:
            return (self,)
        return tuple(_experiment_of(self, variant) for variant in self.variants)

    def solo_of(self, label: str) -> "Experiment":
        """Return the experiment that trains the members of a label alone; "" where members differ in their seeds only.

        Raises:
          ValueError: there is none.
        """
        return self.solo[self._labels.index(label)]

    @functools.cached_property
    def evaluation_environment(self) -> Environment | None:
        """The environment that all members are evaluated in; None if that is each one's own.

        Raises:
          ShoalError: it cannot be made, or its spaces are others.
        """
        if not self.evaluation_parameters and not any(variant.parameters() for variant in self.variants):
            return None
        environment = self.with_parameters(self.evaluation_parameters)
        if (there := spec_of(environment)) != (here := spec_of(self.environment)):
            name = next(name for name in here._fields if getattr(here, name) != getattr(there, name))
            given = ", ".join(f"{name}={x}" for name, x in self.evaluation_parameters.items())
            raise ShoalError(
                f"eval_env={given} makes an environment with {name}={getattr(there, name)}, and that of the training "
                f"has {getattr(here, name)}; give parameters that leave it."
            )
        return environment

    def with_parameters(self, parameters: Mapping[str, Any]) -> Environment:
        """Make the environment again with some other parameters.

        Raises:
          ShoalError: it cannot be made so.
        """
        if not parameters:
            return self.environment
        description = Description(self.environment_name, self.environment_parameters, self.environment_gaps)
        environment = describing.rebuild(describing.description_to_json(description), parameters)[0]
        return _shown(environment, self.run)

    def validate(self) -> None:
        """Require that all settings can work, before anything compiles; the error names the first that cannot."""
        self.run.validate()
        require_contract(self.environment, self.environment_name)
        for experiment, name in zip(self.solo, self._labels, strict=True):
            with named(name):
                _check_discount(experiment.environment, experiment.config)
                if hasattr(experiment.config, "validate"):  # an algorithm need not have one
                    groups, validate = max(self.run.env_groups, 1), experiment.config.validate
                    sizes = [self.run.num_envs // groups, self.run.num_steps]
                    if "groups" in inspect.signature(validate).parameters:  # only statistics over all need it
                        sizes.append(groups)
                    validate(spec_of(experiment.environment), *sizes)
                _check_budget(experiment.run, experiment.config)
        consecutive(self.environment, self.run.eval_consecutive)
        if self.halving:
            self.halving.check(self.run, len(self.variants))
        self._check_evolution()
        if self.evaluation_environment is not None:
            require_contract(self.evaluation_environment, self.environment_name)

    def _check_evolution(self) -> None:
        """Validate the run with the bounds of the settings that change, or with each point of their schedule."""
        for point in self.evolution.examples:
            label = ", ".join(f"{name}={x:g}" for name, x in point.items())
            dataclasses.replace(self, evolution=evolutions.NONE, variants=(Variant(label, point),)).validate()

    @property
    def _labels(self) -> list[str]:
        return [variant.label for variant in self.variants] or [""]

    def as_json(self) -> dict[str, Any]:
        """Return the content of `config.json`; `load` reads it back.

        A setting that was left at None stays so, since it follows another one, which may be changed later.
        """
        resolved = settings.flat(self.config)
        before = resolved if self.unresolved_config is None else settings.flat(self.unresolved_config)
        algorithm = {name: json_value(x) for name, x in resolved.items() if name in before}
        algorithm |= {name: None for name, x in before.items() if x is None}
        further: dict[str, Any] = {}
        if self.variants:
            further["variants"] = [
                {"label": x.label, "settings": {name: float(y) for name, y in x.settings.items()}}
                for x in self.variants
            ]
        if self.evaluation_parameters:
            further["eval_env"] = {
                name: describing.to_json(x) for name, x in self.evaluation_parameters.items()
            }
        if self.halving:
            further["halving"] = self.halving._asdict()
        if self.evolution:
            further["evolution"] = self.evolution.to_json()
        if self.resumed_from:
            further["resumed_from"] = dict(self.resumed_from)
        return {
            "schema": SCHEMA,
            "environment": describing.description_to_json(
                Description(self.environment_name, self.environment_parameters, self.environment_gaps)
            ),
            "algorithm": {"name": self.algorithm, **algorithm},
            "run": {
                name: json_value(x) for name, x in settings.flat(self.run).items() if name != "num_updates"
            },
            "from": self.started_from,
            "from_step": self.from_step,
            **further,
        }


@reports_user_code
def decide(
    environment: str | Environment | None,
    *,
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config_file: str | Path | Mapping[str, Any] | None = None,
    use_preset: bool = True,
    started_from: str = "",
    from_step: str = "",
    variants: Sequence[Variant] | None = None,
    evaluation_parameters: Mapping[str, Any] | None = None,
    halving: Halving | None = None,
    evolution: Evolution | None = None,
    overrides: Mapping[str, Any],
) -> Experiment:
    """Decide every setting of a run.

    Args:
      environment: a name, `module:Name`, or an environment itself; None uses the config file's.
      algorithm: a name, `module:Name`, or a config itself; empty uses the config file's, or ppo.
      environment_parameters: of an environment given by name.
      config_file: a `config.json` to start from, its content, or a run directory that holds one.
      use_preset: whether the environment's preset is used, where there is one and no config file.
      started_from: a run whose parameters are inherited.
      from_step: the checkpoint of that run: its environment steps, "best" or "last"; empty for its last policies.
      variants: what differs between the members besides their seeds; None takes the config file's, or none.
      evaluation_parameters: of the environment of evaluations; None takes the config file's, or the environment's own.
      halving: when members stop early; None takes the config file's, or never.
      evolution: the settings that change while the run trains; None takes the config file's, or none where there are
        variants.
      overrides: settings of the run and of the algorithm by name, which have precedence over all others.
    Raises:
      ShoalError: an unknown name, with the nearest one; an override that has no effect with the other settings.
    """
    require_usable()
    saved = _content_of(config_file)
    if environment is None and not (saved and saved["environment"]["name"]):
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
    _check_no_parameters(overrides, default_config, parameters)
    run_settings, algorithm_settings = split_settings(default_config, overrides)
    run = dataclasses.replace(default_run, **run_settings)
    config = settings.with_settings(default_config, **algorithm_settings)
    for part in (run, config):
        settings.check_traced(part)
    run = run.with_total_steps(is_given="total_steps" in run_settings)
    with report_wrong_types(_name_of(config_file)):
        if variants is None:
            variants = [Variant(**x) for x in saved.get("variants", ())]
        if evolution is None:
            evolution = evolutions.NONE if variants else evolutions.from_json(saved.get("evolution", {}))
        if halving is None and saved.get("halving"):
            halving = Halving(**saved["halving"])
        check_variants(variants, config, overrides)
    if evaluation_parameters is None:
        evaluation_parameters = saved_evaluation_parameters(saved)
    config = with_first_settings(evolution, config, overrides)
    varied = variants[0].of_algorithm() if variants else dict.fromkeys(evolution.names)
    environment = _shown(environment, run)
    _check_effects({**overrides, **varied}, environment, run, config)
    if from_step and not started_from:
        raise ShoalError(
            f"from_step={from_step!r} has no effect without a run to start from; give that too (from)."
        )
    return Experiment(
        name,
        parameters,
        environment,
        algorithm,
        config,
        run,
        _origin_of_settings(name, parameters, algorithm, use_preset, config_file),
        started_from,
        from_step,
        environment_gaps=gaps,
        variants=tuple(variants),
        evaluation_parameters=dict(evaluation_parameters),
        halving=halving,
        evolution=evolution,
        preset=_preset_of(name, parameters, algorithm, saved),
    )


def _preset_of(
    environment: str, parameters: Mapping[str, Any], algorithm: str, saved: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the preset that a config file has of the same environment and algorithm, else today's."""
    names = [saved[part].get("name") for part in ("environment", "algorithm") if "preset" in saved]
    if names == [environment, algorithm]:
        return saved["preset"]
    return preset(environment, algorithm, trials=bool(parameters.get(TRIAL)))


def _origin_of_settings(
    environment: str, parameters: Mapping[str, Any], algorithm: str, use_preset: bool, config_file: Any
) -> str:
    """Say where the settings that the caller did not give come from."""
    if config_file:
        return "config file"
    has_preset = use_preset and _preset_of(environment, parameters, algorithm, {})
    return "preset" if has_preset else "defaults"


def _experiment_of(experiment: Experiment, variant: Variant) -> Experiment:
    """Return the experiment that trains the members of a variant alone."""
    with named(variant.label):
        is_resolved = experiment.unresolved_config is not None
        unresolved = experiment.unresolved_config if is_resolved else experiment.config
        values = {name: number(name, x) for name, x in variant.settings.items()}
        own = settings.with_settings(unresolved, **Variant(variant.label, values).of_algorithm())
        parameters = Variant(variant.label, values).parameters()
        environment = experiment.with_parameters(parameters)
        forms: list[Any] = [jax.tree.structure(x) for x in (environment, experiment.environment)]
        if forms[0] != forms[1]:
            raise ShoalError(
                f"one of the parameters {', '.join(parameters)} of the environment is not a number that is data, so "
                "that it cannot differ between the members of one compiled program."
            )
        return dataclasses.replace(
            experiment,
            environment=environment,
            environment_parameters={**experiment.environment_parameters, **parameters},
            evaluation_parameters={
                **{k: x for k, x in experiment.environment_parameters.items() if k in parameters},
                **experiment.evaluation_parameters,
            },
            config=resolve(own) if is_resolved else own,
            unresolved_config=own if is_resolved else None,
            variants=(),
            halving=None,
            evolution=evolutions.NONE,
        )


def _check_discount(environment: Environment, config: Any) -> None:
    """Raise ShoalError if an environment shapes its rewards with another discount than the algorithm's."""
    discount = getattr(unwrapped(environment), "shaping_discount", None)
    gamma = settings.flat(config).get("gamma")
    if (
        discount is None
        or gamma is None
        or struct.is_traced(discount, gamma)
        or np.allclose(discount, gamma, rtol=0, atol=1e-6)
    ):
        return
    raise ShoalError(
        f"gamma={float(np.ravel(gamma)[0]):g} differs from {float(np.ravel(discount)[0]):g}, the `gamma` of the "
        "environment, by which it shapes its rewards; give both the same value."
    )


def _check_budget(run: RunConfig, config: Any) -> None:
    """Raise ShoalError if the whole budget passes before an algorithm with a replay learns anything."""
    values = settings.flat(config)
    if not {"learning_starts", "train_frequency"} <= values.keys():
        return
    starts, every = values["learning_starts"], values["train_frequency"]
    budget = run.total_updates * run.num_envs * run.num_steps
    last = (budget - 1) // every * every  # the last of the steps, from 0 on, that calls for a gradient step
    if starts // every * every >= last:
        name, most = ("learning_starts", last - 1) if last else ("train_frequency", budget - 1)
        raise ShoalError(
            f"{name}={values[name]} leaves no gradient step in the {budget:,} environment steps of the run; it must be "
            f"at most {most}."
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


def _shown(environment: Environment, run: RunConfig) -> Environment:
    """Return the environment with the entries of observations that the run names for actor or critic only."""
    names = {"actor_only": run.actor_only, "critic_only": run.critic_only}
    for name, entries in names.items():
        if entries and not isinstance(space := environment.observation_space, Dict):
            raise ShoalError(
                f"{name}={','.join(entries)} names entries of a dictionary of observations, and this environment's "
                f"observation is a {type(space).__name__}; leave it out."
            )
    return Shown(environment, *names.values()) if any(names.values()) else environment


def _make_environment(
    environment: str | Environment | None, parameters: Mapping[str, Any], saved: Mapping[str, Any]
) -> tuple[Environment, Description]:
    """Return the environment that is named, given itself, or a config file's, with its description.

    Raises:
      ShoalError: it cannot be made, or a parameter is out of its bounds.
    """
    if environment is None:
        return describing.rebuild(saved["environment"], parameters)
    if isinstance(environment, str):
        if saved and environment == saved["environment"]["name"]:
            return describing.rebuild(saved["environment"], parameters)
        return envs.make(environment, **parameters), describing.describe_named(environment, parameters)
    made = registry.adapted(environment)
    check_parameters(made)
    return made, describing.describe(made)


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
) -> tuple[str, RunConfig, Any]:
    """Return the settings of a run without overrides, as a command's help shows them.

    Args:
      environment: its name, for the preset.
      algorithm: as in `decide`.
      config_file: as in `decide`.
      environment_parameters: as in `decide`; trials of several episodes have other presets than single ones.
      use_preset: as in `decide`.
      choices: settings that choose a part of the algorithm's config, such as its network, whose settings are then
        others; a preset's or file's settings of another part are left out. Other settings are not read.
      preset_settings: the preset; None takes today's.

    Returns:
      the algorithm's name, the run's config, and the algorithm's.

    Raises:
      ShoalError: an unknown name, with the nearest one.
    """
    saved = _content_of(config_file)
    saved_algorithm = dict(saved.get("algorithm", {}))
    saved_name = saved_algorithm.pop("name", "ppo")
    config: Any = algorithm if settings.is_nested(algorithm) else None
    if config is not None:
        algorithm = catalogue.name_of(config)
    elif isinstance(algorithm, type):
        algorithm = import_name(algorithm)
    algorithm = algorithm or saved_name
    is_given = config is not None
    with report_wrong_types(_name_of(config_file)) if saved else contextlib.nullcontext():
        config = config or catalogue.config_class(algorithm)()
    values: dict[str, Any] = dict(getattr(config, "run_defaults", None) or {})
    if saved:
        values |= saved["run"] | {"run_dir": ""}
        values |= saved_algorithm if algorithm == saved_name else {}
    elif use_preset:
        today = preset(environment, algorithm, trials=bool((environment_parameters or {}).get(TRIAL)))
        values |= today if preset_settings is None else preset_settings
    if is_given:
        values = {k: v for k, v in values.items() if k not in settings.all_names(config)}
    config, values = _with_choices(config, values, choices or {})
    run_settings, algorithm_settings = split_settings(config, values)
    config = settings.with_settings(config, **algorithm_settings)
    run = dataclasses.replace(RunConfig(), **run_settings)
    run = run.with_total_steps(is_given="total_steps" in run_settings)
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
    """Fill in settings that an algorithm's config implies, or that depend on the machine, if it has a method for it.

    Raises:
      ShoalError: a setting cannot work.
    """
    resolved = config.resolved() if hasattr(config, "resolved") else config
    if type(resolved) is not type(config):
        name = type(config).__name__
        raise ShoalError(f"{name}.resolved returns a {type(resolved).__name__}; it must return a {name}.")
    return resolved


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


def _check_no_parameters(overrides: Mapping[str, Any], config: Any, parameters: Mapping[str, Any]) -> None:
    """Raise ShoalError for a parameter of the environment that was given as a setting."""
    known = settings.settings_of(RunConfig()) | settings.settings_of(config)
    for name in overrides.keys() - known.keys():
        if not settings.find(config, name) and name in parameters:
            raise ShoalError(
                f"{name} is a parameter of the environment, not a setting; "
                f"environment_parameters={{{name!r}: {arguments.short_repr(overrides[name])}}} gives it."
            )


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a `config.json`, by its own path or its run directory's, or a TOML file.

    An environment, or an algorithm, that is written as text is a name. A TOML file has the entries of a `config.json`,
    or those of a preset: a table of flat settings with the algorithm's name, to which `environment` may be added.

    Raises:
      ShoalError: there is none, or it is not one.
    """
    path = arguments.path("config", path)
    path = path / "config.json" if path.is_dir() else path
    what = _name_of(path)
    saved = _read_toml(path, what) if path.suffix == ".toml" else read_json(path, what)
    for name in ("environment", "algorithm"):
        if isinstance(saved.get(name), str):
            saved[name] = {"name": saved[name]}
    if isinstance(saved.get("environment"), dict):
        saved["environment"].setdefault("parameters", {})
    if lacking := sorted(PARTS - set(saved)):
        unknown = [name for name in saved if name not in (*PARTS, *FURTHER_PARTS, *catalogue.algorithms())]
        hint = f"; it has {unknown[0]!r}{nearest(unknown[0], catalogue.algorithms())}" if unknown else ""
        raise ShoalError(f"{what} lacks {', '.join(lacking)}{hint or '; is it a config.json?'}")
    schema = saved.get("schema", SCHEMA)  # a file that was written by hand has none
    if type(schema) is not int:
        raise ShoalError(
            f"{what} has schema={schema!r:.100}, which is not a whole number; {SCHEMA} would be right."
        )
    if schema != SCHEMA:
        made_by = "a newer" if schema > SCHEMA else "an earlier"
        raise ShoalError(
            f"{what} was made by {made_by} version of Shoal (schema={schema}, and this one reads {SCHEMA}); "
            "use the version that made it."
        )
    for name in (*PARTS, "eval_env", "preset"):
        if not isinstance(saved.get(name, {}), dict):
            kinds = (
                "neither a name nor an object" if name in ("environment", "algorithm") else "not an object"
            )
            raise ShoalError(f"{what} has {name}={saved[name]!r:.100}, which is {kinds}.")
    environment = saved["environment"]
    if not isinstance(environment["name"], str) or not isinstance(environment["parameters"], dict):
        raise ShoalError(
            f"{what} has an environment whose name is not text, or whose parameters are not an object."
        )
    # An entry of another name would otherwise count as left out, and the run be another one.
    for entries, known in ((saved, PARTS | FURTHER_PARTS), (environment, {"name", "parameters", "gaps"})):
        for name in entries:
            if name not in known:
                raise ShoalError(f"{what} has {name!r}, which no config has{nearest(name, known)}")
    return saved


def _content_of(config_file: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the content of a config file, or as it was read before; an empty mapping for None."""
    if isinstance(config_file, Mapping):
        return config_file
    return read_config(config_file) if config_file else {}


def _name_of(config_file: Any) -> str:
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
    for name in [name for name in catalogue.algorithms() if isinstance(saved.get(name), dict)]:
        saved = {"environment": "", "run": {}, "algorithm": {"name": name, **saved.pop(name)}} | saved
    return saved


def saved_evaluation_parameters(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters by which the environment of a run's evaluations is another one, from its `config.json`."""
    parameters = saved.get("eval_env", {})
    return decode_parameters(saved["environment"]["name"], parameters) if parameters else {}


def cast_to_declared(value: Any, declared: Any) -> Any:
    """Convert a number to the type that its field declares, where this loses nothing; other values stay.

    `1e5` becomes `100000` for an `int` (also within a tuple, beside None, or both), NumPy's numbers become Python's,
    and paths texts.
    """
    if isinstance(value, os.PathLike) and declared is str:
        return os.fspath(value)
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


def json_value(value: Any) -> Any:
    """Convert a setting's value to JSON; a class or a function to its import name."""
    if isinstance(value, tuple):
        return [json_value(part) for part in value]
    if callable(value):
        return import_name(value)
    return float(value) if hasattr(value, "dtype") else value
