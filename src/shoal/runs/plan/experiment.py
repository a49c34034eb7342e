"""A run whose settings are all decided: its checks, its members, and the content of its `config.json`."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, cast

import jax
import numpy as np

from shoal.algos import catalogue
from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.values import json_value
from shoal.envs import describing, registry
from shoal.envs.base import unwrapped
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.describing import Description
from shoal.envs.trials import consecutive
from shoal.envs.wrappers import Shown
from shoal.records import pbt_settings as evolutions
from shoal.records.halving import Halving
from shoal.records.json_files import to_jsonable
from shoal.records.members import Members, Variant, members_of
from shoal.records.pbt_settings import Evolution
from shoal.records.run_config import RunConfig
from shoal.runs.plan.config_files import SCHEMA
from shoal.runs.plan.defaults import Config, Defaults
from shoal.runs.plan.defaults import defaults as find_defaults
from shoal.runs.plan.elsewhere import HERE, Elsewhere
from shoal.runs.plan.variants import named, number
from shoal.types import AlgorithmConfig, Environment, spec_of
from shoal.types.spaces import Dict


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A run whose settings are all decided, so that the same versions can run it again."""

    environment_name: str
    environment_parameters: Mapping[str, Any]
    environment: Environment
    algorithm: str
    config: AlgorithmConfig
    run: RunConfig
    defaults: Defaults = dataclasses.field(compare=False)  # the settings that the caller did not give
    started_from: str = ""
    from_step: str = ""  # the step of the checkpoint of `started_from`; empty for its last policies
    # The `run` and the `step` of the checkpoint of another run that this one resumes; empty for a run of its own.
    resumed_from: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment_gaps: Mapping[str, str] = dataclasses.field(default_factory=dict)  # see `Description`
    # The algorithm's config before implied settings were filled in; None is `config` itself.
    unresolved_config: AlgorithmConfig | None = None
    variants: tuple[Variant, ...] = ()  # the members' settings; empty where only their seeds differ
    elsewhere: Elsewhere = HERE  # the environment of evaluations, where it is another one
    halving: Halving | None = None  # when members stop early
    evolution: Evolution = evolutions.NONE  # the settings that change while the run trains

    @property
    def members(self) -> Members:
        """The members that are trained."""
        return members_of(range(self.run.seed, self.run.seed + self.run.seeds), self.variants)

    @functools.cached_property
    def differences(self) -> dict[str, Any]:
        """The settings, and parameters of the environment, that differ from those of the preset.

        They are JSON's values. Where there is no preset they differ from those of the classes; a population of several
        settings has none.
        """
        usual = None if self.variants else self._usual()
        if usual is None:
            return {}
        expected = settings.flat(usual.config) | settings.flat(usual.run)
        own = settings.flat(self.config if self.unresolved_config is None else self.unresolved_config)
        telling = {
            x
            for part in (self.run, self.config)
            for x in settings.names_where(part, lambda x: x.field.use.tells_apart)
        }
        found = {
            setting: json_value(value)
            for setting, value in (own | settings.flat(self.run)).items()
            if setting in telling and json_value(value) != json_value(expected.get(setting))
        }
        parameters: dict[str, Any] = {}
        with contextlib.suppress(ShoalError):  # an environment that was given itself has no defaults
            parameters = {
                name: x.default for name, x in registry.parameters_of(self.environment_name).items()
            }
        given = self.environment_parameters.items()
        numbers = {name: x for name, x in given if isinstance(x, bool | int | float | str)}
        found |= {name: x for name, x in numbers.items() if parameters.get(name) != x}
        return ({"eval_env": str(self.elsewhere)} if str(self.elsewhere) else {}) | found

    def _usual(self) -> Defaults | None:
        """Return the defaults of the preset alone; None where the algorithm has none."""
        if self.defaults.is_plain:
            return self.defaults
        algorithm: str | AlgorithmConfig = self.algorithm
        if not catalogue.is_builtin(
            self.algorithm
        ):  # a class that need not be importable, or made without words
            try:
                algorithm = type(self.config)()
            except TypeError:
                return None
        return find_defaults(
            self.environment_name,
            algorithm=algorithm,
            environment_parameters=self.environment_parameters,
            preset_settings=self.defaults.preset,
        )

    @property
    def num_members(self) -> int:
        """The number of members; of a number of seeds that no memory can hold, the table is not made."""
        return self.run.seeds * max(len(self.variants), 1)

    # Kept, since each makes its environment again, and its config.
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
        parameters = self.elsewhere.parameters
        if self.elsewhere.entry:
            environment = shown(self.elsewhere.environment(), self.run)
        elif parameters or any(variant.parameters() for variant in self.variants):
            environment = self.with_parameters(parameters)
        else:
            return None
        if (there := spec_of(environment)) != (here := spec_of(self.environment)):
            name = next(name for name in here._fields if getattr(here, name) != getattr(there, name))
            raise ShoalError(
                f"eval_env={self.elsewhere} makes an environment with {name}={getattr(there, name)}, and that of the "
                f"training has {getattr(here, name)}; give one that has the same."
            )
        return environment

    def with_parameters(self, parameters: Mapping[str, Any]) -> Environment:
        """Make the environment again with some other parameters.

        Raises:
          ShoalError: it cannot be made so.
        """
        if not parameters:
            return self.environment
        return shown(describing.rebuild(self._environment_json(), parameters)[0], self.run)

    def _environment_json(self) -> dict[str, Any]:
        description = Description(self.environment_name, self.environment_parameters, self.environment_gaps)
        return describing.description_to_json(description)

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
        elsewhere = self.evaluation_environment
        consecutive(self.environment if elsewhere is None else elsewhere, self.run.eval_consecutive)
        if self.halving:
            self.halving.check(self.run, len(self.variants))
        self._check_evolution()
        if elsewhere is not None:
            require_contract(elsewhere, self.elsewhere.entry.get("name", self.environment_name))

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
        variants = [(x.label, {name: float(y) for name, y in x.settings.items()}) for x in self.variants]
        further = {
            "variants": [{"label": label, "settings": numbers} for label, numbers in variants],
            "eval_env": self.elsewhere.to_json(),
            "halving": self.halving and self.halving._asdict(),
            "evolution": self.evolution.to_json(),
            "resumed_from": dict(self.resumed_from),
        }
        content = {
            "schema": SCHEMA,
            "environment": self._environment_json(),
            "algorithm": {"name": json_value(self.algorithm), **algorithm},
            "run": {
                name: json_value(x) for name, x in settings.flat(self.run).items() if name != "num_updates"
            },
            "from": self.started_from,
            "from_step": self.from_step,
            **{name: x for name, x in further.items() if x},
        }
        return cast(dict[str, Any], to_jsonable(content, not_finite=str))


