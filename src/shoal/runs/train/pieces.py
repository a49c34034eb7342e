"""The training of a compiled population, in pieces between which the host acts."""

import bisect
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.base import cpu
from shoal.base.signals import Phase
from shoal.engine.evaluation import Subject, episodes_of
from shoal.engine.nonfinite import NOWHERE, STOPPED, explanation, failed_members
from shoal.engine.population import member_layout as populations
from shoal.engine.population.compaction import Dealer, stop_others
from shoal.engine.run import Run, evaluation_environment_of
from shoal.envs.base import can_explain_faults
from shoal.records.halving import Halving
from shoal.records.history import OPTIMISER_STEPS, History, Numbers
from shoal.records.run_config import RunConfig
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.runs.train.compiled_trainer import CompiledRun, Costs, EvaluationPrograms, compile_evaluation
from shoal.runs.train.pacing import Pacer
from shoal.types import Metrics


class TrainedPopulation(NamedTuple):
    """A population after training."""

    population: Run  # every leaf with a leading member axis
    history: History
    costs: Costs
    absolute: Numbers  # the best policies' metrics, evaluated again; empty before `with_absolute_metric`

    @property
    def final(self) -> Numbers:
        """The last evaluation of each member, which is that of its last policy; NaN for one that was stopped early.

        Empty where the last policies were not evaluated.
        """
        evaluations = self.history.evaluations
        if self.history.evaluated < self.history.updates:
            return {}
        points = [updates for updates, _ in evaluations]
        last = np.searchsorted(points, np.asarray(self.population.evaluated.updates), side="right") - 1
        found = {
            name: np.array([evaluations[row][1][name][k] for k, row in enumerate(last)])
            for name in evaluations[-1][1]
        }
        is_stopped = np.asarray(self.population.fault) == STOPPED
        return {name: _without(is_stopped, x) for name, x in found.items()}


def train_population(
    compiled_run: CompiledRun,
    supervisor: RunSupervisor,
    history: History,
    *,
    halving: Halving | None = None,
    change: Callable[[Run, History], Run] | None = None,
) -> TrainedPopulation:
    """Train a population until its budget is spent, or a listener has a reason to stop.

    Where it stops, it ends as at the end of the budget: with a log point, an evaluation and a checkpoint.

    Args:
      compiled_run: the population and its programs; its buffers are donated.
      supervisor: of the run; acts between two pieces of training, and its reporter receives each log point and
        evaluation.
      history: of the run so far, to which is added.
      halving: when members stop early; None for never.
      change: returns the population to continue with, after each evaluation but the last; at the start in any case.
    """
    run = supervisor.run
    history.spend(compile=compiled_run.seconds)
    rungs = halving.rungs(run.steps_per_update, run.total_steps) if halving else []
    evaluation_points, log_points = {*run.evaluation_points(), *rungs}, sorted({*run.log_points(), *rungs})
    train_program = _program_of(compiled_run, halving)
    population, training, evaluating = compiled_run.population, Pacer(), Pacer(first=64)

    def is_last() -> bool:
        return history.updates >= run.total_updates or bool(history.stopped)

    while True:
        if (history.updates in log_points or is_last()) and history.logged < history.updates:
            _report_training(population, history, supervisor)
        is_point = history.updates in evaluation_points or (is_last() and run.is_evaluated)
        if is_point and history.evaluated < history.updates:
            population, is_whole = _evaluate(compiled_run, population, history, evaluating, supervisor)
            if is_whole:
                if halving and history.updates in rungs and not is_last():
                    members = supervisor.members
                    population = stop_others(population, run, history.evaluations, members, halving)
                if change is not None and (not is_last() or history.updates == 0):
                    population = change(population, history)
        supervisor.between_pieces(population, history)
        if is_last():
            return TrainedPopulation(population, history, compiled_run.costs, {})
        stop = log_points[bisect.bisect_right(log_points, history.updates)]  # the last point is the end
        further_stop = supervisor.next_stop(history.updates)
        size = training.size(min(stop, further_stop or stop) - history.updates)
        supervisor.begins(Phase.TRAINING)
        population = _train_piece(train_program, population, size, history, training)
        # A frozen member keeps its fault, and is not handled twice.
        if faulty := [k for k in failed_members(population.fault) if k not in history.frozen]:
            population = supervisor.handle_faults(population, history, faulty)
            history.frozen += faulty


