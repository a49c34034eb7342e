"""A run from its settings to its files: it is planned, compiled, trained and saved, in this order."""

import contextlib
import dataclasses
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.base import signals
from shoal.base.errors import SavingError, ShoalError
from shoal.config import arguments
from shoal.config.settings import flat
from shoal.engine.run import ProgramSettings, Run
from shoal.monitor import run_report as reports
from shoal.monitor.companions import Companions
from shoal.records import checkpoint_record
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import COMPLETE, LOGGERS, SUMMARY, RunDirectory
from shoal.records.history import History
from shoal.records.lock import Lock
from shoal.records.metrics_file import NOTHING
from shoal.runs.plan.config_files import read_config
from shoal.runs.plan.decide import decide
from shoal.runs.plan.differences import directory_words
from shoal.runs.plan.experiment import Experiment
from shoal.runs.policies import filming, policy_files
from shoal.runs.policies.load import checkpoint_instead
from shoal.runs.train import compiled_trainer, finetuning, memory_limits, pbt_run, pieces, resume
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.runs.train.compiled_trainer import CompiledRun, EvaluationPrograms
from shoal.runs.train.pieces import TrainedPopulation
from shoal.runs.train.planning import Caller, Plan, note_duration, plan_run
from shoal.runs.train.results import TrainedRun, finished_run, summarise
from shoal.runs.train.resume import Finished, Restoration
from shoal.types import CLIPPING, Environment
from shoal.xla.facts import machine_facts
from shoal.xla.machine import devices_note

Origin = Restoration | Finished  # the saved state that a run resumes from


def run_experiment(experiment: Experiment, call: Caller | None = None) -> TrainedRun:
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
    call = Caller() if call is None else call
    with signals.handle() as stop:
        stop.phase(signals.Phase.STARTING)
        if not resume.holds_run(experiment.run.run_dir):
            return _run(experiment, stop, call)
        directory = RunDirectory.open(experiment.run.run_dir)
        saved = read_config(directory.path)
        resume.check_same(directory.path, saved, experiment)
        # The file's settings are those that the machine has decided which began the run.
        loaded = decide(
            experiment.environment, config_file=directory.path, overrides={"run_dir": str(directory.path)}
        )
        # Functions without an import name are in no file.
        run = dataclasses.replace(
            loaded.run, score=experiment.run.score, eval_metrics=experiment.run.eval_metrics
        )
        source = saved.get("resumed_from", {})
        loaded = dataclasses.replace(experiment, run=run, config=loaded.config, resumed_from=source)
        if resume.is_finished(directory, loaded.run):
            finished = finished_run(directory, loaded)
            for logger in call.loggers:
                if finished.summary.get(LOGGERS, {}).get(logger.name) != COMPLETE:
                    later = logger.later.format(path=shlex.quote(str(directory.path)))
                    signals.say(f"the run has finished; {later} of {logger.name}")
            return finished
        return _run(loaded, stop, call, directory)


def resume_run(
    path: str | Path,
    environment: Environment | None,
    *,
    evaluation: Environment | None = None,
    functions: Mapping[str, Any],
    overrides: Mapping[str, Any],
    call: Caller,
    finished: Finished | None = None,
    from_step: str = "",
) -> TrainedRun:
    """Resume a run from its newest sound checkpoint, or start a new run from another one.

    Args:
      path: its directory.
      environment, evaluation: that it was trained in, and is evaluated in, where it cannot be made by a name.
      functions: `score` and `eval_metrics`, where they have no import name.
      overrides: the settings that change.
      call: how it was called for.
      finished: the same run in memory, for one without checkpoints.
      from_step: the environment steps of a checkpoint, "best" or "last", from which a new run starts in a directory of
        its own, `run_dir` of the overrides; "" resumes the run itself.
    Raises:
      ShoalError: there is no such run or checkpoint, the run is finished, it has made more steps than it is to have, or
        a setting cannot change.
    """
    with signals.handle() as stop:
        stop.phase(signals.Phase.STARTING)
        directory = RunDirectory.open(path)
        saved, source = read_config(directory.path), dict[str, Any]()
        if from_step:
            checkpoints = Checkpoints(directory.path)
            steps = checkpoint_record.choose_checkpoint(checkpoints, from_step, "from_step")
            saved, source = resume.as_of(saved, steps), {"run": str(directory.path), "step": steps}
        elif overrides.get("run_dir"):
            raise ShoalError(
                f"run_dir={overrides['run_dir']!r} has no effect on a run that is resumed in its own directory; "
                "give a checkpoint from which a new run starts too (from_step)."
            )
        run_dir = overrides.get("run_dir", "") if from_step else str(directory.path)
        config = saved if from_step else directory.path  # a path, so that a message names the file
        changed = {**overrides, "run_dir": run_dir}
        experiment = decide(environment, config_file=config, evaluation=evaluation, overrides=changed)
        experiment.run.validate()
        changes = resume.changes(directory, saved, experiment)
        experiment = dataclasses.replace(
            experiment,
            run=dataclasses.replace(experiment.run, **functions),
            started_from=saved.get("from", ""),
            from_step=saved.get("from_step", ""),
            resumed_from=source or saved.get("resumed_from", {}),
        )
        if from_step:
            resume.check_budget(directory, experiment.run, steps, is_new=True)
            return _run(experiment, stop, call, changes=changes, before=saved)
        made = finished.steps if finished else max(Checkpoints(directory.path).steps(), default=0)
        resume.check_budget(directory, experiment.run, made)
        resume.check_unfinished(directory, experiment.run, overrides)
        return _run(experiment, stop, call, directory, changes, finished)


