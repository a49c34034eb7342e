"""A2C and REINFORCE: PPO's update with one pass over each rollout and no ratio.

With a single gradient step on new data the ratio of PPO is 1 and is never clipped, so that PPO's gradient is the
policy gradient (Huang et al. 2022, "A2C is a special case of PPO"). Only the defaults below differ; the update
and all settings are those of PPO.
"""

from typing import Literal

from shoal.algos.learning.optimisers import JointOptimizerConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.config import struct


@struct.struct
class A2CConfig(PPOConfig):
    """Advantage actor-critic (Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning")."""

    optimization: JointOptimizerConfig = JointOptimizerConfig(
        learning_rate=7e-4, optimizer="rmsprop", optimizer_args=("decay=0.99", "eps=1e-5")
    )
    """Holds the settings of gradient steps; the step size and the optimiser are the paper's."""
    surrogate: str = "policy_gradient"
    """Chooses the policy's objective: here the policy gradient itself."""
    update_epochs: int = 1
    """Passes this many times over each rollout; more than one pass would need a ratio."""
    num_minibatches: int = 1
    """Makes this many gradient steps per pass."""
    gae_lambda: float = 1.0
    """Sets the trace decay; 1 is the n-step return of the whole rollout, as in the paper."""
    norm_adv: Literal["minibatch", "batch", "none"] = "none"
    """Normalises advantages to mean 0 and standard deviation 1 over each minibatch, over the rollout, or not at all."""


@struct.struct
class ReinforceConfig(PPOConfig):
    """REINFORCE with a learned baseline (Williams 1992), on Monte-Carlo returns.

    The return is the sum of rewards to the end of each episode; if the rollout ends earlier, the critic estimates
    the rest. This is rare if rollouts are several episodes long: set `--num-steps` above the episodes' length.
    """

    optimization: JointOptimizerConfig = JointOptimizerConfig(learning_rate=1e-3)
    """Holds the settings of gradient steps."""
    surrogate: str = "policy_gradient"
    """Chooses the policy's objective: here the policy gradient itself."""
    update_epochs: int = 1
    """Passes this many times over each rollout; more than one pass would need a ratio."""
    num_minibatches: int = 1
    """Makes this many gradient steps per pass."""
    gae_lambda: float = 1.0
    """Sets the trace decay; 1 is the Monte-Carlo return."""
    norm_adv: Literal["minibatch", "batch", "none"] = "batch"
    """Normalises advantages to mean 0 and standard deviation 1 over each minibatch, over the rollout, or not at all."""
