"""Evaluation: exactly N whole episodes on environments of its own, one each, none favoured.

N environments play one episode each until all have ended or the cap is reached; one that has ended is
frozen. So short episodes are not over-represented, as they are where the first N to end are counted.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import trees
from shoal.envs import summaries
from shoal.errors import ShoalError, nearest
from shoal.imports import import_name
from shoal.runtime.metrics import checked_numbers
from shoal.runtime.run import Best, Run, Settings, Stream, stream_key
from shoal.types import Algorithm, Array, Environment, Memory, Policy, State, TimeStep, spec_of


class Played(NamedTuple):
    """What N whole episodes came to, [N] each."""

    returned: Array
    length: Array
    terminated: Array
    truncated: Array  # neither this nor terminated: the cap was reached first
    info: Mapping[str, Array]  # the environment's own metrics, summed up as it declares


class Playing(NamedTuple):
    """N episodes under way, one in each environment."""

    key: Array  # of their steps
    step: Array
    timestep: TimeStep
    state: State
    memory: Memory
    played: Played


def play(
    environment: Environment,
    algorithm: Algorithm,
    policy: Policy,
    key: Array,
    *,
    episodes: int,
    max_steps: int,
    greedy: bool,
) -> Played:
    """Plays one episode in each of `episodes` environments, for at most `max_steps` steps."""

    def going_on(playing: Playing) -> Array:
        return (playing.step < max_steps) & ~jnp.all(playing.timestep.last)

    def on(playing: Playing) -> Playing:
        return played_on(environment, algorithm, policy, playing, greedy)

    played = jax.lax.while_loop(going_on, on, begun(environment, algorithm, key, episodes)).played
    info = summaries.finalise(played.info, environment.info_summaries, played.length)
    return played._replace(info=info)


def begun(environment: Environment, algorithm: Algorithm, key: Array, episodes: int) -> Playing:
    """The starts of `episodes` episodes."""
    reset_key, step_key = jax.random.split(key)
    state, timestep = jax.vmap(environment.reset)(jax.random.split(reset_key, episodes))
    zeros = jnp.zeros(episodes)
    info = summaries.initial(timestep.info, environment.info_summaries)
    return Playing(
        key=step_key,
        step=jnp.zeros((), jnp.int32),
        timestep=timestep,
        state=state,
        memory=algorithm.memory((episodes,)),
        played=Played(zeros, zeros, zeros > 0, zeros > 0, info),
    )


def played_on(
    environment: Environment, algorithm: Algorithm, policy: Policy, playing: Playing, greedy: bool
) -> Playing:
    """One step of every episode that has not ended; those that have stay as they are."""
    key, step, timestep, state, memory, played = playing
    act_key, env_key = jax.random.split(jax.random.fold_in(key, step))
    new_memory, action, _ = algorithm.act(policy, memory, timestep, act_key, greedy=greedy)
    keys = jax.random.split(env_key, timestep.last.shape[0])
    new_state, new_timestep = jax.vmap(environment.step)(state, action, keys)
    new_played = add(played, new_timestep, environment.info_summaries)
    new = (new_timestep, new_state, new_memory, new_played)
    kept = trees.where(timestep.last, (timestep, state, memory, played), new)
    return Playing(key, step + 1, *kept)


def add(played: Played, timestep: TimeStep, declared: Mapping[str, str]) -> Played:
    """Adds one time-step to the episodes."""
    return Played(
        returned=played.returned + timestep.reward,
        length=played.length + 1.0,
        terminated=timestep.terminated,
        truncated=timestep.truncated,
        info=summaries.accumulate(played.info, timestep.info, declared, played.length == 0),
    )


def summed_up(played: Played) -> dict[str, Array]:
    """The metrics of an evaluation, a number each: over episodes."""
    metrics: dict[str, Array] = {}
    for name, x in (("return", played.returned), ("length", played.length)):
        metrics |= {
            f"{name}_mean": jnp.mean(x),
            f"{name}_median": jnp.median(x),
            f"{name}_std": jnp.std(x),
            f"{name}_min": jnp.min(x),
            f"{name}_max": jnp.max(x),
        }
    metrics["terminated"] = jnp.mean(played.terminated.astype(jnp.float32))
    metrics["truncated"] = jnp.mean(played.truncated.astype(jnp.float32))
    metrics["unfinished"] = jnp.mean((~played.terminated & ~played.truncated).astype(jnp.float32))
    for name, x in played.info.items():
        metrics |= _of_info(f"info_{name}", x.astype(jnp.float32))
    return metrics


def _of_info(name: str, x: Array) -> dict[str, Array]:
    """The mean of an entry of `info` over episodes and all else, and of a vector [N, K] each index by itself.

    So a trial tells how its episodes differ by their index, which is what meta-learning is about.
    """
    metrics = {name: jnp.mean(x)}
    if x.ndim == 2:
        by_index = {"mean": jnp.mean(x, 0), "median": jnp.median(x, 0), "p20": jnp.quantile(x, 0.2, axis=0)}
        for index in range(x.shape[1]):
            metrics |= {f"{name}_{index}_{how}": column[index] for how, column in by_index.items()}
    return metrics


def evaluate_policy(
    environment: Environment,
    algorithm: Algorithm,
    policy: Policy,
    key: Array,
    settings: Settings,
    episodes: int,
) -> dict[str, Array]:
    """The metrics of a policy, greedy or sampled or both (then the sampled ones begin with `sampled_`)."""
    results: dict[str, Array] = {}
    modes = {"greedy": (True,), "sampled": (False,), "both": (True, False)}[settings.eval_mode]
    for greedy in modes:
        played = play(
            environment,
            algorithm,
            policy,
            jax.random.fold_in(key, int(greedy)),
            episodes=episodes,
            max_steps=settings.eval_max_steps,
            greedy=greedy,
        )
        metrics = summed_up(played)
        if settings.eval_metrics is not None:
            metrics |= checked_numbers("eval_metrics", settings.eval_metrics(played), metrics)
        prefix = "sampled_" if greedy is not modes[0] else ""
        results |= {f"{prefix}{name}": x for name, x in metrics.items()}
    return results


def evaluate(run: Run) -> tuple[Run, dict[str, Array]]:
    """Evaluates a run's policy, and keeps it if it is the best so far (see `is_better`)."""
    settings = run.settings
    algorithm = run.config.algorithm(spec_of(run.environment))
    policy = algorithm.policy(run.learner)
    key = stream_key(run.key, Stream.EVALUATION, run.updates)
    metrics = evaluate_policy(run.environment, algorithm, policy, key, settings, settings.eval_episodes)
    score = jnp.asarray(scored(settings.score, metrics), jnp.float32)
    candidate = Best(policy, score, run.updates)
    best = trees.where(is_better(score, run.best.score), candidate, run.best)
    return dataclasses.replace(run, best=best), {**metrics, "score": score}


