"""Shoal's CartPole in a batch with its own auto-reset."""

from argparse import Namespace

import jax
from protocol import Program, serve

from shoal import envs


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    batch = envs.Batch(envs.make("CartPole-v1"), sizes.num_envs)
    key = jax.random.key(0)
    actions = jax.random.bernoulli(key, shape=(sizes.num_steps, sizes.num_envs)).astype("int32")

    @jax.jit
    def advance(carry):
        def step(carry, action):
            key, state = carry
            key, step_key = jax.random.split(key)
            state, timestep = batch.step(state, action, step_key)
            return (key, state), (timestep.observation, timestep.reward, timestep.discount, timestep.last)

        return jax.lax.scan(step, carry, actions)

    state, _ = jax.jit(batch.reset)(key)
    return Program(advance, (key, state), sizes.num_envs * sizes.num_steps)


if __name__ == "__main__":
    serve(build, ("shoal",))
