"""Actor-critics that learn from a replay: what Soft Actor-Critic (`sac.py`) and TD3 (`td3.py`) have in common.

From top to bottom: the learner, how it acts, the update, a gradient step, its targets, and the actor's step. An
algorithm is a set of `Rules`. The settings are in `replayed_config.py`, the replay in `learning/replay.py`, the losses
of critics in `learning/action_critics.py`.

Actions are flat numbers in [-1, 1] until they leave the algorithm: so the replay keeps them, critics are shown them,
and densities and noise are in these units. Those of a Discrete are integers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from shoal.algos.acting import actions, memories, normalisation
from shoal.algos.acting.memories import Memory
from shoal.algos.learning import action_critics, metric_means, optimisers, replay, target_networks
from shoal.algos.learning.action_critics import Target
from shoal.algos.learning.replay import StoredSteps, Window
from shoal.config import struct
from shoal.nets.targets import make_target
from shoal.ops import off_policy, statistics
from shoal.ops.distributions import Categorical, masked
from shoal.types import (
    CLIPPING,
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
    without_entries,
)
from shoal.xla.chunked_gradients import mean_gradient

if TYPE_CHECKING:
    from shoal.algos.replayed_config import ReplayedConfig


class Networks(NamedTuple):
    """An actor and its critics; each is found in it by these names."""

    actor: PyTree
    critic: PyTree


class Rules(NamedTuple):
    """What an algorithm has of its own; `values` are those of actions by critics, [K, B], or [K, B, A] of all."""

    # (config, distribution, values_of, key) -> (value [B], entropy [B]): what the policy is worth, for its own loss
    actor_value: Callable[..., tuple[Array, Array]]
    # (config, distribution, outputs_of, key) -> (predicted [B, ...], entropy [B]): the same in a target
    target_value: Callable[..., tuple[Array, Array]]
    # (config, distribution, noise, key) -> raw action: how it acts while it collects; noise is () or standard normal
    explore: Callable[..., Array]
    has_temperature: bool  # whether entropies count
    target_actor: bool  # whether targets are by an actor that follows slowly, too


class Shared(NamedTuple):
    """The learned state; the same on every device. `Learner.local` is the replay."""

    network: Networks
    target: Networks  # the critics of targets, and the actor's where the rules say so, else ()
    optimizer: dict[str, PyTree]  # of "actor", "critic" and "temperature"
    log_alpha: Array | tuple[()]  # the logarithm of the temperature, where it is learned
    observation: statistics.RunningMoments | None  # with norm_obs
    written: Array  # how many steps each ring has been given (`replay.write`), int32
    since_target: Array  # environment steps times gradient_steps since the target was moved, int32
    since_actor: Array  # the critics' steps since the actor's, int32


class ActingPolicy(NamedTuple):
    """The part of the learner that acting needs: the actor and the normaliser."""

    actor: PyTree
    observation: statistics.RunningMoments | None
    random: Array | tuple[()] = ()  # while collecting, whether all actions are random; () where it is evaluated


class Extras(NamedTuple):
    """The record of each acted step for the replay."""

    action: Array  # flat and in [-1, 1], or an integer
    raw: Array | tuple[()] = ()  # before it was bounded, and its log-probability, where returns are corrected
    log_prob: Array | tuple[()] = ()


class Setting(NamedTuple):
    """What the functions of an algorithm have in common."""

    config: ReplayedConfig
    spec: EnvSpec
    rules: Rules
    axis: tuple[str, ...]
    streams: int

    def of_actor(self, observation: PyTree) -> PyTree:
        """Return what the actor is shown of a stored observation."""
        return without_entries(observation, self.spec.critic_only)

    def of_critic(self, observation: PyTree) -> PyTree:
        """Return what critics are shown of it."""
        return without_entries(observation, self.spec.actor_only)

    @property
    def is_discrete(self) -> bool:
        """Whether critics give the values of all actions."""
        return isinstance(self.spec.action_space, spaces.Discrete)

    def values(self, network: Networks, observation: PyTree, action: Array) -> PyTree:
        """Return the critics' outputs for actions, [K, B]."""
        shown = self.of_critic(observation)
        if self.is_discrete:
            return action_critics.of_action(network.critic.values(shown), action)
        return network.critic.values(shown, action)

    def stored_action(self) -> Array:
        """Return one action of zeros, as the replay keeps it."""
        zeros = spaces.zeros(self.spec.action_space)
        return zeros if self.is_discrete else jnp.zeros(zeros.size)