def _evaluate(
    compiled_run: CompiledRun, population: Run, history: History, pacer: Pacer, supervisor: RunSupervisor
) -> tuple[Run, bool]:
    """Evaluate, and tell the reporter; return the population, and False if a signal ended the evaluation early."""
    seconds = history.seconds.evaluate
    population, metrics, episodes = _evaluate_in_pieces(
        compiled_run.evaluation, population, history, pacer, supervisor
    )
    if metrics is not None:
        history.evaluations.append((history.updates, metrics))
        speed = _evaluation_speed(metrics, supervisor.run, history, history.seconds.evaluate - seconds)
        reporter = supervisor.reporter
        history.stop(reporter.on_evaluation(history.updates, {**metrics, **speed}, episodes))
    return population, metrics is not None


def _program_of(compiled_run: CompiledRun, halving: Halving | None) -> Callable[..., Run]:
    """Return the function that trains a population; where members stop early, one that trains the others alone."""
    if halving is None:
        return lambda *arguments: compiled_run.train(*arguments)[0]
    return Dealer(compiled_run.train, compiled_run.shapes, compiled_run.layout, halving.factor).train


def _train_piece(
    train_program: Callable[..., Run], population: Run, size: int, history: History, pacer: Pacer
) -> Run:
    """Make some updates, and wait for them."""
    start_time = time.perf_counter()
    begins_interval = np.bool_(history.logged == history.updates)
    # Numbers of NumPy, which have the types that the program was compiled for.
    population = train_program(population, np.int32(size), begins_interval)
    jax.block_until_ready(population)
    seconds = time.perf_counter() - start_time
    pacer.measure(size, seconds)
    history.updates += size
    history.spend(train=seconds)
    return population


def _report_training(population: Run, history: History, supervisor: RunSupervisor) -> None:
    """Give the reporter the metrics since the last log point; NaN of members that train no further."""
    has_ended = np.asarray(population.fault) != NOWHERE
    updates = history.updates - history.logged
    steps = updates * supervisor.run.steps_per_update * int(np.sum(~has_ended))
    seconds = history.seconds.train - history.logged_seconds
    history.logged, history.logged_seconds = history.updates, history.seconds.train
    metrics = mean_metrics(population.metrics)
    if "gradient_steps" in metrics:
        # A mean over the interval; rounding takes back what its division has lost.
        made = np.nan_to_num(np.asarray(metrics["gradient_steps"], np.float64)) * updates
        history.optimiser_steps = metrics[OPTIMISER_STEPS] = history.optimiser_steps + np.round(made)
    numbers = {name: _without(has_ended, x) for name, x in metrics.items()}
    reporter = supervisor.reporter
    history.stop(reporter.on_training(history.updates, numbers, history.seconds.train, steps / seconds))


def _evaluation_speed(metrics: Numbers, run: RunConfig, history: History, seconds: float) -> Numbers:
    """Return the columns of an evaluation that tell the time: seconds of training before it, and its own speed."""
    modes = [name for name in ("length_mean", "sampled_length_mean") if name in metrics]
    steps = run.eval_episodes * sum(float(np.nansum(metrics[name])) for name in modes)
    numbers = {"train_seconds": history.seconds.train, "evaluation_steps_per_second": steps / seconds}
    return {name: np.full(len(metrics["return_mean"]), x) for name, x in numbers.items()}


