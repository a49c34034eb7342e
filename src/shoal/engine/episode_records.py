"""The results of each single episode of an evaluation, recorded on request; training never needs them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.engine.evaluation import EvaluationState, is_running, step_episodes
from shoal.envs.base import counted_reward
from shoal.types import Algorithm, Array, Environment, Policy, TimeStep
from shoal.types.agent_axis import alive_of, for_each


class EpisodeRecords(NamedTuple):
    """The results of N episodes, [N] each, or of each of several agents, [N, A].

    An agent that ends before its world has the length, the end and the final reward of its own last step.
    """

    returned: Array
    length: Array
    terminated: Array
    truncated: Array  # an episode that is neither terminated nor truncated reached the limit of steps
    final_reward: Array


def record_episodes(
    environment: Environment,
    algorithm: Algorithm,
    policy: Policy,
    evaluation: EvaluationState,
    max_steps: int,
    greedy: bool,
) -> tuple[EvaluationState, EpisodeRecords]:
    """Play episodes as `evaluation.continue_episodes` does, and record the results of each."""

    def body(state: tuple[EvaluationState, EpisodeRecords]) -> tuple[EvaluationState, EpisodeRecords]:
        before, records = state
        after = step_episodes(environment, algorithm, policy, before, greedy)
        return after, add_step(environment, records, before.timestep, after.timestep)

    zeros = jnp.zeros_like(evaluation.timestep.reward)
    records = EpisodeRecords(zeros, zeros, zeros > 0, zeros > 0, zeros)
    return jax.lax.while_loop(lambda x: is_running(x[0], max_steps), body, (evaluation, records))


def add_step(
    environment: Environment, records: EpisodeRecords, before: TimeStep, after: TimeStep
) -> EpisodeRecords:
    """Add a step of every episode that had not ended before it."""
    is_played = for_each(~before.last, before)
    takes_part = is_played & alive_of(before)
    has_ended = for_each(after.last, after) | ~alive_of(after)
    reward = counted_reward(environment, after.reward, before.alive)
    return EpisodeRecords(
        returned=records.returned + jnp.where(is_played, reward, 0.0),
        length=records.length + takes_part,
        terminated=jnp.where(takes_part, has_ended & (after.discount == 0), records.terminated),
        truncated=jnp.where(takes_part, has_ended & (after.discount != 0), records.truncated),
        final_reward=jnp.where(takes_part, after.reward, records.final_reward),
    )
