"""Worlds and an algorithm in which one number is not finite, at a moment that can be read from their state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from tiny_bandit import BanditConfig, bandit

from shoal import envs
from shoal.config import struct
from shoal.types import Algorithm, restart, transition
from shoal.types.spaces import Box, Discrete


class BreaksState(NamedTuple):
    steps: jax.Array
    breaks_at: jax.Array  # the step whose reward or observation is NaN
    times: jax.Array  # so often the world would break


@envs.environment
class Breaks:
    """One episode that never ends; each world breaks once in about a thousand steps, if it does so at all."""

    reward: float = 0.0
    """1 makes the reward NaN."""
    observation: float = 0.0
    """1 makes the observation NaN."""
    within: float = 1000.0
    """A world breaks at one of so many steps."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        breaks_at = 1 + jnp.floor(self.within * jax.random.uniform(key)).astype(jnp.int32)
        state = BreaksState(jnp.int32(0), breaks_at, jnp.int32(0))
        return state, restart(jnp.zeros(1, jnp.float32))

    def step(self, state, action, key):
        steps = state.steps + 1
        breaks = steps == state.breaks_at
        state = BreaksState(steps, state.breaks_at, state.times + breaks)
        observation = jnp.where(breaks & (self.observation > 0), jnp.nan, steps % 10 / 10.0)
        reward = jnp.where(breaks & (self.reward > 0), jnp.nan, action.astype(jnp.float32))
        return state, transition(observation[None].astype(jnp.float32), reward)


@envs.environment
class Explains(Breaks):
    """A world that says at which step it broke; of any other state it says nothing."""

    def explain_fault(self, state):
        """Say at which step the world broke."""
        return f"it broke at step {state.steps}" if state.steps == state.breaks_at else None


@struct.struct
class BrokenBandit:
    """The bandit, which breaks by itself in an update."""

    breaks_in: float = 0.0
    """The number of updates before the one in which it breaks; 0 for never."""
    part: float = 0.0
    """0 breaks an extra of an environment, 1 the parameters."""
    where: float = 0.0
    """The environment whose extra is NaN."""
    step_size: float = 0.5

    def algorithm(self, spec, axis=()):
        """The bandit's functions, with two that break."""
        plain = bandit(BanditConfig(), spec, axis)

        def policy(learner, clock):
            breaks = (self.breaks_in > 0) & (clock.updates == self.breaks_in) & (self.part == 0)
            return plain.policy(learner, clock), breaks

        def act(policy, memory, timestep, key, *, greedy=False):
            parameters, breaks = policy
            memory, action, _ = plain.act(parameters, memory, timestep, key, greedy=greedy)
            is_there = jnp.arange(timestep.first.size).reshape(timestep.first.shape) == self.where
            doubt = jnp.where(breaks & is_there, jnp.nan, jnp.zeros(timestep.first.shape))
            return memory, action, {"doubt": doubt}

        def update(learner, trajectory, keys, clock):
            learner, metrics = plain.update(learner, trajectory, keys, clock)
            breaks = (self.breaks_in > 0) & (clock.updates == self.breaks_in) & (self.part == 1)
            baseline = jnp.where(breaks, jnp.nan, learner.shared.baseline)
            return learner._replace(shared=learner.shared._replace(baseline=baseline)), metrics

        return Algorithm(plain.init, plain.memory, policy, act, update)
