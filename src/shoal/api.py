"""The functions of `import shoal`: train, evaluate, load, rollout and check."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal import arguments, trees
from shoal import experiment as experiments
from shoal.algos import catalogue
from shoal.envs.base import environment, parameter
from shoal.envs.checking import checker
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.descriptions import describe_benchmark, describe_ruleset
from shoal.envs.grid.rulesets.generation import PUBLISHED as PUBLISHED_RULESETS
from shoal.envs.grid.rulesets.generation import GenerationConfig
from shoal.envs.registry import bounds_of, documentation, environments, make, parameters_of, register
from shoal.errors import SavingError, ShoalError
from shoal.experiment import Experiment, decide, defaults
from shoal.runtime import collecting, finetuning, groups, limits, machine, population, trainer
from shoal.runtime.acting import TrainedPolicy
from shoal.runtime.collecting import RolloutResult
from shoal.runtime.config import RunConfig
from shoal.runtime.disk import policy_files
from shoal.runtime.disk.directory import RunDirectory
from shoal.runtime.disk.json_files import to_jsonable
from shoal.runtime.disk.summary import build_summary
from shoal.runtime.run import Run, Settings
from shoal.runtime.show import reports
from shoal.runtime.show.progress import Activity
from shoal.runtime.show.recording import Rendered
from shoal.trained import environment_for, environment_of, evaluate, evaluate_run, load, policy_of, render
from shoal.types import Environment, TimeStep, restart, transition
from shoal.user_code import reports_user_code

__all__ = [
    "PUBLISHED_RULESETS",
    "Activity",
    "Benchmark",
    "Environment",
    "Experiment",
    "GenerationConfig",
    "Rendered",
    "RolloutResult",
    "RunConfig",
    "SavingError",
    "TimeStep",
    "TrainedPolicy",
    "TrainedRun",
    "bounds_of",
    "check",
    "decide",
    "defaults",
    "describe_benchmark",
    "describe_ruleset",
    "devices_note",
    "documentation",
    "environment",
    "environments",
    "evaluate",
    "evaluate_run",
    "load",
    "make",
    "parameter",
    "parameters_of",
    "register",
    "render",
    "report_text",
    "restart",
    "result_text",
    "rollout",
    "run_experiment",
    "to_jsonable",
    "train",
    "transition",
]

report_text, result_text, devices_note = checker.report, reports.result_text, machine.devices_note


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that has ended.

    Attributes:
      path: its directory.
      summary: the content of `summary.json`.
      learner: the trained learner, every leaf with a leading seed axis.
      evaluations: (environment steps, metrics) of each evaluation; a metric is an array, one number per seed.
      environment: the environment that it was trained in.
    """

    path: Path
    summary: Mapping[str, Any]
    learner: Any
    evaluations: list[tuple[int, Mapping[str, np.ndarray]]]
    environment: Environment

    def policy(self, which: str = "best", seed: int | None = None) -> TrainedPolicy:
        """Load the policy of a seed, as `shoal.load` does."""
        return load(self.path, which, seed=seed, environment=self.environment)


