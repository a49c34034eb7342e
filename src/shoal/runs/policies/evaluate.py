"""Evaluation and films of trained policies."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.algos import catalogue
from shoal.algos.acting.exploration import has_noise
from shoal.base.errors import ShoalError
from shoal.base.files import find_obstacle, write_whole_file
from shoal.config import arguments, struct
from shoal.config.settings import settings_of, with_settings
from shoal.config.traced import on_host
from shoal.engine.episode_records import EpisodeRecords, record_episodes
from shoal.engine.evaluation import continue_episodes, finished_results, start_episodes, summarise_episodes
from shoal.engine.nonfinite import FirstFaults, explanation
from shoal.engine.team import team_return_of
from shoal.envs import describing, trials
from shoal.monitor.progress import Activity, ignore_text
from shoal.records.checkpoint_record import Choice
from shoal.records.directory import RunDirectory
from shoal.records.search_files import resolve_run
from shoal.records.summary import score_statistics, statistics_by_episode
from shoal.reports import figures
from shoal.reports import plots as pictures
from shoal.runs.plan import elsewhere
from shoal.runs.plan.config_files import read_config
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import Experiment
from shoal.runs.plan.variants import number
from shoal.runs.policies import recording
from shoal.runs.policies.load import (
    check_which,
    environment_for,
    load_policies,
    policy_of,
    read_policies,
    training_experiment,
)
from shoal.runs.policies.recording import EpisodeSettings, Rendered
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.runs.train import memory_limits
from shoal.types import EPISODE_ENDED, AlgorithmConfig, Environment, PyTree, spec_of
from shoal.types.spaces import Dict
from shoal.xla import machine

MAX_DRAWN_STEPS = 1000  # most steps of an episode that is drawn
MAX_STEPS = 10_000  # most steps of an episode that is evaluated


@on_host
def evaluate(
    policy: TrainedPolicy | str | Path,
    environment: str | Environment | None = None,
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = True,
    eval_epsilon: float | None = None,
    max_steps: int = MAX_STEPS,
    consecutive: int = 1,
    per_episode: bool = False,
    environment_parameters: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> dict[str, Any]:
    """Evaluate a policy on whole episodes, one in each of `episodes` environments.

    Args:
      policy: from `load`, a run directory, or what `train` or `sweep` returned.
      environment: the environment of the episodes; None uses the one that the policy was trained in.
      episodes: the number of episodes.
      seed: of the episodes.
      greedy: whether the policy takes its mode or samples.
      eval_epsilon: the probability of a random action where a policy of action values samples; None is its own.
      max_steps: the number of steps after which an episode is cut.
      consecutive: the number of episodes of one task that are played in a row with the memory kept, and count as one.
      per_episode: whether the result has an entry `episodes` too.
      environment_parameters: those parameters of the environment whose names are also arguments here.
      **parameters: of the environment, if it is given by name.
    Returns:
      mean, median, std, min and max of return and length, the shares that terminated, were truncated or cut,
      and the environment's own metrics. `episodes` has arrays [episodes], or [episodes, agents]: `return`, `length`,
      `terminated`, `truncated` and `final_reward`.
    Raises:
      ShoalError: the environment's spaces are not the policy's, or a number is not finite for a reason that the
        environment explains.
    """
    machine.prepare()
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, parameters)
    settings = _check_episode_settings(episodes, max_steps, seed, greedy)
    policy = _exploring(policy_of(policy), eval_epsilon, settings.greedy)
    count = arguments.whole_number("consecutive", consecutive, 1, arguments.LARGEST_INDEX)
    environment = trials.consecutive(environment_for(policy, environment, parameters), count)
    # Its numbers are data, so that other parameters compile nothing again.
    environment = struct.as_arrays(environment)
    per_episode = arguments.boolean("per_episode", per_episode)
    _check_episode_memory("episodes", settings.episodes, environment, policy)
    with memory_limits.report_out_of_memory():
        result = _evaluate(environment, policy.config, policy.parameters, *settings, per_episode)
        metrics, faults, records = jax.device_get(result[0]), result[1], jax.device_get(result[2])
    if reason := explanation(environment, faults):
        raise ShoalError(f"a number was not finite in {reason}.")
    found: dict[str, Any] = {name: float(x) for name, x in metrics.items()}
    if records:
        found["episodes"] = {name.replace("returned", "return"): x for name, x in records._asdict().items()}
    return found


@dataclasses.dataclass(frozen=True)
class RunEvaluation:
    """Which policies of a run `evaluate_run` evaluates, and how.

    Attributes:
      which: "best" or "last".
      checkpoint: as in `load`.
      run_seed: the seed whose policy is evaluated; None evaluates all.
      label: of the members whose policies are evaluated; None evaluates all.
      episodes: of each seed.
      seed: of the episodes, the same ones for each policy.
      greedy: whether the policies take their mode or sample; None does as the run's evaluations did.
      eval_epsilon: as in `evaluate`.
      memory_lasts: "trial" or "episode", instead of the setting that the policies were trained with.
      consecutive: as in `evaluate`; None does as the run's evaluations did. `max_steps` is that of each.
      episodes_file: an .npz file for the results of each episode: the arrays of `evaluate`'s `episodes` with a first
        axis of the policies, and `members`, their names; empty for none.
      plot: a PNG of the results of a trial's episodes by their index, and for policies with memory also the results
        if it is cleared with every episode; empty for none.
      render: a file for a film of the first episodes of the best of these policies, one that was trained to the end
        if there is any; empty for none.
      render_episodes: the number of episodes in the film.
    """

    which: str = "best"
    checkpoint: int | str | Choice | None = None
    run_seed: int | None = None
    label: str | None = None
    episodes: int = 100
    seed: int = 0
    greedy: bool | None = None
    eval_epsilon: float | None = None
    memory_lasts: str | None = None
    consecutive: int | None = None
    episodes_file: str | Path = ""
    plot: str | Path = ""
    render: str | Path = ""
    render_episodes: int = 3

    def of(self, experiment: Experiment) -> "RunEvaluation":
        """Return it with each value of its type, and with the settings of a run's evaluations where none are given.

        Raises:
          ShoalError: a value cannot be had, a file cannot be written, the environment cannot be drawn or makes no
            trials, or two settings exclude each other.
        """
        run, environment = experiment.run, experiment.environment
        greedy = run.eval_mode != "sampled" if self.greedy is None else self.greedy
        consecutive = run.eval_consecutive if self.consecutive is None else self.consecutive
        _check_episode_settings(self.episodes, 1, self.seed, greedy)  # `max_steps` is no setting of these
        files = {"plot": self.plot, "render": self.render, "episodes_file": self.episodes_file}
        paths: dict[str, Any] = {name: x if x == "" else arguments.path(name, x) for name, x in files.items()}
        asked = dataclasses.replace(
            self,
            which=check_which(self.which),
            run_seed=None if self.run_seed is None else arguments.seed("run_seed", self.run_seed),
            greedy=greedy,
            consecutive=consecutive,
            render_episodes=arguments.whole_number(
                "render_episodes", self.render_episodes, 1, arguments.LARGEST_INDEX
            ),
            **paths,
        )
        trials.consecutive(environment, consecutive)
        if consecutive != 1 and self.memory_lasts == "episode":
            raise ShoalError(
                f"consecutive={consecutive} keeps the memory from one episode to the next, which "
                "memory_lasts='episode' clears; give one of them."
            )
        if asked.episodes_file and (obstacle := find_obstacle(Path(asked.episodes_file))):
            raise ShoalError(f"episodes_file={str(asked.episodes_file)!r} cannot be written: {obstacle}.")
        if asked.render:
            recording.check_renderable(environment, asked.render)
        if asked.plot:
            _check_plot(environment, Path(asked.plot))
        return asked


@on_host
def evaluate_run(
    run: str | Path,
    environment: str | Environment | None = None,
    *,
    tell: Callable[[str], None] = ignore_text,
    environment_parameters: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate the policies of a run, of all its seeds or of one.

    Args:
      run: the run's directory, or that of a sweep, whose best setting is taken.
      environment: the environment of the episodes; None uses that of the run's evaluations.
      tell: called repeatedly with a description of the current work.
      environment_parameters: those parameters of the environment whose names are also options.
      **options: attributes of `RunEvaluation`, and parameters of the environment; those not given are the run's own.
    Returns:
      `environment`, `which`, `mode`, `memory` (its duration), `episodes`, `max_steps` and, of several agents,
      `team_return`; `metrics`, of each seed by name (see `evaluate`); `failed`, those that were not trained to the end;
      `iqm` of the seeds' mean returns and its 95% `interval`, None for too few seeds; `by_episode`, of trials (see
      `shoal.records.summary.statistics_by_episode`); `rendered`, the drawn `seed` and its `Rendered`.
    Raises:
      ShoalError: as `load`, `evaluate` and `render`.
    """
    machine.prepare()
    own = {field.name for field in dataclasses.fields(RunEvaluation)}
    asked = RunEvaluation(**{name: x for name, x in options.items() if name in own})
    others = {name: x for name, x in options.items() if name not in own}
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, others)
    run, label = resolve_run(arguments.path("run", run), asked.label)
    directory = RunDirectory.open(run)
    if environment is None:
        evaluated_in = elsewhere.saved_in(read_config(directory.path))
        parameters = {**evaluated_in.parameters, **parameters}
        if evaluated_in.entry:
            environment, parameters = describing.rebuild(evaluated_in.entry, parameters)[0], {}
    experiment = decide(
        environment, environment_parameters=parameters, config_file=directory.path, overrides={}
    )
    asked = asked.of(experiment)
    # The structure of the policies is that of the world they were trained in, which may be another one.
    stored = read_policies(
        directory, asked.which, asked.checkpoint, training_experiment(directory, parameters)
    )
    policies = {
        k: _exploring(policy, asked.eval_epsilon, bool(asked.greedy))
        for k, policy in load_policies(stored, asked.run_seed, label, asked.memory_lasts).items()
    }
    results = _Evaluated(asked, experiment, policies, stored.failed_of(policies), tell).results()
    if stored.experiment.evolution.tuned:  # members that copied each other are no sample of runs
        results["interval"] = None
    return {"environment": experiment.environment_name, "which": stored.title, **results}


