"""Training on the host: compile, run chunks of updates until the budget is spent, and compute the last scores."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal import hardware, trees
from shoal.runtime import population as populations
from shoal.runtime.config import RunConfig
from shoal.runtime.evaluation import evaluate, evaluate_best
from shoal.runtime.loop import train, update_once
from shoal.runtime.run import Run, Settings, start
from shoal.types import Environment, Mean

Numbers = dict[str, np.ndarray]  # one number per seed


class Listener(Protocol):
    """A receiver of a run's progress."""

    def on_training(self, updates: int, metrics: Numbers, seconds: float, steps_per_second: float) -> None:
        """Receive the metrics of a chunk of updates."""
        ...

    def on_evaluation(self, updates: int, metrics: Numbers) -> None:
        """Receive the metrics of an evaluation."""
        ...


class Seconds(NamedTuple):
    """Wall time by activity, in seconds."""

    compile: float
    train: float
    evaluate: float


class CompiledRun(NamedTuple):
    """A population before its first update, and the programs that train and evaluate it."""

    population: Run  # every leaf with a leading seed axis
    train: Callable  # (population, number of updates) -> (population, metrics)
    evaluate: Callable  # population -> (population, metrics)
    shapes: Run  # of the population
    settings: Settings
    layout: populations.Layout
    seconds: float  # of compiling


class TrainedPopulation(NamedTuple):
    """A population after training."""

    population: Run  # every leaf with a leading seed axis
    evaluations: list[tuple[int, Numbers]]  # (updates, metrics)
    seconds: Seconds
    absolute: Numbers  # of the best policies, evaluated again; empty before `with_absolute_metric`

    @property
    def final(self) -> Numbers:
        """The last evaluation."""
        return self.evaluations[-1][1]


def accept_any(_: Run) -> None:
    """Accept every population."""


def unchanged(population: Run) -> Run:
    """Return the population unchanged."""
    return population


def compile_run(
    keys: jax.Array,
    environments: Environment,
    configs: Any,
    settings: Settings,
    layout: populations.Layout,
    *,
    check: Callable[[Run], None] = accept_any,
    initialise: Callable[[Run], Run] = unchanged,
) -> CompiledRun:
    """Make a population, and the programs that train and evaluate it; all are compiled in parallel.

    Making it is compiled too, since building networks eagerly takes seconds.

    Args:
      keys: one per member, [members].
      environments: the environment of each member: numbers with a leading member axis.
      configs: the algorithm's config of each member, in the same form.
      settings: the static part of the run's configuration.
      layout: the devices, and how members share them.
      check: is given the population's shapes before anything compiles, and raises for one that must not be trained.
      initialise: changes the population before training (to start from given parameters).
    """
    start_time = time.perf_counter()
    arguments = (keys, environments, configs)
    start_program = populations.start_program(start, settings, layout)
    train_program = populations.run_program(train, settings, layout)
    evaluate_program = populations.run_program(evaluate, settings, layout, grouped=False)
    shapes = populations.population_shapes(start_program, arguments, settings, layout)
    check(shapes)
    with ThreadPoolExecutor() as pool:  # the longest first
        compiled_train = pool.submit(
            train_program.lower(shapes, jnp.int32(1)).compile, compiler_options(layout)
        )
        compiled_start = pool.submit(start_program.lower(arguments).compile, compiler_options(layout))
        compiled_evaluate = pool.submit(evaluate_program.lower(shapes).compile, compiler_options(layout))
        programs = compiled_start.result(), compiled_train.result(), compiled_evaluate.result()
    population = jax.block_until_ready(programs[0](arguments))
    return CompiledRun(
        initialise(population), *programs[1:], shapes, settings, layout, time.perf_counter() - start_time
    )


def compiler_options(layout: populations.Layout) -> dict[str, Any]:
    """Return compiler options for the CPU: its widest vectors (4% faster), and one module (a fifth less compiling)."""
    if layout.mesh.devices.flat[0].platform != "cpu":
        return {}
    return {"xla_cpu_prefer_vector_width": 512, "xla_cpu_parallel_codegen_split_count": 1}


def settings_of(
    run: RunConfig, groups: int, score: str | Callable, eval_metrics: Callable | None
) -> Settings:
    """Return the static part of a run's configuration."""
    return Settings(
        num_envs=run.num_envs,
        num_steps=run.num_steps,
        total_updates=run.total_updates,
        groups=groups,
        reset_policy=run.reset,
        pool_size=run.reset_pool if run.reset == "pool" else 0,
        eval_episodes=run.eval_episodes,
        eval_max_steps=run.eval_max_steps,
        eval_mode=run.eval_mode,
        score=score,
        eval_metrics=eval_metrics,
    )


