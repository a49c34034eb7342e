"""Evaluation: exactly N whole episodes, one in each of N separate environments.

The environments play one episode each until all have ended or the limit of steps is reached; one that has
ended stays unchanged. So short episodes are not over-represented, as they are where the first N episodes to
end are counted.

The devices that one run has play a share of the episodes each, and gather them. What is drawn does not depend on their
number: an environment's key is by the episode's number among all, and a policy that draws acts for all on each device.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.config import struct
from shoal.engine import team
from shoal.engine.metrics import checked_numbers
from shoal.engine.nonfinite import NOWHERE, STOPPED, FirstFaults, keep_first_faults, no_faults
from shoal.engine.run import (
    ENV_AXIS,
    Best,
    Evaluated,
    ProgramSettings,
    Run,
    Stream,
    evaluation_environment_of,
    policy_of,
    stream_key,
)
from shoal.envs import summaries
from shoal.envs.base import counted_reward
from shoal.envs.trials import OF_EPISODE_SUFFIX
from shoal.types import (
    Algorithm,
    Array,
    Environment,
    Memory,
    Policy,
    PyTree,
    State,
    TimeStep,
    for_actor,
    spec_of,
)
from shoal.types.contract import described, refuse
from shoal.xla.hoisting import depends_on_key

# The entries of `info` that a trial has of each of its episodes, of every world.
TRIAL_RESULTS = tuple(f"{name}{OF_EPISODE_SUFFIX}" for name in ("return", "length"))


class EpisodeResults(NamedTuple):
    """The results of N whole episodes, [N] each."""

    returned: Array  # the return; the team's, where there are several agents
    length: Array
    terminated: Array
    truncated: Array  # an episode that is neither terminated nor truncated reached the limit of steps
    info: Mapping[str, Array]  # the environment's own metrics, reduced as it declares
    agents: PyTree = ()  # the returns of several agents, [N, A]; () for one
    last_reward: Array | tuple[()] = ()  # with several agents, the team's reward in the last step; () for one


class EvaluationState(NamedTuple):
    """State of N running episodes, one in each environment."""

    key: Array  # for the episodes' steps
    step: Array
    timestep: TimeStep
    state: State
    memory: Memory
    results: EpisodeResults
    faults: FirstFaults | tuple[()]  # () where the environment explains no faults


class Share(NamedTuple):
    """The episodes that a device plays of those of a run, by their numbers; the last one may be there again."""

    rows: Array  # [S]
    episodes: int  # of all devices

    def gathered(self, x: Array) -> Array:
        """Return the rows of all devices, [N, ...], of those of each, [S, ...]."""
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                self.gathered(jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        return jax.lax.all_gather(x, ENV_AXIS, tiled=True)[: self.episodes]


def share_of(episodes: int, devices: int) -> Share:
    """Return the share of this device: consecutive episodes, as many on each."""
    size = -(-episodes // devices)
    rows = jax.lax.axis_index(ENV_AXIS) * size + jnp.arange(size)
    return Share(jnp.minimum(rows, episodes - 1), episodes)


def play_episodes(
    environment: Environment,
    algorithm: Algorithm,
    policy: Policy,
    key: Array,
    *,
    episodes: int,
    max_steps: int,
    greedy: bool,
) -> EpisodeResults:
    """Play one episode in each of `episodes` environments, for at most `max_steps` steps."""
    evaluation = start_episodes(environment, algorithm, key, episodes)
    evaluation = continue_episodes(environment, algorithm, policy, evaluation, max_steps, greedy)
    return finished_results(environment, evaluation)


def continue_episodes(
    environment: Environment,
    algorithm: Algorithm,
    policy: Policy,
    evaluation: EvaluationState,
    until: Array | int,
    greedy: bool,
    devices: int = 1,
) -> EvaluationState:
    """Play running episodes until all have ended or `until` steps of each have been made.

    Args:
      devices: the size of the axis of devices, each of which plays a share.
    """
    share = share_of(evaluation.timestep.last.shape[0], devices) if devices > 1 else None

    def body(evaluation: EvaluationState) -> EvaluationState:
        return step_episodes(environment, algorithm, policy, evaluation, greedy, share)

    def play(evaluation: EvaluationState) -> EvaluationState:
        return jax.lax.while_loop(lambda x: is_running(x, until), body, evaluation)

    if share is None:
        return play(evaluation)
    key, step, *episodes = evaluation
    own = play(EvaluationState(key, step, *jax.tree.map(lambda x: x[share.rows], episodes)))
    _, step, *episodes = own
    return EvaluationState(key, jax.lax.pmax(step, ENV_AXIS), *jax.tree.map(share.gathered, episodes))


def is_running(evaluation: EvaluationState, until: Array | int) -> Array:
    """Report whether an episode has not ended after fewer than `until` steps."""
    return (evaluation.step < until) & ~jnp.all(evaluation.timestep.last)


def finished_results(environment: Environment, evaluation: EvaluationState) -> EpisodeResults:
    """Return the results of episodes that have ended, with the environment's own metrics reduced."""
    results = evaluation.results
    info = summaries.finalise(results.info, environment.info_summaries, results.length)
    return results._replace(info=info)


