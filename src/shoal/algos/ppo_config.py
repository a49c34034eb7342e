"""The settings of PPO; `ppo.py` has the algorithm."""

import dataclasses
import math
from typing import Literal

from shoal.algos import checks
from shoal.algos.acting import memories
from shoal.algos.acting.actions import NoiseConfig
from shoal.algos.acting.memories import MemoryConfig
from shoal.algos.acting.normalisation import NormalisationConfig
from shoal.algos.agents.agents_config import AgentsConfig
from shoal.algos.learning import surrogates
from shoal.algos.learning.advantages import ESTIMATORS
from shoal.algos.learning.critic_losses import LOSSES
from shoal.algos.learning.network_state import NetworkModeConfig
from shoal.algos.learning.optimisers import JointOptimizerConfig
from shoal.algos.ppo import ppo
from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.fields import Use, parameter
from shoal.config.requirements import Needs
from shoal.nets import networks
from shoal.types import Algorithm, EnvSpec
from shoal.xla.chunked_gradients import default_chunk_rows

# The orders of all passes are drawn ahead, and one update should not take very long.
MAX_EPOCHS = 10_000
_USED, _POLICY, _VALUE = "most used", "policy loss", "value loss and returns"  # groups of the help
_PENALTY = Needs("surrogate", ("penalty",), or_function=True)
_CLIP = Needs("surrogate", ("clip",), or_function=True)
_DPO = Needs("surrogate", ("dpo",), or_function=True)
_HUBER = Needs("value_loss", ("huber",), or_function=True)
_HL_GAUSS = Needs("value_loss", ("hl_gauss",), or_function=True)
_TRACE = Needs("advantage", other_than=("discounted_returns",), such_as="gae")
_VTRACE = Needs("advantage", ("vtrace", "vtrace_rewards"), or_function=True)
_N_STEP = Needs("advantage", ("n_step_returns",), or_function=True)
_IMPALA = Needs("surrogate", ("vtrace_policy_gradient",), or_function=True)


