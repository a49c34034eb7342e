"""The host's side of training: compile, then chunk after chunk until the budget is spent."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal.runtime import population as populations
from shoal.runtime.config import RunConfig
from shoal.runtime.evaluation import evaluate, evaluate_best
from shoal.runtime.loop import train
from shoal.runtime.run import Run, Settings, start
from shoal.types import Environment, Mean

Numbers = dict[str, np.ndarray]  # one number a seed


class Listener(Protocol):
    """Who is told of a run's progress."""

    def trained(self, updates: int, metrics: Numbers, seconds: float, steps_per_second: float) -> None:
        """A chunk of updates has been made."""
        ...

    def evaluated(self, updates: int, metrics: Numbers) -> None:
        """The policies have been evaluated."""
        ...


class Seconds(NamedTuple):
    """Where the wall time went."""

    compile: float
    train: float
    evaluate: float


class Fitted(NamedTuple):
    """A finished population."""

    population: Run  # every leaf with a leading seed axis
    final: Numbers  # the last evaluation
    absolute: Numbers  # the best policies evaluated anew
    evaluations: list[tuple[int, Numbers]]  # (updates, metrics)
    seconds: Seconds


class Programs:
    """The compiled programs of a population; compiling them is timed."""

    def __init__(self, settings: Settings, layout: populations.Layout):
        self.settings, self.layout = settings, layout
        self.seconds = 0.0

    def start(
        self, keys: jax.Array, environments: Environment, configs: Any
    ) -> tuple[Run, Callable, Callable]:
        """Makes the population, and the programs that train and evaluate it; all are compiled side by side.

        Making it is compiled too: building networks eagerly takes seconds.
        """
        begun = time.perf_counter()
        arguments = (keys, environments, configs)
        making = populations.start_program(start, self.settings, self.layout)
        training = populations.run_program(train, self.settings, self.layout)
        evaluating = populations.run_program(evaluate, self.settings, self.layout, grouped=False)
        shapes = populations.shapes(making, arguments, self.settings, self.layout)
        with ThreadPoolExecutor() as pool:  # the longest first
            advance = pool.submit(training.lower(shapes, jnp.int32(1)).compile, options(self.layout))
            make = pool.submit(making.lower(arguments).compile, options(self.layout))
            assess = pool.submit(evaluating.lower(shapes).compile, options(self.layout))
            programs = make.result(), advance.result(), assess.result()
        population = jax.block_until_ready(programs[0](arguments))
        self.seconds += time.perf_counter() - begun
        return population, *programs[1:]

    def compile_absolute(self, population: Run, episodes: int) -> Callable:
        """The program that evaluates the best policies anew."""
        begun = time.perf_counter()

        def absolute(run: Run) -> tuple[Run, Any]:
            return run, evaluate_best(run, episodes)

        program = populations.run_program(absolute, self.settings, self.layout, grouped=False)
        compiled = program.lower(population).compile(options(self.layout))
        self.seconds += time.perf_counter() - begun
        return compiled


def options(layout: populations.Layout) -> dict[str, Any]:
    """Compiler options for the CPU: its widest vectors (4% faster), and one module (a fifth less compiling)."""
    if layout.mesh.devices.flat[0].platform != "cpu":
        return {}
    return {"xla_cpu_prefer_vector_width": 512, "xla_cpu_parallel_codegen_split_count": 1}


def settings_of(
    run: RunConfig, groups: int, score: str | Callable, eval_metrics: Callable | None
) -> Settings:
    """The static part of a run's configuration."""
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


def check_scoring(environment: Environment, config: Any, settings: Settings) -> None:
    """Traces an evaluation, so that an unknown score or a mistake in a user's function shows before a run begins.

    Raises:
      ShoalError: the score is no metric of an evaluation.
    """

    jax.eval_shape(evaluate, member_shapes(environment, config, settings))


def member_shapes(environment: Environment, config: Any, settings: Settings) -> Run:
    """The shapes of one member of a population before its first update; computes nothing."""

    def begin(environment: Environment, config: Any) -> Run:
        return start(jax.random.key(0), environment, config, settings._replace(groups=1))

    return jax.eval_shape(begin, trees.as_arrays(environment), trees.as_arrays(config))


def keys_of(run: RunConfig) -> jax.Array:
    """One key a seed, which depends on nothing but that seed."""
    seeds = np.uint32(run.seed) + np.arange(run.seeds, dtype=np.uint32)
    return jax.vmap(jax.random.key)(jnp.asarray(seeds))


def stacked(tree: Any, members: int) -> Any:
    """The numbers of a struct as arrays with a leading axis of equal members."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), trees.as_arrays(tree))


def fit(
    environments: Environment,
    configs: Any,
    run: RunConfig,
    settings: Settings,
    layout: populations.Layout,
    listener: Listener,
    begin: Callable[[Run], Run] = lambda population: population,
) -> Fitted:
    """Trains a population until its budget is spent.

    Args:
      environments: the environment of each member: numbers with a leading member axis.
      configs: the algorithm's config of each member, likewise.
      run: seeds, budget and points of evaluation.
      settings: its static part.
      layout: which devices, and how members share them.
      listener: is told of each log point and evaluation.
      begin: changes the population before training (to start from given parameters).
    """
    programs = Programs(settings, layout)
    population, advance, assess = programs.start(keys_of(run), environments, configs)
    population = begin(population)
    log_points, evaluation_points = run.log_points(), set(run.evaluation_points())
    train_seconds = evaluate_seconds = 0.0
    evaluations: list[tuple[int, Numbers]] = []
    done = 0
    for point in [0, *log_points]:
        if point > done:
            begun = time.perf_counter()
            population, metrics = advance(population, jnp.int32(point - done))
            numbers = means(metrics)
            seconds = time.perf_counter() - begun
            steps = (point - done) * run.steps_per_update * run.seeds
            train_seconds, done = train_seconds + seconds, point
            listener.trained(point, numbers, train_seconds, steps / seconds)
        if point in evaluation_points:
            begun = time.perf_counter()
            population, results = assess(population)
            results = {name: np.asarray(x) for name, x in jax.device_get(results).items()}
            evaluate_seconds += time.perf_counter() - begun
            evaluations.append((point, results))
            listener.evaluated(point, results)
    absolute_program = programs.compile_absolute(population, 10 * run.eval_episodes)
    begun = time.perf_counter()
    population, absolute = absolute_program(population)
    absolute = {name: np.asarray(x) for name, x in jax.device_get(absolute).items()}
    evaluate_seconds += time.perf_counter() - begun
    spent = Seconds(programs.seconds, train_seconds, evaluate_seconds)
    return Fitted(population, evaluations[-1][1], absolute, evaluations, spent)


def means(metrics: Mapping[str, Mean]) -> Numbers:
    """The metrics of a chunk as numbers, one a seed; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: mean.total / mean.weight for name, mean in jax.device_get(dict(metrics)).items()}
