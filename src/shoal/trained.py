"""Trained policies: loading from a run's directory, evaluation, and films."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal import arguments, trees
from shoal import experiment as experiments
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.parameters import check_parameters
from shoal.envs.registry import make
from shoal.errors import ShoalError
from shoal.runtime import limits, machine
from shoal.runtime.acting import TrainedPolicy
from shoal.runtime.disk import policy_files
from shoal.runtime.disk.checkpoints import Checkpoints
from shoal.runtime.disk.directory import RunDirectory
from shoal.runtime.disk.records import Choice, choose_checkpoint
from shoal.runtime.disk.summary import score_statistics, statistics_by_episode
from shoal.runtime.evaluation import play_episodes, summarise_episodes
from shoal.runtime.show import plots as pictures
from shoal.runtime.show import recording
from shoal.runtime.show.progress import Activity, ignore_text
from shoal.runtime.show.recording import Rendered
from shoal.runtime.team import team_return_of
from shoal.spaces import Dict
from shoal.types import EPISODE_ENDED, Clock, Environment, Learner, spec_of
from shoal.user_code import reports_user_code

MAX_DRAWN_STEPS = 1000  # most steps of an episode that is drawn


@reports_user_code
def load(
    run: str | Path,
    which: str = "best",
    *,
    seed: int | None = None,
    environment: Environment | None = None,
    checkpoint: int | str | Choice | None = None,
    parts: Sequence[str] = (),
) -> TrainedPolicy:
    """Load a policy from a run directory.

    Args:
      run: the directory.
      which: "best" (by evaluation score) or "last".
      seed: the seed whose policy is loaded; None uses the seed with the highest finite best score.
      environment: that the run was trained in, where it cannot be made by a name (a wrapper of your own).
      checkpoint: instead of `which`, the checkpoint whose current policy is loaded: its environment steps, "best" or
        "last", or a function that is given the records of all checkpoints by steps and returns the steps of one; a
        record has `evaluation`, the metrics of the evaluation there was, a number per seed each, and their `iqm`.
      parts: the parts of the policy's parameters that are loaded, such as ("actor",); the others are those of a new
        policy. Empty loads all.
    Raises:
      ShoalError: there is no such run, policy, checkpoint, part or seed, it is damaged, or no seed is given and no
        score is finite.
    """
    directory = RunDirectory.open(arguments.path("run", run))
    which, seed = check_which(which), None if seed is None else arguments.seed("seed", seed)
    if environment is not None:
        environment_of(environment, {})
    experiment = experiments.decide(environment, config_file=directory.path, overrides={})
    return _load_policy(_read_policies(directory, which, checkpoint, experiment), seed, experiment, parts)


@reports_user_code
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
    """Evaluate a policy on whole episodes, one in each of `episodes` environments.

    Args:
      policy: from `load`, or a run directory.
      environment: the environment of the episodes; None uses the one that the policy was trained in.
      episodes: the number of episodes.
      seed: of the episodes.
      greedy: whether the policy takes its mode or samples.
      max_steps: the number of steps after which an episode is cut.
      **parameters: of the environment, if it is given by name.
    Returns:
      mean, median, std, min and max of return and length, the shares that terminated, were truncated or cut,
      and the environment's own metrics.
    Raises:
      ShoalError: the environment's spaces are not the policy's.
    """
    machine.prepare()
    settings = _check_episode_settings(episodes, max_steps, seed, greedy)
    policy = policy_of(policy)
    environment = trees.as_arrays(environment_for(policy, environment, parameters))
    _check_episode_memory("episodes", settings.episodes, environment, policy)
    with limits.report_out_of_memory():
        metrics = jax.device_get(_evaluate(environment, policy.config, policy.parameters, *settings))
    return {name: float(x) for name, x in metrics.items()}


@reports_user_code
def evaluate_run(
    run: str | Path,
    environment: str | None = None,
    *,
    which: str = "best",
    checkpoint: int | str | Choice | None = None,
    run_seed: int | None = None,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool | None = None,
    memory_lasts: str | None = None,
    plot: str | Path = "",
    render: str | Path = "",
    render_episodes: int = 3,
    tell: Callable[[str], None] = ignore_text,
    **parameters: Any,
) -> dict[str, Any]:
    """Evaluate the policies of a run, of all its seeds or of one.

    Args:
      run: the run's directory.
      environment: the environment of the episodes; None uses the run's own.
      which: "best" or "last".
      checkpoint: as in `load`.
      run_seed: the seed whose policy is evaluated; None evaluates all.
      episodes: of each seed.
      seed: of the episodes, the same ones for each policy.
      greedy: whether the policies take their mode or sample; None does as the run's evaluations did.
      memory_lasts: "trial" or "episode", instead of the setting that the policies were trained with.
      plot: a PNG of the results of a trial's episodes by their index, and for policies with memory also the results
        if it is cleared with every episode; empty for none.
      render: a file for a film of the first episodes of the best of these policies; empty for none.
      render_episodes: the number of episodes in the film.
      tell: called repeatedly with a description of the current work.
      **parameters: of the environment; those not given are the run's own.
    Returns:
      `environment`, `which`, `mode`, `memory` (its duration), `episodes` and, of several agents, `team_return`;
      `metrics`, of each seed by name (see `evaluate`); `iqm` of the seeds' mean returns and its 95% `interval`;
      `by_episode`, of trials (see `shoal.runtime.disk.summary.statistics_by_episode`); `rendered`, the drawn `seed` and
      its `Rendered`.
    Raises:
      ShoalError: as `load`, `evaluate` and `render`.
    """
    machine.prepare()
    render_episodes = arguments.whole_number("render_episodes", render_episodes, 1, arguments.LARGEST_INDEX)
    _check_episode_settings(episodes, 1, seed, greedy is None or greedy)
    run_seed = None if run_seed is None else arguments.seed("run_seed", run_seed)
    plot, render = (
        x if x == "" else arguments.path(name, x) for name, x in (("plot", plot), ("render", render))
    )
    directory = RunDirectory.open(arguments.path("run", run))
    experiment = experiments.decide(
        environment, environment_parameters=parameters, config_file=directory.path, overrides={}
    )
    _check_pictures(experiment.environment, plot, render, render_episodes)
    greedy = experiment.run.eval_mode != "sampled" if greedy is None else greedy
    training_experiment = _training_experiment(directory, parameters)
    stored = _read_policies(directory, check_which(which), checkpoint, training_experiment)
    policies = _load_policies(stored, run_seed, memory_lasts, training_experiment)
    if render:
        _check_episode_memory(
            "render_episodes", render_episodes, experiment.environment, next(iter(policies.values()))
        )
    settings: dict[str, Any] = dict(environment=experiment.environment, seed=seed, greedy=greedy)
    results: dict[str, Any] = {"environment": experiment.environment_name, "which": which}
    if stored.checkpoint is not None:
        results["which"] = f"checkpoint {stored.checkpoint:,}"
    if experiment.environment.num_agents > 1:
        results["team_return"] = team_return_of(experiment.environment)
    tell(
        f"evaluating {len(policies)} polic{'y' if len(policies) == 1 else 'ies'} on {episodes:,} episodes each"
    )
    results |= _evaluate_each(policies, episodes=episodes, **settings)
    if plot:
        tell(f"evaluating with the memory cleared for {plot}")
        _plot_trials(Path(plot), results, policies, episodes=episodes, **settings)
    if render:
        results["rendered"] = _draw_best(
            policies, results["metrics"], render, episodes=render_episodes, tell=tell, **settings
        )
    return results


@reports_user_code
def render(
    policy: TrainedPolicy | str | Path,
    path: str | Path,
    environment: str | Environment | None = None,
    *,
    episodes: int = 3,
    seed: int = 0,
    greedy: bool = True,
    max_steps: int = MAX_DRAWN_STEPS,
    progress: bool = True,
    **parameters: Any,
) -> Rendered:
    """Draw episodes of a policy into a file, one after the other, each image with its step and the return so far.

    They are the first episodes that `evaluate` plays with the same seed.

    Args:
      policy: from `load`, or a run directory.
      path: ends in .gif, or .mp4 where the program ffmpeg is on the path, or .png for the first image alone.
      environment: the environment of the episodes; None uses the one that the policy was trained in.
      episodes: the number of episodes.
      seed: of the episodes.
      greedy: whether the policy takes its mode or samples.
      max_steps: of an episode; later steps are not shown.
      progress: whether progress is shown on standard error if drawing takes more than some seconds.
      **parameters: of the environment, if it is given by name.
    Returns:
      the path, the number of images, and return and length of each episode.
    Raises:
      ShoalError: the environment cannot be drawn, its spaces are not the policy's, or the file cannot be written.
    """
    machine.prepare()
    settings, path = _check_episode_settings(episodes, max_steps, seed, greedy), arguments.path("path", path)
    policy = policy_of(policy)
    environment = trees.as_arrays(environment_for(policy, environment, parameters))
    _check_episode_memory("episodes", settings.episodes, environment, policy)
    with limits.report_out_of_memory():
        if not progress:
            return _draw_episodes(policy, environment, path, ignore_text, settings)
        with Activity() as activity:
            return _draw_episodes(policy, environment, path, activity.describe, settings)


def _draw_episodes(
    policy: TrainedPolicy,
    environment: Environment,
    path: Path,
    tell: Callable[[str], None],
    settings: "_EpisodeSettings",
) -> Rendered:
    return recording.draw_episodes(
        environment,
        policy.config,
        policy.parameters,
        settings.key,
        path,
        episodes=settings.episodes,
        max_steps=settings.max_steps,
        greedy=settings.greedy,
        tell=tell,
    )


class _StoredPolicies(NamedTuple):
    """The policies of all seeds as they were saved."""

    directory: RunDirectory
    leaves: Mapping[str, Any]  # by name, each with a leading seed axis
    seeds: list[int]
    scores: Sequence[Any]  # of each seed; empty where they are unknown
    checkpoint: int | None  # its steps; None for the best or the last policies


def _read_policies(
    directory: RunDirectory,
    which: str,
    checkpoint: int | str | Choice | None,
    experiment: experiments.Experiment,
) -> _StoredPolicies:
    """Read the policies of all seeds, from `best/` or `last/` or from a checkpoint.

    Raises:
      ShoalError: there is no such policy or checkpoint, or it is damaged.
    """
    if checkpoint is None or checkpoint == "":
        leaves, metadata = directory.load_policy(which)
        return _StoredPolicies(directory, leaves, metadata["seeds"], (), None)
    checkpoints = Checkpoints(directory.path)
    steps = choose_checkpoint(checkpoints, checkpoint)
    leaves, record = checkpoints.load(steps)
    seeds = [experiment.run.seed + k for k in range(experiment.run.seeds)]
    scores = (record["evaluation"] or {}).get("score", ())
    return _StoredPolicies(directory, leaves, seeds, scores, steps)


def _best_seed(stored: _StoredPolicies) -> int:
    """Return the seed with the highest finite score.

    Raises:
      ShoalError: there is none.
    """
    if stored.checkpoint is None:
        return policy_files.best_seed(stored.directory)
    nothing_finite = (
        f"the checkpoint at {stored.checkpoint} was not written at an evaluation with a finite score"
    )
    return policy_files.seed_with_best_score(stored.seeds, stored.scores, nothing_finite)


def _load_policy(
    stored: _StoredPolicies, seed: int | None, experiment: experiments.Experiment, parts: Sequence[str] = ()
) -> TrainedPolicy:
    """Load a policy where the run's settings are known; see `load`."""
    seed = _best_seed(stored) if seed is None else seed
    if seed not in stored.seeds:
        raise ShoalError(f"seed={seed} is not one of the run's: {', '.join(map(str, stored.seeds))}.")
    spec, config = spec_of(experiment.environment), trees.as_arrays(experiments.resolve(experiment.config))
    member = stored.seeds.index(seed)

    def init(config: Any) -> Learner:
        return config.algorithm(spec).init(jax.random.key(0), experiment.run.num_envs)

    def policy(config: Any, learner: Learner) -> Any:
        return config.algorithm(spec).policy(learner, Clock.zero())

    learner = jax.eval_shape(init, config)
    if stored.checkpoint is None:
        template = jax.eval_shape(policy, config, learner)
        parameters = policy_files.restore(template, stored.leaves, policy_files.POLICY, member)
    else:
        learner = policy_files.restore(learner, stored.leaves, policy_files.LEARNER, member)
        parameters = jax.jit(policy)(config, learner)
    if parts:
        new = jax.jit(lambda config: policy(config, init(config)))(config)
        parameters = _take_parts(parameters, new, parts)
    return TrainedPolicy(config, parameters, experiment.environment)