class _Evaluated(NamedTuple):
    """The policies of a run by the names of their members, which `evaluate_run` evaluates."""

    asked: RunEvaluation  # with the settings of the run's evaluations
    experiment: Experiment
    policies: Mapping[int | str, TrainedPolicy]
    failed: Sequence[int | str]  # the names of members that were not trained to the end
    tell: Callable[[str], None]

    def results(self) -> dict[str, Any]:
        """Evaluate them and write the files."""
        asked, environment, count = self.asked, self.experiment.environment, len(self.policies)
        one = next(iter(self.policies.values()))
        if asked.render:
            _check_episode_memory("render_episodes", asked.render_episodes, environment, one)
        has_any = len(self.failed) < count
        if not has_any and asked.run_seed is None and not asked.checkpoint:
            names = ", ".join(map(str, self.failed))
            raise ShoalError(
                f"each had a number that was not finite, so that no seed is the best; name one: seed={names}."
            )
        self.tell(
            f"evaluating {count} polic{'y' if count == 1 else 'ies'} on {asked.episodes:,} episodes each"
        )
        max_steps = min(MAX_STEPS * (asked.consecutive or 1), arguments.LARGEST_INDEX)
        per_episode = asked.episodes_file != ""
        metrics = self.metrics(
            self.policies, consecutive=asked.consecutive, max_steps=max_steps, per_episode=per_episode
        )
        # They are for the file alone, since the other results are printed and written as JSON.
        if per_episode:
            self.write_episodes([x.pop("episodes") for x in metrics.values()])
        # Where each has failed its policy was asked for by name, or is of a checkpoint.
        left_out = [k for k, name in enumerate(self.policies) if has_any and name in self.failed]
        results = {
            "failed": self.failed,
            **({"team_return": team_return_of(environment)} if environment.num_agents > 1 else {}),
            "mode": "greedy" if asked.greedy else "sampled",
            "memory": one.memory_lasts,
            "episodes": asked.episodes,
            "max_steps": max_steps,
            "metrics": metrics,
            **score_statistics([x["return_mean"] for x in metrics.values()], left_out),
            "by_episode": statistics_by_episode(list(metrics.values())),
        }
        if asked.plot:
            self.tell(f"evaluating with the memory cleared for {asked.plot}")
            self.plot_trials(results)
        return results | ({"rendered": self.draw_best(metrics)} if asked.render else {})

    def metrics(
        self, policies: Mapping[int | str, TrainedPolicy], **further: Any
    ) -> dict[int | str, dict[str, Any]]:
        """Evaluate policies on the same episodes; `further` are arguments of `evaluate`."""
        asked = self.asked
        alike: dict[str, Any] = {"episodes": asked.episodes, "seed": asked.seed, "greedy": asked.greedy}
        return {
            k: evaluate(policy, self.experiment.environment, **alike, **further)
            for k, policy in policies.items()
        }

    def write_episodes(self, of_members: list[dict[str, np.ndarray]]) -> None:
        """Write the results of each episode to a file."""
        arrays = {name: np.stack([x[name] for x in of_members]) for name in of_members[0]}
        with write_whole_file(Path(self.asked.episodes_file)) as file:
            np.savez(file, allow_pickle=False, members=np.array(list(map(str, self.policies))), **arrays)

    def plot_trials(self, results: Mapping[str, Any]) -> None:
        """Plot the return by the index of an episode in its trial, with the policies' memory and without."""
        has_memory = results["memory"] in ("trial", "run")
        name = "memory of the whole trial" if has_memory else "no memory of the trial"
        curves = {name: results["by_episode"]}
        if has_memory:
            cleared = {k: policy.with_memory_lasts("episode") for k, policy in self.policies.items()}
            metrics = self.metrics(cleared)
            curves["memory cleared with every episode"] = statistics_by_episode(list(metrics.values()))
        seeds = f"{len(self.policies)} seeds" if len(self.policies) > 1 else "one seed"
        title = f"{self.experiment.environment_name}, {seeds}, {self.asked.episodes} trials each"
        series = {name: x["return"]["seeds"] for name, x in curves.items()}
        pictures.plot_by_episode(Path(self.asked.plot), series, title)

    def draw_best(self, metrics: Mapping[int | str, Mapping[str, float]]) -> dict[str, Any]:
        """Draw the policy of the highest mean return that has not failed; its seed, and its `Rendered`."""
        asked = self.asked
        ranked = [k for k in self.policies if k not in self.failed] or list(self.policies)
        # A return that is not finite is no best one.
        best = max(ranked, key=lambda k: np.nan_to_num(metrics[k]["return_mean"], nan=-np.inf))
        policy = self.policies[best]
        environment = struct.as_arrays(environment_for(policy, self.experiment.environment, {}))
        settings = _check_episode_settings(asked.render_episodes, MAX_DRAWN_STEPS, asked.seed, asked.greedy)
        rendered = recording.draw_episodes(policy, environment, asked.render, settings, self.tell)
        return {"seed": best, **dataclasses.asdict(rendered), "path": str(rendered.path)}


