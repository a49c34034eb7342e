"""Proximal Policy Optimisation (Schulman et al. 2017, arXiv:1707.06347), with or without a recurrent network.

From top to bottom: what is learned, how it acts, the update, how a rollout becomes rows with advantages, a gradient
step, and the loss of a minibatch. The settings are in `ppo_config.py`. What varies (the surrogate, the advantages and
how often they are computed, the value's units, the schedule of the learning rate, the networks) is a function chosen
once by a name in the config; nothing branches on it later.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from shoal.algos.acting import actions, memories, networks
from shoal.algos.acting.normalisation import (
    initial_moments,
    moments_of_actor,
    normalise,
    observe,
    scale_rewards,
)
from shoal.algos.learning import (
    advantages,
    metric_means,
    minibatches,
    optimisers,
    recomputation,
    surrogates,
    value_normalisation,
)
from shoal.algos.learning.advantages import ReturnInputs
from shoal.algos.learning.minibatches import Minibatch, Rows
from shoal.algos.learning.recomputation import Rollout
from shoal.algos.ppo_config import PPOConfig
from shoal.config import struct
from shoal.nets.actor_critic import acting_part
from shoal.nets.inputs import action_features
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.ops import policy_losses, statistics, value_losses
from shoal.types import (
    Algorithm,
    Array,
    Checks,
    Clock,
    EnvSpec,
    Keys,
    Learner,
    Mean,
    Metrics,
    PyTree,
    TimeStep,
    Trajectory,
    spaces,
    transitions,
)
from shoal.xla.chunked_gradients import chunked_gradient


class Shared(NamedTuple):
    """The learned state of PPO; the same on every device."""

    network: PyTree
    optimizer: PyTree
    observation: statistics.RunningMoments | None  # norm_obs
    reward: statistics.RunningMoments | None  # norm_reward: of the discounted return
    learning_rate_scale: Array  # moved by the adaptive schedule, else 1
    kl_coef: Array  # of the penalty
    value: statistics.RunningMoments | None = None  # norm_value: of the value's targets


class ActingPolicy(NamedTuple):
    """The part of the learner that acting needs: the actor (or a joint network) and the normaliser."""

    actor: PyTree
    observation: statistics.RunningMoments | None


class Extras(NamedTuple):
    """The record of each acted step for the update."""

    raw_action: (
        Any  # the action as it was sampled, before it was fitted to the action space; () if that is the same
    )
    log_prob: Array  # of the raw action
    distribution: PyTree  # that the action was drawn from, where the surrogate needs it
    memory: PyTree  # of the actor after the step; () if it has none, or does not keep it for each step


def ppo(config: PPOConfig, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
    """PPO's functions; `config` may hold traced numbers, so this is called inside the traced function."""
    to_action = actions.action_transform(
        spec.action_space, networks.distribution_of(config.network), config.action_scaling
    )

    def init(key: Array, num_envs: int | tuple[int, ...]) -> Learner:
        network = config.network.build(spec, key)
        parts, _ = optimisers.split_parameters(config.optimization, network, is_split=config.is_split)
        batch_shape = (num_envs,) if isinstance(num_envs, int) else num_envs
        shared = Shared(
            network=network,
            optimizer=optimisers.build(config.optimization, parts, 0.0).init(parts),
            observation=initial_moments(config, spec),
            reward=statistics.init_moments(jnp.zeros(())) if config.norm_reward else None,
            learning_rate_scale=jnp.ones(()),
            kl_coef=jnp.asarray(config.kl_coef, jnp.float32),
            value=None if config.norm_value == "none" else statistics.init_moments(jnp.zeros(())),
        )
        return Learner(shared, memories.initial_local(config, spec, batch_shape))

    def memory(batch_shape: tuple[int, ...]) -> PyTree:
        return memories.initial(config, spec, batch_shape)

    def policy(learner: Learner, clock: Clock) -> ActingPolicy:
        return ActingPolicy(
            acting_part(learner.shared.network), moments_of_actor(learner.shared.observation, spec)
        )

    def act(
        policy: ActingPolicy, memory: PyTree, timestep: TimeStep, key: Array, *, greedy: bool = False
    ) -> tuple[PyTree, Array, Extras]:
        carry, previous, noise = memories.unpack(memory)
        observation = normalise(config, policy.observation, timestep.observation)
        inputs = memories.network_inputs(config, timestep, observation, previous)
        carry, distribution = memories.policy_step(policy.actor, carry, inputs)
        if greedy:
            raw = actions.mode(distribution)
        elif config.correlated_noise:
            noise, raw = actions.sample_correlated(
                distribution, noise, timestep.first, key, config.noise_correlation
            )
        else:
            raw = actions.sample(distribution, key)
        previous = () if isinstance(previous, tuple) else action_features(spec.action_space, raw)
        memory = memories.pack(memories.Memory(carry, previous, noise))
        stored_distribution = distribution if config.surrogate == "penalty" else ()
        log_prob = actions.log_prob(distribution, raw)
        stored = carry if sequences.stores_memories(policy.actor) else ()
        if not isinstance(spec.action_space, spaces.Box):
            return memory, raw, Extras((), log_prob, stored_distribution, stored)
        return memory, to_action(raw), Extras(raw, log_prob, stored_distribution, stored)

    def warm_up(learner: Learner, trajectory: Trajectory) -> Learner:
        observation = without_last(trajectory.timesteps).observation
        weight = transitions(trajectory).weight
        moments = observe(learner.shared.observation, observation, weight, axis)
        return learner._replace(shared=learner.shared._replace(observation=moments))

    return Algorithm(
        init,
        memory,
        policy,
        act,
        functools.partial(update, config, spec, axis),
        inherit,
        warm_up=warm_up if config.norm_obs and config.obs_norm_warmup_steps else None,
        warm_up_steps=config.obs_norm_warmup_steps,
    )