def start_episodes(
    environment: Environment, algorithm: Algorithm, key: Array, episodes: int
) -> EvaluationState:
    """Start `episodes` episodes."""
    reset_key, step_key = jax.random.split(key)
    state, timestep = jax.vmap(environment.reset)(jax.random.split(reset_key, episodes))
    zeros = jnp.zeros(episodes)
    info = summaries.initial(timestep.info, environment.info_summaries)
    of_agents = (team.zeros(environment, episodes), zeros) if environment.num_agents > 1 else ()
    return EvaluationState(
        key=step_key,
        step=jnp.zeros((), jnp.int32),
        timestep=timestep,
        state=state,
        memory=algorithm.memory((episodes,)),
        results=EpisodeResults(zeros, zeros, zeros > 0, zeros > 0, info, *of_agents),
        faults=no_faults(environment, state),
    )


def step_episodes(
    environment: Environment,
    algorithm: Algorithm,
    policy: Policy,
    evaluation: EvaluationState,
    greedy: bool,
    share: Share | None = None,
) -> EvaluationState:
    """Make one step of every episode that has not ended; the others do not change.

    Args:
      share: which of more episodes they are; None for all of them.
    """
    key, step, timestep, state, memory, results, faults = evaluation
    act_key, env_key = jax.random.split(jax.random.fold_in(key, step))

    def act(key: Array, memory: Memory, timestep: TimeStep) -> tuple[Memory, PyTree]:
        return algorithm.act(policy, memory, timestep, key, greedy=greedy)[:2]

    inputs = (memory, for_actor(timestep, spec_of(environment)))
    keys = jax.random.split(env_key, timestep.last.shape[0] if share is None else share.episodes)
    if share is None:
        new_memory, action = act(act_key, *inputs)
    else:
        new_memory, action = _act_for_share(share, act, act_key, inputs)
        keys = keys[share.rows]
    new_state, new_timestep = jax.vmap(environment.step)(state, action, keys)
    new_results = add_timestep(environment, results, new_timestep, timestep)
    new_faults = keep_first_faults(faults, new_state, new_timestep)
    new = (new_timestep, new_state, new_memory, new_results, new_faults)
    # An environment is undefined after its episode has ended; what it then returns is computed and left out.
    selected = struct.where(timestep.last, (timestep, state, memory, results, faults), new)
    return EvaluationState(key, step + 1, *selected)


def _act_for_share(
    share: Share, act: Callable[..., PyTree], key: Array, inputs: tuple[Memory, TimeStep]
) -> tuple[Memory, PyTree]:
    """Act in a share of the episodes as where all were together.

    One key draws for all episodes at once. So a policy that draws acts for all, with the share's in their places.
    """
    if not depends_on_key(act, key, *inputs):
        return act(key, *inputs)
    places = (jnp.arange(share.episodes) - share.rows[0]) % len(share.rows)
    return jax.tree.map(lambda x: x[share.rows], act(key, *jax.tree.map(lambda x: x[places], inputs)))


def add_timestep(
    environment: Environment, results: EpisodeResults, timestep: TimeStep, before: TimeStep
) -> EpisodeResults:
    """Add one time-step to the results; `before` is the one that led to it."""
    declared = environment.info_summaries
    reward = counted_reward(environment, timestep.reward, before.alive)
    of_team = team.of_team(environment, reward)
    return EpisodeResults(
        returned=results.returned + of_team,
        length=results.length + 1.0,
        terminated=timestep.terminated,
        truncated=timestep.truncated,
        info=summaries.accumulate(results.info, timestep.info, declared, results.length == 0),
        agents=results.agents + reward if timestep.has_agents else (),
        last_reward=of_team if timestep.has_agents else (),
    )


