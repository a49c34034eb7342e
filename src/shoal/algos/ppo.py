"""Proximal Policy Optimisation (Schulman et al. 2017, arXiv:1707.06347), with or without a recurrent network.

From top to bottom: the learner, how it acts, the update, the advantages of a rollout, a gradient step, the loss,
and the rows of a rollout. The settings are in `ppo_config.py`; `xla/chunked_gradients.py` cuts rows in chunks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from shoal.algos.acting import actions, memories, normalisation
from shoal.algos.acting.memories import Memory
from shoal.algos.learning import (
    advantages,
    critic_losses,
    loss_variants,
    metric_means,
    minibatches,
    network_state,
    optimisers,
    recomputation,
    surrogates,
    value_normalisation,
)
from shoal.algos.learning.minibatches import Minibatch, Rows
from shoal.algos.learning.recomputation import Rollout
from shoal.config import struct
from shoal.nets import networks, stateful
from shoal.nets.actor_critic import acting_part
from shoal.nets.inputs import action_features
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.noisy import has_noise, with_noise
from shoal.nets.value_heads import expectation
from shoal.ops import policy_losses, statistics
from shoal.ops.distributions import Foreign
from shoal.types import (
    Algorithm,
    Array,
    Checks,
    Clock,
    EnvSpec,
    Keys,
    Learner,
    Metrics,
    PyTree,
    TimeStep,
    Trajectory,
    spaces,
    transitions,
)
from shoal.xla.chunked_gradients import mean_gradient, num_chunks

if TYPE_CHECKING:
    from shoal.algos.ppo_config import PPOConfig  # which makes this algorithm


class Shared(NamedTuple):
    """The learned state of PPO; the same on every device."""

    network: PyTree
    optimizer: PyTree
    observation: statistics.RunningMoments | None  # with norm_obs
    reward: statistics.RunningMoments | None  # with norm_reward: of the discounted return
    learning_rate_scale: Array  # changed by the adaptive schedule, else 1
    kl_coef: Array  # the coefficient of the KL penalty
    value: statistics.RunningMoments | None = None  # with norm_value: of the value's targets
    noise: PyTree = ()  # the key of the next rollout's noise, where the network has noisy layers

    def noisy(self, network: PyTree) -> PyTree:
        """Return a network with one draw of its noise, which a rollout and the update from it have in common."""
        return network if isinstance(self.noise, tuple) else with_noise(network, self.noise)


class ActingPolicy(NamedTuple):
    """The part of the learner that acting needs: the actor (or a joint network) and the normaliser."""

    actor: PyTree
    observation: statistics.RunningMoments | None


class Extras(NamedTuple):
    """The record of each acted step for the update."""

    raw_action: (
        PyTree  # the action as sampled, before it was fitted to the action space; () if that is the same
    )
    log_prob: Array  # the raw action's log-probability
    distribution: (
        PyTree  # the action's, where the surrogate needs it; () of another package's, which is no tree
    )
    memory: PyTree  # the actor's memory after the step; () if it has none, or does not keep it


def ppo(config: PPOConfig, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
    """PPO's functions; `config` may hold traced numbers, so this is called inside the traced function."""
    # Made here and not in `act`, so that a scan over steps does not compute the bounds again.
    distribution, scaling = networks.distribution_of(config.network), config.action_scaling
    to_action = actions.action_transform(spec.action_space, distribution, scaling)
    warms_up = config.norm_obs and config.obs_norm_warmup_steps
    return Algorithm(
        functools.partial(init, config, spec),
        functools.partial(memories.initial, config, spec),
        functools.partial(policy_of, spec),
        functools.partial(act, config, spec, to_action),
        functools.partial(update, config, spec, axis),
        inherit,
        functools.partial(behaviour, spec),
        warm_up=functools.partial(normalisation.warm_up, axis, ()) if warms_up else None,
        warm_up_steps=config.obs_norm_warmup_steps,
    )


def init(config: PPOConfig, spec: EnvSpec, key: Array, num_envs: int | tuple[int, ...]) -> Learner:
    """Make a learner with a new network."""
    network = stateful.at_rest(config.network.build(spec, key))
    parts, _ = optimisers.split_parameters(config.optimization, network, is_split=config.is_split)
    # The first state of an optimiser is the same for any rate, which each update gives it anew.
    shared = Shared(
        network=network,
        optimizer=optimisers.build(config.optimization, parts, 0.0).init(parts),
        observation=normalisation.initial_moments(config, spec),
        reward=statistics.init_moments(jnp.zeros(())) if config.norm_reward else None,
        learning_rate_scale=jnp.ones(()),
        kl_coef=jnp.asarray(config.kl_coef, jnp.float32),
        value=None if config.norm_value == "none" else statistics.init_moments(jnp.zeros(())),
        noise=jax.random.fold_in(key, 1) if has_noise(network) else (),
    )
    batch_shape = (num_envs,) if isinstance(num_envs, int) else num_envs
    return Learner(shared, memories.initial_local(config, spec, batch_shape))


