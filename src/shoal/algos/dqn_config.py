"""The settings of DQN and of its distributional forms; `dqn.py` has the algorithm."""

import math
from typing import Any, ClassVar, Literal

from shoal.algos import checks
from shoal.algos.acting.exploration import ExplorationConfig
from shoal.algos.acting.normalisation import NormalisationConfig
from shoal.algos.agents.agents_config import AgentsConfig
from shoal.algos.dqn import dqn
from shoal.algos.learning.optimisers import OptimizerConfig
from shoal.algos.learning.replay import ReplayConfig
from shoal.algos.learning.target_networks import TargetConfig
from shoal.config import settings, struct
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.nets import networks, q_networks
from shoal.nets.q_networks import QNetworkConfig
from shoal.types import Algorithm, EnvSpec

_WITH_ERRORS = Needs("values", ("expected", "quantile"))  # C51 has a cross-entropy
_MUNCHAUSEN = Needs("munchausen", (True,))


@struct.struct
class DQNConfig(NormalisationConfig):
    """Hyper-parameters of DQN (Mnih et al. 2015); the names and most defaults are CleanRL's."""

    name: ClassVar[str] = "dqn"
    run_defaults: ClassVar[dict[str, Any]] = {"num_envs": 8, "num_steps": 10}
    groups: ClassVar[dict[str, tuple[str, ...]]] = {"normalisation": ("norm_obs",), "memory": ("core",)}
    optimization: OptimizerConfig = OptimizerConfig(
        learning_rate=2.5e-4, max_grad_norm=math.inf, optimizer_args=("eps=1e-8",)
    )
    """Holds the settings of gradient steps."""
    network: networks.NetworkSettings = settings.chosen(
        QNetworkConfig(), q_networks.choose, q_networks.name_of, group="network"
    )
    """Uses this network of action values: a class, or a struct of settings with a method build, as module:Name."""
    replay: ReplayConfig = ReplayConfig()
    """Holds the settings of the replay."""
    targets: TargetConfig = TargetConfig()
    """Holds the settings of the target network."""
    exploration: ExplorationConfig = ExplorationConfig()
    """Holds the settings of random actions."""
    agents: AgentsConfig = AgentsConfig()
    """Holds the settings of several agents."""
    gamma: float = parameter(0.99, low=0.0, high=1.0, group="most used")
    """Discounts rewards by this factor per step."""
    double: bool = parameter(False, group="most used")
    """Chooses the next action by the network that learns, and takes its value from the target network."""
    multistep: Literal["n_step", "retrace", "tree_backup", "q_lambda_watkins", "uncorrected"] = parameter(
        "n_step", group="targets"
    )
    """Sums the rewards of n_step steps whatever the actions were; or corrects for those that were not greedy by
    Retrace, Tree-Backup or Watkins' Q(λ); or adds their TD errors without correction (Harutyunyan's Q(λ))."""
    q_lambda: float = parameter(
        1.0,
        low=0.0,
        high=1.0,
        group="targets",
        needs=Needs("multistep", other_than=("n_step",), such_as="retrace"),
    )
    """Multiplies the traces of multistep by this for each step."""
    huber: bool = parameter(False, group="targets", needs=_WITH_ERRORS)
    """Makes the loss linear for errors beyond huber_delta; of quantiles, squared for errors within it."""
    huber_delta: float = parameter(
        1.0, above=0.0, group="targets", needs=(_WITH_ERRORS, Needs("huber", (True,)))
    )
    """Makes the loss linear for errors beyond this (huber)."""
    munchausen: bool = parameter(False, group="targets")
    """Adds the scaled logarithm of the softmax policy to the reward, and takes soft values."""
    munchausen_temperature: float = parameter(0.03, above=0.0, group="targets", needs=_MUNCHAUSEN)
    """Sets the temperature of the softmax policy (munchausen)."""
    munchausen_alpha: float = parameter(0.9, low=0.0, high=1.0, group="targets", needs=_MUNCHAUSEN)
    """Multiplies the logarithm that is added to the reward by this (munchausen)."""
    munchausen_lowest: float = parameter(-1.0, high=0.0, group="targets", needs=_MUNCHAUSEN)
    """Adds at least this logarithm, times the temperature, to the reward (munchausen)."""

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """Return DQN's functions for an environment; gradients and statistics are reduced over `axis`."""
        if spec.num_agents == 1:
            return dqn(self, spec, axis)
        return self.agents.algorithm(lambda of_agent, size: dqn(self, of_agent, axis, size), spec)

    def acts_alike(self, spec: EnvSpec, other: EnvSpec) -> bool:
        """Report whether a policy of one world can act in another, with more or fewer agents."""
        return self.agents.acts_alike(spec, other)

    def validate(self, spec: EnvSpec, num_envs: int, num_steps: int, groups: int = 1) -> None:
        """Require that the settings can work; the error names the first that cannot."""
        settings.check_fields(self)
        checks.check_without_critic(self, self.name)
        if spec.num_agents > 1:
            self.agents.validate(spec, num_envs)
            spec = self.agents.view(spec).spec_of_agent
        checks.check_action_values(self, spec, self.name)
        checks.check_dqn(self)
        self.replay.validate(num_envs * groups, num_steps)
        if groups > 1:
            checks.check_divides("env_groups", groups, "batch_size", self.replay.batch_size)