def summarise_episodes(results: EpisodeResults) -> dict[str, Array]:
    """Compute the metrics of an evaluation, one number each, from its episodes."""
    metrics: dict[str, Array] = {}
    # `()` where there is one agent, whose return is the team's.
    agents = () if isinstance(results.agents, tuple) else results.agents.T
    of_agents = [(f"return_agent_{i}", x) for i, x in enumerate(agents)]
    for name, x in (("return", results.returned), ("length", results.length), *of_agents):
        metrics |= {
            f"{name}_mean": jnp.mean(x),
            f"{name}_median": jnp.median(x),
            f"{name}_std": jnp.std(x),
            f"{name}_min": jnp.min(x),
            f"{name}_max": jnp.max(x),
        }
    if not isinstance(results.last_reward, tuple):
        metrics["last_reward"] = jnp.mean(results.last_reward)
    metrics["terminated"] = jnp.mean(results.terminated.astype(jnp.float32))
    metrics["truncated"] = jnp.mean(results.truncated.astype(jnp.float32))
    metrics["unfinished"] = jnp.mean((~results.terminated & ~results.truncated).astype(jnp.float32))
    for name, x in results.info.items():
        metrics |= _summarise_info(f"info_{name}", x.astype(jnp.float32))
    return metrics


def _summarise_info(name: str, x: Array) -> dict[str, Array]:
    """Return the mean of an entry of `info` over episodes and all axes, and of a vector [N, K] also that of each index.

    So a trial shows the difference between its episodes by their index, which measures meta-learning.
    """
    metrics = {name: jnp.mean(x)}
    if x.ndim == 2:
        by_index = {"mean": jnp.mean(x, 0), "median": jnp.median(x, 0), "p20": jnp.quantile(x, 0.2, axis=0)}
        for index in range(x.shape[1]):
            metrics |= {
                f"{name}_{index}_{statistic}": column[index] for statistic, column in by_index.items()
            }
    return metrics


MODES = {"greedy": (True,), "sampled": (False,), "both": (True, False)}  # whether each part is greedy
PREFIXES = ("", "sampled_")  # of the names of each part's results


def evaluate_policy(
    environment: Environment,
    algorithm: Algorithm,
    policy: Policy,
    key: Array,
    settings: ProgramSettings,
    episodes: int,
) -> dict[str, Array]:
    """Compute the metrics of a policy: greedy, sampled, or both (then the latter begin with `sampled_`)."""
    results = [
        play_episodes(
            environment,
            algorithm,
            policy,
            jax.random.fold_in(key, int(greedy)),
            episodes=episodes,
            max_steps=settings.eval_max_steps,
            greedy=greedy,
        )
        for greedy in MODES[settings.eval_mode]
    ]
    return metrics_of_modes(results, settings)


def metrics_of_modes(results: Sequence[EpisodeResults], settings: ProgramSettings) -> dict[str, Array]:
    """Compute the metrics of an evaluation from the episodes of each of its modes."""
    all_metrics: dict[str, Array] = {}
    for result, prefix in zip(results, PREFIXES, strict=False):
        metrics = summarise_episodes(result)
        if settings.eval_metrics is not None:
            metrics |= checked_numbers(settings.eval_metrics, settings.eval_metrics(result), metrics)
        all_metrics |= {f"{prefix}{name}": x for name, x in metrics.items()}
    return all_metrics


def episodes_of(evaluation: Sequence[EvaluationState]) -> dict[str, Array]:
    """Return the results of each episode of an evaluation that has ended, by the names that `evaluations.npz` has.

    Args:
      evaluation: the episodes of each mode; of a population with a leading member axis.
    Returns:
      `return` and `length`, [..., N]; of several agents `return_agents`, [..., N, A]; of trials `return_of_episode` and
      `length_of_episode`, [..., N, K]. Those of a second mode begin with `sampled_`.
    """
    found: dict[str, Array] = {}
    for results, prefix in zip((state.results for state in evaluation), PREFIXES, strict=False):
        own = {"return": results.returned, "length": results.length}
        own |= {} if isinstance(results.agents, tuple) else {"return_agents": results.agents}
        own |= {name: x.astype(jnp.float32) for name, x in results.info.items() if name in TRIAL_RESULTS}
        found |= {f"{prefix}{name}": x for name, x in own.items()}
    return found


class Subject(NamedTuple):
    """The policy of a run that is evaluated, and the number of its episodes.

    The best policy so far is evaluated again on episodes that were not used to choose it: the absolute metric of
    Gorsane et al. 2022, "Towards a Standardised Performance Evaluation Protocol for Cooperative MARL".
    """

    best: bool  # the best policy so far, else the current one
    episodes: int

    def policy(self, run: Run) -> Policy:
        """Return the policy."""
        return run.best.policy if self.best else policy_of(run)

    def key(self, run: Run) -> Array:
        """Return the key of the episodes."""
        seed = run.settings.eval_seed
        key = run.key if seed == -1 else jax.random.key(seed)
        if self.best:
            return stream_key(key, Stream.ABSOLUTE, 0)
        return stream_key(key, Stream.EVALUATION, run.updates if seed == -1 else 0)

    def leaves_out(self, fault: Any) -> Any:
        """Report for which fault marks a run is not evaluated: it was stopped early, or its training has failed.

        The best policy of a run that has failed is from before, and is evaluated again.
        """
        return fault == STOPPED if self.best else fault != NOWHERE


