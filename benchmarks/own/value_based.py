"""Shoal's DQN or PQN training on CartPole, SAC or TD3 on Pendulum: rollouts and updates, without evaluation."""

from argparse import Namespace
from typing import Any

from protocol import DQN, PQN, SAC, TD3, Program, serve, value_updates_per_call
from shoal_ppo import training

from shoal import envs
from shoal.algos.catalogue import config_class
from shoal.config.settings import with_settings

NAMES = {"dqn": DQN, "pqn": PQN, "sac": SAC, "td3": TD3}  # settings by the names of Shoal


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as `shoal.train` makes between two log points."""
    is_continuous = sizes.environment in ("sac", "td3")
    style = dict(hidden_sizes=(64, 64), activation="swish" if is_continuous else "tanh")
    settings: dict[str, Any] = NAMES[sizes.environment] | style
    config = with_settings(config_class(sizes.environment)(), **settings)
    name = "Pendulum-v1" if is_continuous else "CartPole-v1"
    return training(lambda: envs.make(name), config, sizes, value_updates_per_call(sizes))


if __name__ == "__main__":
    serve(build, ("shoal", "flax"))
