"""What `import shoal` offers: train, evaluate, load, rollout and check, each a call that puts the rooms together."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal import envs, experiment, trees
from shoal.errors import ShoalError
from shoal.experiment import Experiment
from shoal.runtime import machine, population, reporting, saving, trainer
from shoal.runtime.acting import TrainedPolicy
from shoal.runtime.config import at_least
from shoal.runtime.directory import RunDirectory
from shoal.runtime.evaluation import play, summed_up
from shoal.runtime.run import Run
from shoal.runtime.summary import build_summary
from shoal.types import Environment, spec_of


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that has ended.

    Attributes:
      path: its directory.
      summary: what `summary.json` holds.
      learner: what was learned, every leaf with a leading seed axis.
      evaluations: (environment steps, metrics) of each evaluation; a metric is an array, one number a seed.
    """

    path: Path
    summary: Mapping[str, Any]
    learner: Any
    evaluations: list[tuple[int, Mapping[str, np.ndarray]]]

    def policy(self, which: str = "best", seed: int | None = None) -> TrainedPolicy:
        """The policy of a seed, as `shoal.load` gives it."""
        return load(self.path, which, seed=seed)


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
    """Trains an agent with several seeds at once and writes a run directory; returns when done.

    Args:
      environment: a name, `module:Name`, or an environment itself; may be left out with a `config`.
      algorithm: a name ("ppo", "a2c", "reinforce"), `module:Name`, or a config itself.
      environment_parameters: of an environment given by name, such as `{"gravity": 9.0}`.
      config: a run directory or its `config.json`, whose settings are taken over.
      preset: whether the tuned settings of the environment are taken, where there are any.
      start_from: a run whose best parameters each seed starts from (fine-tuning).
      progress: whether anything is printed.
      **settings: any setting of `RunConfig` or of the algorithm's config by its name.

    Returns:
      the run; `run.summary["absolute"]["iqm"]` is its score.

    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
    """
    decided = experiment.decide(
        environment,
        algorithm=algorithm,
        environment_parameters=environment_parameters,
        config_file=config,
        use_preset=preset,
        started_from=str(start_from),
        overrides=settings,
    )
    return run_experiment(decided, progress=progress)


def run_experiment(decided: Experiment, *, progress: bool = True, import_seconds: float = 0.0) -> TrainedRun:
    """Carries out an experiment and writes its run directory.

    Raises:
      ShoalError: as `train`.
    """
    devices, decided = place(decided)
    decided.validate()
    run = decided.run
    score = run.score if is_metric(run.score) else experiment.function_named("score", run.score)
    eval_metrics = experiment.function_named("eval_metrics", run.eval_metrics) if run.eval_metrics else None
    settings = trainer.settings_of(run, run.env_groups, score, eval_metrics)
    begin = taking_over(decided) if decided.started_from else _as_it_is
    directory = RunDirectory.create(run.run_dir or None, decided.environment_name, decided.algorithm)
    directory.save_config(decided.as_json())
    layout = population.layout(devices, run.seeds, run.env_groups, run.members)
    environments = trainer.stacked(decided.environment, run.seeds)
    configs = trainer.stacked(decided.config, run.seeds)
    with reporting.Reporter(directory, run, decided.environment_name, show=progress) as reporter:
        fitted = trainer.fit(environments, configs, run, settings, layout, reporter, begin)
        summary = summarise(decided, fitted, import_seconds)
        saving.save_policies(directory, fitted.population, summary["seeds"])
        directory.save_summary(summary)
        reporter.finished(summary)
    return TrainedRun(
        directory.path,
        summary,
        fitted.population.learner,
        [(updates * run.steps_per_update, metrics) for updates, metrics in fitted.evaluations],
    )


def place(decided: Experiment) -> tuple[list[jax.Device], Experiment]:
    """Makes explicit which devices are used and into how many groups environments are split.

    Raises:
      ShoalError: more devices are asked for than there are.
    """
    machine.prepare(decided.run.devices)
    found, run = jax.devices(), decided.run
    if run.devices > len(found):
        raise ShoalError(f"devices={run.devices} is more than there are: {len(found)} ({found[0].platform}).")
    devices = found[: run.devices or len(found)]
    groups = run.env_groups
    if groups == 0:
        groups = machine.groups(len(devices), run.seeds, run.num_envs, run.num_steps)
    run = dataclasses.replace(run, devices=len(devices), env_groups=groups)
    return devices, dataclasses.replace(decided, run=run)


def is_metric(score: str | Callable) -> bool:
    """Whether a score is the name of a metric, and not a function or its `module:function`."""
    return isinstance(score, str) and ":" not in score