def algorithm(
    config: ReplayedConfig, rules: Rules, spec: EnvSpec, axis: tuple[str, ...] = (), streams: int = 1
) -> Algorithm:
    """Make the functions for one agent; `config` may hold traced numbers.

    Args:
      streams: the agents of each world that are streams of this algorithm (`shoal.types.agent_axis`).
    """
    s = Setting(config, spec, rules, axis, streams)
    to_action = actions.action_transform(spec.action_space, "deterministic", "rescale")
    warms_up = config.norm_obs and config.obs_norm_warmup_steps
    return Algorithm(
        functools.partial(init, s),
        functools.partial(memories.initial, config, spec),
        functools.partial(policy_of, s),
        functools.partial(act, s, to_action),
        functools.partial(update, s),
        inherit,
        functools.partial(behaviour, s),
        warm_up=functools.partial(normalisation.warm_up, axis, ()) if warms_up else None,
        warm_up_steps=config.obs_norm_warmup_steps,
        without_replay=without_replay,
    )


def init(s: Setting, key: Array, num_envs: int) -> Learner:
    """Make a learner with new networks and an empty replay, for streams of one group."""
    config, built = s.config, s.config.network.build(s.spec, key)
    network = Networks(built.actor, built.critic)
    parts, _ = optimisers.split_parameters(config.optimization, network, is_split=True)
    optimizer = {name: build(config, name, 0.0).init(part) for name, part in parts.items()}
    log_alpha: Array | tuple[()] = ()
    if s.rules.has_temperature and config.autotune:
        log_alpha = jnp.log(jnp.asarray(config.alpha, jnp.float32))
        optimizer["temperature"] = build(config, "temperature", 0.0).init(log_alpha)
    zero = jnp.zeros((), jnp.int32)
    shared = Shared(
        network=network,
        target=new_target(s.rules, network),
        optimizer=optimizer,
        log_alpha=log_alpha,
        observation=normalisation.initial_moments(config, s.spec),
        written=zero,
        since_target=zero,
        since_actor=zero,
    )
    number = jnp.zeros(())
    extras = Extras((), s.stored_action(), number) if config.corrects else ()
    ring = replay.new_ring(
        *(config.replay, s.spec, s.stored_action(), extras),
        num_envs=num_envs,
        streams=s.streams,
        axis=s.axis,
    )
    return Learner(shared, ring)


def new_target(rules: Rules, network: Networks) -> Networks:
    """Copy the networks of targets."""
    return make_target(network if rules.target_actor else network._replace(actor=()))


def build(config: ReplayedConfig, part: str, rate: Array | float) -> optax.GradientTransformation:
    """Make the optimiser of a part; the temperature's is Adam, at the critics' rate."""
    if part == "temperature":
        return optax.adam(config.optimization.critic_learning_rate * rate)
    return optimisers.build_part(config.optimization, rate, "critic_" if part == "critic" else "")


def policy_of(s: Setting, learner: Learner, clock: Clock) -> ActingPolicy:
    """Return the part of the learner that acts, and is evaluated and saved."""
    shared = learner.shared
    return ActingPolicy(shared.network.actor, normalisation.moments_of_actor(shared.observation, s.spec))


def behaviour(s: Setting, learner: Learner, clock: Clock) -> ActingPolicy:
    """Return the policy that collects transitions: at random before `learning_starts`, then with exploration."""
    # By the clock: a run that resumed without its replay collects by its policy.
    return policy_of(s, learner, clock)._replace(random=clock.steps < s.config.replay.learning_starts)


