"""Environments of gymnax's interface, as JaxMARL's are too, under the loop of their documentation."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import jax
from protocol import Program


def program(reset: Callable, step: Callable, key: jax.Array, actions: Any, sizes: Namespace) -> Program:
    """A rollout with given actions, keys split at each step, which returns its observations, rewards and ends.

    Args:
      reset: of one environment, (key) -> observation, state.
      step: of one environment, with its own auto-reset, (key, state, action) -> observation, state, reward, done, info.
      key: of the program.
      actions: a tree of arrays, [T, N, ...].
      sizes: the numbers of environments and of steps.
    """

    @jax.jit
    def advance(carry):
        def step_all(carry, action):
            key, state = carry
            key, step_key = jax.random.split(key)
            step_keys = jax.random.split(step_key, sizes.num_envs)
            observation, state, reward, done, _ = jax.vmap(step)(step_keys, state, action)
            return (key, state), (observation, reward, done)

        return jax.lax.scan(step_all, carry, actions)

    @jax.jit
    def start(key):
        return key, jax.vmap(reset)(jax.random.split(key, sizes.num_envs))[1]

    return Program(advance, start(key), sizes.num_envs * sizes.num_steps)
