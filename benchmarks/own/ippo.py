"""Shoal's IPPO on mpe/Spread-v0 with the settings of JaxMARL's script: rollouts and updates, without evaluation."""

from argparse import Namespace
from typing import Any

import jax
import jax.numpy as jnp
from protocol import Program, serve, updates_per_call
from shoal_ppo import ppo, training

from shoal import envs
from shoal.types import TimeStep


@envs.environment
class EndsTerminally(envs.Wrapper):
    """Make the last step of an episode terminal, also where it is cut, as the script does."""

    def step(self, state: Any, action: Any, key: jax.Array) -> tuple[Any, TimeStep]:
        """Make one step, without a value after the last one."""
        state, timestep = self.env.step(state, action, key)
        return state, timestep._replace(discount=jnp.where(timestep.last, 0.0, timestep.discount))


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as `shoal.train` makes between two log points."""
    config = ppo(lr_schedule="linear", optimizer_args=("eps=1e-5",))
    return training(
        lambda: EndsTerminally(envs.make("mpe/Spread-v0")), config, sizes, updates_per_call(sizes)
    )


if __name__ == "__main__":
    serve(build, ("shoal", "flax"))
