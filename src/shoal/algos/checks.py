"""Checks of an algorithm's config, made once on concrete values before anything compiles.

Each function raises a ShoalError for the first setting that cannot work, one sentence: the field, its value, what would
be right, and the nearest value that works.
"""

from typing import TYPE_CHECKING

import jax
import numpy as np

from shoal.algos import part_checks
from shoal.algos.acting import memories
from shoal.algos.acting.normalisation import NormalisationConfig, belongs_to, clips_of
from shoal.algos.learning import advantages, critic_losses
from shoal.algos.learning.network_state import NetworkModeConfig
from shoal.base.errors import ShoalError, nearest
from shoal.config import settings, struct
from shoal.nets import action_critics as of_actions
from shoal.nets import networks, q_networks, torso_choice
from shoal.nets.torso_config import CoreConfig, TorsoConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Discrete, MultiDiscrete, zeros

if TYPE_CHECKING:  # they import this module
    from shoal.algos.dqn_config import DQNConfig
    from shoal.algos.ppo_config import PPOConfig
    from shoal.algos.pqn import PQNConfig
    from shoal.algos.replayed_config import ReplayedConfig


def check_divides(name: str, number: int, what: str, total: int) -> None:
    """Require that `number` divides `total`."""
    if total % number == 0:
        return
    below = next(k for k in range(min(number, total), 0, -1) if total % k == 0)
    hint = f"{below} does"
    if number < total:
        above = next(k for k in range(number, total + 1) if total % k == 0)
        hint = f"the nearest that do are {below} and {above}"
    raise ShoalError(f"{name}={number} does not divide {what}={total}; {hint}.")


def check_ppo(
    config: "PPOConfig",
    spec: EnvSpec,
    num_envs: int,
    num_steps: int,
    copies: int = 1,
    rows: str = "num_envs*num_steps",
) -> None:
    """Check PPO's config for an environment and the size of a rollout.

    Args:
      num_envs: the streams of one group, which are shuffled as one: environments, or agents of environments.
      copies: for each such step, the steps that enter the same statistics: those of all groups, and of all agents of a
        world where they are one row.
      rows: the steps of a group's streams in the words of a run's settings.
    Raises:
      ShoalError: the first setting that cannot work.
    """
    settings.check_fields(config)  # first, since what follows divides by these numbers
    networks.check_settings(config.network)
    check_minibatches(config, num_envs, num_steps, rows)
    check_network(config, spec)
    check_observations(config, spec)
    check_advantages(config, num_envs * num_steps, copies)
    check_distribution(config, spec)
    check_estimates(config)
    check_recomputation(config, num_envs, num_steps)
    check_value_normalisation(config)
    config.optimization.validate()
    networks.check(config.network, spec, may_have_state=True)
    check_network_mode(config, spec)
    part_checks.check_parts(config, spec)