@on_host
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
    environment_parameters: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> Rendered:
    """Draw episodes of a policy into a file, one after the other, each image with its step and the return so far.

    They are the first episodes that `evaluate` plays with the same seed.

    Args:
      policy: from `load`, a run directory, or what `train` or `sweep` returned.
      path: ends in .gif, or .mp4 where the program ffmpeg is on the path, or .png for the first image alone, or
        .pvd for ParaView where the environment has a `geometry(state)`.
      environment: the environment of the episodes; None uses the one that the policy was trained in.
      episodes: the number of episodes.
      seed: of the episodes.
      greedy: whether the policy takes its mode or samples.
      max_steps: of an episode; later steps are not shown.
      progress: whether progress is shown on standard error if drawing takes more than some seconds.
      environment_parameters: those parameters of the environment whose names are also arguments here.
      **parameters: of the environment, if it is given by name.
    Returns:
      the path, the number of images, and return and length of each episode.
    Raises:
      ShoalError: the environment cannot be drawn, its spaces are not the policy's, or the file cannot be written.
    """
    machine.prepare()
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, parameters)
    settings, path = _check_episode_settings(episodes, max_steps, seed, greedy), arguments.path("path", path)
    policy = policy_of(policy)
    environment = struct.as_arrays(environment_for(policy, environment, parameters))
    _check_episode_memory("episodes", settings.episodes, environment, policy)
    with memory_limits.report_out_of_memory():
        if not progress:
            return recording.draw_episodes(policy, environment, path, settings)
        with Activity() as activity:
            return recording.draw_episodes(policy, environment, path, settings, activity.describe)


