"""JaxMARL's MPE_simple_spread_v3 with its own auto-reset, under the loop of its documentation: keys split at each step.

Its episodes have 26 steps, and it starts a new one within the last of them.
"""

from argparse import Namespace

import jax
import jaxmarl
from protocol import Program, serve


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    env = jaxmarl.make("MPE_simple_spread_v3")
    num_envs, num_steps = sizes.num_envs, sizes.num_steps
    key = jax.random.key(0)
    drawn = jax.random.randint(key, (num_steps, num_envs, env.num_agents), 0, 5)
    actions = {agent: drawn[..., i] for i, agent in enumerate(env.agents)}

    @jax.jit
    def advance(carry):
        def step(carry, action):
            key, state = carry
            key, step_key = jax.random.split(key)
            step_keys = jax.random.split(step_key, num_envs)
            observation, state, reward, done, _ = jax.vmap(env.step)(step_keys, state, action)
            return (key, state), (observation, reward, done)

        return jax.lax.scan(step, carry, actions)

    @jax.jit
    def start(key):
        return key, jax.vmap(env.reset)(jax.random.split(key, num_envs))[1]

    return Program(advance, start(key), num_envs * num_steps)


if __name__ == "__main__":
    serve(build, ("jaxmarl",))
