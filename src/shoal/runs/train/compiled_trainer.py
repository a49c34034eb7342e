"""Training on the host: compile, run chunks of updates until the budget is spent, and compute the last scores."""

import bisect
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base import cpu
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.settings import flat
from shoal.engine.evaluation import Subject, begin_evaluation, continue_evaluation, evaluate
from shoal.engine.loop import start_training, train, update_once
from shoal.engine.nonfinite import NOWHERE, STOPPED, explanation, failed_members
from shoal.engine.population import member_layout as populations
from shoal.engine.population.compaction import Dealer, stop_others
from shoal.engine.run import ProgramSettings, Run, evaluation_environment_of, start, without_replay
from shoal.envs.base import can_explain_faults
from shoal.records.halving import Halving
from shoal.records.history import OPTIMISER_STEPS, History, Numbers, Seconds
from shoal.records.members import Members
from shoal.records.run_config import RunConfig
from shoal.reports import figures
from shoal.runs.train.hooks import Listener, Supervisor
from shoal.runs.train.pacing import Pacer
from shoal.types import Environment, Mean, for_actor, spec_of
from shoal.xla.costs import num_parameters, product_flops, program_flops


class EvaluationPrograms(NamedTuple):
    """The programs of an evaluation in pieces."""

    subject: Subject
    begin: Callable  # population -> the episodes of its evaluation
    advance: (
        Callable  # (population with episodes, number of steps) -> (population, (metrics, whether it is done))
    )


class Costs(NamedTuple):
    """Size and arithmetic of one member's network; FLOPs are those of matrix products and convolutions."""

    parameters: int  # their number in the learned network, or in the policy where none is named
    update_flops: float  # per update: its rollout and all its gradient steps
    act_flops: float  # per action in one environment


class CompiledRun(NamedTuple):
    """A population before its next update, and the programs that train and evaluate it."""

    population: Run  # every leaf with a leading member axis
    train: Callable  # (population, number of updates, whether an interval begins) -> (population, metrics)
    evaluation: EvaluationPrograms
    shapes: Run  # the population's shapes
    settings: ProgramSettings
    layout: populations.Layout
    costs: Costs
    seconds: float  # the duration of compiling


class TrainedPopulation(NamedTuple):
    """A population after training."""

    population: Run  # every leaf with a leading member axis
    evaluations: list[tuple[int, Numbers]]  # (updates, metrics)
    seconds: Seconds
    absolute: Numbers  # the best policies' metrics, evaluated again; empty before `with_absolute_metric`
    costs: Costs
    updates: int  # the number of updates made
    stopped: str = ""  # why training ended before its budget was spent

    @property
    def final(self) -> Numbers:
        """The last evaluation of each member, which is that of its last policy; NaN for one that was stopped early.

        Empty where the last policies were not evaluated.
        """
        if not self.evaluations or self.evaluations[-1][0] < self.updates:
            return {}
        points = [updates for updates, _ in self.evaluations]
        last = np.searchsorted(points, np.asarray(self.population.evaluated.updates), side="right") - 1
        found = {
            name: np.array([self.evaluations[row][1][name][k] for k, row in enumerate(last)])
            for name in self.evaluations[-1][1]
        }
        is_stopped = np.asarray(self.population.fault) == STOPPED
        return {name: _without(is_stopped, x) for name, x in found.items()}


def accept_any(_: Run) -> None:
    """Accept every population."""


def unchanged(population: Run) -> Run:
    """Return the population unchanged."""
    return population


