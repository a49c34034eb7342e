"""Shoal's PPO training: rollouts and updates, without evaluation."""

from argparse import Namespace

import jax
import jax.numpy as jnp
from protocol import Program, serve, updates_per_call
from shoal_ppo import compiled, population

from shoal.runtime import population as populations
from shoal.runtime.loop import train


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as `shoal.train` makes between two log points."""
    run, settings, layout = population(sizes)
    updates = jnp.int32(updates_per_call(sizes))
    advance = compiled(populations.run_program(train, settings, layout), layout, run, updates)
    jax.block_until_ready(run)
    return Program(lambda run: advance(run, updates), run, int(updates) * sizes.num_envs * sizes.num_steps)


if __name__ == "__main__":
    serve(build, ("shoal", "flax"))