def behaviour(spec: EnvSpec, learner: Learner, clock: Clock) -> ActingPolicy:
    """Return the part of the learner that collects a rollout: noisy layers act by one draw of their noise."""
    shared = learner.shared
    return policy_of(
        spec, learner._replace(shared=shared._replace(network=shared.noisy(shared.network))), clock
    )


def policy_of(spec: EnvSpec, learner: Learner, clock: Clock) -> ActingPolicy:
    """Return the part of the learner that acts; noisy layers act by their means."""
    shared = learner.shared
    return ActingPolicy(acting_part(shared.network), normalisation.moments_of_actor(shared.observation, spec))


def act(
    config: PPOConfig,
    spec: EnvSpec,
    to_action: Callable[[Array], Array],
    policy: ActingPolicy,
    memory: Memory,
    timestep: TimeStep,
    key: Array,
    *,
    greedy: bool = False,
) -> tuple[Memory, Array, Extras]:
    """Act at one step of N environments; return also the memory after it and the update's record of it."""
    observation = normalisation.normalise(config, policy.observation, timestep.observation)
    inputs = memories.network_inputs(config, timestep, observation, memory.action)
    carry, distribution = sequences.policy_step(policy.actor, memory.carry, inputs)
    noise = memory.noise
    if greedy:
        raw = actions.mode(distribution)
    elif not jax.tree.leaves(noise):
        raw = actions.sample(distribution, key)
    elif config.correlated_noise:
        correlation = config.noise_correlation
        noise, raw = actions.sample_correlated(distribution, noise, timestep.first, key, correlation)
    else:
        noise, raw = actions.sample_held(distribution, noise, timestep.first, key, config.gsde_steps)
    previous = action_features(spec.action_space, raw) if jax.tree.leaves(memory.action) else ()
    is_stored = surrogates.has_penalty(config) and not isinstance(distribution, Foreign)
    extras = Extras(
        raw_action=raw if isinstance(spec.action_space, spaces.Box) else (),
        log_prob=actions.log_prob(distribution, raw),
        distribution=actions.without_noise(distribution) if is_stored else (),
        memory=carry if sequences.stores_memories(policy.actor) else (),
    )
    return Memory(carry, previous, noise), to_action(actions.before_scaling(distribution, raw)), extras


def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
    """Take over another run's parameters and normalisers; everything else is as the config makes it.

    Raises:
      ShoalError: the networks or the normalisers differ; names the first entry that does.
    """
    shared = struct.with_saved_parts(learner.shared, saved, ("network", "observation", "reward", "value"))
    return learner._replace(shared=shared)


