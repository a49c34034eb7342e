"""Deep Q-learning from a replay (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

From top to bottom: the learner, how it acts, the update, a gradient step, and the targets of a batch. The settings are
in `dqn_config.py`, the replay in `learning/replay.py`, the losses in `learning/action_values.py`. C51 and QR-DQN are
this algorithm with another `values` of the network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import optax

from shoal.algos.acting import exploration, normalisation
from shoal.algos.acting.exploration import ActingPolicy
from shoal.algos.learning import action_values, metric_means, optimisers, replay, target_networks
from shoal.algos.learning.action_values import SampledTransitions, legal
from shoal.algos.learning.priorities import Priorities
from shoal.algos.learning.replay import StoredSteps, Window
from shoal.config import struct
from shoal.nets.noisy import with_noise
from shoal.nets.q_networks import expected_values
from shoal.nets.targets import make_target
from shoal.ops import statistics
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
    for_actor,
    spaces,
    transitions,
)
from shoal.xla.chunked_gradients import mean_gradient

if TYPE_CHECKING:
    from shoal.algos.dqn_config import DQNConfig  # which makes this algorithm


class Shared(NamedTuple):
    """The learned state of DQN; the same on every device. `Learner.local` is the replay."""

    network: PyTree
    target: PyTree  # the network from which targets are computed
    optimizer: PyTree
    observation: statistics.RunningMoments | None  # with norm_obs
    written: Array  # how many steps each ring has been given (`replay.write`), int32
    since_target: Array  # environment steps times gradient_steps since the target network was moved, int32


def dqn(config: DQNConfig, spec: EnvSpec, axis: tuple[str, ...] = (), streams: int = 1) -> Algorithm:
    """DQN's functions for one agent; `config` may hold traced numbers.

    Args:
      streams: the agents of each world that are streams of this algorithm (`shoal.types.agent_axis`).
    """
    warms_up = config.norm_obs and config.obs_norm_warmup_steps
    return Algorithm(
        functools.partial(init, config, spec, axis, streams),
        lambda batch_shape: (),
        exploration.policy_of,
        functools.partial(act, config),
        functools.partial(update, config, spec, axis, streams),
        inherit,
        functools.partial(exploration.behaviour, config),
        warm_up=functools.partial(normalisation.warm_up, axis, spec.critic_only) if warms_up else None,
        warm_up_steps=config.obs_norm_warmup_steps,
        without_replay=without_replay,
    )


def init(
    config: DQNConfig, spec: EnvSpec, axis: tuple[str, ...], streams: int, key: Array, num_envs: int
) -> Learner:
    """Make a learner with a new network and an empty replay, for streams of one group."""
    network = config.network.build(spec.of_actor, key)
    parts, _ = optimisers.split_parameters(config.optimization, network)
    shared = Shared(
        network=network,
        target=make_target(network),
        optimizer=optimisers.build_part(config.optimization, 0.0).init(parts),
        observation=normalisation.initial_moments(config, spec.of_actor),
        written=jnp.zeros((), jnp.int32),
        since_target=jnp.zeros((), jnp.int32),
    )
    extras = jnp.zeros(()) if _keeps_log_prob(config) else ()
    action = spaces.zeros(spec.action_space)
    ring = replay.new_ring(config.replay, spec.of_actor, action, extras, num_envs, streams, axis)
    return Learner(shared, ring)


def act(
    config: DQNConfig,
    policy: ActingPolicy,
    memory: tuple[()],
    timestep: TimeStep,
    key: Array,
    *,
    greedy: bool = False,
) -> tuple[tuple[()], Array, PyTree]:
    """Act at one step of N environments; return also the log-probability of the action, where the replay keeps it."""
    noise_key, action_key = jax.random.split(key)
    network = exploration.network_of(policy, noise_key, greedy=greedy)
    observation = normalisation.normalise(config, policy.observation, timestep.observation)
    values = expected_values(config.network, network.values(observation))
    action, distribution = exploration.choose(
        config, policy, values, timestep.action_mask, action_key, greedy=greedy
    )
    return (), action, distribution.log_prob(action) if _keeps_log_prob(config) else ()


def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
    """Take over another run's network and normaliser; the replay begins empty.

    Raises:
      ShoalError: the networks or the normalisers differ; names the first entry that does.
    """
    shared = struct.with_saved_parts(learner.shared, saved, ("network", "observation"))
    return learner._replace(shared=shared._replace(target=make_target(shared.network)))


def without_replay(learner: Learner) -> Learner:
    """Return the learner with an empty replay, which the next rollouts fill before it learns again."""
    shared = learner.shared._replace(written=jnp.zeros_like(learner.shared.written))
    return Learner(shared, jax.tree.map(jnp.zeros_like, learner.local))


NOISE_STREAM = 2**31 - 1  # of an update's key; the numbers below are its gradient steps
METRICS = ("q_loss", "q_mean", "grad_norm")  # of each gradient step, in this order


class GradientState(NamedTuple):
    """The state that a gradient step changes."""

    parts: optimisers.Parts
    target: optimisers.Parts
    optimizer: PyTree
    since_target: Array
    priorities: Priorities | None  # of the rings
    sums: Array  # of METRICS
    clipping: Metrics  # sums of `action_values.clipping`


def update(
    config: DQNConfig,
    spec: EnvSpec,
    axis: tuple[str, ...],
    streams: int,
    learner: Learner,
    trajectory: Trajectory,
    keys: Keys,
    clock: Clock,
) -> tuple[Learner, Metrics, Checks]:
    """Write a rollout into the replay, and make the gradient steps that are due on batches from it."""
    shared, weight = learner.shared, transitions(trajectory).weight
    trajectory = trajectory._replace(timesteps=for_actor(trajectory.timesteps, spec))
    ring, written, count = replay.collect(
        config.replay, spec, learner.local, shared.written, trajectory, clock, streams, axis
    )
    before = jax.tree.map(lambda x: x[:-1], trajectory.timesteps.observation)
    moments = normalisation.observe(shared.observation, before, weight, axis)

    rate = optimisers.schedule_factor(config.optimization.lr_schedule, clock.progress)
    parts, merge = optimisers.split_parameters(config.optimization, shared.network)
    target, _ = optimisers.split_parameters(config.optimization, shared.target)
    optimizer = optimisers.build_part(config.optimization, rate)
    step = functools.partial(gradient_step, config, axis, moments, optimizer, merge, clock)
    state = GradientState(
        *(parts, target, shared.optimizer, shared.since_target, ring.priorities),
        sums=jnp.zeros(len(METRICS), jnp.float32),
        clipping=action_values.no_clipping(config),
    )
    step = functools.partial(step, ring._replace(priorities=None), written, keys)
    state = jax.lax.fori_loop(0, count, step, state)
    shared = shared._replace(
        network=merge(state.parts),
        target=merge(state.target),
        optimizer=state.optimizer,
        observation=moments,
        written=written,
        since_target=state.since_target,
    )
    sums = dict(zip(METRICS, state.sums, strict=True))
    metrics = (
        {name: Mean(x, count.astype(jnp.float32)) for name, x in sums.items()}
        | state.clipping
        | {
            "gradient_steps": metric_means.scalar_mean(count),
            "epsilon": metric_means.scalar_mean(exploration.random_share(config, shared.network, clock)),
            "learning_rate": metric_means.scalar_mean(config.optimization.learning_rate * rate),
        }
    )
    # Sums, so that a number which is not finite in any of the steps is seen after the last of them.
    checks = {"loss": ~jnp.isfinite(sums["q_loss"]), "gradient": ~jnp.isfinite(sums["grad_norm"])}
    return Learner(shared, ring._replace(priorities=state.priorities)), metrics, checks


def gradient_step(
    config: DQNConfig,
    axis: tuple[str, ...],
    moments: statistics.RunningMoments | None,
    optimizer: optax.GradientTransformation,
    merge: Callable[[optimisers.Parts], PyTree],
    clock: Clock,
    ring: StoredSteps,
    written: Array,
    keys: Keys,
    index: Array,
    state: GradientState,
) -> GradientState:
    """Make one gradient step on a batch from the replay, and move the target network if that is due."""
    sample_key = jax.random.fold_in(keys.local, index)
    noise_stream = jax.random.fold_in(keys.shared, NOISE_STREAM)
    noise_key, target_key, selector_key = jax.random.split(jax.random.fold_in(noise_stream, index), 3)
    ring = ring._replace(priorities=state.priorities)
    window, importance = replay.draw(config.replay, sample_key, ring, written, clock.progress, axis)
    selector = with_noise(merge(state.parts), selector_key)
    target_network = with_noise(merge(state.target), target_key)
    observation, batch = make_batch(config, moments, selector, target_network, ring, window)

    def loss(network: PyTree, rows: tuple[PyTree, SampledTransitions]) -> tuple[PyTree, ...]:
        observation, batch = rows
        output = with_noise(network, noise_key).values(observation)
        losses, error = action_values.loss(config, output, batch)
        values = expected_values(config.network, output)
        chosen = jnp.take_along_axis(values, batch.action[:, None], axis=-1)[:, 0]
        losses = importance * losses
        return losses, (losses, jnp.where(batch.weight > 0, chosen, 0.0)), error

    weight = jnp.sum(batch.weight)
    weight = jax.lax.psum(weight, axis) if axis else weight
    rows = (observation, batch)
    gradient, means, error = mean_gradient(
        loss, merge, state.parts, rows, weight=weight, num_chunks=1, axis=axis
    )
    updates, opt_state = optimizer.update(gradient, state.optimizer, state.parts)
    parts = optax.apply_updates(state.parts, updates)
    target, since = target_networks.move(
        config.targets, config.replay, state.since_target, state.target, parts
    )
    drawn_by = replay.with_errors(config.replay, ring, window, error, axis).priorities
    sums = state.sums + jnp.stack([*means, optax.tree.norm(gradient)])
    clipping = jax.tree.map(jnp.add, state.clipping, action_values.clipping(config, batch, axis))
    return GradientState(parts, target, opt_state, since, drawn_by, sums, clipping)


def make_batch(
    config: DQNConfig,
    moments: statistics.RunningMoments | None,
    network: PyTree,
    target_network: PyTree,
    ring: StoredSteps,
    window: Window,
) -> tuple[PyTree, SampledTransitions]:
    """Return the observations at the windows' starts, [B, ...], and the targets of the actions taken there.

    No gradient passes through these. Where there is no transition observations are zeros, since anything may be there,
    and 0 times NaN is NaN in a gradient.
    """

    def values_at(steps: StoredSteps) -> tuple[PyTree, Array]:
        """Return the target network's output, and the values by which an action would be chosen."""
        observation = normalisation.normalise(config, moments, steps.observation)
        output = target_network.values(observation)
        selector = network.values(observation) if config.double else output
        return output, legal(expected_values(config.network, selector), steps.action_mask)

    window = window._replace(reward=config.reward_scale * window.reward)
    start = replay.steps_at(ring, window, 0)
    weight = window.weight[0]
    observation = struct.where(weight > 0, start.observation, jax.tree.map(jnp.zeros_like, start.observation))
    observation = normalisation.normalise(config, moments, observation)
    if config.multistep != "n_step":
        steps = replay.steps_at(ring, window, 1 + jnp.arange(len(window.reward))[:, None])
        output, selector = values_at(steps)
        reward = action_values.multistep_return(
            config,
            action_values.Steps(
                reward=window.reward,
                discount=config.gamma * window.discount,
                last=window.last,
                weight=window.weight,
                value=legal(expected_values(config.network, output), steps.action_mask),
                selector=selector,
                action=steps.action,
                probability=jnp.exp(steps.extras) if _keeps_log_prob(config) else (),
            ),
        )
        end = jax.tree.map(lambda x: x[0], (output, selector))  # not read: the return is complete
        return observation, SampledTransitions(start.action, reward, jnp.zeros_like(weight), weight, *end)
    returns = replay.n_step_return(window, config.gamma)
    end = replay.steps_at(ring, window, returns.steps)
    output, selector = values_at(end)
    acting: Array | tuple[()] = ()
    if config.munchausen:
        output = legal(output, end.action_mask)
        acting = legal(target_network.values(observation), start.action_mask)
    return observation, SampledTransitions(
        start.action, returns.reward, returns.discount, returns.weight, output, selector, acting
    )


def _keeps_log_prob(config: DQNConfig) -> bool:
    return config.multistep == "retrace"
