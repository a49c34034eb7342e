"""Normalisation of observations and rewards by running statistics."""

from typing import Any

import jax
import jax.numpy as jnp

from shoal.algos.acting import memories
from shoal.ops import statistics
from shoal.types import Array, EnvSpec, Learner, PyTree, TimeStep, without_entries


def normalise(moments: statistics.RunningMoments | None, observation: PyTree) -> PyTree:
    """Normalise observations by running moments; without moments return them unchanged."""
    return observation if moments is None else statistics.normalise(moments, observation)


def moments_of_actor(
    moments: statistics.RunningMoments | None, spec: EnvSpec
) -> statistics.RunningMoments | None:
    """Return the moments of the observations that `act` receives, without the entries for the critic only."""
    if moments is None or not spec.critic_only:
        return moments

    def cut(tree: PyTree) -> PyTree:
        return without_entries(tree, spec.critic_only)

    count, mean, variance = moments.residual
    return statistics.RunningMoments(
        moments.count, cut(moments.mean), cut(moments.variance), (count, cut(mean), cut(variance))
    )


def scale_rewards(
    config: Any, axis: tuple[str, ...], learner: Learner, after: TimeStep, weight: Array
) -> tuple[Array, Learner]:
    """Divide rewards [T, N] by the running standard deviation of the discounted return, if `norm_reward` is set.

    The discounted return of each environment is updated and enters the statistics, and is only then set to 0 where
    the episode ended.
    """
    if not config.norm_reward:
        return after.reward, learner

    unpacked = memories.unpack_local(learner.local)

    def accumulate(discounted: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, weight, last = step
        discounted = jnp.where(weight > 0, config.gamma * discounted + reward, discounted)
        return jnp.where(last, 0.0, discounted), discounted

    last, discounted = jax.lax.scan(accumulate, unpacked.discounted, (after.reward, weight, after.last))
    moments = statistics.update_moments(learner.shared.reward, discounted, weight, axis_name=axis)
    reward = jnp.clip(after.reward / statistics.standard_deviation(moments), -10.0, 10.0)
    local = memories.pack_local(unpacked._replace(discounted=last))
    return reward, Learner(learner.shared._replace(reward=moments), local)