class LossParts(NamedTuple):
    """The parts of the loss, and further measurements."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    approx_kl: Array
    clip_fraction: Array
    learned: PyTree = ()  # of the minibatch, where the loss computes advantages


# Per gradient step, in this order; then `learned`.
METRICS = (*LossParts._fields[:-1], "grad_norm", "actor_updates")
ACTOR_METRICS = ("policy_loss", "entropy", "approx_kl", "clip_fraction")  # averaged over the actor's steps


def update(
    config: PPOConfig,
    spec: EnvSpec,
    axis: tuple[str, ...],
    learner: Learner,
    trajectory: Trajectory,
    keys: Keys,
    clock: Clock,
) -> tuple[Learner, Metrics, Checks]:
    """Make epochs of gradient steps on minibatches of one rollout; statistics are reduced over devices by `axis`."""
    rows, learner, metrics, rollout = prepare(config, spec, axis, learner, trajectory)
    shared = learner.shared
    if not config.adapts_kl_coef:  # the config's, which may change while a run trains
        shared = shared._replace(kl_coef=jnp.asarray(config.kl_coef, jnp.float32))
    schedule = optimisers.schedule_factor(config.optimization.lr_schedule, clock.progress)
    rate = schedule * shared.learning_rate_scale
    parts, merge = optimisers.split_parameters(config.optimization, shared.network, is_split=config.is_split)
    optimizer = optimisers.build(config.optimization, parts, rate)

    def merge_noisy(parts: optimisers.Parts) -> PyTree:
        return shared.noisy(merge(parts))

    def network_of(state: GradientState) -> PyTree:
        return network_state.merged(merge_noisy(state.parts), state.network_state)

    step = functools.partial(gradient_step, config, axis, shared, optimizer, merge_noisy)
    scan = functools.partial(loss_variants.scan_until_stop, config, loss) if config.kl_stop else jax.lax.scan
    state_of_network = network_state.initial(config, shared.network, keys.local)
    state = GradientState(parts, shared.optimizer, jnp.asarray(False), state_of_network)

    # The orders of the longer of both: in the epochs beyond its own a part computes a gradient and does not step.
    epochs = max(config.update_epochs, config.critic_update_epochs or 0)
    orders = minibatches.shuffled_rows(rows, epochs, config.num_minibatches, keys.local)
    estimate = functools.partial(recomputation.estimate, config, axis, rollout, shared.value)
    if config.recompute == "epoch":
        state, history, learned = recomputation.scan_epochs(
            config, axis, rows, orders, lambda state: estimate(network_of(state)), step, state, scan
        )
    else:
        index = orders.reshape(-1, orders.shape[-1])
        of_epochs = jnp.repeat(jnp.arange(epochs), config.num_minibatches)
        batches = minibatches.with_statistics(config, axis, rows, index, of_epochs)
        learned = minibatches.learned_moments(config, axis, rows, batches)
        state, history = scan(functools.partial(step, rows), state, batches)

    of_rows = functools.partial(loss, config, axis, shared, jnp.asarray(True))
    shared = with_steps(shared, merge, state, keys)
    steps = step_metrics(config, history)
    metrics = {
        **metrics,
        **metric_means.step_means(steps, ACTOR_METRICS),
        **metric_means.learned_means(learned),
        "learning_rate": metric_means.scalar_mean(config.optimization.learning_rate * rate),
        "gradient_steps": metric_means.scalar_mean(len(history)),
        "kl_coef": metric_means.scalar_mean(shared.kl_coef),
    }
    if config.rollout_loss:
        metrics |= loss_variants.rollout_metrics(config, axis, of_rows, estimate, network_of(state), rows)
    shared = adapt_coefficients(config, shared, steps["approx_kl"])
    return Learner(shared, learner.local), metrics, metric_means.find_not_finite(metrics, steps)


def with_steps(
    shared: Shared, merge: Callable[[optimisers.Parts], PyTree], state: GradientState, keys: Keys
) -> Shared:
    """Return the learned state after the gradient steps of an update, with the next rollout's noise."""
    # The shared key, so that all devices draw the same noise for the network that they have in common.
    noise = () if isinstance(shared.noise, tuple) else jax.random.fold_in(keys.shared, 1)
    network = network_state.merged(merge(state.parts), state.network_state)
    return shared._replace(network=network, optimizer=state.optimizer, noise=noise)


def step_metrics(config: PPOConfig, history: Array) -> dict[str, Array]:
    """Return the metrics of gradient steps by name, [steps] each, given their METRICS, [steps, metrics]."""
    steps = dict(zip((*METRICS, *metric_means.LEARNED), history.T, strict=False))
    actor_loss = steps["policy_loss"] - config.ent_coef * steps["entropy"]
    total_loss = steps["actor_updates"] * actor_loss + config.vf_coef * steps["value_loss"]
    return steps | {"total_loss": total_loss}