@reports_user_code
def train(
    environment: str | Environment | None = None,
    *,
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    preset: bool = True,
    start_from: str | Path = "",
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train an agent with several seeds at once and write a run directory; returns when training has ended.

    Args:
      environment: a name, `module:Name`, or an environment itself; may be left out with a `config`.
      algorithm: a name ("ppo", "a2c", "reinforce"), `module:Name`, or a config itself.
      environment_parameters: of an environment given by name, such as `{"gravity": 9.0}`.
      config: a run directory or its `config.json`, whose settings are used.
      preset: whether the tuned settings of the environment are used, where there are any.
      start_from: a run from whose last parameters the seeds start, the k-th from its k-th (fine-tuning).
      progress: whether anything is printed.
      **settings: any setting of `RunConfig` or of the algorithm's config by its name.
    Returns:
      the run; `run.summary["absolute"]["iqm"]` is its score.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
      SavingError: the run was trained, but a part of it could not be written; its `run` is the result.
    """
    if environment is not None and not isinstance(environment, str):
        environment_of(environment, {})
    check_algorithm(algorithm)
    experiment = experiments.decide(
        environment,
        algorithm=algorithm,
        environment_parameters=arguments.mapping("environment_parameters", environment_parameters),
        config_file=None if config is None else arguments.path("config", config),
        use_preset=arguments.boolean("preset", preset),
        started_from=str(arguments.path("start_from", start_from)) if start_from != "" else "",
        overrides=settings,
    )
    return run_experiment(experiment, progress=arguments.boolean("progress", progress))


@reports_user_code
def run_experiment(
    experiment: Experiment, *, progress: bool = True, import_seconds: float = 0.0, own_process: bool = False
) -> TrainedRun:
    """Run an experiment and write its run directory.

    Args:
      experiment: the result of `decide`.
      progress: whether anything is printed.
      import_seconds: the duration of the imports, for the summary.
      own_process: whether this process does nothing else, so that the backend may be set up for this run alone.
    Raises:
      ShoalError: as `train`; then nothing is left on disk.
      SavingError: the run was trained, but a part of it could not be written.
    """
    run = experiment.run
    run.validate()
    if own_process and machine.is_worth_one_thread(run.devices, run.seeds, run.num_envs, run.num_steps):
        machine.prepare(one_thread=True)
    devices, experiment = place(experiment)
    experiment.validate()
    run = experiment.run
    score = run.score if is_metric_name(run.score) else experiments.load_function("score", run.score)
    eval_metrics = experiments.load_function("eval_metrics", run.eval_metrics) if run.eval_metrics else None
    settings = trainer.settings_of(run, run.env_groups, score, eval_metrics)
    layout = population.lay_out(devices, run.seeds, run.env_groups, run.members)
    check_memory(experiment, settings, layout)
    if not catalogue.is_builtin(experiment.algorithm):
        trainer.check_algorithm(experiment.environment, experiment.config, settings)
        if settings.groups > 1:
            groups.check_reduced(experiment.environment, experiment.config, settings, experiment.algorithm)
    initialise = inherit_from(experiment, settings) if experiment.started_from else trainer.unchanged
    config = to_jsonable(experiment.as_json(), not_finite=str)
    RunDirectory.check(run.run_dir or None)
    if score != "return_mean" or eval_metrics:
        trainer.check_score(experiment.environment, experiment.config, settings)
    with limits.report_out_of_memory():
        compiled_run = trainer.compile_run(
            trainer.seed_keys(run),
            trainer.stack_members(experiment.environment, run.seeds),
            trainer.stack_members(experiment.config, run.seeds),
            run.total_updates,
            settings,
            layout,
            check=lambda shapes: RunDirectory.check(run.run_dir or None, policy_files.check_storable(shapes)),
            initialise=initialise,
        )
    # From here on nothing but the run itself can fail, so that a refusal leaves no directory behind.
    directory = RunDirectory.create(
        run.run_dir or None, experiment.environment_name, experiment.algorithm, config
    )
    with reports.Reporter(directory, run, experiment.environment_name, show=progress) as reporter:
        try:
            with limits.report_out_of_memory():
                absolute = trainer.compile_absolute(compiled_run, 10 * run.eval_episodes)
                trained = trainer.train_population(compiled_run, run, reporter)
        except BaseException:
            if not reporter.updates_logged:
                directory.discard()
            raise
        return _save_results(experiment, directory, reporter, trained, absolute, import_seconds)


def _save_results(
    experiment: Experiment,
    directory: RunDirectory,
    reporter: reports.Reporter,
    trained: trainer.TrainedPopulation,
    absolute: Future[trainer.EvaluationPrograms],
    import_seconds: float,
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

    seeds = [run.seed + k for k in range(run.seeds)]
    try_to(policy_files.save_best, directory, trained.population, seeds)
    try_to(policy_files.save_last, directory, trained.population, seeds)
    trained = trainer.with_absolute_metric(trained, absolute)
    summary = summarise(experiment, trained, import_seconds)
    try_to(directory.save_summary, summary)
    try_to(reporter.draw_learning_curve, summary)
    try_to(reporter.flush)
    trained_run = TrainedRun(
        directory.path,
        summary,
        trained.population.learner,
        [(updates * run.steps_per_update, metrics) for updates, metrics in trained.evaluations],
        experiment.environment,
    )
    if failures:
        others = f" (and {len(failures) - 1} more of the run's files)" if len(failures) > 1 else ""
        raise SavingError(f"{failures[0].rstrip('.')}{others}.", trained_run)
    return trained_run


def check_algorithm(algorithm: Any) -> None:
    """Require that an algorithm is a name, a config or the class of a config.

    Raises:
      ShoalError: it is none of these.
    """
    is_config = dataclasses.is_dataclass(algorithm) and hasattr(algorithm, "algorithm")
    if not isinstance(algorithm, str) and not is_config:
        raise ShoalError(
            f"algorithm={arguments.short_repr(algorithm)} is neither a name such as 'ppo' nor an algorithm's config: a "
            "dataclass with a method `algorithm`."
        )


def check_memory(experiment: Experiment, settings: Settings, layout: population.Layout) -> None:
    """Require that the least memory of a run is not more than its process may use.

    Raises:
      ShoalError: it is more; the sentence names the size that needs the most, and the nearest that fits.
    """
    run = experiment.run
    sizes = limits.Sizes(
        run.seeds, run.num_envs, run.num_steps, run.eval_episodes, settings.pool_size or limits.NO_POOL
    )
    limits.check_run(
        lambda config: trainer.member_shapes(experiment.environment, experiments.resolve(config), settings),
        experiment.config if experiment.unresolved_config is None else experiment.unresolved_config,
        sizes,
        layout,
    )


def place(experiment: Experiment) -> tuple[list[jax.Device], Experiment]:
    """Decide the settings that depend on the machine: devices, groups of environments, the algorithm's choices.

    Raises:
      ShoalError: more devices are requested than exist.
    """
    run = experiment.run
    devices = devices_of(run.devices)
    env_groups = run.env_groups
    if env_groups == 0:
        env_groups = machine.default_groups(len(devices), run.seeds, run.num_envs, run.num_steps)
    run = dataclasses.replace(run, devices=len(devices), env_groups=env_groups)
    config = experiments.resolve(experiment.config)
    return devices, dataclasses.replace(
        experiment, run=run, config=config, unresolved_config=experiment.config
    )


def devices_of(requested: int) -> list[jax.Device]:
    """Return the requested number of devices, all of them for 0.

    Raises:
      ShoalError: fewer exist.
    """
    requested = arguments.whole_number("devices", requested, 0)
    machine.prepare(min(requested, machine.max_devices()))
    available = jax.devices()
    if requested > len(available):
        raise ShoalError(
            f"devices={requested} is more than there are: {len(available)} ({available[0].platform})."
        )
    return available[: requested or len(available)]


def is_metric_name(score: str | Callable) -> bool:
    """Report whether a score is the name of a metric, and not a function or its `module:function`."""
    return isinstance(score, str) and ":" not in score


def inherit_from(experiment: Experiment, settings: Settings) -> Callable[[Run], Run]:
    """Make the function that starts a population from what another run has learned.

    Raises:
      ShoalError: there is no such run, or its parameters do not fit.
    """
    source = experiment.started_from
    leaves, _ = RunDirectory.open(arguments.path("from", source)).load_policy("last")
    member = trainer.member_shapes(experiment.environment, experiment.config, settings)
    finetuning.check_inherit(member, leaves, experiment.algorithm, source)
    return lambda population: finetuning.inherit(population, leaves, source)


def summarise(
    experiment: Experiment, trained: trainer.TrainedPopulation, import_seconds: float
) -> dict[str, Any]:
    """Build the summary of a finished run; its score is the mean return."""
    run, seconds = experiment.run, trained.seconds
    steps = run.total_updates * run.steps_per_update
    best = jax.device_get(trained.population.best.policy)
    return build_summary(
        environment=experiment.environment_name,
        algorithm=experiment.algorithm,
        seeds=[run.seed + k for k in range(run.seeds)],
        steps_per_seed=steps,
        final=trained.final["return_mean"].tolist(),
        absolute=trained.absolute["return_mean"].tolist(),
        steps_per_second=steps * run.seeds / seconds.train,
        seconds={"import": import_seconds, **seconds._asdict()},
        parameters=[trees.named_leaves(population.take_member(best, k)) for k in range(run.seeds)],
        evaluation={
            "mode": run.eval_mode,
            "episodes": 10 * run.eval_episodes,
            **{name: x.tolist() for name, x in trained.absolute.items()},
        },
    )


@reports_user_code
def rollout(
    environment: str | Environment | None,
    policy: TrainedPolicy | str | Path | None = None,
    *,
    num_envs: int = 1024,
    num_steps: int = 1000,
    seed: int = 0,
    devices: int = 0,
    save: str | Path | None = None,
    greedy: bool = False,
    **parameters: Any,
) -> RolloutResult:
    """Step many environments over all devices of the machine, by random actions or by a policy.

    The random keys depend on each environment's index: the same seed gives the same episodes on any number of
    devices, up to rounding.

    Args:
      environment: a name, `module:Name`, or an environment itself; None uses the policy's.
      policy: from `load`, or a run directory; None draws actions uniformly, the legal ones where there are masks.
      num_envs: the number of environments.
      num_steps: the number of steps of each; an episode that ends is followed by a new one.
      seed: of the rollout.
      devices: the number of devices, 0 for all; as many as divide `num_envs` take part.
      save: an .npz file that the whole data is written to (see `shoal.runtime.collecting.collect`).
      greedy: whether a policy takes its mode instead of a sample.
      **parameters: of the environment, if it is given by name.
    Returns:
      steps per second, and the number, mean return and mean length of the episodes that ended.
    Raises:
      ShoalError: a size is too small, the environment's spaces are not the policy's, or the file cannot be written.
    """
    num_envs = arguments.whole_number("num_envs", num_envs, 1, arguments.LARGEST_INDEX)
    num_steps = arguments.whole_number("num_steps", num_steps, 1, arguments.LARGEST_INDEX)
    seed, greedy = arguments.seed("seed", seed), arguments.boolean("greedy", greedy)
    file = None if save is None or save == "" else arguments.path("save", save)
    used_devices = devices_of(devices)
    policy = None if policy is None else policy_of(policy)
    environment = trees.as_arrays(_rollout_environment(policy, environment, parameters))
    bytes_each = limits.episode_bytes(environment, policy.config if policy else None)
    limits.check_count("num_envs", num_envs, bytes_each, "environments", used_devices[0])
    if file:
        bytes_each = num_envs * limits.step_bytes(environment)
        limits.check_count("num_steps", num_steps, bytes_each, "the saved data")
    with limits.report_out_of_memory():
        return collecting.collect(
            environment,
            (policy.config, policy.parameters) if policy else (),
            jax.random.key(seed),
            used_devices,
            num_envs=num_envs,
            num_steps=num_steps,
            greedy=greedy,
            save=file,
        )


def _rollout_environment(
    policy: TrainedPolicy | None, environment: str | Environment | None, parameters: Mapping[str, Any]
) -> Environment:
    """Return the environment of a rollout: the one that is named, or that of the policy.

    Raises:
      ShoalError: neither is given, it breaks the contract, or its spaces are not the policy's.
    """
    if policy is not None:
        return environment_for(policy, environment, parameters)
    if environment is None:
        raise ShoalError("no environment was named; give one such as CartPole-v1, or a policy.")
    name = environment if isinstance(environment, str) else ""
    environment = environment_of(environment, parameters)
    require_contract(environment, name)
    return environment


@reports_user_code
def check(
    environment: str | Environment,
    *,
    keys: int = 16,
    steps: int = 128,
    max_steps: int = 10_000,
    seed: int = 0,
    ignore: Iterable[str] = (),
    seconds: float = 60.0,
    progress: bool = False,
    **parameters: Any,
) -> list[checker.Finding]:
    """Look for errors in an environment; prints nothing, unless `progress` is set.

    Args:
      environment: a name, `module:Name`, or an environment itself.
      keys: the number of environments that run at once, 2 or more.
      steps: the number of random steps of each in one block.
      max_steps: the number of random steps after which an episode counts as one that never ends.
      seed: of all keys and actions.
      ignore: rules that are broken on purpose, such as "key-ignored" for a deterministic environment.
      seconds: the limit of one part of the check, such as tracing reset, after which it is stopped with a
        finding; above 0.
      progress: whether a line on standard error names an activity that takes more than 5 seconds.
      **parameters: of the environment, if it is given by name.
    Returns:
      the findings, one sentence each; an empty list if there are none.
    Raises:
      ShoalError: there is no such environment or rule, or an argument is out of range.
    """
    largest = arguments.LARGEST_INDEX
    keys, steps = (
        arguments.whole_number("keys", keys, 2, largest),
        arguments.whole_number("steps", steps, 2, largest),
    )
    max_steps, seed = arguments.whole_number("max_steps", max_steps, 2, largest), arguments.seed("seed", seed)
    if not isinstance(ignore, str | Iterable) or any(not isinstance(rule, str) for rule in ignore):
        raise ShoalError(f"ignore={arguments.short_repr(ignore)} is no rule of the checker, nor several.")
    env = environment_of(environment, parameters)
    return checker.check(
        env,
        keys=keys,
        steps=steps,
        max_steps=max_steps,
        seed=seed,
        ignore=ignore,
        seconds=seconds,
        progress=progress,
    )