def _run(
    experiment: Experiment,
    stop: signals.Interruption,
    call: Caller,
    directory: RunDirectory | None = None,
    changes: Mapping[str, list] = MappingProxyType({}),
    finished: Finished | None = None,
    before: Mapping[str, Any] = MappingProxyType({}),
) -> TrainedRun:
    """Plan, compile, train and save a run.

    Args:
      experiment: its settings.
      stop: the signals.
      call: how it was called for.
      directory: of a resumed run; None for a new one, whose directory is made last, so that a refusal leaves
        nothing behind.
      changes: the settings that a resumed run changes, as [old, new].
      finished: see `resume_run`.
      before: the `config.json` of the run whose checkpoint a new one starts from.
    """
    is_new = directory is None
    with contextlib.ExitStack() as held:
        experiment = filming.with_checkpoints(experiment, call.film_every)
        films = filming.companions_of(experiment.run, call.film_every)
        companions = held.enter_context(Companions(call.loggers, first=films))
        # A process that writes to the directory must have ended before its newest checkpoint is looked for.
        if directory is not None:
            held.enter_context(Lock(directory.path))
        plan = plan_run(experiment, call, is_new=is_new, changes=changes)
        origin = _source(plan) if directory is None else _origin(plan, directory, finished, call)
        # They have started while the run was planned; one that cannot work is refused before anything compiles.
        companions.require(call.note)
        if is_new:
            note_duration(plan, call)
        compiled = compile_run(plan, origin)
        if directory is None:
            directory = RunDirectory.create(
                plan.experiment.run.run_dir or None,
                experiment.environment_name,
                directory_words(experiment),
                {**plan.config, **{name: before[name] for name in ("asked", "history") if name in before}},
            )
            held.enter_context(Lock(directory.path))
        if origin is not None:
            _note_resumption(plan, origin, changes, call)
            origin.begin(directory)
            if changes:
                resume.save_changes(directory, plan.experiment, changes, origin.steps)
        history = History() if origin is None else origin.history()
        writing = _writing(plan, compiled, directory, origin, history, stop, call, companions)
        supervisor = held.enter_context(writing)
        supervisor.reporter.show_start(plan.experiment.defaults.origin, **compiled.costs._asdict())
        trained, absolute = train_run(plan, compiled, supervisor, history)
        trained_run = save_run(plan.experiment, trained, absolute, supervisor, call)
    return dataclasses.replace(trained_run, summary={**trained_run.summary, **companions.summary()})


def compile_run(plan: Plan, origin: Origin | None = None) -> CompiledRun:
    """Compile the programs of a run, and make its population.

    Args:
      plan: the run.
      origin: the saved state that it resumes from; None for a new population, which may inherit from another run.
    """
    experiment, members = plan.experiment, plan.experiment.members
    elsewhere, path = experiment.evaluation_environment, experiment.run.run_dir or None
    start: dict[str, Callable[[Run], Run]] = {}
    if origin is not None:
        start["restore"] = origin.place
    elif experiment.started_from:
        start["initialise"] = inherit_from(experiment, plan.settings)
    if plan.is_new:
        RunDirectory.check(path)  # before the seconds that it takes to know how much is to be stored

    def check(shapes: Run) -> None:
        if plan.is_new:
            RunDirectory.check(path, policy_files.check_storable(shapes))
        if origin is not None:
            origin.choose(shapes)
        if isinstance(origin, Restoration) and origin.record.get("without_replay"):
            resume.check_refill(experiment.run, experiment.config, origin.steps)

    with memory_limits.report_out_of_memory():
        return compiled_trainer.compile_run(
            compiled_trainer.member_keys(members),
            compiled_trainer.stack_variants([x.environment for x in experiment.solo], len(members)),
            compiled_trainer.stack_variants([x.config for x in experiment.solo], len(members)),
            experiment.run.total_updates,
            plan.settings,
            plan.layout,
            evaluation_environments=()
            if elsewhere is None
            else compiled_trainer.stack_members(elsewhere, len(members)),
            check=check,
            **start,
        )


