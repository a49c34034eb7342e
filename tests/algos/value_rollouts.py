"""Histories of made-up episodes for the tests of algorithms that learn values: what may not be read is NaN."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.algos import catalogue
from shoal.algos.replayed_config import ReplayedConfig
from shoal.algos.replayed_steps import Kept
from shoal.config.settings import with_settings
from shoal.types import Clock, EnvSpec, TimeStep, Trajectory
from shoal.types.spaces import Box, Discrete

NUM_ACTIONS = 3
SPEC = EnvSpec(Box(-5.0, 5.0, (3,)), Discrete(NUM_ACTIONS))
LOW, HIGH = (-2.0, 0.0, -1.0), (6.0, 0.5, 1.0)
BOX = SPEC._replace(action_space=Box(LOW, HIGH, (NUM_ACTIONS,)))  # so that masks are of as many entries
NAN = float("nan")


class History(NamedTuple):
    """All time-steps 0..S of N environments, [S+1, N, ...], and the actions between them, [S, N]."""

    observation: np.ndarray
    reward: np.ndarray  # of the step that led here
    discount: np.ndarray
    last: np.ndarray
    mask: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray  # of the action
    number: np.ndarray  # the action of a Box, flat in [-1, 1], [S, N, 3]


def history_of(seed, steps, num_envs, end_rate=0.3, unread=NAN):
    """Random episodes with both kinds of ends and random legal actions; `unread` stands wherever nobody may read."""
    rng = np.random.default_rng(seed)
    shape = (steps + 1, num_envs)
    last = rng.uniform(size=shape) < end_rate
    last[1:] &= ~last[:-1]
    terminated = last & (rng.uniform(size=shape) < 0.5)
    mask = rng.uniform(size=(*shape, NUM_ACTIONS)) < 0.6
    mask[np.arange(steps + 1)[:, None], np.arange(num_envs), rng.integers(0, NUM_ACTIONS, shape)] = True
    mask &= ~terminated[..., None]
    action = np.argmax(mask * rng.uniform(size=mask.shape), -1)[:-1]
    observation, reward = rng.normal(size=(*shape, 3)), rng.normal(size=shape)
    log_prob = np.log(rng.uniform(0.2, 1.0, (steps, num_envs)))
    discount = np.where(terminated, 0.0, 1.0)
    observation[terminated] = unread
    reward[1:][last[:-1]] = discount[1:][last[:-1]] = log_prob[last[:-1]] = unread
    number = np.where(mask[:-1], rng.uniform(-0.95, 0.95, mask[:-1].shape), 0.0)
    number[last[:-1]] = unread
    return History(observation, reward, discount, last, mask, action, log_prob, number)


def rollout_of(history, begin, length, memory=(), extras=True):
    """The rollout of `length` steps from time-step `begin` on."""
    part = slice(begin, begin + length + 1)
    last = jnp.asarray(history.last[part])
    before = history.last[begin - 1] if begin else np.ones_like(history.last[0])
    timesteps = TimeStep(
        observation=jnp.asarray(history.observation[part], jnp.float32),
        reward=jnp.asarray(history.reward[part], jnp.float32),
        discount=jnp.asarray(history.discount[part], jnp.float32),
        first=jnp.concatenate([before[None], last[:-1]]),
        last=last,
        action_mask=jnp.asarray(history.mask[part]),
    )
    steps = slice(begin, begin + length)
    log_prob = jnp.asarray(history.log_prob[steps], jnp.float32) if extras else ()
    return Trajectory(timesteps, jnp.asarray(history.action[steps], jnp.int32), log_prob, memory)


def rollout_for(config, spec, history, begin, length, memory=()):
    """The rollout with what an algorithm keeps of it; where that is its action, the environment's is not to be read."""
    if not isinstance(config, ReplayedConfig):
        return rollout_of(history, begin, length, memory, getattr(config, "multistep", "") == "retrace")
    trajectory, steps = rollout_of(history, begin, length, memory), slice(begin, begin + length)
    action, actions = trajectory.actions, jnp.full_like(trajectory.actions, NUM_ACTIONS)
    if isinstance(spec.action_space, Box):
        action = jnp.asarray(history.number[steps], jnp.float32)
        actions = jnp.full_like(action, NAN)
    raw = jnp.arctanh(action) if action.ndim == 3 else action
    return trajectory._replace(actions=actions, extras=(action, Kept(raw, trajectory.extras)))


def config_of(name, **settings):
    """The config of an algorithm with a small network, which learns from its first rollouts on."""
    small = {"hidden_sizes": (8,)}
    if name != "pqn":
        small |= {"buffer_size": 64, "batch_size": 16, "learning_starts": 0, "train_frequency": 8}
        small |= {"target_network_frequency": 16}
    atoms = {"num_atoms": 7, "v_min": -3.0, "v_max": 3.0}
    small |= {"c51": atoms, "rainbow": atoms, "qr_dqn": {"num_quantiles": 5}}.get(name, {})
    return with_settings(catalogue.config_class(name)(), **small | settings)


def clock_at(update, total):
    """The clock before an update of a run of `total` updates."""
    return Clock(jnp.int32(update), jnp.float32(0.0), jnp.float32(update / total))