def _take_parts(saved: Any, new: Any, parts: Sequence[str]) -> Any:
    """Replace some parts of new parameters by saved ones.

    Raises:
      ShoalError: there is no such part.
    """
    leaves, names = trees.named_leaves(saved), [parts] if isinstance(parts, str) else list(parts)
    known = sorted({name.split("/", 1)[0] for name in leaves})
    for part in names:
        if part not in known:
            raise ShoalError(
                f"parts: there is no {part!r} in the policy's parameters; there are {', '.join(known)}."
            )
    taken = {name: x for name, x in leaves.items() if name.split("/", 1)[0] in names}
    return trees.with_named_leaves(new, trees.named_leaves(new) | taken)


def _training_experiment(directory: RunDirectory, parameters: Mapping[str, Any]) -> experiments.Experiment:
    """Return a run's settings, with other parameters if its environment can no longer be made."""
    try:
        return experiments.decide(None, config_file=directory.path, overrides={})
    except ShoalError:
        if not parameters:
            raise
        return experiments.decide(
            None, environment_parameters=parameters, config_file=directory.path, overrides={}
        )


def _load_policies(
    stored: _StoredPolicies, seed: int | None, memory_lasts: str | None, experiment: experiments.Experiment
) -> dict[int, TrainedPolicy]:
    """Load the policies of a run by their seeds, or that of one seed."""
    seeds = stored.seeds if seed is None else [seed]
    policies = {k: _load_policy(stored, k, experiment) for k in seeds}
    if memory_lasts is None:
        return policies
    return {k: policy.with_memory_lasts(memory_lasts) for k, policy in policies.items()}