def begin_evaluation(run: Run, subject: Subject) -> tuple[EvaluationState, ...]:
    """Start the episodes of each mode of an evaluation."""
    environment = evaluation_environment_of(run)
    algorithm = run.config.algorithm(spec_of(environment))
    key = subject.key(run)
    return tuple(
        start_episodes(environment, algorithm, jax.random.fold_in(key, int(greedy)), subject.episodes)
        for greedy in MODES[run.settings.eval_mode]
    )


def continue_evaluation(
    run: Run, num_steps: Array | int, subject: Subject, devices: int = 1
) -> tuple[Run, tuple[dict[str, Array], Array]]:
    """Make at most `num_steps` further steps in the episodes of `run.evaluation`; the host regains control soon.

    Args:
      devices: those that the run has, each of which plays a share of the episodes.
    Returns:
      the run, which at the end of an evaluation of its current policy keeps what it has learned, and the policy too if
      it is better than the best; and the metrics, which are valid at the end, and whether it is reached. A run that is
      left out (`Subject.leaves_out`) makes no step.
    """
    settings, environment = run.settings, evaluation_environment_of(run)
    algorithm = run.config.algorithm(spec_of(environment))
    policy, is_left_out, is_done = subject.policy(run), subject.leaves_out(run.fault), jnp.bool_(True)
    evaluations = []
    for greedy, running in zip(MODES[settings.eval_mode], run.evaluation, strict=True):
        until = jnp.where(
            is_left_out, running.step, jnp.minimum(running.step + num_steps, settings.eval_max_steps)
        )
        evaluation = continue_episodes(environment, algorithm, policy, running, until, greedy, devices)
        is_done &= is_left_out | ~is_running(evaluation, settings.eval_max_steps)
        evaluations.append(evaluation)
    results = [finished_results(environment, evaluation) for evaluation in evaluations]
    metrics = metrics_of_modes(results, settings)
    run = dataclasses.replace(run, evaluation=tuple(evaluations))
    if subject.best:
        return run, (metrics, is_done)
    score = jnp.asarray(score_of(settings.score, metrics), jnp.float32)
    has_ended, candidate = is_done & ~is_left_out, Best(policy, score, run.updates)
    best = struct.where(has_ended & is_better(score, run.best.score), candidate, run.best)
    evaluated = struct.where(has_ended, Evaluated(run.learner.shared, run.updates), run.evaluated)
    run = dataclasses.replace(run, best=best, evaluated=evaluated)
    return run, ({**metrics, "score": score}, is_done)


def evaluate(
    run: Run, subject: Subject | None = None, *, keep_episodes: bool = False
) -> tuple[Run, dict[str, Array]]:
    """Evaluate a run's policy as a whole; the current one is stored if it is the best so far (see `is_better`).

    Returns:
      the run, and the metrics, with the results of each episode too where they are kept (`episodes_of`).
    """
    subject = Subject(best=False, episodes=run.settings.eval_episodes) if subject is None else subject
    run = dataclasses.replace(run, evaluation=begin_evaluation(run, subject))
    run, (metrics, _) = continue_evaluation(run, run.settings.eval_max_steps, subject)
    episodes = episodes_of(run.evaluation) if keep_episodes else {}
    return dataclasses.replace(run, evaluation=()), {**metrics, **episodes}


def is_better(score: Array, best: Array) -> Array:
    """Report whether a policy of this score replaces the best so far.

    A score that is not finite is worse than any finite one. As long as no score was finite, the newest policy
    is stored, so that the best policy is never an untrained one because all evaluations failed.
    """
    return ~jnp.isfinite(best) | (jnp.isfinite(score) & (score > best))


def score_of(score: str | Callable, metrics: dict[str, Array]) -> Array:
    """Return the number by which the best policy is chosen: a metric by name, or a function of all metrics.

    Raises:
      ShoalError: there is no such metric.
    """
    if callable(score):
        value = score(metrics)
        if np.shape(value) != () or not isinstance(value, jax.Array | np.generic | int | float):
            refuse(score, described(value), "one number")
        return jnp.asarray(value)
    if score not in metrics:
        raise ShoalError(f"score={score!r} is not a metric of an evaluation{nearest(score, metrics)}.")
    return metrics[score]