def _evaluate_in_pieces(
    programs: EvaluationPrograms,
    population: Run,
    history: History,
    pacer: Pacer,
    supervisor: RunSupervisor,
) -> tuple[Run, Numbers | None, Numbers]:
    """Evaluate a population; the metrics are None if the evaluation was broken off.

    The last is the episodes, [members, episodes, ...], where they are kept.
    """
    supervisor.begins(Phase.EVALUATING)
    start_time = time.perf_counter()
    population = dataclasses.replace(population, evaluation=programs.begin(population))
    while True:
        size = pacer.size(population.settings.eval_max_steps)
        piece_time = time.perf_counter()
        population, (metrics, is_done) = programs.advance(population, np.int32(size))
        is_done = bool(np.all(jax.device_get(is_done)))
        pacer.measure(size, time.perf_counter() - piece_time)
        if is_done or supervisor.wants_to_stop():
            break
    if can_explain_faults(population.environment):
        _note_faults(population, history, supervisor)
    episodes: Any = episodes_of(population.evaluation) if supervisor.run.keep_episodes else {}
    population = dataclasses.replace(population, evaluation=())
    # Members that failed or were stopped played on with what they had, which is nobody's result.
    is_left_out = programs.subject.leaves_out(np.asarray(population.fault))
    numbers, episodes = (
        {name: _without(is_left_out, x) for name, x in jax.device_get(found).items()}
        for found in (metrics, episodes)
    )
    history.spend(evaluate=time.perf_counter() - start_time)
    return population, numbers if is_done else None, episodes


def _without(members: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return numbers of members with NaN in the places of some of them, which are marked, [members]."""
    numbers = np.asarray(numbers)
    marked = members.reshape(-1, *[1] * (numbers.ndim - 1))
    return np.where(marked, np.float32(np.nan), numbers) if members.any() else numbers


def _note_faults(population: Run, history: History, supervisor: RunSupervisor) -> None:
    """Note why numbers of an evaluation are not finite, where the environment explains that."""
    for member in range(len(population.fault)):
        environment = populations.take_member(evaluation_environment_of(population), member)
        for evaluation in population.evaluation:
            faults = populations.take_member(evaluation.faults, member)
            if reason := explanation(environment, faults):
                when = f"the evaluation after update {history.updates}"
                supervisor.note_fault(member, f"a number was not finite in {when}, in {reason}")


def compile_absolute(compiled_run: CompiledRun, episodes: int) -> Future[EvaluationPrograms]:
    """Begin to compile the evaluation of the best policies, in a thread of lower priority than the training.

    Args:
      compiled_run: the programs that train the population.
      episodes: of each policy.

    Returns:
      the programs, once they are compiled.
    """

    def compile_programs() -> EvaluationPrograms:
        cpu.lower_priority()
        subject = Subject(best=True, episodes=episodes)
        return compile_evaluation(compiled_run.shapes, subject, compiled_run.layout)

    with_one_thread = ThreadPoolExecutor(1)
    programs = with_one_thread.submit(compile_programs)
    with_one_thread.shutdown(wait=False)
    return programs


def with_absolute_metric(
    trained: TrainedPopulation, programs: Future[EvaluationPrograms], supervisor: RunSupervisor
) -> TrainedPopulation:
    """Evaluate the best policies on episodes that were not used to choose them.

    Args:
      trained: the trained population; its buffers are donated.
      programs: of `compile_absolute`.
      supervisor: as in `train_population`.
    """
    history = trained.history
    start_time = time.perf_counter()
    evaluation = programs.result()
    history.spend(compile=time.perf_counter() - start_time)
    pacer = Pacer(first=64)
    population, results, _ = _evaluate_in_pieces(evaluation, trained.population, history, pacer, supervisor)
    if results is None:
        supervisor.between_pieces(population, history)
        raise AssertionError("a supervisor that wants to stop does so between pieces")
    return trained._replace(population=population, absolute=results)


def mean_metrics(metrics: Metrics) -> Numbers:
    """Compute the metrics of a chunk as numbers, one per member; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: metric.value for name, metric in jax.device_get(dict(metrics)).items()}
