"""The settings of a run that depend on the machine, and what cannot work, before anything compiles."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from shoal.algos import catalogue
from shoal.base import signals
from shoal.base.imports import load_function
from shoal.config.settings import flat
from shoal.engine import reduction_check, team
from shoal.engine.population import member_layout
from shoal.engine.run import ProgramSettings
from shoal.envs.base import unwrapped
from shoal.envs.checking.check_contract import never_ends
from shoal.envs.registry import TRIAL
from shoal.monitor.companions import Companion
from shoal.runs.plan import presets
from shoal.runs.plan.experiment import Experiment
from shoal.runs.train import compiled_trainer, pbt_run, resume
from shoal.runs.train.placement import check_memory, devices_of, hidden_weights, place
from shoal.xla import machine
from shoal.xla.jax_settings import require_usable

LONG_SECONDS = 600  # a run that takes longer says so before it begins


class Caller(NamedTuple):
    """Who trains: a command, or a function of `import shoal`; and what follows the run, as the caller asks."""

    progress: bool = True  # whether anything is printed
    import_seconds: float = 0.0  # the duration of the imports, for the summary
    own_process: bool = (
        False  # whether the process does nothing else, so that the backend may be set up for it
    )
    listeners: tuple[object, ...] = ()  # see `monitor.listeners`
    loggers: tuple[Companion, ...] = ()  # processes beside each run
    film_every: int = 0  # environment steps between two films; 0 for none
    command: str | None = None  # of the command line; None from Python

    def note(self, text: str) -> None:
        """Write a line to standard error, if anything is printed."""
        if self.progress:
            signals.say(text)


class Plan(NamedTuple):
    """A run whose settings are decided and can work; nothing has compiled yet."""

    experiment: Experiment
    settings: ProgramSettings
    layout: member_layout.Layout
    config: Mapping[str, Any]  # the content of `config.json`
    identity: Mapping[str, Any]  # see `resume.identity_of`
    is_new: bool  # else it is resumed in its directory


def note_duration(plan: Plan, call: Caller) -> None:
    """Say how long a run takes by the speed that was measured with its preset, where that is more than ten minutes."""
    experiment, run = plan.experiment, plan.experiment.run
    name, trials = experiment.environment_name, bool(experiment.environment_parameters.get(TRIAL))
    rate = presets.measured_speed(name, experiment.algorithm, trials=trials)
    if not rate or experiment.defaults.origin != "preset":
        return
    steps = run.total_updates * run.steps_per_update * experiment.num_members
    if steps > LONG_SECONDS * rate:
        call.note(
            f"shoal: the preset made {rate:,} steps/s of all seeds together on two cores, at which {steps:,} steps "
            f"take {steps / rate / 60:,.0f} minutes; fewer --seeds or --total-steps take less."
        )


def plan_run(
    experiment: Experiment, call: Caller, *, is_new: bool = True, changes: Iterable[str] = ()
) -> Plan:
    """Decide the settings that depend on the machine, and refuse those that cannot work, before anything compiles.

    Args:
      experiment: the result of `decide`.
      call: how the run was called for.
      is_new: else the devices are as many as there are, if they are fewer than the run had.
      changes: the settings that a resumed run changes.
    """
    require_usable(training=True)
    run, count = experiment.run, experiment.num_members
    batch = flat(experiment.config).get("batch_size")  # which may be anything still
    rows = max(run.num_envs * run.num_steps, batch if isinstance(batch, int) else 0)
    weights = hidden_weights(experiment.config)
    if call.own_process and machine.is_worth_one_thread(run.devices, count, rows, weights):
        machine.prepare(one_thread=True)
    goes_on = not is_new or experiment.resumed_from
    if goes_on and run.devices > (available := len(devices_of(0))):
        call.note(f"devices={run.devices} of the run are more than there are; it continues with {available}.")
        run = dataclasses.replace(run, devices=available)
    asked = experiment
    devices, experiment = place(dataclasses.replace(experiment, run=run))
    experiment.validate()
    run = experiment.run
    if never_ends(experiment.environment):
        call.note(
            f"no step of {experiment.environment_name} ends an episode, so that evaluations cut each after "
            f"eval_max_steps={run.eval_max_steps:,} and training never resets; give a time limit, such as "
            "max_episode_steps=1000"
        )
    if caution := getattr(unwrapped(experiment.environment), "caution", ""):
        call.note(caution)
    first = experiment.solo[0]  # the settings on whose values a program depends are the same for all members
    team.team_return_of(experiment.environment)
    score = run.score if is_metric_name(run.score) else load_function("score", run.score)
    eval_metrics = load_function("eval_metrics", run.eval_metrics) if run.eval_metrics else None
    settings = compiled_trainer.program_settings(run, run.env_groups, score, eval_metrics)
    settings = settings._replace(changing=pbt_run.names_in_run(pbt_run.leaves_of(experiment)))
    pbt_run.check_read(experiment, [*experiment.evolution.names, *changes], settings)
    layout = member_layout.lay_out(devices, count, run.env_groups, run.seed_batching)
    # Traces one update, so that a mistake in an algorithm's functions is found before a run begins.
    shapes = compiled_trainer.planned_shapes(first.environment, first.config, count, settings, layout)
    check_memory(experiment, settings, layout, shapes)
    if settings.groups > 1 and not catalogue.is_builtin(experiment.algorithm):
        reduction_check.check_reduced(first.environment, first.config, settings)
    if score != "return_mean" or eval_metrics:
        compiled_trainer.check_score(first.environment, first.config, settings)
    config = resume.config_json(experiment, asked) | {"has_masks": shapes.timestep.action_mask is not None}
    return Plan(experiment, settings, layout, config, resume.identity_of(experiment, config), is_new)


def is_metric_name(score: str | Callable) -> bool:
    """Report whether a score is the name of a metric, and not a function or its `module:function`."""
    return isinstance(score, str) and ":" not in score