def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
    """Take over another run's parameters and normalisers; everything else is as the config makes it.

    Raises:
      ShoalError: the networks or the normalisers differ; names the first entry that does.
    """
    shared = struct.with_saved_parts(learner.shared, saved, ("network", "observation", "reward", "value"))
    return learner._replace(shared=shared)


def update(
    config: PPOConfig,
    spec: EnvSpec,
    axis: tuple[str, ...],
    learner: Learner,
    trajectory: Trajectory,
    keys: Keys,
    clock: Clock,
) -> tuple[Learner, Metrics, Checks]:
    """PPO's update: the rollout as rows with advantages, then epochs of gradient steps on minibatches of them."""
    rows, prepared, metrics, rollout = prepare(config, spec, axis, learner, trajectory)
    shared, recompute = prepared.shared, recomputation.RECOMPUTATIONS[config.recompute]
    if not config.adapts_kl_coef:  # the config's, which may change while a run trains
        shared = shared._replace(kl_coef=jnp.asarray(config.kl_coef, jnp.float32))
    rate = (
        optimisers.schedule_factor(config.optimization.lr_schedule, clock.progress)
        * shared.learning_rate_scale
    )
    parts, merge = optimisers.split_parameters(config.optimization, shared.network, is_split=config.is_split)
    optimizer = optimisers.build(config.optimization, parts, rate)
    in_loss = functools.partial(recompute.in_loss, config=config, axis=axis, moments=shared.value)

    def minibatch_step(rows: Rows, carry: GradientState, minibatch: Minibatch) -> tuple[GradientState, Array]:
        batch = jax.tree.map(lambda x: x[minibatch.rows], rows)._replace(advantage=minibatch.advantage)
        gradient = functools.partial(summed_gradient, config, merge, batch, shared.kl_coef, in_loss=in_loss)
        return gradient_step(config, axis, optimizer, gradient, carry, minibatch)

    def estimate(carry: GradientState) -> tuple[Array, Array]:
        return recomputation.estimate(config, axis, rollout, shared.value, merge(carry.parts))

    start = GradientState(parts, shared.optimizer, stopped=jnp.asarray(False))
    final, history = recompute.scan_epochs(config, axis, rows, keys.local, minibatch_step, start, estimate)
    steps = dict(zip(METRICS, history.T, strict=True))
    # How far the policy has moved by the last epoch.
    kl = jnp.mean(steps["approx_kl"][-config.num_minibatches :])
    shared = shared._replace(network=merge(final.parts), optimizer=final.optimizer)
    metrics |= metric_means.step_means(steps, ACTOR_METRICS) | {
        "learning_rate": metric_means.scalar_mean(config.optimization.learning_rate * rate),
        "kl_coef": metric_means.scalar_mean(shared.kl_coef),
    }
    checks = {
        "advantage": ~jnp.isfinite(metrics["advantage_mean"].total),
        "loss": ~jnp.all(jnp.isfinite(steps["policy_loss"] + steps["value_loss"] + steps["entropy"])),
        "gradient": ~jnp.all(jnp.isfinite(steps["grad_norm"])),
    }
    return Learner(adapt_coefficients(config, shared, kl), prepared.local), metrics, checks


