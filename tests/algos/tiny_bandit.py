"""A user's algorithm, written from scratch: a gradient bandit. It shares nothing with PPO: no network, no
optimiser, no `validate`, no `resolved`; it keeps something of each environment, and its policy has a memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.config import struct
from shoal.types import Algorithm, Array, EnvSpec, Learner, Mean, transitions


class Preferences(NamedTuple):
    """What the bandit learns."""

    actions: Array  # [n]
    baseline: Array


@struct.struct
class BanditConfig:
    """The gradient bandit of Sutton & Barto 2018, section 2.8; it does not look at observations."""

    step_size: float = 0.5
    """How far preferences move."""
    baseline_rate: float = 0.2
    """How fast the mean reward is followed."""
    spread: float = 0.01
    """Standard deviation of the first preferences."""

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """The five functions."""
        return bandit(self, spec, axis)


def bandit(config: BanditConfig, spec: EnvSpec, axis: tuple[str, ...]) -> Algorithm:
    num_actions = spec.action_space.n

    def init(key, num_envs):
        preferences = config.spread * jax.random.normal(key, (num_actions,))
        return Learner(Preferences(preferences, jnp.zeros(())), local=jnp.zeros(num_envs))

    def memory(batch_shape):
        return jnp.zeros(batch_shape, jnp.int32)  # steps since the episode began

    def policy(learner, clock):
        return learner.shared.actions

    def act(policy, memory, timestep, key, *, greedy=False):
        memory = jnp.where(timestep.first, 0, memory + 1)
        batch_shape = timestep.first.shape
        logits = jnp.broadcast_to(policy, (*batch_shape, num_actions))
        if greedy:
            action = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        else:
            action = jax.random.categorical(key, logits).astype(jnp.int32)
        return memory, action, ()

    def update(learner, trajectory, keys, clock):
        preferences, baseline = learner.shared
        weight = transitions(trajectory).weight
        reward = trajectory.timesteps.reward[1:]
        above = jnp.where(weight > 0, reward - baseline, 0.0)[..., None]
        direction = jax.nn.one_hot(trajectory.actions, num_actions) - jax.nn.softmax(preferences)
        sums = (above * direction).sum((0, 1)), above.sum(), weight.sum()
        if axis:
            sums = jax.lax.psum(sums, axis)
        towards, surprise, count = sums
        count = jnp.maximum(count, 1.0)
        step_size = config.step_size * (1.0 - clock.progress)
        shared = Preferences(
            preferences + step_size * towards / count, baseline + config.baseline_rate * surprise / count
        )
        metrics = {"baseline": Mean(shared.baseline, jnp.ones(()))}
        return Learner(shared, learner.local + weight.sum(0)), metrics

    def inherit(learner, saved):
        return learner._replace(
            shared=struct.with_saved_parts(learner.shared, saved, ("actions", "baseline"))
        )

    return Algorithm(init, memory, policy, act, update, inherit)
