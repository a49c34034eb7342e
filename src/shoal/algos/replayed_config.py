"""The settings that SAC and TD3 have in common; `replayed_actor_critic.py` has the algorithm."""

import dataclasses
import math
from typing import Any, ClassVar

from shoal.algos import checks
from shoal.algos.acting.actions import NoiseConfig
from shoal.algos.acting.normalisation import NormalisationConfig
from shoal.algos.agents.agents_config import AgentsConfig
from shoal.algos.learning.optimisers import ActorCriticOptimizerConfig
from shoal.algos.learning.replay import ReplayConfig
from shoal.algos.learning.target_networks import TargetConfig
from shoal.algos.replayed_actor_critic import Rules, algorithm
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.nets import action_critics, networks
from shoal.nets.action_critics import ActionCriticsConfig
from shoal.types import Algorithm, Array, EnvSpec

_QUANTILES = Needs("values", ("quantile",))


@struct.struct
class ReplayedConfig(NormalisationConfig, NoiseConfig):
    """The settings of actor-critics that learn from a replay; the names are CleanRL's where it has one."""

    name: ClassVar[str]
    rules: ClassVar[Rules]
    run_defaults: ClassVar[dict[str, Any]] = {"num_envs": 8, "num_steps": 1}
    groups: ClassVar[dict[str, tuple[str, ...]]] = {"normalisation": ("norm_obs",)}
    optimization: ActorCriticOptimizerConfig = ActorCriticOptimizerConfig(
        learning_rate=3e-4, max_grad_norm=math.inf, optimizer_args=("eps=1e-8",)
    )
    """Holds the settings of gradient steps."""
    network: networks.NetworkSettings = settings.chosen(
        ActionCriticsConfig(), action_critics.choose, action_critics.name_of, group="network"
    )
    """Uses this network of an actor and critics of actions: a class, or a struct of settings with a method build, as
    module:Name."""
    replay: ReplayConfig = ReplayConfig(
        buffer_size=1_000_000, batch_size=256, learning_starts=5_000, train_frequency=1
    )
    """Holds the settings of the replay."""
    targets: TargetConfig = TargetConfig(target_network_frequency=1, tau=0.005)
    """Holds the settings of the target networks."""
    agents: AgentsConfig = AgentsConfig()
    """Holds the settings of several agents."""
    gamma: float = parameter(0.99, low=0.0, high=1.0, group="most used")
    """Discounts rewards by this factor per step."""
    policy_frequency: int = parameter(1, low=1, high=100_000, group="most used")
    """Makes one step of the actor after this many of the critics."""
    target_critics: int | None = parameter(None, low=1, high=LARGEST_INDEX, group="targets")
    """Computes each target by the lowest of so many critics, drawn anew (REDQ), and values the policy by the mean of
    all; None takes the lowest of all for both."""
    drop_quantiles: int = parameter(0, low=0, high=LARGEST_INDEX, group="targets", needs=_QUANTILES)
    """Cuts this many of the greatest quantiles of each critic from targets (TQC; values quantile)."""

    @property
    def corrects(self) -> bool:
        """Whether returns of several steps are corrected by the ratios of actions, or for them."""
        return False

    @property
    def learns_temperature(self) -> bool:
        """Whether the weight of the policy's entropy is learned."""
        return False

    @property
    def entropy_weight(self) -> Array | float:
        """The weight of the policy's entropy; where it is learned, the first."""
        return 0.0

    def with_critic_defaults(self) -> "ReplayedConfig":
        """Replace each setting of the critics' optimiser that is None by the actor's."""
        return dataclasses.replace(self, optimization=self.optimization.with_critic_defaults())

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """Return the functions for an environment; gradients and statistics are reduced over `axis`."""
        config = self.with_critic_defaults()
        if spec.num_agents == 1:
            return algorithm(config, self.rules, spec, axis)
        return self.agents.algorithm(
            lambda of_agent, size: algorithm(config, self.rules, of_agent, axis, size), spec
        )

    def acts_alike(self, spec: EnvSpec, other: EnvSpec) -> bool:
        """Report whether a policy of one world can act in another, with more or fewer agents."""
        return self.agents.acts_alike(spec, other)

    def validate(self, spec: EnvSpec, num_envs: int, num_steps: int, groups: int = 1) -> None:
        """Require that the settings can work; the error names the first that cannot."""
        settings.check_fields(self)
        if spec.num_agents > 1:
            self.agents.validate(spec, num_envs)
            spec = self.agents.view(spec).spec_of_agent
        checks.check_replayed(self.with_critic_defaults(), spec)
        self.replay.validate(num_envs * groups, num_steps)
        if groups > 1:
            checks.check_divides("env_groups", groups, "batch_size", self.replay.batch_size)