class Prepared(NamedTuple):
    """The rows of a rollout, and the state of the learner from which an update starts."""

    rows: Rows
    learner: Learner  # with the rollout's statistics in its normalisers
    metrics: dict[str, Mean]
    rollout: Rollout


def prepare(
    config: PPOConfig, spec: EnvSpec, axis: tuple[str, ...], learner: Learner, trajectory: Trajectory
) -> Prepared:
    """Turns a rollout into rows with advantages and value targets.

    The normaliser of observations that acting used is the one used here; the rollout's own statistics are merged
    into the learner that is returned, for the next rollout.
    """
    before, after = without_last(trajectory.timesteps), jax.tree.map(lambda x: x[1:], trajectory.timesteps)
    steps = transitions(trajectory)
    weight = steps.weight
    reward, learner = scale_rewards(config, axis, learner, after, weight)

    inputs, replayed = replay_rollout(config, spec, learner, trajectory)
    rollout = Rollout(
        inputs,
        memories.before_rollout(trajectory.memory, learner.local),
        raw_actions(trajectory),
        trajectory.extras.log_prob,
        ReturnInputs(reward, config.gamma * steps.discount, after.last, weight),
    )
    value = value_normalisation.denormalise(learner.shared.value, replayed.value)
    advantage, target = advantages.ESTIMATORS[config.advantage](config, rollout.returns, value, None)
    metrics = {
        "explained_variance": metric_means.scalar_mean(
            statistics.explained_variance(target, value[:-1], weight, axis_name=axis)
        ),
        **metric_means.moment_metrics("value", value[:-1], weight, axis),
        **metric_means.moment_metrics("advantage", advantage, weight, axis),
    }
    advantage = advantages.standardise_over_rollout(config, axis, advantage, weight)
    normalise_values = value_normalisation.NORMALISATIONS[config.norm_value]
    shared, output, target = normalise_values(axis, learner.shared, replayed.value[:-1], target, weight)
    shared = shared._replace(observation=observe(shared.observation, before.observation, weight, axis))
    local = learner.local
    if jax.tree.leaves(replayed.critic):
        local = memories.pack_local(memories.unpack_local(local)._replace(critic=replayed.critic))
    rows = make_rows(config, trajectory, rollout, replayed, output, advantage, target)
    return Prepared(rows, Learner(shared, local), metrics, rollout)


