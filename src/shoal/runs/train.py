"""A run from its settings to its files: preparation, training, checkpoints, resumption and results."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.algos import catalogue
from shoal.base import signals
from shoal.base.errors import SavingError, ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments, struct
from shoal.disk import checkpoint_record, policy_files
from shoal.disk.checkpoints import Checkpoints
from shoal.disk.directory import SUMMARY, RunDirectory
from shoal.disk.json_files import report_wrong_types
from shoal.disk.lock import Lock
from shoal.disk.metrics_file import METRICS, NOTHING, Mark
from shoal.disk.summary import build_summary, chosen_score, machine_facts, variant_scores
from shoal.engine import reduction_check, team
from shoal.engine.history import History
from shoal.engine.hooks import Listener
from shoal.engine.nonfinite import STOPPED, failed_members
from shoal.engine.population import member_layout
from shoal.engine.run import Run, Settings
from shoal.engine.trained_policy import TrainedPolicy
from shoal.runs import compiled_trainer, finetuning, memory_limits, pbt_run, resume
from shoal.runs import plan as experiments
from shoal.runs.checkpointing import Supervisor
from shoal.runs.load import checkpoint_instead, load
from shoal.runs.placement import check_memory, devices_of, place
from shoal.runs.plan import Experiment
from shoal.runs.resume import Finished, Restoration
from shoal.show import reports
from shoal.types import Environment, Learner
from shoal.xla import machine
from shoal.xla.jax_settings import require_usable


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that has ended.

    Attributes:
      path: its directory.
      summary: the content of `summary.json`.
      learner: the trained learner, every leaf with a leading member axis.
      evaluations: (environment steps, metrics) of each evaluation; a metric is an array, one number per member.
      environment: the environment that it was trained in.
      finished: what `resume` goes on from if the run has no checkpoints; else None.
    """

    path: Path
    summary: Mapping[str, Any]
    learner: Any
    evaluations: list[tuple[int, Mapping[str, np.ndarray]]]
    environment: Environment
    finished: Finished | None = dataclasses.field(default=None, repr=False)

    def policy(self, which: str = "best", seed: int | None = None, label: str | None = None) -> TrainedPolicy:
        """Load the policy of a member, as `shoal.load` does."""
        return load(self.path, which, seed=seed, label=label, environment=self.environment)


class Call(NamedTuple):
    """The options of a call that trains."""

    progress: bool = True  # whether anything is printed
    import_seconds: float = 0.0  # the duration of the imports, for the summary
    own_process: bool = (
        False  # whether the process does nothing else: the backend may be set up for this run alone
    )
    listener: Listener | None = None  # is told of each log point and evaluation too

    def note(self, text: str) -> None:
        """Write a line to standard error, if anything is printed."""
        if self.progress:
            signals.say(text)


class Location(NamedTuple):
    """The directory that a run is written to, and what this process knows of it."""

    directory: RunDirectory
    lock: Lock
    mark: Mark  # the end of the rows of `metrics.jsonl` so far
    is_new: bool = False  # made for this run just now, and removed if that fails before anything can be kept


class Prepared(NamedTuple):
    """A run whose settings are decided and can work; nothing has compiled yet."""

    asked: Experiment  # before the machine decided anything
    experiment: Experiment
    settings: Settings
    layout: member_layout.Layout
    identity: Mapping[str, Any]  # see `resuming.identity_of`


@reports_user_code
def run_experiment(experiment: Experiment, call: Call | None = None) -> TrainedRun:
    """Run an experiment and write its run directory; one that holds this run already is resumed, or read if finished.

    Args:
      experiment: the result of `decide`.
      call: how it was called for; None prints progress.
    Raises:
      ShoalError: as `train`; then nothing is left on disk.
      SavingError: the run was trained, but a part of it could not be written.
      Interrupted: a signal ended the run, which is saved.
    """
    experiment.run.validate()
    call = Call() if call is None else call
    with signals.handle() as stop:
        stop.phase(signals.Phase.STARTING)
        if not resume.holds_run(experiment.run.run_dir):
            return _run_new(experiment, stop, call)
        directory = RunDirectory.open(experiment.run.run_dir)
        saved = experiments.read_config(directory.path)
        resume.check_same(directory.path, saved, experiment)
        loaded = experiments.decide(
            experiment.environment, config_file=directory.path, overrides={"run_dir": str(directory.path)}
        )
        run = dataclasses.replace(
            loaded.run, score=experiment.run.score, eval_metrics=experiment.run.eval_metrics
        )
        loaded = dataclasses.replace(experiment, run=run, config=loaded.config)
        if resume.is_finished(directory, loaded.run):
            return _finished_run(directory, loaded)
        return _run_on(directory, loaded, {}, stop, call)


