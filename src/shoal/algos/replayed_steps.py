"""Gradient steps of actor-critics that learn from a replay: of the critics, the actor, and a temperature.

From top to bottom: what an algorithm has of its own, the state of the steps, a step of the critics, the actor's, and
the batch with its targets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from shoal.algos.acting import normalisation
from shoal.algos.learning import action_critics, optimisers, replay, target_networks
from shoal.algos.learning.action_critics import Target
from shoal.algos.learning.priorities import Priorities
from shoal.algos.learning.replay import StoredSteps, Window
from shoal.config import struct
from shoal.ops import statistics
from shoal.types import Array, EnvSpec, Keys, Mean, PyTree, spaces, without_entries
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
    target_actor: bool  # whether targets are by an actor that follows slowly, too
    # (config, mask [B, A], is_discrete) -> the entropy that a temperature aims at, [B]; None: entropies do not count
    target_entropy: Callable[..., Array] | None = None
    # (config, window, steps, there, key) -> the returns of several steps, [B], where `config.corrects` them
    corrected_return: Callable[..., Array] | None = None


class Kept(NamedTuple):
    """What the replay keeps of an acted step where returns are corrected."""

    raw: Array  # the action before it was bounded
    log_prob: Array  # its log-probability


class Setting(NamedTuple):
    """What the functions of an algorithm have in common."""

    config: ReplayedConfig
    spec: EnvSpec
    rules: Rules
    axis: tuple[str, ...]
    streams: int

    @property
    def is_discrete(self) -> bool:
        """Whether critics give the values of all actions."""
        return isinstance(self.spec.action_space, spaces.Discrete)

    def outputs(
        self, network: Networks, observation: PyTree, action: Array | None = None, *, first: bool = False
    ) -> PyTree:
        """Return the critics' outputs for actions, [K, B]; without them for all of a Discrete, [K, B, A].

        Args:
          first: whether the first critic's is enough, where the others can be left out.
        """
        shown = without_entries(observation, self.spec.actor_only)
        critic = network.critic.first if first and hasattr(network.critic, "first") else network.critic
        if action is None or self.is_discrete:
            output = critic.values(shown)
            return output if action is None else action_critics.of_action(output, action)
        return critic.values(shown, action)

    def distribution(self, network: Networks, observation: PyTree, mask: Array | None) -> PyTree:
        """Return the actor's distributions for stored observations, [B]."""
        return network.actor.policy(without_entries(observation, self.spec.critic_only), mask)

    def stored_action(self) -> Array:
        """Return one action of zeros, as the replay keeps it."""
        zeros = spaces.zeros(self.spec.action_space)
        return zeros if self.is_discrete else jnp.zeros(zeros.size)


def build(config: ReplayedConfig, part: str, rate: Array | float) -> optax.GradientTransformation:
    """Make the optimiser of a part; the temperature's is Adam, at the critics' rate."""
    if part == "temperature":
        return optax.adam(rate * cast(float, config.optimization.critic_learning_rate))
    return optimisers.build_part(config.optimization, rate, "critic_" if part == "critic" else "")


CRITIC_METRICS = ("q_loss", "q_mean", "grad_norm")  # of each step of the critics, in this order
ACTOR_METRICS = ("actor_loss", "entropy", "actor_grad_norm", "actor_steps")  # of each step of the actor
SHARED_STREAM = 2**31 - 1  # of an update's key; the numbers below are its gradient steps


class GradientState(NamedTuple):
    """The state that gradient steps change."""

    parts: optimisers.Parts
    target: optimisers.Parts
    optimizer: dict[str, PyTree]
    since_target: Array
    since_actor: Array
    priorities: Priorities | None  # of the rings
    sums: Array  # of CRITIC_METRICS
    actor_sums: Array  # of ACTOR_METRICS
    clipping: dict[str, Mean]  # sums of `action_critics.clipping`


class Loop(NamedTuple):
    """What the gradient steps of one update have in common."""

    moments: statistics.RunningMoments | None
    rate: Array  # the schedule's factor of the step sizes
    progress: Array  # of the run
    merge: Callable[[optimisers.Parts], Networks]
    merge_target: Callable[[optimisers.Parts], Networks]
    ring: StoredSteps
    written: Array
    keys: Keys


def temperature(config: ReplayedConfig, parts: optimisers.Parts) -> Array | float:
    """Return the weight of the entropy: learned, or as it is set."""
    return jnp.exp(parts["temperature"]) if "temperature" in parts else config.entropy_weight


