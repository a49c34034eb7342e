"""Shoal's CartPole in a batch with its own auto-reset."""

from argparse import Namespace

import jax
from protocol import Program, serve
from stepping import program

from shoal import envs
from shoal.xla import machine


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    machine.prepare(sizes.devices)  # as `shoal rollout` and `shoal.rollout` do
    batch = envs.Batch(envs.make("CartPole-v1"), sizes.num_envs)
    key = jax.random.key(0)
    actions = jax.random.bernoulli(key, shape=(sizes.num_steps, sizes.num_envs)).astype("int32")
    return program(batch, key, actions)


if __name__ == "__main__":
    serve(build, ("shoal",))