def prepare(
    config: PPOConfig, spec: EnvSpec, axis: tuple[str, ...], learner: Learner, trajectory: Trajectory
) -> tuple[Rows, Learner, Metrics, Rollout]:
    """Compute the advantages and value targets of a rollout, and lay it out as rows.

    The normaliser of observations that acting used is the one used here; the rollout's own statistics are merged
    into the learner that is returned, for the next rollout.

    Returns:
      the rows, the learner, metrics, and what further estimates need.
    """
    before, after = without_last(trajectory.timesteps), jax.tree.map(lambda x: x[1:], trajectory.timesteps)
    steps = transitions(trajectory)
    weight = steps.weight
    reward, learner = normalisation.scale_rewards(config, axis, learner, after, weight)

    inputs, replayed = replay_rollout(config, spec, learner, trajectory)
    acted = Rows(
        weight=weight,
        inputs=without_last(inputs),
        raw_action=raw_actions(trajectory),
        log_prob=trajectory.extras.log_prob,
        distribution=trajectory.extras.distribution,
        reward=reward,
        discount=config.gamma * steps.discount,
        last=after.last,
    )
    rollout = Rollout(inputs, memories.before_rollout(trajectory.memory, learner.local), acted)
    output = expectation(replayed.value)
    # Of all T+1 steps: the last one's value is what a rollout that cuts an episode is bootstrapped from.
    value = value_normalisation.denormalise(learner.shared.value, output)
    advantage, target = advantages.estimate(config, acted, value, None)
    metrics = {
        "explained_variance": metric_means.scalar_mean(
            statistics.explained_variance(target, value[:-1], weight, axis_name=axis)
        ),
        **metric_means.moment_metrics("value", value[:-1], weight, axis),
        **metric_means.moment_metrics("advantage", advantage, weight, axis),
    }
    if config.norm_adv == "batch":
        advantage = statistics.standardise(advantage, weight, axis_name=axis)
    shared, output, target = value_normalisation.normalise_targets(
        config, axis, learner.shared, output[:-1], target, weight
    )
    if hasattr(replayed.value, "atoms"):
        atoms, x = replayed.value.atoms[0, 0], target[..., None]  # the same of all steps
        metrics |= metric_means.clipping_metrics(x, jnp.ones_like(x), target, atoms, weight, axis)
    moments = normalisation.observe(shared.observation, before.observation, weight, axis)
    shared = shared._replace(observation=moments)
    following = critic_losses.following(config, replayed.value)
    acted = acted._replace(value=output, advantage=advantage, target=target, following=following)
    rows = make_rows(config, acted, inputs, replayed.starts)
    local = learner.local._replace(critic=replayed.critic)
    return rows, Learner(shared, local), metrics, rollout


class GradientState(NamedTuple):
    """The state that a gradient step changes."""

    parts: optimisers.Parts  # the network's parameters
    optimizer: PyTree
    stopped: Array  # whether the KL stop has ended the actor's updates for this rollout
    network_state: network_state.State = ()


def gradient_step(
    config: PPOConfig,
    axis: tuple[str, ...],
    shared: Shared,
    optimizer: optax.GradientTransformation,
    merge: Callable[[optimisers.Parts], PyTree],
    rows: Rows,
    state: GradientState,
    minibatch: Minibatch,
    of_critic: Callable[..., tuple[Array, LossParts]] | None = None,
) -> tuple[GradientState, Array]:
    """Make one gradient step on a minibatch of the rows, by `loss` or that of the critic; return also its METRICS."""
    in_actor_epochs = minibatch.epoch < config.update_epochs
    update_actor = in_actor_epochs & ~state.stopped
    batch = jax.tree.map(lambda x: x[minibatch.rows], rows)._replace(advantage=minibatch.advantage)
    chunk_rows = network_state.chunk_rows(state.network_state, config.gradient_chunk)
    loss_of_rows = functools.partial(of_critic or loss, config, axis, shared, update_actor)
    gradient, means, *statistics = mean_gradient(
        network_state.in_mode(loss_of_rows, state.network_state, axis),
        merge,
        state.parts,
        batch,
        weight=minibatch.weight,
        num_chunks=num_chunks(batch.weight.shape, chunk_rows),
        axis=axis,
    )
    # The step is made in any case and selected below: under `vmap` a branch would compute both sides.
    updates, opt_state = optimizer.update(gradient, state.optimizer, state.parts)
    parts = optax.apply_updates(state.parts, updates)

    stopped = state.stopped
    if config.kl_stop:
        stopped = stopped | (in_actor_epochs & (means.approx_kl > config.target_kl))
        update_actor = update_actor & ~stopped
    critic_epochs = config.critic_update_epochs or config.update_epochs
    if config.kl_stop or critic_epochs != config.update_epochs:
        active = {"actor": update_actor, "critic": minibatch.epoch < critic_epochs}
        parts = optimisers.select_active(active, parts, state.parts)
        opt_state = optimisers.select_active(active, opt_state, state.optimizer)
        statistics = network_state.of_active(active, statistics, state.network_state)
    *numbers, learned = means
    metrics = jnp.stack([*numbers, optax.tree.norm(gradient), update_actor.astype(jnp.float32), *learned])
    after = network_state.following(state.network_state, statistics)
    return GradientState(parts, opt_state, stopped, after), metrics