def make_rows(
    config: PPOConfig,
    trajectory: Trajectory,
    rollout: Rollout,
    replayed: sequences.Replayed,
    value: Array,
    advantage: Array,
    target: Array,
) -> Rows:
    """The rows of a rollout; values and targets [T, N] are as the value loss compares them."""
    weight = rollout.returns.weight

    def masked(tree: PyTree) -> PyTree:
        """Replace what is no transition before it enters the network: 0 times NaN is NaN in a gradient."""
        return struct.where(weight > 0, tree, jax.tree.map(jnp.zeros_like, tree))

    inputs = without_last(rollout.inputs)
    inputs = masked(inputs)._replace(first=inputs.first, action_mask=inputs.action_mask)
    rows = Rows(
        inputs=inputs,
        raw_action=masked(rollout.raw_action),
        log_prob=masked(rollout.log_prob),
        distribution=trajectory.extras.distribution,
        value=masked(value),
        advantage=masked(advantage),
        target=masked(target),
        weight=weight,
    )
    rows = recomputation.RECOMPUTATIONS[config.recompute].to_rows(config, rows, rollout)
    return rows._replace(start=minibatches.chunk_starts(config, inputs, replayed.starts))


def replay_rollout(
    config: PPOConfig, spec: EnvSpec, learner: Learner, trajectory: Trajectory
) -> tuple[NetworkInputs, sequences.Replayed]:
    """Return the network's inputs at each of T+1 steps, its values, and its memories at the chunks' starts.

    With the parameters that acted. A network without memory, and a
    critic with one of its own, runs once over all steps; the memories that acting kept are not computed again.
    """
    memory = memories.unpack(trajectory.memory)
    observation = normalise(config, learner.shared.observation, trajectory.timesteps.observation)
    previous = memories.previous_actions(spec, memory.action, raw_actions(trajectory))
    inputs = memories.network_inputs(config, trajectory.timesteps, observation, previous)
    carries = memories.before_rollout(trajectory.memory, learner.local)
    steps = minibatches.start_steps(config, len(trajectory.actions))
    network, after = learner.shared.network, trajectory.extras.memory
    return inputs, memories.replay(network, carries, after, inputs, steps)


def raw_actions(trajectory: Trajectory) -> Array:
    """The actions as they were sampled, [T, N, ...]."""
    raw = trajectory.extras.raw_action
    return trajectory.actions if isinstance(raw, tuple) else raw


def without_last(tree: PyTree) -> PyTree:
    """The entries of T+1 time-steps that an action was taken at: all but the last."""
    return jax.tree.map(lambda x: x[:-1], tree)


class GradientState(NamedTuple):
    """The state that a gradient step changes."""

    parts: optimisers.Parts  # the network's parameters
    optimizer: PyTree
    stopped: Array  # whether the KL stop has ended the actor's updates for this rollout


# Metrics of steps that the actor took.
ACTOR_METRICS = ("policy_loss", "entropy", "approx_kl", "clip_fraction")

# What is known of each gradient step; the first five are means over its rows.
METRICS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
    "actor_updates",
)
RowMetrics = tuple[Array, ...]  # the first five of them, each of every row, 0 where it is no transition
# (a minibatch, its log-ratios, the critic's outputs) -> the minibatch with the advantages and targets of the loss
InLoss = Callable[[Rows, Array, Array], Rows]


def gradient_step(
    config: PPOConfig,
    axis: tuple[str, ...],
    optimizer: optax.GradientTransformation,
    gradient_sum: Callable[[optimisers.Parts, Array], tuple[optimisers.Parts, Array]],
    carry: GradientState,
    minibatch: Minibatch,
) -> tuple[GradientState, Array]:
    """One gradient step; returns its metrics, in the order of METRICS."""
    in_actor_epochs = minibatch.epoch < config.update_epochs
    update_actor = in_actor_epochs & ~carry.stopped
    sums = gradient_sum(carry.parts, update_actor)
    if axis:
        sums = jax.lax.psum(sums, axis)
    gradient, means = jax.tree.map(lambda x: x / jnp.maximum(minibatch.weight, 1.0), sums)
    updates, opt_state = optimizer.update(gradient, carry.optimizer, carry.parts)
    parts = optax.apply_updates(carry.parts, updates)

    stopped = carry.stopped
    if config.kl_stop:
        stopped = stopped | (in_actor_epochs & (means[METRICS.index("approx_kl")] > config.target_kl))
        update_actor = update_actor & ~stopped
    critic_epochs: Any = config.critic_update_epochs  # a number, since `with_critic_defaults` set it
    if config.kl_stop or critic_epochs != config.update_epochs:
        update_critic = minibatch.epoch < critic_epochs
        active = {"actor": update_actor, "critic": update_critic}
        parts = optimisers.select_active(active, parts, carry.parts)
        opt_state = optimisers.select_active(active, opt_state, carry.optimizer)
    norm = optax.tree.norm(gradient)
    return GradientState(parts, opt_state, stopped), jnp.stack(
        [*means, norm, update_actor.astype(jnp.float32)]
    )