@struct.struct
class C51Config(DQNConfig):
    """DQN on distributions of returns (Bellemare et al. 2017). Only the defaults differ, and are CleanRL's."""

    name: ClassVar[str] = "c51"

    optimization: OptimizerConfig = OptimizerConfig(
        learning_rate=2.5e-4, max_grad_norm=math.inf, optimizer_args=("eps=7.8125e-5",)
    )
    """Holds the settings of gradient steps; Adam's eps is 0.01 divided by the batch_size."""
    network: networks.NetworkSettings = settings.chosen(
        QNetworkConfig(values="categorical"), q_networks.choose, q_networks.name_of
    )
    """Uses this network of action values: a class, or a struct of settings with a method build, as module:Name."""


@struct.struct
class RainbowConfig(DQNConfig):
    """C51 with noisy, dueling and double networks, three steps and priorities (Hessel et al. 2018).

    Only the defaults differ, and are CleanRL's.
    """

    name: ClassVar[str] = "rainbow"

    optimization: OptimizerConfig = OptimizerConfig(
        learning_rate=6.25e-5, max_grad_norm=math.inf, optimizer_args=("eps=1.5e-4",)
    )
    """Holds the settings of gradient steps."""
    network: networks.NetworkSettings = settings.chosen(
        QNetworkConfig(values="categorical", num_atoms=51, v_min=-10.0, v_max=10.0, noisy=True, dueling=True),
        q_networks.choose,
        q_networks.name_of,
    )
    """Uses this network of action values: a class, or a struct of settings with a method build, as module:Name."""
    replay: ReplayConfig = ReplayConfig(
        buffer_size=1_000_000,
        batch_size=32,
        learning_starts=80_000,
        train_frequency=4,
        n_step=3,
        prioritized_replay=True,
    )
    """Holds the settings of the replay."""
    targets: TargetConfig = TargetConfig(target_network_frequency=8_000)
    """Holds the settings of the target network."""
    double: bool = True
    """Chooses the next action by the network that learns, and takes its value from the target network."""


@struct.struct
class QRDQNConfig(DQNConfig):
    """DQN on quantiles of returns (Dabney et al. 2017). Only the defaults differ."""

    name: ClassVar[str] = "qr_dqn"

    network: networks.NetworkSettings = settings.chosen(
        QNetworkConfig(values="quantile"), q_networks.choose, q_networks.name_of
    )
    """Uses this network of action values: a class, or a struct of settings with a method build, as module:Name."""
    huber: bool = True
    """Makes the loss linear for errors beyond huber_delta, and squared within it; False: linear for all."""