def loss(
    config: PPOConfig,
    axis: tuple[str, ...],
    shared: Shared,
    update_actor: Array,
    network: PyTree,
    batch: Rows,
) -> tuple[Array, LossParts]:
    """Compute PPO's loss of each row (Schulman et al. 2017, eq. 9) and its parts; 0 where there is no transition.

    `mean_gradient` makes weighted means of them, over chunks and devices. The ratio is always that to the policy that
    acted, whenever the advantages were computed (`advantages.vtrace`).
    """
    acted, (batch, distribution, output) = batch, minibatches.evaluate(network, batch)
    distribution = actions.without_noise(distribution)
    log_ratio = actions.log_prob(distribution, batch.raw_action) - batch.log_prob
    if config.recompute == "minibatch":
        value = expectation(output)
        batch = recomputation.with_estimates(config, axis, shared.value, batch, log_ratio, value)
    batch = minibatches.without_unread(batch, distribution)

    approx_kl = policy_losses.kl_k3(log_ratio)
    # By logarithms, since the ratio itself may overflow.
    log_lower_bound = jnp.log(jnp.maximum(1.0 - config.clip_coef, 0.0))
    clipped = (log_ratio > jnp.log1p(config.clip_coef)) | (log_ratio < log_lower_bound)

    surrogate = surrogates.chosen(config)  # of the ratio exp(log_ratio)
    # `shared` has the network that acted.
    behaviour = minibatches.behaviour(config, shared.noisy(shared.network), acted, batch, distribution)
    policy_loss = surrogate(config, log_ratio, batch.advantage, (behaviour, distribution), shared.kl_coef)
    value_loss = critic_losses.value_loss(config, output, batch.value, critic_losses.target_of(config, batch))
    entropy = actions.entropy(distribution)
    parts = LossParts(policy_loss, value_loss, entropy, approx_kl, clipped.astype(jnp.float32), batch.learned)
    # Rows of weight 0 are no transitions: their parts may be anything, and 0 times NaN is NaN.
    parts = jax.tree.map(lambda x: jnp.where(batch.weight > 0, x, 0.0), parts)
    actor_loss = jnp.where(update_actor, parts.policy_loss - config.ent_coef * parts.entropy, 0.0)
    return actor_loss + config.vf_coef * parts.value_loss, parts


def make_rows(config: PPOConfig, acted: Rows, inputs: NetworkInputs, starts: PyTree) -> Rows:
    """Lay out the transitions of a rollout, [T, N], as rows.

    Args:
      inputs: of the network at all T+1 steps.
      starts: the network's memories before each of `minibatches.start_steps`.
    """
    if config.recompute == "minibatch":
        masked = minibatches.masked(config, acted)
        rows = recomputation.rows_of_streams(config, masked, inputs)
    else:
        # Most losses do not read what advantages were computed from.
        if config.value_loss not in critic_losses.OF_TRANSITIONS:
            acted = acted._replace(reward=(), discount=(), last=())
        masked = minibatches.masked(config, acted)
        rows = minibatches.to_rows(config, masked)
    return rows._replace(start=minibatches.chunk_starts(config, masked.inputs, starts))


def replay_rollout(
    config: PPOConfig, spec: EnvSpec, learner: Learner, trajectory: Trajectory
) -> tuple[NetworkInputs, sequences.Replayed]:
    """Return the network's inputs at each of T+1 steps, its values, and its memories at the chunks' starts.

    With the parameters that acted. The memories that acting kept are not computed again.
    """
    timesteps, moments = trajectory.timesteps, learner.shared.observation
    observation = normalisation.normalise(config, moments, timesteps.observation)
    previous = memories.previous_actions(spec, trajectory.memory.action, raw_actions(trajectory))
    inputs = memories.network_inputs(config, timesteps, observation, previous)
    carries = memories.before_rollout(trajectory.memory, learner.local)
    steps = minibatches.start_steps(config, len(trajectory.actions))
    network, after = learner.shared.noisy(learner.shared.network), trajectory.extras.memory
    return inputs, sequences.replay(network, carries, after, inputs, steps)


def raw_actions(trajectory: Trajectory) -> Array:
    """Return the actions as they were sampled, [T, N, ...]."""
    raw = trajectory.extras.raw_action
    return trajectory.actions if isinstance(raw, tuple) else raw


def without_last(tree: PyTree) -> PyTree:
    """Return the entries of T+1 time-steps at which an action was taken: all but the last."""
    return jax.tree.map(lambda x: x[:-1], tree)


def adapt_coefficients(config: PPOConfig, shared: Shared, kls: Array) -> Shared:
    """Adapt the learning rate and the KL coefficient to the mean KL of the last epoch, given that of each step."""
    kl = jnp.mean(kls[-config.num_minibatches :])
    scale, kl_coef = shared.learning_rate_scale, shared.kl_coef
    if config.optimization.lr_schedule == "adaptive":
        scale = optimisers.adapt_scale(scale, kl, config.desired_kl)
    if config.adapts_kl_coef:
        kl_coef = policy_losses.adapt_kl_coef(kl_coef, kl, config.desired_kl)
    return shared._replace(learning_rate_scale=scale, kl_coef=kl_coef)
