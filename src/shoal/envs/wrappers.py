"""Environments made of other environments. Each is an environment itself, so that they compose."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.base import TimeStep, Wrapper, environment
from shoal.types import PyTree, State


class TimeLimitState(NamedTuple):
    """The inner state, and how many steps the episode has had."""

    env: State
    steps: jax.Array


@environment
class TimeLimit(Wrapper):
    """Cuts an episode after `max_steps` steps.

    The cut is a truncation: `last` with discount 1, so that the final state is bootstrapped from. Where
    the inner environment terminates on the same step, that stands (discount 0).
    """

    max_steps: int

    def reset(self, key: jax.Array) -> tuple[TimeLimitState, TimeStep]:
        """A new episode, with no steps made."""
        state, timestep = self.env.reset(key)
        return TimeLimitState(state, jnp.zeros((), jnp.int32)), timestep

    def step(self, state: TimeLimitState, action: PyTree, key: jax.Array) -> tuple[TimeLimitState, TimeStep]:
        """One step; the `max_steps`-th of an episode is its last."""
        inner, timestep = self.env.step(state.env, action, key)
        steps = state.steps + 1
        timestep = timestep._replace(last=timestep.last | (steps >= self.max_steps))
        return TimeLimitState(inner, steps), timestep