def _experiment_of(experiment: Experiment, variant: Variant) -> Experiment:
    """Return the experiment that trains the members of a variant alone."""
    with named(variant.label):
        is_resolved = experiment.unresolved_config is not None
        variant = Variant("", {name: number(name, x) for name, x in variant.settings.items()})
        own = settings.with_settings(
            experiment.unresolved_config or experiment.config, **variant.of_algorithm()
        )
        parameters = variant.parameters()
        environment = experiment.with_parameters(parameters)
        if len({jax.tree.structure(x) for x in (environment, experiment.environment)}) > 1:
            raise ShoalError(
                f"one of the parameters {', '.join(parameters)} of the environment is not a number that is data, so "
                "that it cannot differ between the members of one compiled program."
            )
        return dataclasses.replace(
            experiment,
            environment=environment,
            environment_parameters={**experiment.environment_parameters, **parameters},
            elsewhere=experiment.elsewhere._replace(
                parameters={
                    **{k: x for k, x in experiment.environment_parameters.items() if k in parameters},
                    **experiment.elsewhere.parameters,
                }
            ),
            config=resolve(own) if is_resolved else own,
            unresolved_config=own if is_resolved else None,
            variants=(),
            halving=None,
            evolution=evolutions.NONE,
        )


def _check_discount(environment: Environment, config: AlgorithmConfig) -> None:
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


def _check_budget(run: RunConfig, config: AlgorithmConfig) -> None:
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


def resolve(config: Config) -> Config:
    """Fill in settings that an algorithm's config implies, or that depend on the machine, if it has a method for it.

    That method is to check all values; of a config without it they are checked here.

    Raises:
      ShoalError: a setting cannot work.
    """
    if not hasattr(config, "resolved"):
        settings.check_fields(config)
        return config
    resolved = config.resolved()
    if type(resolved) is not type(config):
        name = type(config).__name__
        raise ShoalError(f"{name}.resolved returns a {type(resolved).__name__}; it must return a {name}.")
    return resolved


def shown(environment: Environment, run: RunConfig) -> Environment:
    """Return the environment with the entries of observations that the run names for actor or critic only."""
    names = {"actor_only": run.actor_only, "critic_only": run.critic_only}
    for name, entries in names.items():
        if entries and not isinstance(space := environment.observation_space, Dict):
            raise ShoalError(
                f"{name}={','.join(entries)} names entries of a dictionary of observations, and this environment's "
                f"observation is a {type(space).__name__}; leave it out."
            )
    return Shown(environment, *names.values()) if any(names.values()) else environment
