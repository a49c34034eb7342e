"""Acting by the values of actions: the best one, or while training a random one now and then, or noisy weights.

The probability of a random action decreases while a run trains. Each environment draws for itself.
"""

from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from shoal.config import struct
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.nets.noisy import has_noise, with_noise
from shoal.ops import statistics
from shoal.ops.distributions import EpsilonGreedy
from shoal.types import Array, Clock, Learner, PyTree

_PLAIN = Needs("noisy", (False,))  # noisy layers explore by themselves


@struct.struct
class ExplorationConfig:
    """Settings of random actions; the names are CleanRL's."""

    group: ClassVar[str] = "exploration"

    start_e: float = parameter(1.0, low=0.0, high=1.0, needs=_PLAIN)
    """Takes a random action with this probability at the start of training."""
    end_e: float = parameter(0.05, low=0.0, high=1.0, needs=_PLAIN)
    """Takes a random action with this probability after exploration_fraction of the training."""
    exploration_fraction: float = parameter(0.5, low=0.0, high=1.0, needs=_PLAIN)
    """Changes the probability of a random action linearly over this share of the training."""
    eval_epsilon: float | None = parameter(None, low=0.0, high=1.0, needs=_PLAIN)
    """Takes a random action with this probability in evaluations that sample actions; None is end_e."""


def epsilon(config: ExplorationConfig, progress: Array) -> Array:
    """Compute the probability of a random action at `progress` in [0, 1] of the run."""
    fraction = jnp.asarray(config.exploration_fraction, jnp.float32)
    share = jnp.where(progress < fraction, progress / jnp.where(fraction > 0, fraction, 1.0), 1.0)
    return config.start_e + share * (config.end_e - config.start_e)


class ActingPolicy(NamedTuple):
    """The part of the learner that acting needs."""

    network: PyTree
    observation: statistics.RunningMoments | None
    epsilon: PyTree = ()  # the probability of a random action, []; () is that of evaluations, None takes the best alone


class WithExploration(Protocol):
    """The settings of an algorithm that takes random actions."""

    @property
    def exploration(self) -> ExplorationConfig:
        """How many, and when."""
        ...


def policy_of(learner: Learner, clock: Clock) -> ActingPolicy:
    """Return what acts by `shared.network`, with random actions only where it samples; it is evaluated and saved."""
    return ActingPolicy(learner.shared.network, learner.shared.observation)


def behaviour(config: WithExploration, learner: Learner, clock: Clock) -> ActingPolicy:
    """Return the policy that collects transitions: with random actions, or with the noise of noisy layers."""
    return policy_of(learner, clock)._replace(epsilon=random_share(config, learner.shared.network, clock))


def random_share(config: WithExploration, network: PyTree, clock: Clock) -> Array:
    """Return the probability of a random action: 0 where the network is noisy, else by the schedule."""
    return jnp.zeros(()) if has_noise(network) else epsilon(config.exploration, clock.progress)


def without_exploration(policies: PyTree) -> PyTree:
    """Return policies that take the best actions alone, also where they are to sample; others stay as they are."""

    def is_policy(x: object) -> bool:
        return isinstance(x, ActingPolicy)

    return jax.tree.map(
        lambda x: x._replace(epsilon=None) if is_policy(x) else x, policies, is_leaf=is_policy
    )


def network_of(policy: ActingPolicy, key: Array, *, greedy: bool) -> PyTree:
    """Return the network that acts at one step: with a draw of its noise, if it has any and explores."""
    return with_noise(policy.network, key) if _explores(policy, greedy) else policy.network


def choose(
    config: WithExploration,
    policy: ActingPolicy,
    values: Array,
    mask: Array | None,
    key: Array,
    *,
    greedy: bool,
) -> tuple[Array, EpsilonGreedy]:
    """Choose actions by their values [N, A]; return also the distribution that they are from."""
    if not _explores(policy, greedy):
        distribution = EpsilonGreedy(values, 0.0, mask)
        return distribution.mode(), distribution
    share = policy.epsilon
    if isinstance(share, tuple):
        own, random = config.exploration.eval_epsilon, config.exploration.end_e
        share = jnp.zeros(()) if has_noise(policy.network) else random if own is None else own
    distribution = EpsilonGreedy(values, share, mask)
    return distribution.sample(key), distribution


def _explores(policy: ActingPolicy, greedy: bool) -> bool:
    return not (greedy or policy.epsilon is None)