def taking_over(decided: Experiment) -> Callable[[Run], Run]:
    """The function that starts a population from what another run learned."""
    leaves, _ = RunDirectory.open(decided.started_from).load_policy("last")
    return lambda population: saving.take_over(population, leaves, decided.started_from)


def summarise(decided: Experiment, fitted: trainer.Fitted, import_seconds: float) -> dict[str, Any]:
    """The summary of a finished run; its score is the mean return."""
    run, seconds = decided.run, fitted.seconds
    steps = run.total_updates * run.steps_per_update
    best = jax.device_get(fitted.population.best.policy)
    return build_summary(
        environment=decided.environment_name,
        algorithm=decided.algorithm,
        seeds=[run.seed + k for k in range(run.seeds)],
        steps_per_seed=steps,
        final=fitted.final["return_mean"].tolist(),
        absolute=fitted.absolute["return_mean"].tolist(),
        steps_per_second=steps * run.seeds / seconds.train,
        seconds={"import": import_seconds, **seconds._asdict()},
        parameters=[trees.named_leaves(population.member(best, k)) for k in range(run.seeds)],
        evaluation={
            "mode": run.eval_mode,
            "episodes": 10 * run.eval_episodes,
            **{name: x.tolist() for name, x in fitted.absolute.items()},
        },
    )


def load(run: str | Path, which: str = "best", *, seed: int | None = None) -> TrainedPolicy:
    """A policy from a run directory.

    Args:
      run: the directory.
      which: "best" (by evaluation score) or "last".
      seed: which seed's; None takes the seed whose best score is highest.

    Raises:
      ShoalError: there is no such run, policy or seed, or it is damaged.
    """
    if which not in ("best", "last"):
        raise ShoalError(f"which={which!r} is neither 'best' nor 'last'.")
    directory = RunDirectory.open(run)
    decided = experiment.decide(None, config_file=directory.path, overrides={})
    leaves, metadata = directory.load_policy(which)
    seeds = metadata["seeds"]
    if seed is None:
        scores = directory.load_policy("best")[1]["scores"]
        seed = seeds[int(np.argmax(scores))]
    if seed not in seeds:
        raise ShoalError(f"seed={seed} is not one of the run's: {', '.join(map(str, seeds))}.")
    spec, config = spec_of(decided.environment), trees.as_arrays(decided.config)

    def template() -> Any:
        algorithm = config.algorithm(spec)
        return algorithm.policy(algorithm.init(jax.random.key(0), 1))

    parameters = saving.restored(jax.eval_shape(template), leaves, saving.POLICY, seeds.index(seed))
    return TrainedPolicy(config, parameters, decided.environment)


def evaluate(
    policy: TrainedPolicy | str | Path,
    environment: str | Environment | None = None,
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = 10_000,
    **parameters: Any,
) -> dict[str, float]:
    """Evaluates a policy on whole episodes, one in each of `episodes` environments.

    Args:
      policy: from `load`, or a run directory.
      environment: where to; None takes the one that the policy was trained in.
      episodes: how many.
      seed: of the episodes.
      greedy: whether the policy takes its mode or samples.
      max_steps: after which an episode is cut.
      **parameters: of the environment, if it is given by name.

    Returns:
      mean, median, std, min and max of return and length, the shares that terminated, were truncated or cut,
      and the environment's own metrics.

    Raises:
      ShoalError: the environment's spaces are not the policy's.
    """
    if not isinstance(policy, TrainedPolicy):
        policy = load(policy)
    if environment is None or isinstance(environment, str):
        environment = envs.make(environment, **parameters) if environment else policy.environment
    spec = spec_of(environment)
    if spec != policy.spec:
        raise ShoalError(f"the environment has {spec} and the policy was trained in {policy.spec}.")
    at_least("episodes", episodes, 1)
    metrics = _evaluate(
        trees.as_arrays(environment),
        policy.config,
        policy.parameters,
        jax.random.key(seed),
        episodes,
        max_steps,
        greedy,
    )
    return {name: float(x) for name, x in jax.device_get(metrics).items()}


@functools.partial(jax.jit, static_argnames=("episodes", "max_steps", "greedy"))
def _evaluate(
    environment: Any,
    config: Any,
    parameters: Any,
    key: jax.Array,
    episodes: int,
    max_steps: int,
    greedy: bool,
) -> dict[str, jax.Array]:
    algorithm = config.algorithm(spec_of(environment))
    return summed_up(
        play(environment, algorithm, parameters, key, episodes=episodes, max_steps=max_steps, greedy=greedy)
    )


def _as_it_is(population: Run) -> Run:
    return population