def train_run(
    plan: Plan, compiled: CompiledRun, supervisor: RunSupervisor, history: History
) -> tuple[TrainedPopulation, Future[EvaluationPrograms] | None]:
    """Train a compiled run to its end.

    Returns:
      the population, and the programs of the last evaluation, if there is to be one, which are compiled meanwhile.
    """
    experiment, reporter = plan.experiment, supervisor.reporter
    with memory_limits.report_out_of_memory():
        change = pbt_run.change_of(experiment, compiled, reporter)
        episodes = experiment.run.num_absolute_episodes
        absolute = pieces.compile_absolute(compiled, episodes) if episodes else None
        history.stop(reporter.start(history.updates))
        trained = pieces.train_population(
            compiled, supervisor, history, halving=experiment.halving, change=change
        )
    return trained, absolute


def save_run(
    experiment: Experiment,
    trained: TrainedPopulation,
    absolute: Future[EvaluationPrograms] | None,
    supervisor: RunSupervisor,
    call: Caller,
) -> TrainedRun:
    """Save all files of a trained run, the policies first; the last evaluation, which may fail, follows them.

    Raises:
      SavingError: a part of it cannot be written; the rest is.
    """
    directory, reporter = supervisor.directory, supervisor.reporter
    run, history, failures = experiment.run, trained.history, []

    def try_to(write: Callable[..., None], *what: object) -> None:
        try:
            write(*what)
        except ShoalError as error:
            failures.append(str(error))

    supervisor.begins(signals.Phase.SAVING)
    try_to(policy_files.save_best, directory, trained.population, experiment.members)
    try_to(policy_files.save_last, directory, trained.population, experiment.members)
    try_to(supervisor.finish, trained.population, history)
    if absolute is not None:
        trained = pieces.with_absolute_metric(trained, absolute, supervisor)
        supervisor.begins(signals.Phase.SAVING)
    summary = summarise(
        experiment, trained, import_seconds=call.import_seconds, path=directory.path, command=call.command
    )
    summary |= {"resumed_from": dict(experiment.resumed_from)} if experiment.resumed_from else {}
    if experiment.evolution.tuned:
        summary |= pbt_run.summarise_members(experiment, trained)
        try_to(pbt_run.save_lineage, directory.path, experiment, trained)
    summary |= {"notes": reporter.warn_of_clipping(CLIPPING)}
    summary |= reporter.companions.summary()
    reporter.end_interim()
    if summary["revision"] is None:
        call.note(
            "summary.json names no revision, which a copy of Shoal knows that is a clone or was built in one"
        )
    try_to(directory.save_summary, summary)
    reporter.draw_learning_curve(summary)
    try_to(reporter.metrics.write)  # once more the rows that a disk refused while training went on
    reporter.listeners.tell("on_end", summary)
    steps = history.updates * run.steps_per_update
    trained_run = TrainedRun(
        directory.path,
        summary,
        trained.population.learner,
        [(updates * run.steps_per_update, metrics) for updates, metrics in history.evaluations],
        experiment.environment,
        None if run.checkpoints else Finished(steps, trained.population, history, reporter.metrics.mark),
    )
    if failures:  # told last, with the run, so that nobody loses what was trained for one file
        others = f" (and {len(failures) - 1} more of the run's files)" if len(failures) > 1 else ""
        raise SavingError(f"{failures[0].rstrip('.')}{others}.", trained_run)
    reporter.listeners.raise_error()
    return trained_run


@contextlib.contextmanager
def _writing(
    plan: Plan,
    compiled: CompiledRun,
    directory: RunDirectory,
    origin: Origin | None,
    history: History,
    stop: signals.Interruption,
    call: Caller,
    companions: Companions,
) -> Iterator[RunSupervisor]:
    """Write the progress of a run; a new one that fails before anything can be kept leaves nothing behind."""
    experiment, run = plan.experiment, plan.experiment.run
    with contextlib.ExitStack() as open_outputs:
        reporter = reports.Reporter(
            directory,
            run,
            experiment.environment_name,
            show=call.progress,
            notes=[devices_note(run.devices)],
            mark=NOTHING if origin is None else origin.mark,
            evaluations=history.evaluations,
            members=experiment.members,
            listeners=call.listeners,
            algorithm=experiment.algorithm,
            companions=companions,
        )
        open_outputs.enter_context(reporter)
        with contextlib.suppress(ShoalError):  # which is reported where the first rows are written
            reporter.metrics.write()  # removes the rows after the checkpoint, before anybody reads them
        companions.begin(directory.path, reporter.progress.note, reporter.progress.warn)
        record = functools.partial(
            checkpoint_record.to_record, identity=plan.identity, machine=machine_facts(plan.layout.devices)
        )
        supervisor = RunSupervisor(directory, run, reporter, stop, record, compiled, experiment.members)
        open_outputs.callback(supervisor.close)
        try:
            yield supervisor
        except signals.Interrupted:
            raise
        except BaseException:
            has_checkpoint = run.checkpoints and history.updates
            if plan.is_new and not (reporter.updates_logged or has_checkpoint or history.stopped):
                supervisor.close()
                reporter.close()
                companions.abandon()
                directory.discard()
            raise


