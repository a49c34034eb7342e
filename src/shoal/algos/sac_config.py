"""The settings of Soft Actor-Critic; `sac.py` has what it does of its own."""

import math
from typing import ClassVar, Literal

from shoal.algos.learning.optimisers import ActorCriticOptimizerConfig
from shoal.algos.replayed_actor_critic import Rules
from shoal.algos.replayed_config import ReplayedConfig
from shoal.algos.sac import SAC
from shoal.config import struct
from shoal.config.requirements import Needs
from shoal.config.struct import parameter

_LEARNED = Needs("autotune", (True,))


@struct.struct
class SACConfig(ReplayedConfig):
    """Hyper-parameters of SAC (Haarnoja et al. 2018); the names and most defaults are CleanRL's."""

    name: ClassVar[str] = "sac"
    rules: ClassVar[Rules] = SAC

    optimization: ActorCriticOptimizerConfig = ActorCriticOptimizerConfig(
        learning_rate=3e-4, critic_learning_rate=1e-3, max_grad_norm=math.inf, optimizer_args=("eps=1e-8",)
    )
    """Holds the settings of gradient steps."""
    autotune: bool = parameter(True, group="most used")
    """Learns the temperature, so that the policy's entropy comes to a target; else it is alpha."""
    alpha: float = parameter(1.0, above=0.0, group="most used", needs_to_change=Needs("autotune", (False,)))
    """Weights the policy's entropy by this temperature; where it is learned, it begins with this."""
    target_entropy: float = parameter(
        -1.0, group="temperature", needs=(_LEARNED, Needs("action_space", kinds=("Box",)))
    )
    """Steps the temperature until each number of an action has this differential entropy, in halves of the range
    (autotune)."""
    target_entropy_share: float = parameter(
        0.5,
        low=0.0,
        high=1.0,
        group="temperature",
        needs=(_LEARNED, Needs("action_space", kinds=("Discrete",))),
    )
    """Steps the temperature until the policy has this share of the greatest entropy that the legal actions allow
    (autotune)."""
    multistep: Literal["n_step", "retrace", "uncorrected"] = parameter("n_step", group="targets")
    """Sums the rewards of n_step steps whatever the actions were; or corrects for those that the policy would not take
    by Retrace; or adds their TD errors without correction."""
    q_lambda: float = parameter(
        1.0,
        low=0.0,
        high=1.0,
        group="targets",
        needs=Needs("multistep", other_than=("n_step",), such_as="retrace"),
    )
    """Multiplies the traces of multistep by this for each step."""

    @property
    def corrects(self) -> bool:
        """Whether returns of several steps are corrected."""
        return self.multistep != "n_step"

    @property
    def learns_temperature(self) -> bool:
        """Whether the temperature is learned."""
        return self.autotune

    @property
    def entropy_weight(self) -> float:
        """The temperature, or the first of those that are learned."""
        return self.alpha
