"""The host's side of training: compile, then chunk after chunk until the budget is spent, then the last scores."""

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
from shoal.runtime.loop import train, update_once
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


class Prepared(NamedTuple):
    """A population before its first update, and the programs that train and evaluate it."""

    population: Run  # every leaf with a leading seed axis
    advance: Callable  # (population, number of updates) -> (population, metrics)
    assess: Callable  # population -> (population, metrics)
    settings: Settings
    layout: populations.Layout
    seconds: float  # that compiling took


class Fitted(NamedTuple):
    """A population that has been trained."""

    population: Run  # every leaf with a leading seed axis
    evaluations: list[tuple[int, Numbers]]  # (updates, metrics)
    seconds: Seconds
    absolute: Numbers  # the best policies evaluated anew; empty before `evaluated_anew`

    @property
    def final(self) -> Numbers:
        """The last evaluation."""
        return self.evaluations[-1][1]


def nothing(_: Run) -> None:
    """Requires nothing of a population."""


def as_it_is(population: Run) -> Run:
    """Changes nothing of a population."""
    return population


def prepare(
    keys: jax.Array,
    environments: Environment,
    configs: Any,
    settings: Settings,
    layout: populations.Layout,
    *,
    check: Callable[[Run], None] = nothing,
    begin: Callable[[Run], Run] = as_it_is,
) -> Prepared:
    """Make a population, and the programs that train and evaluate it; all are compiled side by side.

    Making it is compiled too: building networks eagerly takes seconds.

    Args:
      keys: one a member, [members].
      environments: the environment of each member: numbers with a leading member axis.
      configs: the algorithm's config of each member, likewise.
      settings: the static part of the run's configuration.
      layout: which devices, and how members share them.
      check: is given the population's shapes before anything compiles, and raises for one that must not be trained.
      begin: changes the population before training (to start from given parameters).
    """
    begun = time.perf_counter()
    arguments = (keys, environments, configs)
    making = populations.start_program(start, settings, layout)
    training = populations.run_program(train, settings, layout)
    evaluating = populations.run_program(evaluate, settings, layout, grouped=False)
    shapes = populations.shapes(making, arguments, settings, layout)
    check(shapes)
    with ThreadPoolExecutor() as pool:  # the longest first
        advance = pool.submit(training.lower(shapes, jnp.int32(1)).compile, options(layout))
        make = pool.submit(making.lower(arguments).compile, options(layout))
        assess = pool.submit(evaluating.lower(shapes).compile, options(layout))
        programs = make.result(), advance.result(), assess.result()
    population = jax.block_until_ready(programs[0](arguments))
    return Prepared(begin(population), *programs[1:], settings, layout, time.perf_counter() - begun)


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


def check_algorithm(environment: Environment, config: Any, settings: Settings) -> None:
    """Traces one update, so that a mistake in an algorithm's functions shows before a run begins.

    Raises:
      ShoalError: one of them returns what the runtime cannot go on with.
      UserCodeError: one of them fails.
    """
    jax.eval_shape(update_once, member_shapes(environment, config, settings))


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


def fit(prepared: Prepared, run: RunConfig, listener: Listener) -> Fitted:
    """Train a population until its budget is spent.

    Args:
      prepared: the population and its programs; its buffers are given up.
      run: seeds, budget and points of evaluation.
      listener: is told of each log point and evaluation.
    """
    population = prepared.population
    log_points, evaluation_points = run.log_points(), set(run.evaluation_points())
    train_seconds = evaluate_seconds = 0.0
    evaluations: list[tuple[int, Numbers]] = []
    done = 0
    for point in [0, *log_points]:
        if point > done:
            begun = time.perf_counter()
            population, metrics = prepared.advance(population, jnp.int32(point - done))
            numbers = means(metrics)
            seconds = time.perf_counter() - begun
            steps = (point - done) * run.steps_per_update * run.seeds
            train_seconds, done = train_seconds + seconds, point
            listener.trained(point, numbers, train_seconds, steps / seconds)
        if point in evaluation_points:
            begun = time.perf_counter()
            population, results = prepared.assess(population)
            results = {name: np.asarray(x) for name, x in jax.device_get(results).items()}
            evaluate_seconds += time.perf_counter() - begun
            evaluations.append((point, results))
            listener.evaluated(point, results)
    return Fitted(population, evaluations, Seconds(prepared.seconds, train_seconds, evaluate_seconds), {})


def evaluated_anew(prepared: Prepared, fitted: Fitted, episodes: int) -> Fitted:
    """Evaluate the best policies on episodes that did not choose them.

    Args:
      prepared: what the population was trained by.
      fitted: the trained population; its buffers are given up.
      episodes: of each policy.
    """

    def absolute(run: Run) -> tuple[Run, Any]:
        return run, evaluate_best(run, episodes)

    begun = time.perf_counter()
    program = populations.run_program(absolute, prepared.settings, prepared.layout, grouped=False)
    compiled = program.lower(fitted.population).compile(options(prepared.layout))
    compiling = time.perf_counter() - begun
    population, results = compiled(fitted.population)
    results = {name: np.asarray(x) for name, x in jax.device_get(results).items()}
    evaluating = time.perf_counter() - begun - compiling
    spent = fitted.seconds
    spent = spent._replace(compile=spent.compile + compiling, evaluate=spent.evaluate + evaluating)
    return fitted._replace(population=population, absolute=results, seconds=spent)


def means(metrics: Mapping[str, Mean]) -> Numbers:
    """The metrics of a chunk as numbers, one a seed; NaN where nothing was counted."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: mean.total / mean.weight for name, mean in jax.device_get(dict(metrics)).items()}
