"""The decision of a run's settings: an environment, an algorithm's config and a run's, from names and overrides.

Nothing here starts a device, since how many a process has is settled after the experiment is decided; but an
environment of another package may do so when it is imported, so that the machine is prepared before.

The order of precedence is: the caller's settings, then a config file (complete), or else the preset of the
environment, then the defaults of the classes.
"""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments, settings
from shoal.config.requirements import check_needs
from shoal.envs import describing, registry
from shoal.envs.describing import Description
from shoal.envs.given import environment_of
from shoal.envs.registry import TRIAL
from shoal.records import pbt_settings as evolutions
from shoal.records.halving import Halving
from shoal.records.json_files import report_wrong_types
from shoal.records.members import Variant
from shoal.records.pbt_settings import Evolution
from shoal.runs.plan import elsewhere
from shoal.runs.plan.config_files import ConfigFile, content_of, name_of
from shoal.runs.plan.defaults import Defaults, defaults, with_values
from shoal.runs.plan.experiment import Experiment, resolve, shown
from shoal.runs.plan.variants import check_variants, with_first_settings
from shoal.types import AlgorithmConfig, Environment, spec_of
from shoal.xla import machine
from shoal.xla.jax_settings import require_usable


@reports_user_code
def decide(
    environment: str | Environment | None,
    *,
    algorithm: str | type | AlgorithmConfig = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config_file: ConfigFile = None,
    use_preset: bool = True,
    started_from: str = "",
    from_step: str = "",
    variants: Sequence[Variant] | None = None,
    evaluation: str | Environment | Mapping[str, Any] | None = None,
    halving: Halving | None = None,
    evolution: Evolution | None = None,
    overrides: Mapping[str, object],
    known: Defaults | None = None,
) -> Experiment:
    """Decide every setting of a run.

    Args:
      environment: a name, `module:Name`, or an environment itself; None uses the config file's.
      algorithm: a name, `module:Name`, or a config itself or its class; empty uses the config file's, or ppo.
      environment_parameters: of an environment given by name.
      config_file: a run directory, `config.json` or other files of settings (see `read_config`), or their content.
      use_preset: whether the environment's preset is used, where there is one and no config file.
      started_from: a run whose parameters are inherited.
      from_step: the checkpoint of that run: its environment steps, "best" or "last"; empty for its last policies.
      evaluation: where the run is evaluated (see `elsewhere.given`); None takes the config file's, or its environment.
      variants, halving, evolution: as in `Experiment`; None takes the config file's, or else what a run has without. An
        evolution is left out where there are variants.
      overrides: settings of the run and of the algorithm by name, which have precedence over all others.
      known: the defaults for the same arguments, where they were found before, as for a command's help.
    Raises:
      ShoalError: an unknown name, with the nearest one; an override that has no effect with the other settings.
    """
    require_usable()  # before an environment is made, which may compute with JAX
    saved = content_of(config_file, algorithm if isinstance(algorithm, str) else "")
    devices = overrides.get("devices", saved.get("run", {}).get("devices", 0))
    _prepare_machine(environment, saved, devices)
    made, description = _make_environment(environment, environment_parameters or {}, saved)
    # A command finds them for its help first, when its words may still name another environment, or no trials.
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
        population = _population(saved, variants, evaluation, halving, evolution)
    run, config = with_values(known.run, known.config, overrides, description.parameters)
    experiment = Experiment(
        *(description.name, description.parameters, made, known.algorithm, config, run, known),
        *(started_from, from_step),
        environment_gaps=description.gaps,
        **population,
    )
    return _with_effects(experiment, overrides.keys())


def _with_effects(experiment: Experiment, given: Set[str]) -> Experiment:
    """Return the experiment as it is trained: its settings that change as data, its entries of observations as shown.

    Args:
      given: the names of the settings that the caller gave.
    Raises:
      ShoalError: one of them has no effect with the others, or the members cannot differ as they are asked to.
    """
    if experiment.from_step and not experiment.started_from:
        raise ShoalError(
            f"from_step={experiment.from_step!r} has no effect without a run to start from; give that too (from)."
        )
    variants, evolution, run = experiment.variants, experiment.evolution, experiment.run
    check_variants(variants, experiment.config, given)
    config = with_first_settings(evolution, experiment.config, given)
    environment = shown(experiment.environment, run)
    values: dict[str, object] = {
        "action_space": environment.action_space,
        "observation_space": environment.observation_space,
        "num_agents": environment.num_agents,
    }
    values |= settings.flat(run) | settings.flat(config)
    # What a network of the caller's own declares; settings of memory need it.
    values["has_memory"] = bool(getattr(getattr(config, "network", None), "has_memory", False))
    # Only what was given must have an effect: defaults are those of every algorithm and network.
    varied = variants[0].of_algorithm() if variants else evolution.names
    check_needs([*given, *varied], values, {**settings.needs_of(run), **settings.needs_of(config)})
    if "gradient_chunk" in given and hasattr(found := resolve(config), "check_given_chunk"):
        found.check_given_chunk(spec_of(environment))
    return dataclasses.replace(experiment, environment=environment, config=config)


def _prepare_machine(
    environment: str | Environment | None, saved: Mapping[str, Any], devices: object
) -> None:
    """Prepare the machine for an environment of another package, which may start a device when it is imported.

    Raises:
      ShoalError: no environment is named.
    """
    named = saved.get("environment", {}).get("name") if environment is None else environment
    if environment is None and not named:
        raise ShoalError("no environment was named; give one such as CartPole-v1, or a config file.")
    if isinstance(named, str) and registry.family_of(named):
        machine.prepare(min(arguments.whole_number("devices", devices, 0), machine.max_devices()))


def _population(
    saved: Mapping[str, Any],
    variants: Sequence[Variant] | None,
    evaluation: str | Environment | Mapping[str, Any] | None,
    halving: Halving | None,
    evolution: Evolution | None,
) -> dict[str, Any]:
    """Return what an experiment has of a population, by its fields; that of a config file where None is given."""
    if variants is None:
        variants = [Variant(x["label"], dict(x["settings"])) for x in saved.get("variants", ())]
    if evolution is None:
        evolution = evolutions.NONE if variants else evolutions.from_json(saved.get("evolution", {}))
    if halving is None and saved.get("halving"):
        halving = Halving(**saved["halving"])
    where = elsewhere.saved_in(saved) if evaluation is None else elsewhere.given(evaluation)
    return {"variants": tuple(variants), "elsewhere": where, "halving": halving, "evolution": evolution}


def _make_environment(
    environment: str | Environment | None, parameters: Mapping[str, Any], saved: Mapping[str, Any]
) -> tuple[Environment, Description]:
    """Return the environment that is named, given itself, or a config file's, with its description.

    Raises:
      ShoalError: it cannot be made, or a parameter is out of its bounds.
    """
    entry = saved.get("environment", {})
    # The file's parameters count, beside those that are given, if it names the same environment, or none.
    is_same = isinstance(environment, str) and entry and entry["name"] == environment
    is_nameless = isinstance(environment, str) and entry and not entry["name"] and entry["parameters"]
    if environment is None or is_same or is_nameless:
        return describing.rebuild({**entry, "name": environment or entry["name"]}, parameters)
    made = environment_of(environment, parameters)
    if isinstance(environment, str):
        return made, describing.describe_named(environment, parameters)
    return made, describing.describe(made)