def compile_run(
    keys: jax.Array,
    environments: Environment,
    configs: Any,
    total_updates: int,
    settings: ProgramSettings,
    layout: populations.Layout,
    *,
    check: Callable[[Run], None] = accept_any,
    initialise: Callable[[Run], Run] = unchanged,
    restore: Callable[[Run], Run] | None = None,
    evaluation_environments: Any = (),
) -> CompiledRun:
    """Make a population, and the programs that train and evaluate it; all are compiled in parallel.

    Making it is compiled too, since building networks eagerly takes seconds.

    Args:
      keys: one per member, [members].
      environments: the environment of each member: numbers with a leading member axis.
      configs: the algorithm's config of each member, in the same form.
      total_updates: the number of updates at the end of the run.
      settings: the static part of the run's configuration.
      layout: the devices, and how members share them.
      check: is given the population's shapes before anything compiles, and raises for one that must not be trained.
      initialise: changes the population before training (to start from given parameters).
      restore: is given the population's shapes, with arrays for its environments, configs and total, and returns the
        population (from a checkpoint); `initialise` is not called then. A replay that it leaves as shapes begins empty.
      evaluation_environments: those that the members are evaluated in, in the form of `environments`; () for their own.
    """
    start_time = time.perf_counter()
    updates = np.full(len(keys), total_updates, np.int32)
    arguments = (keys, environments, configs, updates)
    start_program = _start_program(settings, layout)
    train_program = populations.run_program(train, settings, layout)
    shapes = populations.population_shapes(start_program, arguments, settings, layout)
    elsewhere = populations.placed_by_members(jax.eval_shape(lambda: evaluation_environments), layout)
    shapes = dataclasses.replace(shapes, evaluation_environment=elsewhere)
    check(shapes)
    options = layout.compiler_options
    with ThreadPoolExecutor() as pool:  # the longest first
        traced = train_program.trace(shapes, np.int32(1), np.bool_(True))
        compiled_train = pool.submit(traced.lower().compile, options)
        subject = Subject(best=False, episodes=settings.eval_episodes)
        compiled_evaluation = pool.submit(compile_evaluation, shapes, subject, layout)
        if restore is None:
            population = _started(start_program, arguments, options)
            placed = _place(evaluation_environments, shapes.evaluation_environment)
            population = initialise(dataclasses.replace(population, evaluation_environment=placed))
        else:
            population = restore(
                _with_arguments(shapes, environments, configs, updates, evaluation_environments)
            )
            if not all(isinstance(x, jax.Array) for x in jax.tree.leaves(population.learner.local)):
                local = _started(start_program, arguments, options).learner.local
                population = _with_empty_replay(population, local, layout)
        flops = program_flops(traced.jaxpr, _gradient_steps(configs, settings))
        costs = _costs(shapes, flops * layout.devices / len(keys))
        figures.import_early()
        programs = compiled_train.result(), compiled_evaluation.result()
    seconds = time.perf_counter() - start_time
    return CompiledRun(population, *programs, shapes, settings, layout, costs, seconds)


def _started(program: Any, arguments: tuple, options: dict[str, Any]) -> Run:
    return jax.block_until_ready(program.lower(arguments).compile(options)(arguments))


def _with_empty_replay(population: Run, local: Any, layout: populations.Layout) -> Run:
    """Return a population with an empty replay in the place of `learner.local`, given that of a new one."""

    def empty(run: Run) -> tuple[Run, tuple[()]]:
        return dataclasses.replace(run, learner=without_replay(run)), ()

    population = dataclasses.replace(population, learner=population.learner._replace(local=local))
    return populations.run_program(empty, population.settings, layout)(population)[0]


def _gradient_steps(config: Any, settings: ProgramSettings) -> float:
    """Return the mean number of gradient steps of an update where it is data, after the warm-up of a replay; else 1."""
    values = flat(config) if dataclasses.is_dataclass(config) else {}
    if not {"gradient_steps", "train_frequency"} <= values.keys():
        return 1.0
    return values["gradient_steps"] * settings.num_envs * settings.num_steps / values["train_frequency"]


def _costs(population: Run, update_flops: float) -> Costs:
    """Return the costs of one member of a population, which is given by its shapes."""
    member = _one_member(population)

    def act(run: Run) -> Any:
        spec = spec_of(run.environment)
        algorithm, timestep = run.config.algorithm(spec, ()), jax.tree.map(lambda x: x[:1], run.timestep)
        timestep = for_actor(timestep, spec)
        return algorithm.act(run.best.policy, algorithm.memory((1,)), timestep, run.key, greedy=True)[:2]

    network = getattr(member.learner.shared, "network", member.best.policy)
    return Costs(num_parameters(network), update_flops, product_flops(act, member))


