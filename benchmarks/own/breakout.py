"""Shoal's PPO training on gymnax's Breakout-MinAtar: rollouts and updates, without evaluation."""

from argparse import Namespace

from protocol import BREAKOUT, Program, serve, updates_per_call
from shoal_ppo import ppo, training

from shoal import envs


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call; the learning rate follows PureJaxRL's schedule."""
    config = ppo(lr_schedule="linear", **BREAKOUT)
    return training(lambda: envs.make("gymnax/Breakout-MinAtar"), config, sizes, updates_per_call(sizes))


if __name__ == "__main__":
    serve(build, ("shoal", "flax", "gymnax"))