def is_better(score: Array, best: Array) -> Array:
    """Whether a policy of this score takes the place of the best so far.

    A score that is not finite is worse than any that is; as long as none was finite, the newest policy is kept,
    so that what is saved as the best is never one that was not trained because all evaluations failed.
    """
    return ~jnp.isfinite(best) | (jnp.isfinite(score) & (score > best))


def scored(score: str | Callable, metrics: dict[str, Array]) -> Array:
    """The number by which the best policy is chosen: a metric by its name, or a function of all of them.

    Raises:
      ShoalError: there is no such metric.
    """
    if callable(score):
        value = score(metrics)
        if np.shape(value) != () or not isinstance(value, jax.Array | np.generic | int | float):
            raise ShoalError(
                f"score={import_name(score)} returns {_shown(value)}; it must return one number."
            )
        return jnp.asarray(value)
    if score not in metrics:
        raise ShoalError(f"score={score!r} is no metric of an evaluation{nearest(score, metrics)}.")
    return metrics[score]


def evaluate_best(run: Run, episodes: int) -> dict[str, Array]:
    """The absolute metric: the best policy evaluated anew, with episodes that did not choose it.

    Source: Gorsane et al. 2022, "Towards a Standardised Performance Evaluation Protocol for
    Cooperative MARL".
    """
    algorithm = run.config.algorithm(spec_of(run.environment))
    key = stream_key(run.key, Stream.ABSOLUTE, 0)
    return evaluate_policy(run.environment, algorithm, run.best.policy, key, run.settings, episodes)


def _shown(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
