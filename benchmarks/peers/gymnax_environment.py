"""gymnax's CartPole with its own auto-reset, under the loop of its documentation: keys split at each step."""

from argparse import Namespace

import gymnax
import jax
from protocol import Program, serve


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    env, params = gymnax.make("CartPole-v1")
    num_envs, num_steps = sizes.num_envs, sizes.num_steps
    key = jax.random.key(0)
    actions = jax.random.bernoulli(key, shape=(num_steps, num_envs)).astype("int32")

    @jax.jit
    def advance(carry):
        def step(carry, action):
            key, state = carry
            key, step_key = jax.random.split(key)
            step_keys = jax.random.split(step_key, num_envs)
            observation, state, reward, done, _ = jax.vmap(env.step, (0, 0, 0, None))(
                step_keys, state, action, params
            )
            return (key, state), (observation, reward, done)

        return jax.lax.scan(step, carry, actions)

    @jax.jit
    def start(key):
        return key, jax.vmap(env.reset, (0, None))(jax.random.split(key, num_envs), params)[1]

    return Program(advance, start(key), num_envs * num_steps)


if __name__ == "__main__":
    serve(build, ("gymnax",))