def _source(plan: Plan) -> Restoration | None:
    """Return the checkpoint of another run that a run starts from; None for one that starts new."""
    source = plan.experiment.resumed_from
    if not source:
        return None
    return Restoration(RunDirectory.open(source["run"]), plan.identity, signals.say, source["step"])


def _origin(plan: Plan, directory: RunDirectory, finished: Finished | None, call: Caller) -> Origin | None:
    """Return the saved state that a run resumes from; None where it has none yet, and restarts.

    Raises:
      ShoalError: it has ended, or has lost its checkpoints.
    """
    checkpoints = Checkpoints(directory.path)
    checkpoints.recover()
    if finished is not None:
        return finished
    if checkpoints.steps():
        return Restoration(directory, plan.identity, signals.say)
    if (directory.path / SUMMARY).is_file():
        raise ShoalError(
            f"run {str(directory.path)!r} has ended and holds no checkpoint, so that it cannot be resumed; start a "
            f"new run from its parameters with --from {shlex.quote(str(directory.path))}."
        )
    if damaged := checkpoints.names_set_aside():
        raise ShoalError(
            f"run directory {str(directory.path)!r} has no checkpoint but damaged ones ({', '.join(damaged)}); "
            "it is not started over, since that would lose what it has; name a new directory."
        )
    if (source := _source(plan)) is None:
        call.note(f"run {str(directory.path)!r} has no checkpoint yet, and restarts")
    return source


def _note_resumption(plan: Plan, origin: Origin, changes: Mapping[str, list], call: Caller) -> None:
    """Say from where a run resumes, what changes, and whether it continues bit for bit."""
    run = plan.experiment.run
    changed = "".join(f", {name} {new!r} instead of {old!r}" for name, (old, new) in changes.items())
    call.note(f"resuming from {origin.source} at {origin.steps:,} environment steps{changed}")
    if isinstance(origin, Restoration) and origin.record.get("without_replay"):
        steps = flat(plan.experiment.config).get("learning_starts")
        until = f"{steps:,} environment steps" if isinstance(steps, int) else "this"
        signals.say(
            "the checkpoint is without its replay, which the run refills by its own policy first, so that it does not "
            f"continue bit for bit, and learns nothing if it is interrupted before {until} each time; a larger "
            "checkpoint_replay keeps the replay"
        )
    if "total_steps" in changes:
        call.note(
            f"schedules now end at {run.total_updates * run.steps_per_update:,} steps; later log points and "
            "evaluations are those of a run of that length, and earlier ones stay"
        )
    now = machine_facts(plan.layout.devices)
    if origin.machine and (differences := resume.machine_differences(origin.machine, now)):
        call.note(f"the run began elsewhere, so that it may not continue bit for bit: {differences}")


def inherit_from(experiment: Experiment, settings: ProgramSettings) -> Callable[[Run], Run]:
    """Make the function that starts a population from another run's parameters.

    Raises:
      ShoalError: there is no such run, or its parameters do not fit.
    """
    source = experiment.started_from
    directory = RunDirectory.open(arguments.path("from", source))
    if (chosen := experiment.from_step or checkpoint_instead(directory, "last")) is not None:
        checkpoints = Checkpoints(directory.path)
        steps = checkpoint_record.choose_checkpoint(checkpoints, chosen, "from_step")
        leaves, _ = checkpoints.load(steps, without=(policy_files.LOCAL,))
        leaves = policy_files.learner_leaves(leaves)
    else:
        leaves, _ = directory.load_policy("last")
    first = experiment.solo[0]
    member = compiled_trainer.member_shapes(first.environment, first.config, settings)
    saved = finetuning.learner_leaves(leaves, source)
    finetuning.check_inherit(member, saved, experiment.algorithm, source)
    return functools.partial(finetuning.inherit, saved=saved, seeds=experiment.run.seeds)
