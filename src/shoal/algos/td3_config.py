"""The settings of TD3 and DDPG; `td3.py` has what they do of their own."""

from typing import ClassVar

from shoal.algos.learning.replay import ReplayConfig
from shoal.algos.learning.target_networks import TargetConfig
from shoal.algos.replayed_actor_critic import Rules
from shoal.algos.replayed_config import ReplayedConfig
from shoal.algos.td3 import TD3
from shoal.config import settings, struct
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.nets import action_critics, networks
from shoal.nets.action_critics import ActionCriticsConfig


@struct.struct
class TD3Config(ReplayedConfig):
    """Hyper-parameters of TD3 (Fujimoto et al. 2018); the names and most defaults are CleanRL's."""

    name: ClassVar[str] = "td3"
    rules: ClassVar[Rules] = TD3

    network: networks.NetworkSettings = settings.chosen(
        ActionCriticsConfig(distribution="deterministic"),
        action_critics.choose,
        action_critics.name_of,
        group="network",
    )
    """Uses this network of an actor and critics of actions: a class, or a struct of settings with a method build, as
    module:Name."""
    replay: ReplayConfig = ReplayConfig(
        buffer_size=1_000_000, batch_size=256, learning_starts=25_000, train_frequency=1
    )
    """Holds the settings of the replay."""
    targets: TargetConfig = TargetConfig(target_network_frequency=2, tau=0.005)
    """Holds the settings of the target networks."""
    policy_frequency: int = parameter(2, low=1, high=100_000, group="most used")
    """Makes one step of the actor after this many of the critics."""
    exploration_noise: float = parameter(0.1, low=0.0, group="exploration")
    """Adds normal noise of this deviation to actions in [-1, 1] while transitions are collected."""
    policy_noise: float = parameter(0.2, low=0.0, group="targets")
    """Adds normal noise of this deviation to the actions of targets, in [-1, 1]."""
    noise_clip: float = parameter(
        0.5, low=0.0, group="targets", needs=Needs("policy_noise", other_than=(0.0,), such_as=0.2)
    )
    """Clips the noise of the actions of targets to plus and minus this."""


@struct.struct
class DDPGConfig(TD3Config):
    """TD3 with one critic, without noise in targets and with as many steps of the actor as of the critic."""

    name: ClassVar[str] = "ddpg"

    network: networks.NetworkSettings = settings.chosen(
        ActionCriticsConfig(distribution="deterministic", num_critics=1),
        action_critics.choose,
        action_critics.name_of,
        group="network",
    )
    """Uses this network of an actor and critics of actions: a class, or a struct of settings with a method build, as
    module:Name."""
    targets: TargetConfig = TargetConfig(target_network_frequency=1, tau=0.005)
    """Holds the settings of the target networks."""
    policy_frequency: int = parameter(1, low=1, high=100_000, group="most used")
    """Makes one step of the actor after this many of the critics."""
    policy_noise: float = parameter(0.0, low=0.0, group="targets")
    """Adds normal noise of this deviation to the actions of targets, in [-1, 1]."""
