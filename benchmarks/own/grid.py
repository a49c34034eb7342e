"""A grid world of Shoal's in a batch with its own auto-reset; NAME-RGB8 is seen in images with tiles of 8 x 8."""

from argparse import Namespace

import jax
from protocol import Program, serve
from rulesets import random_rulesets
from stepping import program

from shoal import envs
from shoal.envs.grid.rulesets.rulesets import Ruleset


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    name, in_images, tile_size = sizes.environment.partition("-RGB")
    parameters = {"observe_image": True, "image_tile_size": int(tile_size)} if in_images else {}
    if sizes.environment.startswith("XLand"):
        parameters["ruleset"] = Ruleset(*random_rulesets(sizes.num_envs))
    batch = envs.Batch(envs.make(name, **parameters), sizes.num_envs)
    key = jax.random.key(0)
    actions = jax.random.randint(key, (sizes.num_steps, sizes.num_envs), 0, 6)
    return program(batch, key, actions)


if __name__ == "__main__":
    serve(build, ("shoal",))