def _check_plot(environment: Environment, path: Path) -> None:
    """Raise ShoalError unless the episodes of trials can be plotted by their index, and the plot be written."""
    space = environment.observation_space
    if not isinstance(space, Dict) or EPISODE_ENDED not in space:
        raise ShoalError(
            f"plot={str(path)!r} draws the episodes of trials, and these are none; trial_episodes=5 makes some."
        )
    if obstacle := find_obstacle(path):
        raise ShoalError(f"plot={str(path)!r} cannot be written: {obstacle}.")
    figures.require_drawing(path)


def _exploring(policy: TrainedPolicy, eval_epsilon: object, greedy: bool) -> TrainedPolicy:
    """Return a policy that takes random actions with this probability where it samples; with None it stays as it is.

    Raises:
      ShoalError: it takes none, or does not sample.
    """
    if eval_epsilon is None:
        return policy
    name, share = "eval_epsilon", number("eval_epsilon", eval_epsilon)
    setting, problem = settings_of(policy.config).get(name), ""
    if setting is not None:
        struct.check_bounds(name, share, setting.field.bounds or struct.Bounds())
    if setting is None:
        algorithm = catalogue.name_of(policy.config)
        problem = f"is of policies of action values, and this one's algorithm is {algorithm}"
    elif has_noise(policy.parameters):
        problem = "has no effect on noisy layers, whose noise explores; leave it out"
    elif greedy:
        problem = "has no effect on a policy that takes its mode; sample actions (--sampled; greedy=False)"
    if problem:
        raise ShoalError(f"{name}={share:g} {problem}.")
    return dataclasses.replace(
        policy, config=struct.as_arrays(with_settings(policy.config, eval_epsilon=share))
    )