def stepped(
    config: ReplayedConfig, loop: Loop, state: GradientState, name: str, gradient: PyTree
) -> GradientState:
    """Make a step of one part's optimiser."""
    part = state.parts[name]
    changes, optimizer = build(config, name, loop.rate).update(gradient, state.optimizer[name], part)
    parts = state.parts | {name: optax.apply_updates(part, changes)}
    return state._replace(parts=parts, optimizer=state.optimizer | {name: optimizer})


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
    ring = loop.ring._replace(priorities=state.priorities)
    window, importance = replay.draw(config.replay, sample_key, ring, loop.written, loop.progress, s.axis)
    batch = make_batch(s, loop, state, window, target_key, members_key)

    def loss(network: Networks, batch: Batch) -> tuple[PyTree, ...]:
        output = s.outputs(network, batch.observation, batch.action)
        unweighted = action_critics.loss(config, output, batch.target)
        losses, error = importance * unweighted, action_critics.error(config, unweighted)
        value = jnp.mean(action_critics.number_of(config, output), axis=0)
        is_row = batch.target.weight > 0
        means = jnp.mean(losses, axis=0), jnp.where(is_row, value, 0.0)
        return jnp.sum(losses, axis=0), means, jax.lax.stop_gradient(error)

    gradient, means, error = gradient_of(s, loop, state, "critic", loss, batch)
    drawn_by = replay.with_errors(config.replay, ring, window, error, s.axis).priorities
    if state.clipping:
        output = s.outputs(loop.merge(state.parts), batch.observation, batch.action)
        clipping = action_critics.clipping(config, output, batch.target, s.axis)
        state = state._replace(clipping=jax.tree.map(jnp.add, state.clipping, clipping))
    sums = state.sums + jnp.stack([*means, optax.tree.norm(gradient)])
    state = stepped(config, loop, state, "critic", gradient)._replace(sums=sums, priorities=drawn_by)

    since = state.since_actor + 1
    actor = functools.partial(actor_step, s, loop, batch, actor_key)
    state = jax.lax.fori_loop(0, since // config.policy_frequency, actor, state)
    target, since_target = target_networks.move(
        config.targets,
        config.replay,
        state.since_target,
        state.target,
        {name: state.parts[name] for name in state.target},
    )
    since = since % config.policy_frequency
    return state._replace(target=target, since_target=since_target, since_actor=since)


def gradient_of(
    s: Setting, loop: Loop, state: GradientState, name: str, loss: Callable, batch: Batch
) -> tuple[PyTree, ...]:
    """Compute the gradient of a loss of the networks in one part of them, as `mean_gradient`."""
    weight = jnp.sum(batch.target.weight)
    return mean_gradient(
        loss,
        lambda part: loop.merge(state.parts | {name: part}),
        state.parts[name],
        batch,
        weight=jax.lax.psum(weight, s.axis) if s.axis else weight,
        num_chunks=1,
        axis=s.axis,
    )


def actor_step(
    s: Setting, loop: Loop, batch: Batch, key: Array, index: Array, state: GradientState
) -> GradientState:
    """Make one step of the actor against the critics as they are, then one of the temperature, if it is learned."""
    config, aim = s.config, s.rules.target_entropy
    alpha = temperature(config, state.parts)

    def loss(network: Networks, batch: Batch) -> tuple[Array, list[Array]]:
        distribution = s.distribution(network, batch.observation, batch.mask)
        outputs = functools.partial(s.outputs, network, batch.observation)
        value, entropy = s.rules.actor_value(config, distribution, outputs, jax.random.fold_in(key, index))
        gap = entropy - aim(config, batch.mask, s.is_discrete) if aim else entropy
        rows = (-(value + alpha * entropy), entropy, gap)
        losses, *further = [jnp.where(batch.target.weight > 0, x, 0.0) for x in rows]
        return losses, [losses, *further]

    gradient, (mean, entropy, gap) = gradient_of(s, loop, state, "actor", loss, batch)
    sums = state.actor_sums + jnp.stack([mean, entropy, optax.tree.norm(gradient), jnp.ones(())])
    state = stepped(config, loop, state, "actor", gradient)._replace(actor_sums=sums)
    if "temperature" not in state.parts:
        return state
    # Of the loss alpha (entropy - target): below its target the temperature rises.
    return stepped(config, loop, state, "temperature", alpha * gap)


class Following(NamedTuple):
    """What the networks of targets say of stored steps, [B]."""

    predicted: (
        Array  # by the critics for the policy's action: numbers [B], or what stands for a distribution [B, n]
    )
    bonus: Array  # the weighted entropy of the policy
    distribution: PyTree  # the policy's
    taken: Callable[[], PyTree]  # the critics' outputs for the actions that were taken, [K, B]


def make_batch(
    s: Setting, loop: Loop, state: GradientState, window: Window, key: Array, members_key: Array
) -> Batch:
    """Return the observations and actions at the windows' starts, and what follows them; no gradient passes through.

    Where there is no transition observations and actions are zeros, since anything may be there, and 0 times NaN is NaN
    in a gradient.
    """
    config, target = s.config, loop.merge_target(state.target)
    if not s.rules.target_actor:
        target = target._replace(actor=loop.merge(state.parts).actor)
    window = window._replace(reward=config.reward_scale * window.reward)
    start = replay.steps_at(loop.ring, window, 0)
    weight = window.weight[0]
    shown = start.observation, start.action
    observation, action = struct.where(weight > 0, shown, jax.tree.map(jnp.zeros_like, shown))
    observation = normalisation.normalise(config, loop.moments, observation)
    alpha = temperature(config, state.parts)

    def follow(steps: StoredSteps) -> Following:
        """Ask the target's critics and actor about stored steps, [B]."""
        observation = normalisation.normalise(config, loop.moments, steps.observation)
        distribution = s.distribution(target, observation, steps.action_mask)
        outputs = functools.partial(s.outputs, target, observation)
        predicted, entropy = s.rules.target_value(config, distribution, outputs, key, members_key)
        return Following(predicted, alpha * entropy, distribution, lambda: outputs(steps.action))

    if config.corrects and s.rules.corrected_return is not None:
        steps = replay.steps_at(loop.ring, window, 1 + jnp.arange(len(window.reward))[:, None])
        steps = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
        reward = s.rules.corrected_return(config, window, steps, follow(steps), members_key)
        zero = jnp.zeros_like(weight)
        result = Target(reward, zero, zero, zero, weight)
    else:
        returns = replay.n_step_return(window, config.gamma)
        there = follow(replay.steps_at(loop.ring, window, returns.steps))[:2]
        # Where nothing follows, anything may be there.
        zeros = jax.tree.map(jnp.zeros_like, there)
        predicted, bonus = struct.where(returns.discount > 0, there, zeros)
        result = Target(returns.reward, returns.discount, bonus, predicted, returns.weight)
    return Batch(observation, cast(Array, start.action_mask), action, jax.lax.stop_gradient(result))
