"""Shoal's PPO training on CartPole: rollouts and updates, without evaluation."""

from argparse import Namespace

from protocol import Program, serve, updates_per_call
from shoal_ppo import ppo, training

from shoal import envs


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as `shoal.train` makes between two log points."""
    return training(lambda: envs.make("CartPole-v1"), ppo(), sizes, updates_per_call(sizes))


if __name__ == "__main__":
    serve(build, ("shoal", "flax"))