def _check_episode_settings(
    episodes: object, max_steps: object, seed: object, greedy: object
) -> EpisodeSettings:
    """Raise ShoalError unless these settings of episodes are possible."""
    largest = arguments.LARGEST_INDEX
    return EpisodeSettings(
        jax.random.key(arguments.seed("seed", seed)),
        arguments.whole_number("episodes", episodes, 1, largest),
        arguments.whole_number("max_steps", max_steps, 1, largest),
        arguments.boolean("greedy", greedy),
    )


def _check_episode_memory(name: str, episodes: int, environment: Environment, policy: TrainedPolicy) -> None:
    """Raise ShoalError unless memory suffices to play the episodes at once."""
    bytes_each = memory_limits.episode_bytes(environment, policy.config)
    memory_limits.check_count(name, episodes, bytes_each, "environments", jax.devices()[0])


@functools.partial(jax.jit, static_argnames=("episodes", "max_steps", "greedy", "per_episode"))
def _evaluate(
    environment: Environment,
    config: AlgorithmConfig,
    parameters: PyTree,
    key: jax.Array,
    episodes: int,
    max_steps: int,
    greedy: bool,
    per_episode: bool,
) -> tuple[dict[str, jax.Array], FirstFaults | tuple[()], EpisodeRecords | tuple[()]]:
    """Return the metrics of whole episodes, the states at fault, where the environment explains them, and the results
    of each episode, where they are asked for.
    """
    algorithm = config.algorithm(spec_of(environment))
    evaluation = start_episodes(environment, algorithm, key, episodes)
    play = environment, algorithm, parameters, evaluation, max_steps, greedy
    evaluation, records = record_episodes(*play) if per_episode else (continue_episodes(*play), ())
    return summarise_episodes(finished_results(environment, evaluation)), evaluation.faults, records