def memory_of_training(
    keys: jax.Array,
    environments: Environment,
    configs: Any,
    settings: ProgramSettings,
    layout: populations.Layout,
) -> Any:
    """Compile the program that trains a population, and return the compiler's report of its memory.

    Nothing is allocated; the arguments are those of `compile_run`.
    """
    arguments = (keys, environments, configs, np.ones(len(keys), np.int32))
    start_program = _start_program(settings, layout)
    shapes = populations.population_shapes(start_program, arguments, settings, layout)
    program = populations.run_program(train, settings, layout)
    compiled = program.lower(shapes, np.int32(1), np.bool_(True)).compile(layout.compiler_options)
    return compiled.memory_analysis()


def _with_arguments(
    shapes: Run,
    environments: Environment,
    configs: Any,
    total_updates: np.ndarray,
    evaluation_environments: Any,
) -> Run:
    """Put the arguments of a run into its shapes, as arrays in their places."""
    parts = {
        "environment": environments,
        "config": configs,
        "total_updates": total_updates,
        "evaluation_environment": evaluation_environments,
    }
    placed = {name: _place(part, getattr(shapes, name)) for name, part in parts.items()}
    return dataclasses.replace(shapes, **placed)


def _place(tree: Any, shapes: Any) -> Any:
    """Put arrays where the shapes say."""
    return jax.tree.map(lambda x, shape: jax.device_put(x, shape.sharding), tree, shapes)


def compile_evaluation(shapes: Run, subject: Subject, layout: populations.Layout) -> EvaluationPrograms:
    """Compile the programs that evaluate a population in pieces."""

    def begin(run: Run) -> Any:
        return begin_evaluation(run, subject)

    def advance(run: Run, num_steps: jax.Array) -> tuple[Run, Any]:
        return continue_evaluation(run, num_steps, subject)

    settings, options = shapes.settings, layout.compiler_options
    begin_program = populations.member_program(begin, settings, layout)
    episodes = populations.placed_by_members(jax.eval_shape(begin_program, shapes), layout)
    advance_program = populations.run_program(advance, settings, layout, grouped=False)
    running = dataclasses.replace(shapes, evaluation=episodes)
    with ThreadPoolExecutor() as pool:
        compiled_advance = pool.submit(advance_program.lower(running, np.int32(1)).compile, options)
        compiled_begin = pool.submit(begin_program.lower(shapes).compile, options)
        return EvaluationPrograms(subject, compiled_begin.result(), compiled_advance.result())


def program_settings(
    run: RunConfig, groups: int, score: str | Callable, eval_metrics: Callable | None
) -> ProgramSettings:
    """Return the static part of a run's configuration."""
    return ProgramSettings(
        num_envs=run.num_envs,
        num_steps=run.num_steps,
        groups=groups,
        reset_policy=run.reset,
        pool_size=run.reset_pool if run.reset == "pool" else 0,
        pool_refresh=run.reset_refresh if run.reset == "pool" else 0,
        reset_ratio=run.reset_ratio,
        eval_episodes=run.eval_episodes,
        eval_max_steps=min(run.eval_max_steps * run.eval_consecutive, LARGEST_INDEX),
        eval_mode=run.eval_mode,
        eval_seed=run.eval_seed,
        eval_consecutive=run.eval_consecutive,
        keeps_last=not run.is_evaluated,
        score=score,
        eval_metrics=eval_metrics,
    )


def check_algorithm(environment: Environment, config: Any, settings: ProgramSettings) -> None:
    """Trace one update, so that a mistake in an algorithm's functions is found before a run begins.

    Raises:
      ShoalError: one of them returns a value that the runtime cannot use.
      UserCodeError: one of them fails.
    """
    jax.eval_shape(update_once, member_shapes(environment, config, settings))


def check_score(environment: Environment, config: Any, settings: ProgramSettings) -> None:
    """Trace an evaluation, so that an unknown score or a mistake in a user's function is found before a run begins.

    Raises:
      ShoalError: the score is not a metric of an evaluation.
    """

    jax.eval_shape(evaluate, member_shapes(environment, config, settings))


def member_shapes(environment: Environment, config: Any, settings: ProgramSettings) -> Run:
    """Return the shapes of one member of a population before its first update, without the sums of its metrics."""

    def start_member(environment: Environment, config: Any) -> Run:
        return start(jax.random.key(0), environment, config, 1, settings._replace(groups=1))

    return jax.eval_shape(start_member, struct.as_arrays(environment), struct.as_arrays(config))


