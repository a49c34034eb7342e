"""Probe environments: tiny worlds whose values are known, one for each thing that a learner can get wrong.

A learner that fails `ConstantReward` cannot fit a value at all; one that passes it and fails
`ObservationReward` does not see its observation; and so on down the list. The idea is Andy Jones's
("Debugging RL, Without the Agonizing Pain", 2021). `value(observation, gamma)` is what a right learner's
critic gives once its policy is the best one, and `best_action(observation)` is that policy.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.spaces import Box, Discrete
from shoal.types import Array

NO_STATE = ()  # the state of a world that has none


def zero_observation() -> jax.Array:
    """The observation that tells nothing, [1]."""
    return jnp.zeros((1,), jnp.float32)


def random_sign(key: jax.Array) -> jax.Array:
    """An observation that is -1 or 1, [1]."""
    return jnp.where(jax.random.bernoulli(key, shape=(1,)), 1.0, -1.0)


@environment
class ConstantReward:
    """One step, nothing to see, reward 1: the value is 1.

    Fails when the value loss or its optimiser does not work.
    """

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[tuple, TimeStep]:
        """Nothing to see."""
        return NO_STATE, restart(zero_observation())

    def step(self, state: tuple, action: jax.Array, key: jax.Array) -> tuple[tuple, TimeStep]:
        """Reward 1, whatever the action."""
        return NO_STATE, transition(zero_observation(), 1.0, terminated=True)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Always 1."""
        return jnp.ones_like(observation[..., 0])

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Any."""
        return jnp.zeros_like(observation[..., 0], jnp.int32)


@environment
class ObservationReward:
    """One step, the observation is -1 or 1, and so is the reward: the value is the observation.

    Fails when the critic does not get the observation, or gets another environment's.
    """

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """A coin is thrown."""
        observation = random_sign(key)
        return observation, restart(observation)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """The coin's side is the reward, whatever the action."""
        return state, transition(state, state[0], terminated=True)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """The observation."""
        return observation[..., 0]

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Any."""
        return jnp.zeros_like(observation[..., 0], jnp.int32)


@environment
class DelayedReward:
    """Two steps, the observation says which, reward 0 and then 1: the values are γ and 1.

    Fails when the return is not discounted, or is put together from the wrong steps.
    """

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """The first step: the observation is 0."""
        return jnp.zeros((), jnp.int32), restart(zero_observation())

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """The observation is 1 from now on; the second step gives the reward and terminates."""
        is_second = state == 1
        return state + 1, transition(
            zero_observation() + 1, jnp.where(is_second, 1.0, 0.0), terminated=is_second
        )

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """The discount at the first step, 1 at the second."""
        return jnp.where(observation[..., 0] < 0.5, gamma, 1.0)

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Any."""
        return jnp.zeros_like(observation[..., 0], jnp.int32)


@environment
class ActionReward:
    """One step, nothing to see, reward 1 for action 1 and -1 for action 0: the value is 1.

    Fails when the policy's gradient has the wrong sign, or the advantage is another action's.
    """

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[tuple, TimeStep]:
        """Nothing to see."""
        return NO_STATE, restart(zero_observation())

    def step(self, state: tuple, action: jax.Array, key: jax.Array) -> tuple[tuple, TimeStep]:
        """The action decides the reward."""
        return NO_STATE, transition(zero_observation(), jnp.where(action == 1, 1.0, -1.0), terminated=True)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Always 1, once the action is always 1."""
        return jnp.ones_like(observation[..., 0])

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Always 1."""
        return jnp.ones_like(observation[..., 0], jnp.int32)


@environment
class ActionAndObservationReward:
    """One step, the observation is -1 or 1; the action that matches it (0 or 1) gives 1, the other -1.

    The value is 1. Fails when the policy does not see the observation that its action was for.
    """

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """A coin is thrown."""
        observation = random_sign(key)
        return observation, restart(observation)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """Rewards the action that names the coin's side."""
        is_correct = action == self.best_action(state)
        return state, transition(state, jnp.where(is_correct, 1.0, -1.0), terminated=True)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Always 1, once the action matches."""
        return jnp.ones_like(observation[..., 0])

    def best_action(self, observation: jax.Array) -> jax.Array:
        """The coin's side, as 0 or 1."""
        return (observation[..., 0] > 0).astype(jnp.int32)


@environment
class ContinuousAction:
    """One step, an observation o in [-1, 1], reward `-(a - slope o)²`: the best action is `slope o`.

    The value is 0 for the best action, and minus the policy's variance while it explores. Fails when
    actions are scaled, clipped or squashed otherwise than their log-probability says.
    """

    slope: float = parameter(default=0.5)

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """The observation is uniform."""
        observation = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return observation, restart(observation)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """The squared distance from the target is the cost."""
        error = action - self.best_action(state)
        return state, transition(state, -(error[0] ** 2), terminated=True)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Always 0, once the action is the best."""
        return jnp.zeros_like(observation[..., 0])

    def best_action(self, observation: jax.Array) -> jax.Array:
        """The target, [..., 1]."""
        return self.slope * observation


class EndlessState(NamedTuple):
    """When the episode will be cut."""

    steps_left: jax.Array


@environment
class Endless:
    """Nothing to see, reward 1 for ever, cut after 1 to `most_steps` steps: the value is 1 / (1 - γ).

    Nothing ends here, episodes are only cut, so the final observation of each has that same value. Fails,
    with a smaller value, when a truncation is taken for a termination.
    """

    most_steps: int = parameter(default=5, low=1)

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[EndlessState, TimeStep]:
        """Draws when the episode will be cut, which cannot be seen."""
        return EndlessState(jax.random.randint(key, (), 1, self.most_steps + 1)), restart(zero_observation())

    def step(self, state: EndlessState, action: jax.Array, key: jax.Array) -> tuple[EndlessState, TimeStep]:
        """Reward 1, whatever the action."""
        steps_left = state.steps_left - 1
        return EndlessState(steps_left), transition(zero_observation(), 1.0, truncated=steps_left <= 0)

    def value(self, observation: jax.Array, gamma: Array | float) -> jax.Array:
        """Always 1 / (1 - γ)."""
        return jnp.full_like(observation[..., 0], 1 / (1 - gamma))

    def best_action(self, observation: jax.Array) -> jax.Array:
        """Any."""
        return jnp.zeros_like(observation[..., 0], jnp.int32)