def _evaluate_each(
    policies: Mapping[int, TrainedPolicy], *, episodes: int, greedy: bool, **settings: Any
) -> dict[str, Any]:
    """Build the result of `evaluate_run` for the policies of a run's seeds."""
    metrics = {
        k: evaluate(policy, episodes=episodes, greedy=greedy, **settings) for k, policy in policies.items()
    }
    return {
        "mode": "greedy" if greedy else "sampled",
        "memory": next(iter(policies.values())).memory_lasts,
        "episodes": episodes,
        "metrics": metrics,
        **score_statistics([x["return_mean"] for x in metrics.values()]),
        "by_episode": statistics_by_episode(list(metrics.values())),
    }


def _check_pictures(
    environment: Environment, plot: str | Path, render: str | Path, render_episodes: int
) -> None:
    """Raise ShoalError unless the requested plot and film can be drawn and written."""
    if render:
        recording.check_renderable(environment, render, render_episodes)
    if not plot:
        return
    path, space = Path(plot), environment.observation_space
    if not isinstance(space, Dict) or EPISODE_ENDED not in space:
        raise ShoalError(
            f"plot={str(path)!r} draws the episodes of trials, and these are none; trial_episodes=5 makes some."
        )
    if not path.resolve().parent.is_dir():
        raise ShoalError(f"plot={str(path)!r}: there is no directory {str(path.parent)!r}.")