def act(
    s: Setting,
    to_action: Callable[[Array], Array],
    policy: ActingPolicy,
    memory: Memory,
    timestep: TimeStep,
    key: Array,
    *,
    greedy: bool = False,
) -> tuple[Memory, Array, Extras]:
    """Act at one step of N environments; return also the noise after it, and what the replay keeps of it."""
    config, explore = s.config, s.rules.explore
    observation = normalisation.normalise(config, policy.observation, timestep.observation)
    distribution = policy.actor.policy(observation, timestep.action_mask)
    if greedy:
        raw, noise = actions.mode(distribution), memory.noise
    elif isinstance(policy.random, tuple):  # an evaluation
        raw, noise = actions.sample(distribution, key), memory.noise
    else:
        noise_key, random_key, key = jax.random.split(key, 3)
        noise = memory.noise
        if config.correlated_noise:
            noise = actions.draw_noise(noise, timestep.first, noise_key, config.noise_correlation)
        raw = explore(config, distribution, noise, key)
    action, log_prob = actions.bounded(distribution, raw), actions.log_prob(distribution, raw)
    if not greedy and not isinstance(policy.random, tuple):
        drawn = uniform(s, action, timestep.action_mask, noise, random_key)
        action, raw, log_prob = struct.where(policy.random, drawn, (action, raw, log_prob))
    kept = Extras(action, raw, log_prob) if config.corrects else Extras(action)
    return Memory(noise=noise), to_action(action), kept


def uniform(s: Setting, action: Array, mask: Array | None, noise: PyTree, key: Array) -> tuple[Array, Array, Array]:
    """Draw an action of each environment uniformly; return also its raw form and its log-probability."""
    if s.is_discrete:
        logits = jnp.zeros((*action.shape, s.spec.action_space.n))  # type: ignore[union-attr]
        legal = Categorical(logits) if mask is None else masked(Categorical(logits), mask)
        action, log_prob = legal.sample_and_log_prob(key)
        return action, action, log_prob
    drawn = jax.random.uniform(key, action.shape, minval=-1.0, maxval=1.0) if isinstance(noise, tuple) else noise
    number = drawn if isinstance(noise, tuple) else actions.uniform_of(noise)
    mask = jnp.ones(action.shape, bool) if mask is None else mask
    action = jnp.where(mask, number, 0.0)
    edge = 1.0 - 1e-6  # where a tanh of float32 ends
    raw = jnp.arctanh(jnp.clip(action, -edge, edge))
    return action, raw, -math.log(2.0) * jnp.sum(mask, axis=-1)


def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
    """Take over another run's networks and normaliser; the replay begins empty.

    Raises:
      ShoalError: the networks or the normalisers differ; names the first entry that does.
    """
    shared = struct.with_saved_parts(learner.shared, saved, ("network", "observation"))
    network, has_actor = shared.network, bool(jax.tree.leaves(shared.target.actor))
    target = make_target(network if has_actor else network._replace(actor=()))
    return learner._replace(shared=shared._replace(target=target))


def without_replay(learner: Learner) -> Learner:
    """Return the learner with an empty replay, which the next rollouts fill before it learns again."""
    shared = learner.shared._replace(written=jnp.zeros_like(learner.shared.written))
    return Learner(shared, jax.tree.map(jnp.zeros_like, learner.local))


CRITIC_METRICS = ("q_loss", "q_mean", "grad_norm")  # of each step of the critics, in this order
ACTOR_METRICS = ("actor_loss", "entropy", "actor_grad_norm")  # of each step of the actor
SHARED_STREAM = 2**31 - 1  # of an update's key; the numbers below are its gradient steps


class GradientState(NamedTuple):
    """The state that gradient steps change."""

    parts: optimisers.Parts
    target: optimisers.Parts
    optimizer: dict[str, PyTree]
    log_alpha: Array | tuple[()]
    since_target: Array
    since_actor: Array
    sums: Array  # of CRITIC_METRICS
    actor_sums: Array  # of ACTOR_METRICS, and the number of the actor's steps
    clipping: Metrics  # sums of `action_critics.clipping`


class Loop(NamedTuple):
    """What the gradient steps of one update have in common."""

    moments: statistics.RunningMoments | None
    rate: Array  # the schedule's factor of the step sizes
    merge: Callable[[optimisers.Parts], Networks]
    merge_target: Callable[[optimisers.Parts], Networks]
    ring: StoredSteps
    written: Array
    keys: Keys


