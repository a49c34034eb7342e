"""mpe/Spread-v0 in a batch with its own auto-reset."""

from argparse import Namespace

import jax
from protocol import Program, serve
from stepping import program

from shoal import envs
from shoal.xla import machine


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    machine.prepare(sizes.devices)  # as `shoal rollout` and `shoal.rollout` do
    env = envs.make("mpe/Spread-v0")
    key = jax.random.key(0)
    shape = (sizes.num_steps, sizes.num_envs, env.num_agents)
    actions = jax.random.randint(key, shape, 0, env.action_space.n)
    timed = program(envs.Batch(env, sizes.num_envs), key, actions)
    return timed._replace(steps=sizes.num_steps * sizes.num_envs)  # of worlds, not of agents


if __name__ == "__main__":
    serve(build, ("shoal",))