def check_minibatches(config: "PPOConfig | PQNConfig", num_envs: int, num_steps: int, rows: str) -> None:
    """Check that minibatches, and the chunks of a recurrent network's steps, divide a rollout (see `check_ppo`)."""
    if not memories.is_recurrent(config):
        check_divides("num_minibatches", config.num_minibatches, rows, num_envs * num_steps)
        return
    check_chunks(config, num_steps)
    chunks = num_envs * (num_steps // (config.chunk_length or num_steps))
    check_divides(
        "num_minibatches", config.num_minibatches, f"the number of chunks, {rows}/chunk_length", chunks
    )


def check_network(config: "PPOConfig", spec: EnvSpec) -> None:
    """Check that a network fits the entries of observations, and that Shoal's own fits the optimiser's settings."""
    network = config.network
    is_joint = networks.sees_all_agents(network)
    shares_torso = isinstance(network, networks.NetworkConfig) and network.shared_torso
    # What one network computes for both cannot be shown to one of them alone.
    for whose in ("critic", "actor") if is_joint or shares_torso else ():
        if names := getattr(spec, f"{whose}_only"):
            subject = f"network={networks.name_of(network)!r}" if is_joint else "shared_torso=True"
            raise ShoalError(
                f"{subject} gives actor and critic the same input, but {whose}_only={names} is for the {whose} only; "
                "use separate torsos."
            )
    if shares_torso and config.optimization.separate_updates:
        raise ShoalError(
            "shared_torso=True does not allow separate updates or critic_ settings; use separate torsos."
        )
    check_integers(config)


def check_integers(config: "PPOConfig | DQNConfig | PQNConfig | ReplayedConfig") -> None:
    """Check that no integers are normalised that Shoal's own network reads as such."""
    network = config.network
    if not (config.norm_obs and isinstance(network, TorsoConfig)):
        return
    is_one_hot = "one_hot" in network.encoder_kinds
    if is_one_hot or getattr(network, "looks", False):
        name = "encoder" if "one_hot" in torso_choice.kinds_of(network.encoder) else "critic_encoder"
        reason = f"{name}='one_hot' needs" if is_one_hot else f"queries={getattr(network, 'queries', 0)} need"
        raise ShoalError(
            f"norm_obs=True replaces the integers that {reason} by normalised numbers; set norm_obs=False."
        )


def check_action_values(config: "DQNConfig | PQNConfig", spec: EnvSpec, algorithm: str) -> None:
    """Check what algorithms that learn the values of actions have in common, for one agent."""
    networks.check_settings(config.network)
    if not isinstance(spec.action_space, Discrete):
        raise ShoalError(
            f"action_space={spec.action_space} is not supported by {algorithm}, which compares the values of all "
            "actions; it must be Discrete, and ppo takes others."
        )
    check_observations(config, spec)
    check_integers(config)
    config.optimization.validate()
    trains_state = isinstance(config, NetworkModeConfig)
    q_networks.check(config.network, spec.of_actor, may_have_state=trains_state)
    if trains_state:
        check_network_mode(config, spec.of_actor)


def check_network_mode(config: "PPOConfig | DQNConfig | PQNConfig", spec: EnvSpec) -> None:
    """Check that the mode of a network with state has an effect, and that nothing else depends on it."""
    if getattr(config, "network_mode", "train") == "eval":
        if not networks.has_state(config.network, spec):
            raise ShoalError(
                "network_mode='eval' has no effect, since the network has no state; it needs one with nnx.BatchNorm or "
                "nnx.Dropout."
            )
    elif getattr(config, "recompute", "never") == "minibatch" and networks.has_state(config.network, spec):
        raise ShoalError(
            "recompute='minibatch' takes the values of the loss's own pass, and network_mode='train' computes them as "
            "acting does not; choose recompute='epoch', or network_mode='eval'."
        )


def check_without_critic(config: "DQNConfig | PQNConfig", algorithm: str) -> None:
    """Check that nothing is to be shown to a critic."""
    if config.agents.critic_input != "own":
        raise ShoalError(
            f"critic_input={config.agents.critic_input!r} is what a critic is shown, and {algorithm} has none; it must "
            "be 'own'."
        )


def check_dqn(config: "DQNConfig") -> None:
    """Check that the switches of DQN fit each other."""
    network, n_step = config.network, config.replay.n_step
    values = q_networks.values_of(network)
    if networks.has_memory(network):
        chosen = f"core={getattr(network, 'core', '')!r}" if isinstance(network, CoreConfig) else "a memory"
        raise ShoalError(
            f"{chosen} needs sequences of steps, and dqn learns from single ones; choose core='none', or algorithm pqn."
        )
    expected = {"c51": "categorical", "rainbow": "categorical", "qr_dqn": "quantile"}.get(config.name, values)
    if values != expected:
        has_values = isinstance(network, q_networks.QNetworkConfig)
        chosen = f"values={values!r}" if has_values else f"network={q_networks.name_of(network)!r}"
        raise ShoalError(
            f"{chosen} does not predict what {config.name} learns, values={expected!r} of Shoal's own network; choose "
            "that, or algorithm dqn."
        )
    for name, is_on in (("munchausen", config.munchausen), ("multistep", config.multistep != "n_step")):
        if is_on and values != "expected":
            raise ShoalError(
                f"{name}={getattr(config, name)!r} is defined for values='expected', and values={values!r}; choose one "
                "of both."
            )
    if config.munchausen and config.double:
        raise ShoalError(
            "munchausen=True takes soft values, which choose no action, so that double=True has no effect; choose one "
            "of both."
        )
    if config.munchausen and n_step > 1:
        other = "" if config.multistep == "n_step" else " and multistep='n_step'"
        raise ShoalError(
            f"munchausen=True adds to the reward of one step, and n_step={n_step} sums several; choose n_step=1{other}."
        )
    if config.multistep == "q_lambda_watkins" and config.double:
        raise ShoalError(
            "multistep='q_lambda_watkins' takes the greatest value itself, so that double=True has no effect; choose "
            "double=False, or multistep='retrace'."
        )
    if config.multistep != "n_step" and n_step == 1:
        raise ShoalError(
            f"multistep={config.multistep!r} corrects the steps after the first, and n_step=1 has none; choose "
            "n_step=5, or multistep='n_step'."
        )


def check_replayed(config: "ReplayedConfig", spec: EnvSpec) -> None:
    """Check that an actor with critics of its actions can act in a space, and that its switches fit each other.

    Args:
      config: with the critic's defaults filled in.
    """
    network, space, name = config.network, spec.action_space, config.name
    networks.check_settings(network)
    takes = "a Discrete, or " if config.rules.target_entropy is not None else ""
    if isinstance(space, Box) or not (takes and isinstance(space, Discrete)):
        check_bounded(space, name, takes)
    # A network of one's own does not say what its policy is.
    kind, is_certain = getattr(network, "distribution", None), config.rules.target_entropy is None
    fitting = ("deterministic",) if is_certain else ("tanh_normal", "auto")
    if isinstance(space, Box) and kind is not None and kind not in fitting:
        raise ShoalError(
            f"distribution={kind!r} is not the policy that {name} learns; it must be {fitting[0]!r}."
        )
    check_observations(config, spec)
    check_integers(config)
    config.optimization.validate()
    num_critics, quantiles = getattr(network, "num_critics", 1), getattr(network, "num_quantiles", None)
    if config.target_critics is not None and config.target_critics > num_critics:
        raise ShoalError(
            f"target_critics={config.target_critics} is more than num_critics={num_critics}; it must be at most that."
        )
    if quantiles is not None and config.drop_quantiles >= quantiles:
        raise ShoalError(
            f"drop_quantiles={config.drop_quantiles} leaves none of num_quantiles={quantiles}; it must be at most "
            f"{quantiles - 1}."
        )
    multistep = getattr(config, "multistep", "n_step")
    if multistep != "n_step" and (
        config.replay.n_step == 1 or q_networks.values_of(config.network) != "expected"
    ):
        fault = (
            "corrects the steps after the first, and n_step=1 has none; choose n_step=5"
            if config.replay.n_step == 1
            else f"is defined for values='expected', and values={q_networks.values_of(config.network)!r}; choose that"
        )
        raise ShoalError(f"multistep={multistep!r} {fault}, or multistep='n_step'.")
    of_actions.check(network, spec)


def check_bounded(space: object, algorithm: str, others: str) -> None:
    """Check that actions are numbers within finite bounds, which [-1, 1] can be scaled to."""
    needs = f"it must be {others}a Box of floats with finite bounds"
    if not isinstance(space, Box):
        raise ShoalError(f"action_space={space} is not supported by {algorithm}; {needs}.")
    if not space.can_be_scaled:
        ends = [np.broadcast_to(x, space.shape).ravel() for x in (space.low, space.high)]
        wrong = np.flatnonzero(~np.isfinite(ends[1] - ends[0]))
        where = f", and entry {wrong[0]} is unbounded" if len(wrong) else ""
        raise ShoalError(f"action_space={space} is not supported by {algorithm}; {needs}{where}.")


def check_chunks(config: memories.WithMemory, num_steps: int) -> None:
    """Check that chunks of a recurrent network's steps divide the rollout, and that the burn-in fits before a chunk."""
    length = config.chunk_length or num_steps
    check_divides("chunk_length", length, "num_steps", num_steps)
    if config.burn_in > length:
        raise ShoalError(
            f"burn_in={config.burn_in} is longer than a chunk of {length} steps; it must be at most {length}."
        )
    if config.burn_in and length == num_steps:
        raise ShoalError(
            f"burn_in={config.burn_in} needs steps before a chunk, but a chunk is the whole rollout of {num_steps} "
            f"steps; choose a shorter chunk_length, or burn_in=0."
        )


def check_observations(config: NormalisationConfig, spec: EnvSpec) -> None:
    """Check that the entries of observations that are named are there and hold numbers, and have right bounds."""
    least, most = config.obs_norm_min_deviation, config.obs_norm_max_deviation
    if not struct.is_traced(least, most) and least > most:
        raise ShoalError(
            f"obs_norm_min_deviation={least:g} is greater than obs_norm_max_deviation={most:g}; it must be at most "
            f"{most:g}."
        )
    try:
        clips = clips_of(config)
    except ValueError:  # a bound is no number
        clips = {"": 0.0}
    if not all(bound > 0 for bound in clips.values()):
        raise ShoalError(
            f"obs_clip_entries={','.join(config.obs_clip_entries)!r} is not name=bound with a bound above 0 for each "
            "entry, such as 'speed=5'."
        )
    leaves = struct.named_leaves(jax.eval_shape(lambda: zeros(spec.observation_space)))
    names = [name for name, x in leaves.items() if np.issubdtype(x.dtype, np.floating)]
    for setting, entries in (("obs_norm_entries", config.obs_norm_entries), ("obs_clip_entries", clips)):
        for entry in entries:
            if not any(belongs_to(name, entry) for name in names):
                there = f"; there are {', '.join(names)}{nearest(entry, names)}" if any(names) else ""
                raise ShoalError(
                    f"{setting} names {entry!r}, which is not an entry of floats of observation_space="
                    f"{spec.observation_space}{there}."
                )


def check_advantages(config: "PPOConfig", num_rows: int, copies: int) -> None:
    """Check that advantages are not normalised one by one, which makes each of them 0."""
    parts = {"minibatch": config.num_minibatches, "batch": 1}.get(config.norm_adv, 0)
    if num_rows * copies != parts:
        return
    divisor = next((k for k in range(num_rows // 2, 0, -1) if num_rows % k == 0), 0)
    raise ShoalError(
        f"norm_adv={config.norm_adv!r} makes every advantage 0, since each {config.norm_adv} has one step "
        f"(num_minibatches={config.num_minibatches}, num_envs*num_steps={num_rows}), and nothing is learned; choose "
        f"{f'num_minibatches={divisor}' if divisor else 'more num_steps'}, or norm_adv='none'."
    )


def check_estimates(config: "PPOConfig") -> None:
    """Check that an estimator that corrects by ratios has some, and a surrogate that fits."""
    if config.advantage in advantages.LEAVING_RATIOS and config.surrogate == "policy_gradient":
        raise ShoalError(
            f"advantage={config.advantage!r} leaves the ratio of an action to the surrogate, and "
            "surrogate='policy_gradient' has none; choose surrogate='vtrace_policy_gradient', or advantage='gae'."
        )
    if config.advantage in advantages.WITH_RATIOS and config.recompute == "never":
        raise ShoalError(
            f"advantage={config.advantage!r} has no effect with recompute='never', where every ratio is 1; it needs "
            "recompute='epoch' or recompute='minibatch'."
        )


def check_recomputation(config: "PPOConfig", num_envs: int, num_steps: int) -> None:
    """Check that advantages can be recomputed as often as configured, and that this has an effect."""
    epochs = max(config.update_epochs, config.critic_update_epochs or 0)  # None is the actor's
    if config.recompute == "epoch" and epochs == 1:
        raise ShoalError(
            "recompute='epoch' has no effect with update_epochs=1; it needs more epochs, such as update_epochs=4."
        )
    if config.recompute != "minibatch":
        return
    if epochs * config.num_minibatches == 1:
        raise ShoalError(
            "recompute='minibatch' has no effect with update_epochs=1 and num_minibatches=1, one gradient step on each "
            "rollout; it needs more, such as update_epochs=4."
        )
    if memories.is_recurrent(config) and config.chunk_length not in (0, num_steps):
        raise ShoalError(
            f"chunk_length={config.chunk_length} cuts the rollout of {num_steps} steps, and recompute='minibatch' "
            "needs all of them; choose chunk_length=0, or recompute='epoch'."
        )
    check_divides(
        "num_minibatches",
        config.num_minibatches,
        "the number of environments, which recompute='minibatch' does not cut, num_envs",
        num_envs,
    )
    if config.norm_adv == "batch":
        raise ShoalError(
            "norm_adv='batch' needs the advantages of a whole rollout, and recompute='minibatch' computes those of a "
            "minibatch; choose norm_adv='minibatch', or recompute='epoch'."
        )
    if config.gradient_chunk > 0:
        raise ShoalError(
            f"gradient_chunk={config.gradient_chunk} cuts a minibatch, and recompute='minibatch' computes the "
            "advantages of all of it at once; choose gradient_chunk=0."
        )


def check_value_normalisation(config: "PPOConfig") -> None:
    """Check that the critic has the last layer that is rescaled, if it is."""
    if config.norm_value != "none" and config.value_loss in critic_losses.OF_TRANSITIONS:
        raise ShoalError(
            f"norm_value={config.norm_value!r} normalises targets, and value_loss={config.value_loss!r} has rewards "
            "and distributions in their own units; choose norm_value='none', or value_loss='two_hot'."
        )
    if config.norm_value != "popart":
        return
    network = config.network
    if (head := networks.value_head_of(network)) != "scalar":
        raise ShoalError(
            f"norm_value='popart' rescales the last layer of a number, and value_head={head!r} is not the number that "
            "the layer gives; choose norm_value='running'."
        )
    critic = getattr(network, "critic_network", None)
    if critic is not None or not isinstance(network, networks.NetworkConfig):
        name = "network" if critic is None else "critic_network"
        other = networks.name_of(network) if critic is None else torso_choice.name_of(critic)
        raise ShoalError(
            "norm_value='popart' rescales the last layer of the value, which is known for Shoal's own networks only, "
            f"and {name}={other!r} is another; choose norm_value='running'."
        )


def check_distribution(config: "PPOConfig", spec: EnvSpec) -> None:
    """Check that the policy's distribution fits the action space."""
    space, kind = spec.action_space, networks.distribution_of(config.network)
    if not isinstance(space, Discrete | MultiDiscrete | Box):
        raise ShoalError(
            f"action_space={space} is not supported by ppo; it must be Discrete, MultiDiscrete or Box."
        )
    compatible = ["normal", "gsde", "tanh_normal", "beta"] if isinstance(space, Box) else ["categorical"]
    if kind not in ("auto", *compatible):
        raise ShoalError(
            f"distribution={kind!r} does not fit action_space={space}; {' or '.join(compatible)} does."
        )
    if isinstance(space, Box):
        kind = "normal" if kind == "auto" else kind
        # The others lie in an interval, which is mapped to the bounds.
        needs_bounds = kind not in ("normal", "gsde") or config.action_scaling == "rescale"
        if needs_bounds and not space.can_be_scaled:
            wrong = "bounds at an infinite distance" if space.bounded else "infinite ones"
            raise ShoalError(
                f"distribution={kind!r} with action_scaling={config.action_scaling!r} needs finite bounds, and "
                f"action_space={space} has {wrong}; distribution='normal' with action_scaling='clip' works."
            )
    if config.correlated_noise and kind not in ("normal", "tanh_normal"):
        raise ShoalError(
            f"correlated_noise=True needs a normal or tanh_normal policy, and this one is {kind!r}."
        )
