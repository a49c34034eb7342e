"""Shoal's DQN or PQN training on CartPole: rollouts and updates, without evaluation."""

from argparse import Namespace
from typing import Any

from protocol import DQN, PQN, Program, serve, value_updates_per_call
from shoal_ppo import training

from shoal import envs
from shoal.algos.catalogue import config_class
from shoal.config.settings import with_settings

NAMES = {"dqn": DQN, "pqn": PQN}  # settings by the names of Shoal


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as `shoal.train` makes between two log points."""
    settings: dict[str, Any] = dict(NAMES[sizes.environment], hidden_sizes=(64, 64), activation="tanh")
    config = with_settings(config_class(sizes.environment)(), **settings)
    return training(lambda: envs.make("CartPole-v1"), config, sizes, value_updates_per_call(sizes))


if __name__ == "__main__":
    serve(build, ("shoal", "flax"))