@reports_user_code
def resume_run(
    path: str | Path,
    environment: Environment | None,
    *,
    functions: Mapping[str, Any],
    overrides: Mapping[str, Any],
    call: Call,
    finished: Finished | None = None,
) -> TrainedRun:
    """Go on with a run from its newest sound checkpoint.

    Args:
      path: its directory.
      environment: that it was trained in, where it cannot be made by a name.
      functions: `score` and `eval_metrics`, where they have no import name.
      overrides: the settings that change.
      call: how it was called for.
      finished: the same run in memory, for one without checkpoints.
    Raises:
      ShoalError: there is no such run, it is finished, it has made more steps than it is to have, or a setting cannot
        change.
    """
    with signals.handle() as stop:
        stop.phase(signals.Phase.STARTING)
        directory = RunDirectory.open(path)
        experiment = experiments.decide(
            environment, config_file=directory.path, overrides={**overrides, "run_dir": str(directory.path)}
        )
        experiment.run.validate()
        changes = resume.changes(directory, experiments.read_config(directory.path), experiment)
        experiment = dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, **functions))
        resume.check_budget(directory, experiment.run, finished)
        if resume.is_finished(directory, experiment.run):
            steps = experiment.run.total_updates * experiment.run.steps_per_update
            raise ShoalError(
                f"run {str(directory.path)!r} is finished, with {steps:,} environment steps; give more total_steps to "
                "go on (--total-steps)."
            )
        return _run_on(directory, experiment, changes, stop, call, finished)


def prepare(
    experiment: Experiment, call: Call, *, resumes: bool = False, changes: Iterable[str] = ()
) -> Prepared:
    """Decide what depends on the machine, and refuse what cannot work, before anything compiles.

    Args:
      experiment: the result of `decide`.
      call: how the run was called for.
      resumes: whether the devices are as many as there are, if they are fewer than the run had.
      changes: the settings that a resumed run changes.
    """
    require_usable(training=True)
    run, count = experiment.run, experiment.num_members
    if call.own_process and machine.is_worth_one_thread(run.devices, count, run.num_envs, run.num_steps):
        machine.prepare(one_thread=True)
    if resumes and run.devices > (available := len(devices_of(0))):
        call.note(f"devices={run.devices} of the run are more than there are; it goes on with {available}.")
        run = dataclasses.replace(run, devices=available)
    asked = experiment
    devices, experiment = place(dataclasses.replace(experiment, run=run))
    experiment.validate()
    run = experiment.run
    first = experiment.solo[0]  # the settings on whose values a program depends are the same for all members
    team.team_return_of(experiment.environment)
    score = run.score if is_metric_name(run.score) else experiments.load_function("score", run.score)
    eval_metrics = experiments.load_function("eval_metrics", run.eval_metrics) if run.eval_metrics else None
    settings = compiled_trainer.settings_of(run, run.env_groups, score, eval_metrics)
    settings = settings._replace(changing=pbt_run.names_in_run(pbt_run.leaves_of(experiment)))
    pbt_run.check_read(experiment, [*experiment.evolution.names, *changes], settings)
    layout = member_layout.lay_out(devices, count, run.env_groups, run.members)
    check_memory(experiment, settings, layout)
    if not catalogue.is_builtin(experiment.algorithm):
        compiled_trainer.check_algorithm(first.environment, first.config, settings)
        if settings.groups > 1:
            reduction_check.check_reduced(first.environment, first.config, settings, experiment.algorithm)
    if score != "return_mean" or eval_metrics:
        compiled_trainer.check_score(first.environment, first.config, settings)
    return Prepared(asked, experiment, settings, layout, resume.identity_of(experiment))


def compile_prepared(prepared: Prepared, **further: Any) -> compiled_trainer.CompiledRun:
    """Compile a run; `further` are arguments of `trainer.compile_run`."""
    experiment, members = prepared.experiment, prepared.experiment.members
    elsewhere = experiment.evaluation_environment
    with memory_limits.report_out_of_memory():
        return compiled_trainer.compile_run(
            compiled_trainer.member_keys(members),
            compiled_trainer.stack_variants([x.environment for x in experiment.solo], len(members)),
            compiled_trainer.stack_variants([x.config for x in experiment.solo], len(members)),
            experiment.run.total_updates,
            prepared.settings,
            prepared.layout,
            evaluation_environments=()
            if elsewhere is None
            else compiled_trainer.stack_members(elsewhere, len(members)),
            **further,
        )