def _plot_trials(
    path: Path, results: dict[str, Any], policies: Mapping[int, TrainedPolicy], **settings: Any
) -> None:
    """Plot the return by the index of an episode in its trial, with the policies' memory and without."""
    has_memory = results["memory"] == "trial"
    curves = {"memory of the whole trial" if has_memory else "no memory of the trial": results["by_episode"]}
    if has_memory:
        cleared = [evaluate(policy.with_memory_lasts("episode"), **settings) for policy in policies.values()]
        curves["memory cleared with every episode"] = statistics_by_episode(cleared)
    seeds = f"{len(policies)} seeds" if len(policies) > 1 else "one seed"
    title = f"{results['environment']}, {seeds}, {results['episodes']} trials each"
    pictures.plot_by_episode(path, {name: x["return"]["seeds"] for name, x in curves.items()}, title)


def _draw_best(
    policies: Mapping[int, TrainedPolicy],
    metrics: Mapping[int, Mapping[str, float]],
    path: str | Path,
    environment: Environment,
    tell: Callable[[str], None],
    *,
    episodes: int,
    seed: int,
    greedy: bool,
) -> dict[str, Any]:
    """Draw the policy of the highest mean return; its seed, and its `Rendered`."""
    best = max(policies, key=lambda k: np.nan_to_num(metrics[k]["return_mean"], nan=-np.inf))
    policy = policies[best]
    environment = trees.as_arrays(environment_for(policy, environment, {}))
    rendered = _draw_episodes(
        policy,
        environment,
        Path(path),
        tell,
        _check_episode_settings(episodes, MAX_DRAWN_STEPS, seed, greedy),
    )
    return {"seed": best, **dataclasses.asdict(rendered), "path": str(rendered.path)}


