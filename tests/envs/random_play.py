"""A batch of an environment that is played, from its starts on."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs import Batch


def at_random(batch, timestep, key):
    return batch.sample_actions(timestep, key)


def played(env, num_envs, steps, seed=0, choose=at_random):
    """Actions [T, N, ...], and the states and time-steps that they lead through, [T+1, N, ...]."""
    batch = Batch(env, num_envs)

    @jax.jit
    def run(key):
        def body(carry, key):
            state, timestep = carry
            action_key, step_key = jax.random.split(key)
            action = choose(batch, timestep, action_key)
            after = batch.step(state, action, step_key)
            return after, (action, after)

        start = batch.reset(key)
        _, (actions, rest) = jax.lax.scan(body, start, jax.random.split(key, steps))
        states, timesteps = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), start, rest)
        return actions, states.env, timesteps

    actions, states, timesteps = run(jax.random.key(seed))
    return np.asarray(actions), states, jax.tree.map(np.asarray, timesteps)
