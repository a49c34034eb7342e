"""The decision of a run's settings: an environment, an algorithm's config and a run's, from names and overrides.

Nothing here starts a device, since how many a process has is settled after the experiment is decided; but an
environment of another package may do so when it is imported, so that the machine is prepared before.

The order of precedence is: the caller's settings, then a config file (complete), or else the preset of the
environment, then the defaults of the classes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments, settings
from shoal.config.requirements import check_needs
from shoal.config.traced import check_traced
from shoal.envs import describing, registry
from shoal.envs.describing import Description
from shoal.envs.parameters import check_parameters
from shoal.envs.registry import TRIAL
from shoal.records import pbt_settings as evolutions
from shoal.records.halving import Halving
from shoal.records.json_files import report_wrong_types
from shoal.records.members import Variant
from shoal.records.pbt_settings import Evolution
from shoal.records.run_config import RunConfig
from shoal.runs.plan.config_files import content_of, name_of, saved_evaluation_parameters
from shoal.runs.plan.defaults import Defaults, defaults, split_settings
from shoal.runs.plan.experiment import Experiment, shown
from shoal.runs.plan.variants import check_variants, with_first_settings
from shoal.types import Environment
from shoal.xla import machine
from shoal.xla.jax_settings import require_usable


class Population(NamedTuple):
    """What a population has besides the settings of a run; see `Experiment`."""

    variants: tuple[Variant, ...]
    evaluation_parameters: Mapping[str, Any]
    halving: Halving | None
    evolution: Evolution


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
    known: Defaults | None = None,
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
      known: the defaults for the same arguments, where they were found before, as for a command's help.
      overrides: settings of the run and of the algorithm by name, which have precedence over all others.
    Raises:
      ShoalError: an unknown name, with the nearest one; an override that has no effect with the other settings.
    """
    require_usable()
    saved = content_of(config_file)
    _prepare_machine(environment, saved, overrides)
    made, description = _make_environment(environment, environment_parameters or {}, saved)
    if known is None or known.of != (description.name, bool(description.parameters.get(TRIAL))):
        known = defaults(
            description.name,
            algorithm=algorithm,
            config_file=config_file,
            use_preset=use_preset,
            environment_parameters=description.parameters,
            choices=overrides,
        )
    with report_wrong_types(name_of(config_file)):
        population = _population(saved, variants, evaluation_parameters, halving, evolution)
    if from_step and not started_from:
        raise ShoalError(
            f"from_step={from_step!r} has no effect without a run to start from; give that too (from)."
        )
    return _decided(known, made, description, population, started_from, from_step, overrides)


def _decided(
    known: Defaults,
    environment: Environment,
    description: Description,
    population: Population,
    started_from: str,
    from_step: str,
    overrides: Mapping[str, Any],
) -> Experiment:
    """Return the experiment with settings in the place of defaults, all of which have an effect."""
    name, parameters, gaps = description
    _check_no_parameters(overrides, known.config, parameters)
    run_settings, algorithm_settings = split_settings(known.config, overrides)
    run = dataclasses.replace(known.run, **run_settings)
    config = settings.with_settings(known.config, **algorithm_settings)
    for part in (run, config):
        check_traced(part)
    run = run.with_total_steps(is_given="total_steps" in run_settings)
    variants, evolution = population.variants, population.evolution
    check_variants(variants, config, overrides)
    config = with_first_settings(evolution, config, overrides)
    varied = variants[0].of_algorithm() if variants else dict.fromkeys(evolution.names)
    environment = shown(environment, run)
    _check_effects({**overrides, **varied}, environment, run, config)
    return Experiment(
        name,
        parameters,
        environment,
        known.algorithm,
        config,
        run,
        known,
        started_from,
        from_step,
        environment_gaps=gaps,
        **population._asdict(),
    )


def _prepare_machine(environment: Any, saved: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Prepare the machine for an environment of another package, which may start a device when it is imported.

    Raises:
      ShoalError: no environment is named.
    """
    if environment is None and not (saved and saved["environment"]["name"]):
        raise ShoalError("no environment was named; give one such as CartPole-v1, or a config file.")
    named = saved["environment"]["name"] if environment is None else environment
    if isinstance(named, str) and registry.family_of(named):
        devices = overrides.get("devices", saved.get("run", {}).get("devices", 0))
        machine.prepare(min(arguments.whole_number("devices", devices, 0), machine.max_devices()))


def _population(
    saved: Mapping[str, Any],
    variants: Sequence[Variant] | None,
    evaluation_parameters: Mapping[str, Any] | None,
    halving: Halving | None,
    evolution: Evolution | None,
) -> Population:
    """Return what a population has; that of a config file where None is given."""
    if variants is None:
        variants = [Variant(x["label"], dict(x["settings"])) for x in saved.get("variants", ())]
    if evolution is None:
        evolution = evolutions.NONE if variants else evolutions.from_json(saved.get("evolution", {}))
    if halving is None and saved.get("halving"):
        halving = Halving(**saved["halving"])
    if evaluation_parameters is None:
        evaluation_parameters = saved_evaluation_parameters(saved)
    return Population(tuple(variants), dict(evaluation_parameters), halving, evolution)


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
    check_needs(overrides, values, {**settings.needs_of(run), **settings.needs_of(config)})


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


def _check_no_parameters(overrides: Mapping[str, Any], config: Any, parameters: Mapping[str, Any]) -> None:
    """Raise ShoalError for a parameter of the environment that was given as a setting."""
    known = settings.settings_of(RunConfig()) | settings.settings_of(config)
    for name in overrides.keys() - known.keys():
        if not settings.find(config, name) and name in parameters:
            raise ShoalError(
                f"{name} is a parameter of the environment, not a setting; "
                f"environment_parameters={{{name!r}: {arguments.short_repr(overrides[name])}}} gives it."
            )
