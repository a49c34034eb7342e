"""xminigrid with its own auto-reset wrapper, under the loop of its documentation; NAME-RGB32 is seen in images."""

import os
import tempfile
from argparse import Namespace

import jax
import xminigrid
from protocol import Program, serve
from rulesets import random_rulesets
from xminigrid.types import RuleSet
from xminigrid.wrappers import GymAutoResetWrapper


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    name, in_images, _ = sizes.environment.partition("-RGB")
    env, params = xminigrid.make(name)
    env = GymAutoResetWrapper(env)
    if in_images:
        os.environ.setdefault("XLAND_MINIGRID_CACHE", tempfile.mkdtemp())  # else in the user's home
        from xminigrid.experimental.img_obs import RGBImgObservationWrapper

        env = RGBImgObservationWrapper(env)
    axis = None
    if sizes.environment.startswith("XLand"):  # a ruleset for each environment
        params = params.replace(ruleset=RuleSet(*map(jax.numpy.asarray, random_rulesets(sizes.num_envs))))
        axis = 0
    key = jax.random.key(0)
    actions = jax.random.randint(key, (sizes.num_steps, sizes.num_envs), 0, 6)

    @jax.jit
    def advance(timestep):
        def step(timestep, action):
            after = jax.vmap(env.step, (axis, 0, 0))(params, timestep, action)
            return after, (after.observation, after.reward, after.discount, after.last())

        return jax.lax.scan(step, timestep, actions)

    @jax.jit
    def start(keys):
        return jax.vmap(env.reset, (axis, 0))(params, keys)

    return Program(advance, start(jax.random.split(key, sizes.num_envs)), sizes.num_envs * sizes.num_steps)


if __name__ == "__main__":
    serve(build, ("xminigrid",))