def _run_new(experiment: Experiment, stop: signals.Interruption, call: Call) -> TrainedRun:
    """Run an experiment in a directory of its own, which is made last, so that a refusal leaves nothing behind."""
    prepared = prepare(experiment, call)
    experiment, path = prepared.experiment, prepared.experiment.run.run_dir or None
    initialise = _initialisation(prepared)
    config = resume.config_json(experiment, prepared.asked)
    RunDirectory.check(path)
    compiled_run = compile_prepared(
        prepared,
        check=lambda shapes: RunDirectory.check(path, policy_files.check_storable(shapes)),
        initialise=initialise,
    )
    directory = RunDirectory.create(path, experiment.environment_name, experiment.algorithm, config)
    with Lock(directory.path, call.note) as lock:
        location = Location(directory, lock, NOTHING, is_new=True)
        return _run_to_end(prepared, compiled_run, location, History(), stop, call)


def _initialisation(prepared: Prepared) -> Callable[[Run], Run]:
    """Return what changes a population before its first update: nothing, or what `from` says."""
    experiment = prepared.experiment
    return (
        inherit_from(experiment, prepared.settings) if experiment.started_from else compiled_trainer.unchanged
    )


def _run_on(
    directory: RunDirectory,
    experiment: Experiment,
    changes: Mapping[str, list],
    stop: signals.Interruption,
    call: Call,
    finished: Finished | None = None,
) -> TrainedRun:
    """Go on with a run that has not reached its end; one without any checkpoint begins anew."""
    with Lock(directory.path, call.note) as lock:
        prepared = prepare(experiment, call, resumes=True, changes=changes)
        checkpoints = Checkpoints(directory.path)
        checkpoints.recover()
        if not checkpoints.steps() and finished is None:
            if (directory.path / SUMMARY).is_file():
                raise ShoalError(
                    f"run {str(directory.path)!r} has ended and holds no checkpoint, so that it cannot go on; start a "
                    f"new run from its parameters with --from {directory.path}."
                )
            if damaged := checkpoints.names_set_aside():
                raise ShoalError(
                    f"run directory {str(directory.path)!r} has no checkpoint but damaged ones ({', '.join(damaged)}); "
                    "it is not started over, since that would lose what it has; name a new directory."
                )
            call.note(f"run {str(directory.path)!r} has no checkpoint yet, and begins anew")
            compiled_run = compile_prepared(prepared, initialise=_initialisation(prepared))
            location = Location(directory, lock, NOTHING)
            return _run_to_end(prepared, compiled_run, location, History(), stop, call)
        restoration = finished or Restoration(
            directory, prepared.identity, resume.defaults_of(prepared.experiment), signals.say
        )
        compiled_run = compile_prepared(prepared, check=restoration.choose, restore=restoration.place)
        _note_resumption(prepared, restoration, changes, call)
        if changes:
            resume.save_changes(directory, prepared.experiment, changes, restoration.steps)
        location = Location(directory, lock, restoration.mark)
        return _run_to_end(prepared, compiled_run, location, restoration.history(), stop, call)


def _note_resumption(
    prepared: Prepared, restoration: Restoration | Finished, changes: Mapping[str, list], call: Call
) -> None:
    """Say from where a run goes on, what changes, and whether it goes on bit for bit."""
    run = prepared.experiment.run
    changed = "".join(f", {name} {new!r} instead of {old!r}" for name, (old, new) in changes.items())
    call.note(f"going on from {restoration.source} at {restoration.steps:,} environment steps{changed}")
    if "total_steps" in changes:
        call.note(
            f"schedules now end at {run.total_updates * run.steps_per_update:,} steps; the log points and evaluations "
            "still to come are those of a run of that length, and those that passed stay"
        )
    now = machine_facts(prepared.layout.devices)
    if restoration.machine and (differences := resume.machine_differences(restoration.machine, now)):
        call.note(f"this is not where the run began, so that it may not go on bit for bit: {differences}")