def update(
    s: Setting, learner: Learner, trajectory: Trajectory, keys: Keys, clock: Clock
) -> tuple[Learner, Metrics, Checks]:
    """Write a rollout into the replay, and make the gradient steps that are due on batches from it."""
    config, shared, weight = s.config, learner.shared, transitions(trajectory).weight
    extras: Extras = trajectory.extras
    # The policy's actions in place of the environment's, which have its shape and units.
    kept = extras._replace(action=()) if config.corrects else ()
    ring, written, count = replay.collect(
        *(config.replay, s.spec, learner.local, shared.written),
        trajectory._replace(actions=extras.action, extras=kept),
        clock,
        streams=s.streams,
        axis=s.axis,
    )
    before = jax.tree.map(lambda x: x[:-1], trajectory.timesteps.observation)
    moments = normalisation.observe(shared.observation, before, weight, s.axis)

    parts, merge = optimisers.split_parameters(config.optimization, shared.network, is_split=True)
    target, merge_target = optimisers.split_parameters(config.optimization, shared.target, is_split=True)
    rate = optimisers.schedule_factor(config.optimization.lr_schedule, clock.progress)
    loop = Loop(moments, rate, merge, merge_target, ring, written, keys)
    is_categorical = action_critics.kind_of(config) == "categorical"
    state = GradientState(
        *(parts, target, shared.optimizer, shared.log_alpha, shared.since_target, shared.since_actor),
        sums=jnp.zeros(len(CRITIC_METRICS)),
        actor_sums=jnp.zeros(len(ACTOR_METRICS) + 1),
        clipping=dict.fromkeys(CLIPPING, Mean(jnp.zeros(()), jnp.zeros(()))) if is_categorical else {},
    )
    state = jax.lax.fori_loop(0, count, functools.partial(gradient_step, s, loop), state)

    shared = shared._replace(
        network=merge(state.parts),
        target=merge_target(state.target),
        optimizer=state.optimizer,
        log_alpha=state.log_alpha,
        observation=moments,
        written=written,
        since_target=state.since_target,
        since_actor=state.since_actor,
    )
    # Sums, so that a number which is not finite in any of the steps is seen after the last of them.
    q_loss, _, norm = state.sums
    actor_loss, _, actor_norm, _ = state.actor_sums
    not_finite = {"loss": q_loss + actor_loss, "gradient": norm + actor_norm}
    checks = {name: ~jnp.isfinite(x) for name, x in not_finite.items()}
    return Learner(shared, ring), metrics_of(s, state, count, rate), checks


def metrics_of(s: Setting, state: GradientState, count: Array, rate: Array) -> Metrics:
    """Return the metrics of an update's gradient steps."""
    *sums, actor_steps = state.actor_sums
    scalars = {
        "gradient_steps": count,
        "actor_steps": actor_steps,
        "learning_rate": s.config.optimization.learning_rate * rate,
    }
    if s.rules.has_temperature:
        scalars["alpha"] = temperature(s, state.log_alpha)
    return (
        {name: Mean(x, count.astype(jnp.float32)) for name, x in zip(CRITIC_METRICS, state.sums, strict=True)}
        | {name: Mean(x, actor_steps) for name, x in zip(ACTOR_METRICS, sums, strict=True)}
        | {name: metric_means.scalar_mean(x) for name, x in scalars.items()}
        | state.clipping
    )


def temperature(s: Setting, log_alpha: Array | tuple[()]) -> Array | float:
    """Return the weight of the entropy: learned, a setting, or 0 where entropies do not count."""
    if not s.rules.has_temperature:
        return 0.0
    return s.config.alpha if isinstance(log_alpha, tuple) else jnp.exp(log_alpha)


class Batch(NamedTuple):
    """The transitions of one gradient step, [B, ...]."""

    observation: PyTree  # normalised; zeros where there is no transition
    mask: Array  # of actions
    action: Array
    target: Target