@struct.struct
class PPOConfig(NetworkModeConfig, NoiseConfig, NormalisationConfig, MemoryConfig):
    """Hyper-parameters of PPO; the names are CleanRL's where it has one. Numbers declared `float` are data."""

    optimization: JointOptimizerConfig = JointOptimizerConfig()
    """Holds the settings of gradient steps."""
    network: networks.NetworkSettings = settings.chosen(
        networks.NetworkConfig(), networks.choose, networks.name_of, group="network"
    )
    """Uses this network: a class, or a struct of settings with a method build, as module:Name; see docs/networks.md
    for your own."""
    agents: AgentsConfig = AgentsConfig()
    """Holds the settings of several agents."""
    desired_kl: float = parameter(
        0.01,
        above=0.0,
        group=_POLICY,
        needs=((Needs("lr_schedule", ("adaptive",)), Needs("adaptive_kl_coef", (True,))),),
    )
    """Sets the KL per update that the adaptive schedule and the adaptive KL coefficient aim at."""
    gamma: float = parameter(0.99, low=0.0, high=1.0, group=_USED)
    """Discounts rewards by this factor per step."""
    gae_lambda: float = parameter(0.95, low=0.0, high=1.0, group=_VALUE, needs=_TRACE)
    """Sets the trace decay of all estimators but discounted returns; 1 is Monte Carlo, 0 one-step."""
    advantage: str = parameter("gae", functions=ESTIMATORS, group=_VALUE)
    """Estimates advantages and the value's targets by generalised advantage estimation; by λ-returns, which are the
    same; by discounted returns or those of n_step steps; or corrects them by the ratios of the current policy to the
    one that acted (recompute epoch or minibatch), by V-trace, by V-trace of rewards alone, or without a clip."""
    n_step: int = parameter(5, low=1, high=LARGEST_INDEX, group=_VALUE, needs=_N_STEP)
    """Sums at most this many rewards before a value (advantage n_step_returns)."""
    rho_clip: float = parameter(1.0, above=0.0, high=math.inf, group=_VALUE, needs=_VTRACE)
    """Clips V-trace's ratio of a TD error, or of a reward, to at most this (advantage vtrace or vtrace_rewards)."""
    c_clip: float = parameter(1.0, above=0.0, high=math.inf, group=_VALUE, needs=_VTRACE)
    """Clips V-trace's ratio in the trace to at most this (advantage vtrace or vtrace_rewards)."""
    recompute: Literal["never", "epoch", "minibatch"] = parameter("never", group=_VALUE)
    """Computes advantages and targets once, again with the current parameters before each further epoch, or within the
    loss of each minibatch, which then consists of whole environments: num_minibatches must divide num_envs."""
    update_epochs: int = parameter(4, low=1, high=MAX_EPOCHS, group=_USED)
    """Passes this many times over each rollout."""
    num_minibatches: int = parameter(4, low=1, group=_USED)
    """Makes this many gradient steps per pass; must divide num_envs * num_steps, with a core the number of chunks."""
    surrogate: str = parameter("clip", functions=surrogates.SURROGATES, group=_POLICY)
    """Chooses the policy's objective: a clip, a KL penalty, Discovered Policy Optimisation, no ratio at all, or
    V-trace's policy gradient, whose clipped ratio is a constant."""
    clip_coef: float = parameter(0.2, above=0.0, group=_POLICY, needs=_CLIP)
    """Stops the gradient of a probability ratio that is further than this from 1 (surrogate clip)."""
    kl_coef: float = parameter(
        1.0, low=0.0, group=_POLICY, needs=_PENALTY, needs_to_change=Needs("adaptive_kl_coef", (False,))
    )
    """Sets the weight of the KL penalty, or its first value if it adapts (surrogate penalty)."""
    adaptive_kl_coef: bool = parameter(True, group=_POLICY, needs=_PENALTY)
    """Doubles the KL coefficient after an update of a KL above 1.5 desired_kl, halves it below desired_kl / 1.5."""
    dpo_alpha: float = parameter(2.0, above=0.0, group=_POLICY, needs=_DPO)
    """Sets the slope of DPO's drift for positive advantages (surrogate dpo)."""
    dpo_beta: float = parameter(0.6, above=0.0, group=_POLICY, needs=_DPO)
    """Sets the slope of DPO's drift for negative advantages (surrogate dpo)."""
    pg_rho_clip: float = parameter(1.0, above=0.0, high=math.inf, group=_POLICY, needs=_IMPALA)
    """Clips the ratio of the policy gradient to at most this (surrogate vtrace_policy_gradient)."""
    target_kl: float = parameter(math.inf, above=0.0, high=math.inf, group=_POLICY)
    """Ends the actor's updates for this rollout once a minibatch's approximate KL exceeds this; inf disables this."""
    kl_stop: bool = parameter(False, group=_POLICY)
    """Compiles the KL stop into the program, as a finite target_kl does; for sweeps in which a target_kl is inf."""
    ent_coef: float = parameter(0.0, low=0.0, group=_USED)
    """Weights the entropy bonus."""
    vf_coef: float = parameter(0.5, low=0.0, group=_VALUE)
    """Weights the value loss."""
    value_loss: str = parameter("squared", functions=LOSSES, group=_VALUE)
    """Trains the critic by half the squared error or by Huber's loss; or, where it predicts a distribution (value_head
    categorical), by the cross-entropy with a Gaussian around the target, with the two atoms nearest to it, or with the
    projected distribution of the next step (categorical_td)."""
    huber_delta: float = parameter(1.0, above=0.0, group=_VALUE, needs=_HUBER)
    """Makes the value loss linear for errors beyond this (value_loss huber)."""
    hl_gauss_sigma: float = parameter(0.75, above=0.0, group=_VALUE, needs=_HL_GAUSS)
    """Gives the Gaussian around a target this standard deviation, in distances between atoms (value_loss hl_gauss)."""
    clip_vloss: bool = parameter(False, group=_VALUE)
    """Clips the change of the value as the ratio is clipped."""
    vf_clip_coef: float = parameter(0.2, above=0.0, group=_VALUE, needs=Needs("clip_vloss", (True,)))
    """Clips a value to within this distance of its old one (clip_vloss)."""
    norm_adv: Literal["minibatch", "batch", "none"] = parameter("minibatch", group="normalisation")
    """Normalises advantages to mean 0 and standard deviation 1 over each minibatch, over the rollout, or not at all."""
    norm_value: Literal["none", "running", "popart"] = parameter("none", group="normalisation")
    """Trains the critic on targets that are normalised by their running mean and standard deviation; popart also
    rescales its last layer when these change, so that no value changes."""
    rollout_loss: bool = parameter(False, group="optimisation")
    """Computes the loss of the whole rollout after each update too, as rollout_total_loss and so on; this takes a
    further pass of the network over it."""
    norm_reward: bool = parameter(False, group="normalisation")
    """Divides rewards by the running standard deviation of their discounted return."""
    critic_update_epochs: int | None = parameter(
        None, low=1, high=MAX_EPOCHS, group="the critic's own optimisation"
    )
    """Passes this many times over each rollout with the critic; None uses update_epochs."""
    action_scaling: Literal["rescale", "clip"] = parameter(
        "rescale",
        group="actions",
        needs=(Needs("action_space", kinds=("Box",)), Needs("distribution", ("auto", "normal", "gsde"))),
    )
    """Lets a normal policy act in [-1, 1], rescaled to the bounds, or in the action's own units, clipped to them."""
    gsde_steps: int = parameter(
        4, low=0, high=LARGEST_INDEX, group="actions", needs=Needs("distribution", ("gsde",))
    )
    """Draws the noise of gsde anew after this many steps of the run; num_steps is once in each rollout, 0 where an
    episode begins."""
    gradient_chunk: int = parameter(
        -1, low=-1, high=LARGEST_INDEX, group="optimisation", use=Use(tells_apart=False)
    )
    """Computes a minibatch's gradient in parts of this many steps, which fit in cache: 0 is all at once, -1 chooses
    (512 on one core of a CPU, 1,024 for each of several, half with wide layers; all elsewhere, with memory, and with
    recompute minibatch). Changes rounding only. A network with state takes all at once."""

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """Return PPO's functions for an environment; gradients and statistics are reduced over `axis`."""
        config = self.with_critic_defaults()
        if spec.num_agents == 1:
            return ppo(config, spec, axis)
        return self.agents.algorithm(lambda of_agent, _: ppo(config, of_agent, axis), spec, self.is_joint)

    def resolved(self) -> "PPOConfig":
        """Fill in implied settings: switches that another one turns on, and choices that depend on the machine.

        Raises:
          ShoalError: a setting does not hold a value of its type and within its bounds.
        """
        settings.check_fields(self)
        config = self.with_critic_defaults()
        separate = self.optimization.separate_updates or self.critic_differs
        default_chunk = (
            0
            if memories.is_recurrent(self) or self.recompute == "minibatch"
            else default_chunk_rows(networks.widest_layer(self.network))
        )
        return dataclasses.replace(
            config,
            optimization=dataclasses.replace(config.optimization, separate_updates=separate),
            kl_stop=self.kl_stop or struct.is_traced(self.target_kl) or self.target_kl < math.inf,
            gradient_chunk=self.gradient_chunk if self.gradient_chunk >= 0 else default_chunk,
        )

    def check_given_chunk(self, spec: EnvSpec) -> None:
        """Require that a `gradient_chunk` that the caller gave does not cut minibatches that are taken whole.

        Raises:
          ShoalError: it does; one that was chosen has no effect then.
        """
        of_agent = spec if spec.num_agents == 1 else self.agents.view(spec, self.is_joint).spec_of_agent
        is_cut = self.gradient_chunk > 0 and self.network_mode == "train"
        if is_cut and networks.has_state(self.network, of_agent):
            raise ShoalError(
                f"gradient_chunk={self.gradient_chunk} cuts a minibatch, of which a network with state takes the "
                "statistics and drops units as a whole (network_mode='train'); choose gradient_chunk=0."
            )

    def with_critic_defaults(self) -> "PPOConfig":
        """Replace each setting of the critic's updates that is None by the actor's."""
        epochs = self.update_epochs if self.critic_update_epochs is None else self.critic_update_epochs
        return dataclasses.replace(
            self, optimization=self.optimization.with_critic_defaults(), critic_update_epochs=epochs
        )

    @property
    def critic_differs(self) -> bool:
        """Whether a setting of the critic's updates was given; where all are, whether one differs from the actor's."""
        pairs = [*self.optimization.pairs(), (self.critic_update_epochs, self.update_epochs)]
        if all(critic is not None for critic, _ in pairs):  # as of a config that was resolved before
            return any(not struct.is_traced(*pair) and pair[0] != pair[1] for pair in pairs)
        return any(critic is not None for critic, _ in pairs)

    @property
    def adapts_kl_coef(self) -> bool:
        """Whether the coefficient of the KL penalty is learned, so that `kl_coef` is its first value only."""
        return surrogates.has_penalty(self) and self.adaptive_kl_coef

    @property
    def is_joint(self) -> bool:
        """Whether the network is shown all agents of a world at once, so that a row is a step of a world."""
        return networks.sees_all_agents(self.network)

    def acts_alike(self, spec: EnvSpec, other: EnvSpec) -> bool:
        """Report whether a policy of one world can act in another, with more or fewer agents."""
        fits = networks.declares(self.network, "fits_any_number", True) or spec.num_agents == other.num_agents
        return fits and self.agents.acts_alike(spec, other)

    @property
    def needs_reward(self) -> bool:
        """Whether a policy is to be given the reward of each step."""
        return networks.has_memory(self.network) and bool(getattr(self.network, "previous_reward", False))

    @property
    def is_split(self) -> bool:
        """Whether the critic's parameters are updated apart from the actor's."""
        return self.optimization.separate_updates or self.kl_stop

    def validate(self, spec: EnvSpec, num_envs: int, num_steps: int, groups: int = 1) -> None:
        """Require that the settings can work; the error names the first that cannot (`shoal.algos.checks`)."""
        config, of_group = self.with_critic_defaults(), "/env_groups" if groups > 1 else ""
        if spec.num_agents == 1:
            checks.check_ppo(config, spec, num_envs, num_steps, groups, f"num_envs*num_steps{of_group}")
            return
        self.agents.validate(spec, num_envs, self.is_joint)
        of_agent = self.agents.view(spec, self.is_joint).spec_of_agent
        for agents in self.agents.sets(spec).members:
            streams, copies = (num_envs, len(agents)) if self.is_joint else (num_envs * len(agents), 1)
            of_agents = f"*{len(agents)}" if streams > num_envs else ""
            rows = f"num_envs*num_steps{of_agents}{of_group}"
            checks.check_ppo(config, of_agent, streams, num_steps, copies * groups, rows)