def planned_shapes(
    environment: Environment, config: Any, members: int, settings: ProgramSettings, layout: populations.Layout
) -> Run:
    """Return the shapes of one member of a population, as `member_shapes` does, from the trace that `compile_run` uses.

    Nothing is allocated.
    """

    def stacked(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((members, *x.shape), x.dtype), tree)

    keys, total = jax.eval_shape(lambda: (jax.random.key(0), jnp.int32(0)))
    arguments = stacked((keys, struct.as_arrays(environment), struct.as_arrays(config), total))
    shapes = populations.population_shapes(_start_program(settings, layout), arguments, settings, layout)
    return _one_member(shapes)


def _one_member(population: Run) -> Run:
    """Return the shapes of one member of a population that is given by its shapes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), population)


@functools.lru_cache(maxsize=1)
def _start_program(settings: ProgramSettings, layout: populations.Layout) -> Any:
    return populations.start_program(start_training, settings, layout)


def member_keys(members: Members) -> jax.Array:
    """Make one key per member, which depends on nothing but its seed."""
    return jax.vmap(jax.random.key)(jnp.asarray(np.array([member.seed for member in members], np.uint32)))


def stack_members(tree: Any, members: int) -> Any:
    """Convert the numbers of a struct to arrays with a leading axis of equal members."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), struct.as_arrays(tree))


def stack_variants(variants: Sequence[Any], members: int) -> Any:
    """Convert the numbers of several structs of one form to arrays with a leading axis of members.

    Args:
      variants: the structs, each of which is shared by equally many members that follow each other.
      members: the number of all members.
    """
    if len(variants) == 1:
        return stack_members(variants[0], members)
    each = members // len(variants)
    arrays = [jax.device_get(struct.as_arrays(variant)) for variant in variants]
    return jax.tree.map(lambda *xs: jnp.asarray(np.repeat(np.stack(xs), each, axis=0)), *arrays)


def train_population(
    compiled_run: CompiledRun,
    run: RunConfig,
    listener: Listener,
    *,
    history: History | None = None,
    supervisor: Supervisor | None = None,
    halving: Halving | None = None,
    members: Members = (),
    change: Callable[[Run, History], Run] | None = None,
) -> TrainedPopulation:
    """Train a population until its budget is spent, or the listener has a reason to stop.

    Where it stops, it ends as at the end of the budget: with a log point, an evaluation and a checkpoint.

    Args:
      compiled_run: the population and its programs; its buffers are donated.
      run: seeds, budget and points of evaluation.
      listener: receives each log point and evaluation.
      history: of the run so far; None for a new one.
      supervisor: acts between two pieces of training; None for nobody.
      halving: when members stop early; None for never.
      members: of the population, where some stop early.
      change: is given the population after each evaluation but the last, and returns the one to continue with; before
        the first update it is called in any case.
    """
    history = History() if history is None else history
    supervisor = Supervisor() if supervisor is None else supervisor
    history.spend(compile=compiled_run.seconds)
    rungs = halving.rungs(run.steps_per_update, run.total_steps) if halving else []
    evaluation_points = {*run.evaluation_points(), *rungs}
    log_points = sorted({*run.log_points(), *rungs})
    train_program = _program_of(compiled_run, halving)
    population, pacer, evaluation_pacer = compiled_run.population, Pacer(), Pacer(first=64)

    def is_last() -> bool:
        return history.updates >= run.total_updates or bool(history.stopped)

    while True:
        if (history.updates in log_points or is_last()) and history.logged < history.updates:
            _report_training(population, run, history, listener)
        is_point = history.updates in evaluation_points or (is_last() and run.is_evaluated)
        if is_point and history.evaluated < history.updates:
            seconds = history.seconds.evaluate
            population, metrics = _evaluate_in_pieces(
                compiled_run.evaluation, population, history, evaluation_pacer, supervisor
            )
            if metrics is not None:
                history.evaluations.append((history.updates, metrics))
                speed = _evaluation_speed(metrics, run, history, history.seconds.evaluate - seconds)
                history.stop(listener.on_evaluation(history.updates, {**metrics, **speed}))
                if halving and history.updates in rungs and not is_last():
                    population = stop_others(population, run, history.evaluations, members, halving)
                if change is not None and (not is_last() or history.updates == 0):
                    population = change(population, history)
        supervisor.between_pieces(population, history)
        if is_last():
            return TrainedPopulation(
                population,
                history.evaluations,
                history.seconds,
                absolute={},
                costs=compiled_run.costs,
                updates=history.updates,
                stopped=history.stopped,
            )
        stop = log_points[bisect.bisect_right(log_points, history.updates)]  # the last point is the end
        further_stop = supervisor.next_stop(history.updates)
        size = pacer.size(min(stop, further_stop or stop) - history.updates)
        supervisor.begins("training")
        population = _train_piece(train_program, population, size, history, pacer)
        if faulty := _new_faults(population, history):
            population = supervisor.handle_faults(population, history, faulty)
            history.frozen += faulty


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
    population = train_program(population, np.int32(size), begins_interval)
    jax.block_until_ready(population)
    seconds = time.perf_counter() - start_time
    pacer.measure(size, seconds)
    history.updates += size
    history.spend(train=seconds)
    return population