def gradient_step(s: Setting, loop: Loop, index: Array, state: GradientState) -> GradientState:
    """Make one step of the critics on a batch from the replay, then the actor's and the target's that are due."""
    config, keys = s.config, loop.keys
    sample_key, target_key, actor_key = jax.random.split(jax.random.fold_in(keys.local, index), 3)
    members_key = jax.random.fold_in(jax.random.fold_in(keys.shared, SHARED_STREAM), index)
    size = config.replay.batch_size // replay.num_groups(s.axis)
    window = replay.sample(sample_key, loop.ring, loop.written, size, config.replay.n_step)
    batch = make_batch(s, loop, state, window, target_key, members_key)
    weight = jnp.sum(batch.target.weight)
    total = jax.lax.psum(weight, s.axis) if s.axis else weight

    def loss(network: Networks, batch: Batch) -> tuple[Array, tuple[Array, Array]]:
        output = s.values(network, batch.observation, batch.action)
        losses, value = action_critics.loss(config, output, batch.target), action_critics.number_of(config, output)
        mean = jnp.where(batch.target.weight > 0, jnp.mean(value, axis=0), 0.0)
        return jnp.sum(losses, axis=0), (jnp.mean(losses, axis=0), mean)

    def merge(part: PyTree) -> Networks:
        return loop.merge(state.parts | {"critic": part})

    part = state.parts["critic"]
    options = dict(weight=total, num_chunks=1, axis=s.axis)
    gradient, means = mean_gradient(loss, merge, part, batch, **options)  # type: ignore[arg-type]
    changes, critic_state = build(config, "critic", loop.rate).update(gradient, state.optimizer["critic"], part)
    output = s.values(merge(part), batch.observation, batch.action) if state.clipping else ()
    state = state._replace(
        parts=state.parts | {"critic": optax.apply_updates(part, changes)},
        optimizer=state.optimizer | {"critic": critic_state},
        sums=state.sums + jnp.stack([*means, optax.tree.norm(gradient)]),
        clipping=jax.tree.map(jnp.add, state.clipping, action_critics.clipping(config, output, batch.target, s.axis)),
    )

    since = state.since_actor + 1
    actor = functools.partial(actor_step, s, loop, batch, options, actor_key)
    state = jax.lax.fori_loop(0, since // config.policy_frequency, actor, state)
    followed = {name: state.parts[name] for name in state.target}
    target, since_target = target_networks.move(
        config.targets, config.replay, state.since_target, state.target, followed
    )
    return state._replace(
        target=target, since_target=since_target, since_actor=since % config.policy_frequency
    )


def actor_step(
    s: Setting, loop: Loop, batch: Batch, options: dict, key: Array, index: Array, state: GradientState
) -> GradientState:
    """Make one step of the actor against the critics as they are, then one of the temperature, if it is learned."""
    config, alpha = s.config, temperature(s, state.log_alpha)
    is_row = batch.target.weight > 0

    def loss(network: Networks, batch: Batch) -> tuple[Array, tuple[Array, Array, Array]]:
        distribution = network.actor.policy(s.of_actor(batch.observation), batch.mask)
        outputs = functools.partial(outputs_for, s, network, batch.observation)
        value, entropy = s.rules.actor_value(config, distribution, outputs, jax.random.fold_in(key, index))
        losses = jnp.where(is_row, -(value + alpha * entropy), 0.0)
        gap = entropy - target_entropy(s, batch.mask) if s.rules.has_temperature else jnp.zeros(())
        return losses, tuple(jnp.where(is_row, x, 0.0) for x in (losses, entropy, gap))  # type: ignore[return-value]

    def merge(part: PyTree) -> Networks:
        return loop.merge(state.parts | {"actor": part})

    part = state.parts["actor"]
    gradient, (mean, entropy, gap) = mean_gradient(loss, merge, part, batch, **options)
    changes, actor_state = build(config, "actor", loop.rate).update(gradient, state.optimizer["actor"], part)
    optimizer, log_alpha = state.optimizer | {"actor": actor_state}, state.log_alpha
    if not isinstance(log_alpha, tuple):
        # Of the loss alpha (entropy - target): below its target the temperature rises.
        step = build(config, "temperature", loop.rate).update(alpha * gap, optimizer["temperature"], log_alpha)
        log_alpha, optimizer = log_alpha + step[0], optimizer | {"temperature": step[1]}
    sums = jnp.stack([mean, entropy, optax.tree.norm(gradient), jnp.ones(())])
    return state._replace(
        parts=state.parts | {"actor": optax.apply_updates(part, changes)},
        optimizer=optimizer,
        log_alpha=log_alpha,
        actor_sums=state.actor_sums + sums,
    )


def target_entropy(s: Setting, mask: Array) -> Array:
    """Return the entropy that a learned temperature aims at, [B]: of each number of a Box, in [-1, 1], or a share of the
    greatest that the legal actions of a Discrete allow."""
    count = jnp.sum(mask, axis=-1)
    if s.is_discrete:
        return s.config.target_entropy_share * jnp.log(jnp.maximum(count, 1).astype(jnp.float32))
    return s.config.target_entropy * count


def outputs_for(s: Setting, network: Networks, observation: PyTree, action: Array | None = None) -> PyTree:
    """Return the critics' outputs for an action of the policy [B, ...]; without one for all of a Discrete."""
    shown = s.of_critic(observation)
    if s.is_discrete and action is None:
        return network.critic.values(shown)
    return s.values(network, observation, action)


def make_batch(
    s: Setting, loop: Loop, state: GradientState, window: Window, key: Array, members_key: Array
) -> Batch:
    """Return the observations and actions at the windows' starts, and what follows them; no gradient passes through.

    Where there is no transition observations and actions are zeros, since anything may be there, and 0 times NaN is NaN
    in a gradient.
    """
    config, networks = s.config, loop.merge(state.parts)
    target = loop.merge_target(state.target)
    if not s.rules.target_actor:
        target = target._replace(actor=networks.actor)
    window = window._replace(reward=config.reward_scale * window.reward)
    start = replay.steps_at(loop.ring, window, 0)
    weight = window.weight[0]
    shown = start.observation, start.action
    observation, action = struct.where(weight > 0, shown, jax.tree.map(jnp.zeros_like, shown))
    observation = normalisation.normalise(config, loop.moments, observation)
    follow = functools.partial(following, s, loop.moments, target, temperature(s, state.log_alpha))
    if config.corrects:
        steps = replay.steps_at(loop.ring, window, 1 + jnp.arange(len(window.reward))[:, None])
        reward = corrected_return(s, window, steps, follow, target, loop.moments, key, members_key)
        zeros = jnp.zeros_like(weight)
        result = Target(reward, zeros, zeros, zeros, weight)
    else:
        returns = replay.n_step_return(window, config.gamma)
        end = replay.steps_at(loop.ring, window, returns.steps)
        predicted, bonus = follow(end, key, members_key)
        bonus = jnp.where(returns.discount > 0, bonus, 0.0)  # NaN where an episode ended, perhaps
        result = Target(returns.reward, returns.discount, bonus, predicted, returns.weight)
    return Batch(observation, start.action_mask, action, jax.lax.stop_gradient(result))  # type: ignore[arg-type]


def following(
    s: Setting,
    moments: statistics.RunningMoments | None,
    target: Networks,
    alpha: Array | float,
    steps: StoredSteps,
    key: Array,
    members_key: Array,
) -> tuple[Array, Array]:
    """Return what the target's critics predict of the policy at stored steps [B], and the bonus of its entropy."""
    observation = normalisation.normalise(s.config, moments, steps.observation)
    distribution = target.actor.policy(s.of_actor(observation), steps.action_mask)
    outputs = functools.partial(outputs_for, s, target, observation)
    predicted, entropy = s.rules.target_value(s.config, distribution, outputs, key, members_key)
    return predicted, alpha * entropy


def corrected_return(
    s: Setting,
    window: Window,
    steps: StoredSteps,
    follow: Callable[..., tuple[Array, Array]],
    target: Networks,
    moments: statistics.RunningMoments | None,
    key: Array,
    members_key: Array,
) -> Array:
    """Compute the target of the first action of each window, [B], from the TD errors of all its steps [n, B].

    `multistep` retrace multiplies each by the clipped ratios of the policy to what acted; uncorrected does not (Munos et
    al. 2016, "Safe and Efficient Off-Policy Reinforcement Learning"; Harutyunyan et al. 2016, "Q(λ) with Off-Policy
    Corrections"). Entropies of the steps count in their values.
    """
    config = s.config
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
    predicted, bonus = follow(flat, key, members_key)
    observation = normalisation.normalise(config, moments, flat.observation)
    output = s.values(target, observation, flat.action)
    value = predicted + bonus
    taken = action_critics.pessimistic(config, output, members_key)
    distribution = target.actor.policy(s.of_actor(observation), flat.action_mask)
    log_ratio = actions.log_prob(distribution, flat.extras.raw) - flat.extras.log_prob
    taken, value, log_ratio = (x.reshape(steps.last.shape) for x in (taken, value, log_ratio))

    def of_stream(weight: Array, *arguments: Array) -> Array:
        *stream, log_ratio = arguments
        options = dict(lambda_=config.q_lambda, w_tm1=weight)
        if config.multistep == "retrace":
            return off_policy.retrace_continuous(*stream, log_ratio, **options)
        ones = jnp.ones_like(log_ratio)
        return off_policy.general_off_policy_returns_from_q_and_v(*stream, ones, **options)

    discount = config.gamma * window.discount
    arguments = (window.weight, window.reward, discount, window.last, taken, value, log_ratio)
    return jax.vmap(of_stream, in_axes=1, out_axes=1)(*arguments)[0]
