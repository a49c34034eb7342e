"""A grid world of Shoal's in a batch with its own auto-reset."""

from argparse import Namespace

import jax
from protocol import Program, serve
from rulesets import random_rulesets

from shoal import envs
from shoal.envs.grid.rulesets import Ruleset


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    parameters = {}
    if sizes.environment.startswith("XLand"):
        parameters["ruleset"] = Ruleset(*random_rulesets(sizes.num_envs))
    batch = envs.Batch(envs.make(sizes.environment, **parameters), sizes.num_envs)
    key = jax.random.key(0)
    actions = jax.random.randint(key, (sizes.num_steps, sizes.num_envs), 0, 6)

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