def _new_faults(population: Run, history: History) -> list[int]:
    """List the members that made an update in which something was not finite, and are not frozen yet."""
    return [k for k in failed_members(population.fault) if k not in history.frozen]


def _report_training(population: Run, run: RunConfig, history: History, listener: Listener) -> None:
    """Give the listener the metrics since the last log point; NaN of members that train no further."""
    has_ended = np.asarray(population.fault) != NOWHERE
    updates = history.updates - history.logged
    steps = updates * run.steps_per_update * int(np.sum(~has_ended))
    seconds = history.seconds.train - history.logged_seconds
    history.logged, history.logged_seconds = history.updates, history.seconds.train
    metrics = mean_metrics(population.metrics)
    if "gradient_steps" in metrics:
        made = np.nan_to_num(np.asarray(metrics["gradient_steps"], np.float64)) * updates
        history.optimiser_steps = metrics[OPTIMISER_STEPS] = history.optimiser_steps + np.round(made)
    numbers = {name: _without(has_ended, x) for name, x in metrics.items()}
    history.stop(listener.on_training(history.updates, numbers, history.seconds.train, steps / seconds))


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
    supervisor: Supervisor,
) -> tuple[Run, Numbers | None]:
    """Evaluate a population; the metrics are None if the evaluation was broken off."""
    supervisor.begins("evaluating")
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
    population = dataclasses.replace(population, evaluation=())
    is_left_out = programs.subject.leaves_out(np.asarray(population.fault))
    numbers = {name: _without(is_left_out, x) for name, x in jax.device_get(metrics).items()}
    history.spend(evaluate=time.perf_counter() - start_time)
    return population, numbers if is_done else None


def _without(members: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return numbers of members with NaN in the places of some of them, which are marked, [members]."""
    return np.where(members, np.float32(np.nan), numbers) if members.any() else np.asarray(numbers)


def _note_faults(population: Run, history: History, supervisor: Supervisor) -> None:
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
    trained: TrainedPopulation,
    programs: Future[EvaluationPrograms],
    history: History | None = None,
    supervisor: Supervisor | None = None,
) -> TrainedPopulation:
    """Evaluate the best policies on episodes that were not used to choose them.

    Args:
      trained: the trained population; its buffers are donated.
      programs: of `compile_absolute`.
      history: of the run, to which the time is added; None for one of its own.
      supervisor: as in `train_population`.
    """
    supervisor = Supervisor() if supervisor is None else supervisor
    start_time = time.perf_counter()
    evaluation = programs.result()
    history = (
        History(evaluations=trained.evaluations, seconds=trained.seconds) if history is None else history
    )
    history.spend(compile=time.perf_counter() - start_time)
    population, results = _evaluate_in_pieces(
        evaluation, trained.population, history, Pacer(first=64), supervisor
    )
    if results is None:
        supervisor.between_pieces(population, history)
        raise AssertionError("a supervisor that wants to stop does so between pieces")
    return trained._replace(population=population, absolute=results, seconds=history.seconds)


def mean_metrics(metrics: Mapping[str, Mean]) -> Numbers:
    """Compute the metrics of a chunk as numbers, one per member; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: mean.total / mean.weight for name, mean in jax.device_get(dict(metrics)).items()}
