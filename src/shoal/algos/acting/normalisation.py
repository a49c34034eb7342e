"""Normalisation, clipping and scaling of observations and rewards."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp

from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.ops import statistics
from shoal.types import (
    Array,
    EnvSpec,
    Learner,
    PyTree,
    TimeStep,
    Trajectory,
    spaces,
    transitions,
    without_entries,
)

if TYPE_CHECKING:
    from shoal.algos.ppo_config import PPOConfig

CLIP = 10.0  # of normalised observations, unless `obs_clip` says otherwise
_NORMALISED = Needs("norm_obs", (True,))


@struct.struct
class NormalisationConfig(settings.Nested):
    """Settings of what a network is shown of observations, and of the scale of rewards."""

    group: ClassVar[str] = "normalisation"

    norm_obs: bool = parameter(False, group="most used")
    """Normalises observations by their running mean and standard deviation, kept with the policy."""
    obs_norm_entries: tuple[str, ...] = parameter((), needs=_NORMALISED)
    """Normalises these entries of a dictionary of observations; () normalises all but integers (norm_obs)."""
    obs_norm_min_deviation: float = parameter(1e-4, above=0.0, needs=_NORMALISED)
    """Divides observations by at least this deviation, so that an entry that hardly changes is not magnified
    (norm_obs)."""
    obs_norm_max_deviation: float = parameter(math.inf, above=0.0, high=math.inf, needs=_NORMALISED)
    """Divides observations by at most this deviation (norm_obs)."""
    obs_norm_warmup_steps: int = parameter(0, low=0, high=LARGEST_INDEX, needs=_NORMALISED)
    """Computes the statistics of observations over this many environment steps of random actions before training,
    outside of the budget, in whole rollouts; with 0 the first rollout sees observations as they are (norm_obs)."""
    # Static, since infinity leaves the clip out of the program, and None depends on the bool norm_obs.
    obs_clip: float | None = parameter(None, above=0.0, high=math.inf, static=True)
    """Clips observations to plus and minus this, after they are normalised; None is 10 with norm_obs, else inf."""
    obs_clip_entries: tuple[str, ...] = ()
    """Clips entries of a dictionary of observations to bounds of their own, each as name=bound."""
    reward_scale: float = parameter(1.0, above=0.0)
    """Multiplies rewards by this for learning, after any normalisation; reported returns are the environment's."""


def initial_moments(config: NormalisationConfig, spec: EnvSpec) -> statistics.RunningMoments | None:
    """Make the moments of observations before any sample; None where nothing is normalised."""
    if not config.norm_obs:
        return None
    entries = config.obs_norm_entries

    def is_chosen(path: str) -> bool:
        return any(belongs_to(path, entry) for entry in entries)

    return statistics.init_moments(spaces.zeros(spec.observation_space), is_chosen if entries else None)


def belongs_to(path: str, entry: str) -> bool:
    """Report whether a leaf of an observation, by its path, is an entry or a part of it."""
    return path == entry or path.startswith(f"{entry}/")


def clips_of(config: NormalisationConfig) -> dict[str, float]:
    """Parse `obs_clip_entries` to bounds by entry."""
    pairs = (text.partition("=") for text in config.obs_clip_entries)
    return {name.strip(): float(bound) for name, _, bound in pairs}


def normalise(
    config: NormalisationConfig, moments: statistics.RunningMoments | None, observation: PyTree
) -> PyTree:
    """Normalise and clip the numbers of observations as configured; integers stay as they are.

    Before there are any samples nothing is shifted, scaled or clipped: a bound in units of deviations would cut numbers
    of any scale.
    """
    by_entry = clips_of(config)
    default = (CLIP if config.norm_obs else math.inf) if config.obs_clip is None else config.obs_clip
    followed = jax.tree.map(lambda _: True, observation)
    if moments is not None:
        followed = jax.tree.map(lambda mean: mean.dtype != jnp.bool_, moments.mean)
        least, most = config.obs_norm_min_deviation, config.obs_norm_max_deviation
        observation = statistics.normalise(moments, observation, math.inf, least, most, warm_up=1.0)

    def clip(path: tuple, x: Array, is_followed: bool) -> Array:
        name = struct.path_name(path)
        without_entry = default if is_followed else math.inf
        bounds = (bound for entry, bound in by_entry.items() if belongs_to(name, entry))
        bound: Array | float = next(bounds, without_entry)
        if bound == math.inf or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        if moments is not None and is_followed:
            bound = jnp.where(moments.count > 0, bound, math.inf)
        return jnp.clip(x, -bound, bound)

    return jax.tree_util.tree_map_with_path(clip, observation, followed)


def observe(
    moments: statistics.RunningMoments | None, observation: PyTree, weight: Array, axis: tuple[str, ...]
) -> statistics.RunningMoments | None:
    """Add the observations of T steps of N environments to the moments; those of weight 0 are ignored."""
    if moments is None:
        return None
    return statistics.update_moments(moments, observation, weight, axis_name=axis)


def warm_up(
    axis: tuple[str, ...], left_out: tuple[str, ...], learner: Learner, trajectory: Trajectory
) -> Learner:
    """Add the observations of a rollout of random actions to a learner's normaliser, `shared.observation`.

    Args:
      left_out: the entries of a dictionary of observations that it does not follow.
    """
    before = jax.tree.map(lambda x: x[:-1], without_entries(trajectory.timesteps.observation, left_out))
    moments = observe(learner.shared.observation, before, transitions(trajectory).weight, axis)
    return learner._replace(shared=learner.shared._replace(observation=moments))


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
    config: PPOConfig, axis: tuple[str, ...], learner: Learner, after: TimeStep, weight: Array
) -> tuple[Array, Learner]:
    """Multiply rewards [T, N] by `reward_scale`, with `norm_reward` after their division by a running deviation.

    That is the deviation of the discounted return of the environment's own rewards. Each environment's is updated and
    enters the statistics, and is only then set to 0 where the episode ended, or another begins at once.
    """
    if not config.norm_reward:
        return config.reward_scale * after.reward, learner

    def accumulate(discounted: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, weight, ends = step
        discounted = jnp.where(weight > 0, config.gamma * discounted + reward, discounted)
        return jnp.where(ends, 0.0, discounted), discounted

    steps = after.reward, weight, after.last | after.first
    last, discounted = jax.lax.scan(accumulate, learner.local.discounted, steps)
    moments = statistics.update_moments(learner.shared.reward, discounted, weight, axis_name=axis)
    reward = jnp.clip(after.reward / statistics.standard_deviation(moments), -10.0, 10.0)
    local = learner.local._replace(discounted=last)
    return config.reward_scale * reward, Learner(learner.shared._replace(reward=moments), local)