class _EpisodeSettings(NamedTuple):
    """The settings of evaluation episodes, validated."""

    key: jax.Array
    episodes: int
    max_steps: int
    greedy: bool


def _check_episode_settings(episodes: Any, max_steps: Any, seed: Any, greedy: Any) -> _EpisodeSettings:
    """Raise ShoalError unless these settings of episodes are possible."""
    largest = arguments.LARGEST_INDEX
    return _EpisodeSettings(
        jax.random.key(arguments.seed("seed", seed)),
        arguments.whole_number("episodes", episodes, 1, largest),
        arguments.whole_number("max_steps", max_steps, 1, largest),
        arguments.boolean("greedy", greedy),
    )


def _check_episode_memory(name: str, episodes: int, environment: Environment, policy: TrainedPolicy) -> None:
    """Raise ShoalError unless so many episodes can be played at once."""
    bytes_each = limits.episode_bytes(environment, policy.config)
    limits.check_count(name, episodes, bytes_each, "environments", jax.devices()[0])


def policy_of(policy: TrainedPolicy | str | Path) -> TrainedPolicy:
    """Return a policy, loaded if a run directory is given.

    Raises:
      ShoalError: as `load`, or it is neither.
    """
    return policy if isinstance(policy, TrainedPolicy) else load(arguments.path("policy", policy))


def environment_of(environment: str | Environment, parameters: Mapping[str, Any]) -> Environment:
    """Make an environment by its name and parameters, or return the given one.

    Raises:
      ShoalError: there is no such environment or parameter, parameters were given for an environment object, or a
        parameter is out of its bounds.
    """
    if isinstance(environment, str):
        return make(environment, **parameters)
    if isinstance(environment, type) or not all(
        hasattr(environment, x) for x in ("reset", "step", "action_space")
    ):
        kind = "a class" if isinstance(environment, type) else f"of type {type(environment).__name__}"
        raise ShoalError(
            f"environment={arguments.short_repr(environment)} is {kind}; give an environment, or a name such as "
            "'CartPole-v1'."
        )
    if parameters:
        raise ShoalError(f"{', '.join(parameters)} cannot be set on an environment that is made already.")
    check_parameters(environment)
    return environment


def environment_for(
    policy: TrainedPolicy, environment: str | Environment | None, parameters: Mapping[str, Any]
) -> Environment:
    """Return the environment that a policy will act in, its own if none is named.

    Raises:
      ShoalError: as `environment_of`, or its spaces are not the policy's.
    """
    name = environment if isinstance(environment, str) else ""
    environment = environment_of(policy.environment if environment is None else environment, parameters)
    require_contract(environment, name)
    spec = spec_of(environment)
    if spec != policy.spec:
        raise ShoalError(f"the environment has {spec} and the policy was trained in {policy.spec}.")
    return environment


def check_which(which: str) -> str:
    """Raises ShoalError unless `which` names a saved policy."""
    if not isinstance(which, str) or which not in ("best", "last"):
        raise ShoalError(f"which={arguments.short_repr(which)} is neither 'best' nor 'last'.")
    return which


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
    return summarise_episodes(
        play_episodes(
            environment, algorithm, parameters, key, episodes=episodes, max_steps=max_steps, greedy=greedy
        )
    )