def check_algorithm(environment: Environment, config: Any, settings: Settings) -> None:
    """Trace one update, so that a mistake in an algorithm's functions is found before a run begins.

    Raises:
      ShoalError: one of them returns a value that the runtime cannot use.
      UserCodeError: one of them fails.
    """
    jax.eval_shape(update_once, member_shapes(environment, config, settings))


def check_score(environment: Environment, config: Any, settings: Settings) -> None:
    """Trace an evaluation, so that an unknown score or a mistake in a user's function is found before a run begins.

    Raises:
      ShoalError: the score is not a metric of an evaluation.
    """

    jax.eval_shape(evaluate, member_shapes(environment, config, settings))


def member_shapes(environment: Environment, config: Any, settings: Settings) -> Run:
    """Return the shapes of one member of a population before its first update, without computing anything."""

    def start_member(environment: Environment, config: Any) -> Run:
        return start(jax.random.key(0), environment, config, settings._replace(groups=1))

    return jax.eval_shape(start_member, trees.as_arrays(environment), trees.as_arrays(config))


def seed_keys(run: RunConfig) -> jax.Array:
    """Make one key per seed, which depends on nothing but that seed."""
    seeds = np.uint32(run.seed) + np.arange(run.seeds, dtype=np.uint32)
    return jax.vmap(jax.random.key)(jnp.asarray(seeds))


def stack_members(tree: Any, members: int) -> Any:
    """Convert the numbers of a struct to arrays with a leading axis of equal members."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), trees.as_arrays(tree))


def train_population(compiled_run: CompiledRun, run: RunConfig, listener: Listener) -> TrainedPopulation:
    """Train a population until its budget is spent.

    Args:
      compiled_run: the population and its programs; its buffers are donated.
      run: seeds, budget and points of evaluation.
      listener: receives each log point and evaluation.
    """
    population = compiled_run.population
    log_points, evaluation_points = run.log_points(), set(run.evaluation_points())
    train_seconds = evaluate_seconds = 0.0
    evaluations: list[tuple[int, Numbers]] = []
    updates_done = 0
    for point in [0, *log_points]:
        if point > updates_done:
            start_time = time.perf_counter()
            population, metrics = compiled_run.train(population, jnp.int32(point - updates_done))
            numbers = mean_metrics(metrics)
            seconds = time.perf_counter() - start_time
            steps = (point - updates_done) * run.steps_per_update * run.seeds
            train_seconds, updates_done = train_seconds + seconds, point
            listener.on_training(point, numbers, train_seconds, steps / seconds)
        if point in evaluation_points:
            start_time = time.perf_counter()
            population, results = compiled_run.evaluate(population)
            results = {name: np.asarray(x) for name, x in jax.device_get(results).items()}
            evaluate_seconds += time.perf_counter() - start_time
            evaluations.append((point, results))
            listener.on_evaluation(point, results)
    return TrainedPopulation(
        population, evaluations, Seconds(compiled_run.seconds, train_seconds, evaluate_seconds), {}
    )


def compile_absolute(compiled_run: CompiledRun, episodes: int) -> Future[Callable]:
    """Begin to compile the evaluation of the best policies, in a thread that gives way to the training.

    Args:
      compiled_run: the programs that train the population.
      episodes: of each policy.

    Returns:
      the program, once it is compiled: population -> (population, metrics).
    """

    def evaluate_absolute(run: Run) -> tuple[Run, Any]:
        return run, evaluate_best(run, episodes)

    def compile_program() -> Callable:
        hardware.lower_priority()
        layout = compiled_run.layout
        program = populations.run_program(evaluate_absolute, compiled_run.settings, layout, grouped=False)
        return program.lower(compiled_run.shapes).compile(compiler_options(layout))

    with_one_thread = ThreadPoolExecutor(1)
    program = with_one_thread.submit(compile_program)
    with_one_thread.shutdown(wait=False)
    return program


def with_absolute_metric(trained: TrainedPopulation, program: Future[Callable]) -> TrainedPopulation:
    """Evaluate the best policies on episodes that were not used to choose them.

    Args:
      trained: the trained population; its buffers are donated.
      program: of `compile_absolute`.
    """
    start_time = time.perf_counter()
    evaluate_absolute = program.result()
    compile_seconds = time.perf_counter() - start_time
    population, results = evaluate_absolute(trained.population)
    results = {name: np.asarray(x) for name, x in jax.device_get(results).items()}
    evaluate_seconds = time.perf_counter() - start_time - compile_seconds
    seconds = trained.seconds
    seconds = seconds._replace(
        compile=seconds.compile + compile_seconds, evaluate=seconds.evaluate + evaluate_seconds
    )
    return trained._replace(population=population, absolute=results, seconds=seconds)


def mean_metrics(metrics: Mapping[str, Mean]) -> Numbers:
    """Compute the metrics of a chunk as numbers, one per seed; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: mean.total / mean.weight for name, mean in jax.device_get(dict(metrics)).items()}
