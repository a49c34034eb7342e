"""MAPPO: PPO for several agents whose critic is shown more than they are (Yu et al. 2022, arXiv:2103.01955)."""

from typing import Literal

from shoal.algos.agents.agents_config import AgentsConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.config import struct


@struct.struct
class MAPPOConfig(PPOConfig):
    """PPO with a centralised critic. Only the defaults differ, after the paper; all settings are those of PPO."""

    agents: AgentsConfig = AgentsConfig(critic_input="everybody")
    """Holds the settings of several agents; the critic is shown the observations of all."""
    update_epochs: int = 10
    """Passes this many times over each rollout; the paper takes 5 to 10."""
    norm_value: Literal["none", "running", "popart"] = "running"
    """Trains the critic on targets normalised by their running mean and standard deviation, or not."""
    num_minibatches: int = 1
    """Makes this many gradient steps per pass; the paper takes one."""
