"""A batch of environments with its own auto-reset, stepped by given actions: what the environments' workers time."""

import jax
from protocol import Program

from shoal import envs


def program(batch: envs.Batch, key: jax.Array, actions: jax.Array) -> Program:
    """A rollout of `actions` [T, N], which returns its observations, rewards and ends."""

    @jax.jit
    def advance(carry):
        def step(carry, action):
            key, state = carry
            key, step_key = jax.random.split(key)
            state, timestep = batch.step(state, action, step_key)
            return (key, state), (timestep.observation, timestep.reward, timestep.discount, timestep.last)

        return jax.lax.scan(step, carry, actions)

    state, _ = jax.jit(batch.reset)(key)
    return Program(advance, (key, state), actions.size)
