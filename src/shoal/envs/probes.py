"""Probe environments: tiny environments with known values, one for each common error of a learner.

A learner that fails `ConstantReward` cannot fit a value at all. One that passes it and fails
`ObservationReward` does not use its observation; the other probes follow in the same way. The idea is Andy
Jones's ("Debugging RL, Without the Agonizing Pain", 2021). `value(observation, gamma)` is the value that a
correct critic gives once the policy is optimal, and `best_action(observation)` is that policy.
"""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.types import Array, State
from shoal.types.spaces import Box, Discrete, Space

NO_STATE = ()  # the state of an environment without one


def zero_observation() -> jax.Array:
    """Return the observation without information, zeros [1]."""
    return jnp.zeros((1,), jnp.float32)


def random_sign(key: jax.Array) -> jax.Array:
    """Draw an observation that is -1 or 1, [1]."""
    return jnp.where(jax.random.bernoulli(key, shape=(1,)), 1.0, -1.0)


class Probe:
    """A base of the probes: what most of them share, and the others change."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space: ClassVar[Space] = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Return the observation without information."""
        return NO_STATE, restart(zero_observation())

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Return the value of the best policy, which is 1 for a reward of 1 in an episode of one step."""
        return jnp.ones_like(observation[..., 0])

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Return the best action; where all are equally good, any."""
        return jnp.zeros_like(observation[..., 0], jnp.int32)


@environment
class ConstantReward(Probe):
    """One step, no information, reward 1: the value is 1.

    Fails when the value loss or its optimiser does not work.
    """

    def step(self, state: tuple, action: jax.Array, key: jax.Array) -> tuple[tuple, TimeStep]:
        """Give reward 1 for every action."""
        return NO_STATE, transition(zero_observation(), 1.0, terminated=True)


@environment
class ObservationReward(Probe):
    """One step; the observation is -1 or 1, and so is the reward: the value is the observation.

    Fails when the critic does not get the observation, or gets another environment's.
    """

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Draw the observation, -1 or 1."""
        observation = random_sign(key)
        return observation, restart(observation)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Give the observation as the reward, for every action."""
        return state, transition(state, state[0], terminated=True)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Return the observation."""
        return observation[..., 0]


@environment
class DelayedReward(Probe):
    """Two steps; the observation is the step's index, the rewards are 0 and 1: the values are γ and 1.

    Fails when the return is not discounted, or is computed from the wrong steps.
    """

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Return the first step's observation, 0."""
        return jnp.zeros((), jnp.int32), restart(zero_observation())

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Return observation 1; the second step gives the reward and terminates."""
        is_second = state == 1
        return state + 1, transition(
            zero_observation() + 1, jnp.where(is_second, 1.0, 0.0), terminated=is_second
        )

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Return γ for the first step and 1 for the second."""
        return jnp.where(observation[..., 0] < 0.5, gamma, 1.0)


@environment
class ActionReward(Probe):
    """One step, no information, reward 1 for action 1 and -1 for action 0: the value is 1.

    Fails when the policy's gradient has the wrong sign, or the advantage belongs to another action.
    """

    def step(self, state: tuple, action: jax.Array, key: jax.Array) -> tuple[tuple, TimeStep]:
        """Give a reward that depends on the action alone."""
        return NO_STATE, transition(zero_observation(), jnp.where(action == 1, 1.0, -1.0), terminated=True)

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Return action 1."""
        return jnp.ones_like(observation[..., 0], jnp.int32)


@environment
class ActionAndObservationReward(Probe):
    """One step; the observation is -1 or 1; the matching action (0 or 1) gives reward 1, the other -1.

    The value is 1. Fails when the policy does not get the observation that its action was for.
    """

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Draw the observation, -1 or 1."""
        observation = random_sign(key)
        return observation, restart(observation)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Reward the action that matches the observation."""
        is_correct = action == self.best_action(state)
        return state, transition(state, jnp.where(is_correct, 1.0, -1.0), terminated=True)

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Return the action that matches the observation, 0 or 1."""
        return (observation[..., 0] > 0).astype(jnp.int32)


@environment
class ContinuousAction(Probe):
    """One step; an observation o in [-1, 1]; reward `-(a - slope o)²`: the best action is `slope o`.

    The value is 0 for the best action, and minus the policy's variance while it explores. Fails when actions
    are scaled, clipped or squashed in another way than their log-probability assumes.
    """

    slope: float = parameter(default=0.5)

    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Draw the observation uniformly."""
        observation = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return observation, restart(observation)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Give minus the squared distance between the action and the target."""
        error = action - self.best_action(state)
        return state, transition(state, -(error[0] ** 2), terminated=True)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Return 0, the value once the action is the best."""
        return jnp.zeros_like(observation[..., 0])

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Return the target, [..., 1]."""
        return self.slope * observation


class EndlessState(NamedTuple):
    """The number of steps after which the episode will be truncated."""

    steps_left: jax.Array


@environment
class Endless(Probe):
    """Reward 1 for ever, no information, truncated after 1 to `most_steps` steps: the value is 1 / (1 - γ).

    Episodes are only truncated, never terminated, so the final observation of each has that same value.
    Fails, with a smaller value, when a truncation is treated as a termination.
    """

    most_steps: int = parameter(default=5, low=1)

    def reset(self, key: jax.Array) -> tuple[EndlessState, TimeStep]:
        """Draw the step at which the episode will be truncated; the observation does not show it."""
        return EndlessState(jax.random.randint(key, (), 1, self.most_steps + 1)), restart(zero_observation())

    def step(self, state: EndlessState, action: jax.Array, key: jax.Array) -> tuple[EndlessState, TimeStep]:
        """Give reward 1 for every action."""
        steps_left = state.steps_left - 1
        return EndlessState(steps_left), transition(zero_observation(), 1.0, truncated=steps_left <= 0)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Return 1 / (1 - γ)."""
        return jnp.full_like(observation[..., 0], 1 / (1 - gamma))
