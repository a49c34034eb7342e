"""Shoal's PPO training on MuJoCo Playground's CartpoleBalance: rollouts and updates, without evaluation."""

from argparse import Namespace

from protocol import BALANCE, Program, serve, updates_per_call
from shoal_ppo import ppo, training

from shoal import envs


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, with what Brax's PPO has besides."""
    config = ppo(
        activation="swish",
        distribution="tanh_normal",
        norm_obs=True,
        clip_coef=0.3,
        clip_vloss=False,
        **BALANCE[sizes.environment],
    )
    return training(lambda: envs.make("playground/CartpoleBalance"), config, sizes, updates_per_call(sizes))


if __name__ == "__main__":
    serve(build, ("shoal", "brax", "playground"))