def summed_gradient(
    config: PPOConfig,
    merge: Callable[[optimisers.Parts], PyTree],
    batch: Rows,
    kl_coef: Array,
    parts: optimisers.Parts,
    update_actor: Array,
    in_loss: InLoss = recomputation.as_given,
) -> tuple[optimisers.Parts, Array]:
    """Gradient of the loss and its metrics, summed over the rows of a minibatch."""

    def loss(network: PyTree, rows: Rows) -> tuple[Array, RowMetrics]:
        return summed_loss(config, network, rows, kl_coef, update_actor, in_loss)

    num_chunks = minibatches.num_gradient_parts(batch, config.gradient_chunk)
    gradient, metrics = chunked_gradient(loss, merge, parts, batch, num_chunks)
    return gradient, jnp.stack([jnp.sum(x) for x in metrics])


def summed_loss(
    config: PPOConfig,
    network: PyTree,
    batch: Rows,
    kl_coef: Array,
    update_actor: Array,
    in_loss: InLoss = recomputation.as_given,
) -> tuple[Array, RowMetrics]:
    """PPO's loss, summed over the rows that are transitions, and what it is made of, row by row.

    The ratio is always that to the policy that acted, whenever the advantages were computed (`advantages.vtrace`).
    """
    batch, distribution, value = minibatches.replay(network, batch)
    log_ratio = actions.log_prob(distribution, batch.raw_action) - batch.log_prob
    batch = minibatches.without_unread(in_loss(batch, log_ratio, value), distribution)
    entropy = actions.entropy(distribution)
    surrogate = surrogates.SURROGATES[config.surrogate]
    policy_loss = surrogate(config, log_ratio, batch.advantage, (batch.distribution, distribution), kl_coef)
    if config.clip_vloss:
        value_loss = value_losses.clipped_value(value, batch.value, batch.target, config.vf_clip_coef)
    else:
        value_loss = value_losses.squared(value, batch.target)
    kl = policy_losses.kl_k3(log_ratio)
    log_lower_bound = jnp.log(jnp.maximum(1.0 - config.clip_coef, 0.0))
    clipped = (log_ratio > jnp.log1p(config.clip_coef)) | (log_ratio < log_lower_bound)

    row_metrics = (policy_loss, value_loss, entropy, kl, clipped.astype(jnp.float32))
    metrics = tuple(jnp.where(batch.weight > 0, x, 0.0) for x in row_metrics)
    actor_loss = jnp.where(update_actor, metrics[0] - config.ent_coef * metrics[2], 0.0)
    return jnp.sum(actor_loss + config.vf_coef * metrics[1]), metrics


def adapt_coefficients(config: PPOConfig, shared: Shared, kl: Array) -> Shared:
    """Moves the adaptive learning rate and KL coefficient by the KL that the last epoch ended at."""
    scale, kl_coef = shared.learning_rate_scale, shared.kl_coef
    if config.optimization.lr_schedule == "adaptive":
        scale = optimisers.adapt_scale(scale, kl, config.desired_kl)
    if config.adapts_kl_coef:
        kl_coef = policy_losses.adapt_kl_coef(kl_coef, kl, config.desired_kl)
    return shared._replace(learning_rate_scale=scale, kl_coef=kl_coef)