def _run_to_end(
    prepared: Prepared,
    compiled_run: compiled_trainer.CompiledRun,
    location: Location,
    history: History,
    stop: signals.Interruption,
    call: Call,
) -> TrainedRun:
    """Train a compiled run to its end and save its results.

    Args:
      prepared: the run.
      compiled_run: its programs.
      location: where it is written.
      history: of the run so far.
      stop: the signals.
      call: how it was called for.
    """
    directory = location.directory
    experiment, run = prepared.experiment, prepared.experiment.run
    with reports.Reporter(
        directory,
        run,
        experiment.environment_name,
        show=call.progress,
        mark=location.mark,
        evaluations=history.evaluations,
        members=experiment.members,
        listener=call.listener,
        algorithm=experiment.algorithm,
    ) as reporter:
        record = functools.partial(
            checkpoint_record.to_record,
            identity=prepared.identity,
            machine=machine_facts(prepared.layout.devices),
        )
        with _supervised(
            directory, run, reporter, stop, record, compiled_run, location.lock, experiment.members
        ) as supervisor:
            try:
                with memory_limits.report_out_of_memory():
                    change = pbt_run.change_of(experiment, compiled_run, reporter)
                    absolute = compiled_trainer.compile_absolute(compiled_run, 10 * run.eval_episodes)
                    trained = compiled_trainer.train_population(
                        compiled_run,
                        run,
                        reporter,
                        history=history,
                        supervisor=supervisor,
                        halving=experiment.halving,
                        members=experiment.members,
                        change=change,
                    )
            except signals.Interrupted:
                raise
            except BaseException:
                has_checkpoint = run.checkpoints and history.updates
                if location.is_new and not reporter.updates_logged and not has_checkpoint:
                    supervisor.close()
                    reporter.close()
                    directory.discard()
                raise
            return _save_results(
                experiment, directory, reporter, supervisor, trained, history, absolute, call
            )


@contextlib.contextmanager
def _supervised(*arguments: Any) -> Iterator[Supervisor]:
    supervisor = Supervisor(*arguments)
    try:
        yield supervisor
    finally:
        supervisor.close()


def _finished_run(directory: RunDirectory, experiment: Experiment) -> TrainedRun:
    """Read a run that has reached its end; what it learned is as it was saved, and `learner.local` is ()."""
    first = place(experiment)[1].solo[0]
    settings = compiled_trainer.settings_of(first.run, 1, "return_mean", None)
    template = compiled_trainer.member_shapes(first.environment, first.config, settings).learner
    leaves, _ = directory.load_policy("last")
    saved = finetuning.learner_leaves(leaves, str(directory.path))
    learner = Learner(struct.with_named_leaves(template.shared, saved), ())
    with report_wrong_types(str(directory.path / METRICS)):
        evaluations = checkpoint_record.evaluations_of(directory.load_metrics())
    return TrainedRun(
        directory.path,
        directory.load_summary(),
        learner,
        [(updates * experiment.run.steps_per_update, metrics) for updates, metrics in evaluations],
        experiment.environment,
    )


def _save_results(
    experiment: Experiment,
    directory: RunDirectory,
    reporter: reports.Reporter,
    supervisor: Supervisor,
    trained: compiled_trainer.TrainedPopulation,
    history: History,
    absolute: Future[compiled_trainer.EvaluationPrograms],
    call: Call,
) -> TrainedRun:
    """Save all files of a finished run, the policies first.

    Raises:
      SavingError: a part of it cannot be written; the rest is.
    """
    run, failures = experiment.run, []

    def try_to(write: Callable[..., None], *what: Any) -> None:
        try:
            write(*what)
        except ShoalError as error:
            failures.append(str(error))

    supervisor.begins("saving")
    try_to(policy_files.save_best, directory, trained.population, experiment.members)
    try_to(policy_files.save_last, directory, trained.population, experiment.members)
    try_to(supervisor.finish, trained.population, history)
    trained = compiled_trainer.with_absolute_metric(trained, absolute, history, supervisor)
    supervisor.begins("saving")
    summary = summarise(experiment, trained, call.import_seconds)
    if experiment.evolution.tuned:
        summary |= pbt_run.summarise_members(experiment, trained, history)
        try_to(pbt_run.save_lineage, directory.path, experiment, trained, history)
    reporter.end_interim()
    try_to(directory.save_summary, summary)
    reporter.draw_learning_curve(summary)
    try_to(reporter.metrics.write)
    steps, mark = history.updates * run.steps_per_update, reporter.metrics.mark
    trained_run = TrainedRun(
        directory.path,
        summary,
        trained.population.learner,
        [(updates * run.steps_per_update, metrics) for updates, metrics in trained.evaluations],
        experiment.environment,
        None if run.checkpoints else Finished(steps, trained.population, history, mark),
    )
    if failures:
        others = f" (and {len(failures) - 1} more of the run's files)" if len(failures) > 1 else ""
        raise SavingError(f"{failures[0].rstrip('.')}{others}.", trained_run)
    return trained_run


