"""Training on the host: compile, run chunks of updates until the budget is spent, and compute the last scores."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.settings import flat
from shoal.engine.evaluation import Subject, begin_evaluation, continue_evaluation, evaluate
from shoal.engine.loop import start_training, train
from shoal.engine.population import member_layout as populations
from shoal.engine.run import ENV_AXIS, ProgramSettings, Run, start, without_replay
from shoal.records.members import Members
from shoal.records.run_config import RunConfig
from shoal.reports import figures
from shoal.types import AlgorithmConfig, Environment, PyTree, for_actor, spec_of
from shoal.xla.costs import num_parameters, product_flops, program_flops

T = TypeVar("T")


class EvaluationPrograms(NamedTuple):
    """The programs of an evaluation in pieces."""

    subject: Subject
    begin: Callable  # population -> the episodes of its evaluation
    advance: Callable  # (population with episodes, steps) -> (population, (metrics, whether it is done))


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


def compile_run(
    keys: jax.Array,
    environments: Environment,
    configs: AlgorithmConfig,
    total_updates: int,
    settings: ProgramSettings,
    layout: populations.Layout,
    *,
    check: Callable[[Run], object] = lambda shapes: None,
    initialise: Callable[[Run], Run] = lambda population: population,
    restore: Callable[[Run], Run] | None = None,
    evaluation_environments: Environment | tuple[()] = (),
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
            population = restore(_with_arguments(shapes, (*arguments[1:], evaluation_environments)))
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


def _with_empty_replay(population: Run, local: PyTree, layout: populations.Layout) -> Run:
    """Return a population with an empty replay in the place of `learner.local`, given that of a new one."""

    def empty(run: Run) -> tuple[Run, tuple[()]]:
        return dataclasses.replace(run, learner=without_replay(run) or run.learner), ()

    population = dataclasses.replace(population, learner=population.learner._replace(local=local))
    return populations.run_program(empty, population.settings, layout)(population)[0]


def _gradient_steps(config: AlgorithmConfig, settings: ProgramSettings) -> float:
    """Return the mean number of gradient steps of an update where it is data, after the warm-up of a replay; else 1."""
    values = flat(config)
    if not {"gradient_steps", "train_frequency"} <= values.keys():
        return 1.0
    return values["gradient_steps"] * settings.num_envs * settings.num_steps / values["train_frequency"]


def _costs(population: Run, update_flops: float) -> Costs:
    """Return the costs of one member of a population, which is given by its shapes."""
    member = _one_member(population)

    def act(run: Run) -> PyTree:
        spec = spec_of(run.environment)
        algorithm, timestep = run.config.algorithm(spec, ()), jax.tree.map(lambda x: x[:1], run.timestep)
        timestep = for_actor(timestep, spec)
        return algorithm.act(run.best.policy, algorithm.memory((1,)), timestep, run.key, greedy=True)[:2]

    network = getattr(member.learner.shared, "network", member.best.policy)
    return Costs(num_parameters(network), update_flops, product_flops(act, member))


def memory_of_training(
    keys: jax.Array,
    environments: Environment,
    configs: AlgorithmConfig,
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


def _with_arguments(shapes: Run, arguments: tuple[PyTree, ...]) -> Run:
    """Put the arguments of a run into its shapes, as arrays in their places."""
    names = ("environment", "config", "total_updates", "evaluation_environment")
    placed = {name: _place(x, getattr(shapes, name)) for name, x in zip(names, arguments, strict=True)}
    return dataclasses.replace(shapes, **placed)


def _place(tree: PyTree, shapes: PyTree) -> PyTree:
    """Put arrays where the shapes say."""
    return jax.tree.map(lambda x, shape: jax.device_put(x, shape.sharding), tree, shapes)


def compile_evaluation(shapes: Run, subject: Subject, layout: populations.Layout) -> EvaluationPrograms:
    """Compile the programs that evaluate a population in pieces."""

    def begin(run: Run) -> PyTree:
        return begin_evaluation(run, subject)

    def advance(run: Run, num_steps: jax.Array) -> tuple[Run, PyTree]:
        return continue_evaluation(run, num_steps, subject, layout.mesh.shape[ENV_AXIS])

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


def check_score(environment: Environment, config: AlgorithmConfig, settings: ProgramSettings) -> None:
    """Trace an evaluation, so that an unknown score or a mistake in a user's function is found before a run begins.

    Raises:
      ShoalError: the score is not a metric of an evaluation.
    """
    jax.eval_shape(evaluate, member_shapes(environment, config, settings))


def member_shapes(environment: Environment, config: AlgorithmConfig, settings: ProgramSettings) -> Run:
    """Return the shapes of one member of a population before its first update, without the sums of its metrics."""

    def start_member(environment: Environment, config: AlgorithmConfig) -> Run:
        return start(jax.random.key(0), environment, config, 1, settings._replace(groups=1))

    return jax.eval_shape(start_member, struct.as_arrays(environment), struct.as_arrays(config))


def planned_shapes(
    environment: Environment,
    config: AlgorithmConfig,
    members: int,
    settings: ProgramSettings,
    layout: populations.Layout,
) -> Run:
    """Return the shapes of one member of a population, as `member_shapes` does, from the trace that `compile_run` uses.

    Nothing is allocated.
    """

    def stacked(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((members, *x.shape), x.dtype), tree)

    keys, total = jax.eval_shape(lambda: (jax.random.key(0), jnp.int32(0)))
    arguments = stacked((keys, struct.as_arrays(environment), struct.as_arrays(config), total))
    return _one_member(jax.eval_shape(_start_program(settings, layout), arguments))


def _one_member(population: Run) -> Run:
    """Return the shapes of one member of a population that is given by its shapes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), population)


@functools.lru_cache(maxsize=1)
def _start_program(settings: ProgramSettings, layout: populations.Layout) -> Any:
    return populations.start_program(start_training, settings, layout)


def member_keys(members: Members) -> jax.Array:
    """Make one key per member, which depends on nothing but its seed."""
    return jax.vmap(jax.random.key)(jnp.asarray(np.array([member.seed for member in members], np.uint32)))


def stack_members(tree: T, members: int) -> T:
    """Convert the numbers of a struct to arrays with a leading axis of equal members."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), struct.as_arrays(tree))


def stack_variants(variants: Sequence[T], members: int) -> T:
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
