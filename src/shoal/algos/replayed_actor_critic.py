"""Actor-critics that learn from a replay: what Soft Actor-Critic (`sac.py`) and TD3 (`td3.py`) have in common.

From top to bottom: the learner, how it acts, and the update. An algorithm is a set of `Rules`. Gradient steps are in
`replayed_steps.py`, the settings in `replayed_config.py`, the replay in `learning/replay.py`, the losses of critics in
`learning/action_critics.py`.

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

from shoal.algos.acting import actions, memories, normalisation
from shoal.algos.acting.memories import Memory
from shoal.algos.learning import action_values, metric_means, optimisers, replay
from shoal.algos.replayed_steps import (
    ACTOR_METRICS,
    CRITIC_METRICS,
    GradientState,
    Kept,
    Loop,
    Networks,
    Rules,
    Setting,
    build,
    gradient_step,
    temperature,
)
from shoal.config import struct
from shoal.nets.targets import make_target
from shoal.ops import statistics
from shoal.ops.distributions import Categorical, masked
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

if TYPE_CHECKING:
    from shoal.algos.replayed_config import ReplayedConfig


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
    random: (
        Array | tuple[()]
    ) = ()  # while collecting, whether all actions are random; () where it is evaluated


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
    network, zero = Networks(built.actor, built.critic), jnp.zeros((), jnp.int32)
    log_alpha = jnp.log(jnp.asarray(config.entropy_weight, jnp.float32)) if config.learns_temperature else ()
    parts = parts_of(config, network, log_alpha)[0]
    shared = Shared(
        network=network,
        target=new_target(network, s.rules.target_actor),
        optimizer={name: build(config, name, 0.0).init(part) for name, part in parts.items()},
        log_alpha=log_alpha,
        observation=normalisation.initial_moments(config, s.spec),
        written=zero,
        since_target=zero,
        since_actor=zero,
    )
    action = s.stored_action()
    extras = Kept(action, jnp.zeros(())) if config.corrects else ()
    return Learner(
        shared, replay.new_ring(config.replay, s.spec, action, extras, num_envs, s.streams, s.axis)
    )


def new_target(network: Networks, has_actor: bool) -> Networks:
    """Copy the networks of targets."""
    return make_target(network if has_actor else network._replace(actor=()))


def parts_of(
    config: ReplayedConfig, network: Networks, log_alpha: Array | tuple[()]
) -> tuple[optimisers.Parts, Callable[[optimisers.Parts], Networks]]:
    """Return what is learned, by part: of the actor, the critics, and the temperature, if it is; and what merges the
    networks of these parts again."""
    parts, merge = optimisers.split_parameters(config.optimization, network, is_split=True)
    names = tuple(parts)
    if not isinstance(log_alpha, tuple):
        parts |= {"temperature": log_alpha}
    return parts, lambda parts: merge({name: parts[name] for name in names})


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
) -> tuple[Memory, Array, tuple[Array, Kept]]:
    """Act at one step of N environments; return also the noise after it, and what the replay keeps of it."""
    config, explore = s.config, s.rules.explore
    observation = normalisation.normalise(config, policy.observation, timestep.observation)
    distribution, noise = policy.actor.policy(observation, timestep.action_mask), memory.noise
    explores = not greedy and not isinstance(policy.random, tuple)
    noise_key, random_key, key = jax.random.split(key, 3) if explores else (key, key, key)
    if explores and not isinstance(noise, tuple):
        noise = actions.draw_noise(noise, timestep.first, noise_key, config.noise_correlation)
    if explores:
        raw = explore(config, distribution, noise, key)
    else:
        raw = actions.mode(distribution) if greedy else actions.sample(distribution, key)
    step = actions.bounded(distribution, raw), Kept(raw, actions.log_prob(distribution, raw))
    if not isinstance(policy.random, tuple) and explores:
        step = struct.where(policy.random, uniform(s, step[0], timestep.action_mask, noise, random_key), step)
    return Memory(noise=noise), to_action(step[0]), step


def uniform(s: Setting, action: Array, mask: Array | None, noise: PyTree, key: Array) -> tuple[Array, Kept]:
    """Draw an action of each environment uniformly among the legal ones."""
    if isinstance(s.spec.action_space, spaces.Discrete):
        logits = jnp.zeros((*action.shape, s.spec.action_space.n))
        legal = Categorical(logits) if mask is None else masked(Categorical(logits), mask)
        action, log_prob = legal.sample_and_log_prob(key)
        return action, Kept(action, log_prob)
    if isinstance(noise, tuple):
        number = jax.random.uniform(key, action.shape, minval=-1.0, maxval=1.0)
    else:
        number = actions.uniform_of(noise)
    mask = jnp.ones(action.shape, bool) if mask is None else mask
    action, edge = jnp.where(mask, number, 0.0), 1.0 - 1e-6  # where a tanh of float32 ends
    raw = jnp.arctanh(jnp.clip(action, -edge, edge))
    return action, Kept(raw, -math.log(2.0) * jnp.sum(mask, axis=-1))


def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
    """Take over another run's networks and normaliser; the replay begins empty.

    Raises:
      ShoalError: the networks or the normalisers differ; names the first entry that does.
    """
    shared = struct.with_saved_parts(learner.shared, saved, ("network", "observation"))
    has_actor = bool(jax.tree.leaves(shared.target.actor))
    return learner._replace(shared=shared._replace(target=new_target(shared.network, has_actor)))


def without_replay(learner: Learner) -> Learner:
    """Return the learner with an empty replay, which the next rollouts fill before it learns again."""
    shared = learner.shared._replace(written=jnp.zeros_like(learner.shared.written))
    return Learner(shared, jax.tree.map(jnp.zeros_like, learner.local))


def update(
    s: Setting, learner: Learner, trajectory: Trajectory, keys: Keys, clock: Clock
) -> tuple[Learner, Metrics, Checks]:
    """Write a rollout into the replay, and make the gradient steps that are due on batches from it."""
    config, shared, weight = s.config, learner.shared, transitions(trajectory).weight
    # The policy's actions in place of the environment's, which have its shape and units.
    action, kept = trajectory.extras
    stored = trajectory._replace(actions=action, extras=kept if config.corrects else ())
    ring, written, count = replay.collect(
        config.replay, s.spec, learner.local, shared.written, stored, clock, s.streams, s.axis
    )
    before = jax.tree.map(lambda x: x[:-1], trajectory.timesteps.observation)
    shared = shared._replace(
        written=written, observation=normalisation.observe(shared.observation, before, weight, s.axis)
    )

    parts, merge = parts_of(config, shared.network, shared.log_alpha)
    target, merge_target = parts_of(config, shared.target, ())
    rate = optimisers.schedule_factor(config.optimization.lr_schedule, clock.progress)
    rings = ring._replace(priorities=None)
    loop = Loop(shared.observation, rate, clock.progress, merge, merge_target, rings, written, keys)
    state = GradientState(
        parts=parts,
        target=target,
        optimizer=shared.optimizer,
        since_target=shared.since_target,
        since_actor=shared.since_actor,
        priorities=ring.priorities,
        sums=jnp.zeros(len(CRITIC_METRICS)),
        actor_sums=jnp.zeros(len(ACTOR_METRICS)),
        clipping=action_values.no_clipping(config),
    )
    state = jax.lax.fori_loop(0, count, functools.partial(gradient_step, s, loop), state)

    learned = {name: getattr(state, name) for name in ("optimizer", "since_target", "since_actor")}
    log_alpha = state.parts.get("temperature", ())
    shared = shared._replace(
        network=merge(state.parts), target=merge_target(state.target), log_alpha=log_alpha, **learned
    )
    sums = dict(zip((*CRITIC_METRICS, *ACTOR_METRICS), (*state.sums, *state.actor_sums), strict=True))
    # Sums, so that a number which is not finite in any of the steps is seen after the last of them.
    not_finite = {"loss": ("q_loss", "actor_loss"), "gradient": ("grad_norm", "actor_grad_norm")}
    checks = {name: ~jnp.isfinite(sums[x] + sums[y]) for name, (x, y) in not_finite.items()}
    steps = {"gradient_steps": count.astype(jnp.float32), "actor_steps": sums.pop("actor_steps")}
    scalars = steps | {"learning_rate": config.optimization.learning_rate * rate}
    if s.rules.target_entropy is not None:
        scalars["alpha"] = jnp.asarray(temperature(config, state.parts))
    metrics = {name: Mean(x, steps["gradient_steps"]) for name, x in sums.items()}
    metrics |= {name: Mean(sums[name], steps["actor_steps"]) for name in ACTOR_METRICS[:-1]}
    metrics |= {name: metric_means.scalar_mean(x) for name, x in scalars.items()}
    local = ring._replace(priorities=state.priorities)
    return Learner(shared, local), {**metrics, **state.clipping}, checks