def is_metric_name(score: str | Callable) -> bool:
    """Report whether a score is the name of a metric, and not a function or its `module:function`."""
    return isinstance(score, str) and ":" not in score


def inherit_from(experiment: Experiment, settings: Settings) -> Callable[[Run], Run]:
    """Make the function that starts a population from what another run has learned.

    Raises:
      ShoalError: there is no such run, or its parameters do not fit.
    """
    source = experiment.started_from
    directory = RunDirectory.open(arguments.path("from", source))
    if (chosen := experiment.from_step or checkpoint_instead(directory, "last")) is not None:
        checkpoints = Checkpoints(directory.path)
        leaves, _ = checkpoints.load(checkpoint_record.choose_checkpoint(checkpoints, chosen))
        leaves = policy_files.learner_leaves(leaves)
    else:
        leaves, _ = directory.load_policy("last")
    first = experiment.solo[0]
    member = compiled_trainer.member_shapes(first.environment, first.config, settings)
    finetuning.check_inherit(member, leaves, experiment.algorithm, source)
    return lambda members: finetuning.inherit(members, leaves, source, experiment.run.seeds)


def _stopped_after(experiment: Experiment, members: Run) -> dict[str, int]:
    """Return the environment steps of each member of the settings that were stopped early, by label."""
    is_stopped = np.asarray(members.fault) == STOPPED
    steps = np.asarray(members.updates) * experiment.run.steps_per_update
    rows = zip(experiment.members, is_stopped, steps, strict=True)
    return {member.label: int(x) for member, stopped, x in rows if stopped}


def _failures(experiment: Experiment, members: Run) -> dict[int, dict[str, Any]]:
    """Return by its place what a summary says of each member that was not trained to the end.

    `update` is the one in which a number was not finite, `last_policy_step` the environment steps of its last policy.
    """
    faults, evaluated = np.asarray(members.fault), np.asarray(members.evaluated.updates)
    return {
        k: {
            **experiment.members[k].columns,
            "update": int(faults[k]),
            "last_policy_step": int(evaluated[k]) * experiment.run.steps_per_update,
        }
        for k in failed_members(faults)
    }


def summarise(
    experiment: Experiment, trained: compiled_trainer.TrainedPopulation, import_seconds: float
) -> dict[str, Any]:
    """Build the summary of a finished run.

    Args:
      experiment: that was run.
      trained: the population.
      import_seconds: the duration of the imports.
    """
    run, seconds, members = experiment.run, trained.seconds, experiment.members
    steps = run.total_updates * run.steps_per_update
    best = jax.device_get(trained.population.best.policy)
    environment, further = experiment.environment, dict[str, Any]()
    failed = _failures(experiment, trained.population)
    if environment.num_agents > 1:
        further["agents"] = {
            "count": environment.num_agents,
            "team_return": team.team_return_of(environment),
            "agent_steps_per_seed": steps * environment.num_agents,
        }
    if run.score != "return_mean":
        has_score = len(failed) < len(members)
        further["score"] = chosen_score(run.score, trained.final, trained.absolute, has_score)
    final, absolute = trained.final["return_mean"].tolist(), trained.absolute["return_mean"].tolist()
    if experiment.variants:
        further["members"] = variant_scores(members, final, absolute, list(failed))
    if experiment.halving:
        further["stopped_after"] = _stopped_after(experiment, trained.population)
    return build_summary(
        environment=experiment.environment_name,
        algorithm=experiment.algorithm,
        seeds=[member.seed for member in members],
        steps_per_seed=steps,
        final=final,
        absolute=absolute,
        steps_per_second=float(np.sum(trained.population.updates)) * run.steps_per_update / seconds.train,
        seconds={"import": import_seconds, **seconds._asdict()},
        parameters=[struct.named_leaves(member_layout.take_member(best, k)) for k in range(len(members))],
        failed=list(failed.values()),
        evaluation={
            "mode": run.eval_mode,
            "episodes": 10 * run.eval_episodes,
            **{name: x.tolist() for name, x in trained.absolute.items()},
        },
        **further,
    )
