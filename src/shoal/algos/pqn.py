"""Parallel Q-learning without a replay or a target network (Gallici et al. 2024, arXiv:2407.04811).

Rollouts of many environments take the place of the replay, and layer normalisation that of the target network. Targets
are Q(λ) returns of the rollout. From top to bottom: the settings, the learner, how it acts, the update, the rows of a
rollout, and the loss.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from shoal.algos import checks
from shoal.algos.acting import exploration, memories, normalisation
from shoal.algos.acting.exploration import ActingPolicy, ExplorationConfig
from shoal.algos.acting.memories import Memory, MemoryConfig
from shoal.algos.acting.normalisation import NormalisationConfig
from shoal.algos.agents.agents_config import AgentsConfig
from shoal.algos.learning import metric_means, minibatches, network_state, optimisers
from shoal.algos.learning.action_values import legal
from shoal.algos.learning.minibatches import Rows
from shoal.algos.learning.network_state import NetworkModeConfig
from shoal.algos.learning.optimisers import OptimizerConfig
from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.struct import parameter
from shoal.nets import networks, q_networks, stateful
from shoal.nets.inputs import action_features
from shoal.nets.memory import sequences
from shoal.nets.noisy import with_noise
from shoal.nets.q_networks import QNetworkConfig
from shoal.ops import off_policy, statistics, value_losses
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
    for_actor,
    transitions,
)
from shoal.xla.chunked_gradients import default_chunk_rows, mean_gradient, num_chunks


@struct.struct
class PQNConfig(NetworkModeConfig, NormalisationConfig, MemoryConfig):
    """Hyper-parameters of PQN; the names and defaults are CleanRL's."""

    run_defaults: ClassVar[dict[str, Any]] = {"num_envs": 4, "num_steps": 128}
    optimization: OptimizerConfig = OptimizerConfig(
        learning_rate=2.5e-4,
        lr_schedule="linear",
        max_grad_norm=10.0,
        optimizer="radam",
        optimizer_args=("eps=1e-8",),
    )
    """Holds the settings of gradient steps."""
    network: networks.NetworkSettings = settings.chosen(
        QNetworkConfig(layer_norm=True), q_networks.choose, q_networks.name_of, group="network"
    )
    """Uses this network of action values: a class, or a struct of settings with a method build, as module:Name."""
    exploration: ExplorationConfig = ExplorationConfig()
    """Holds the settings of random actions."""
    agents: AgentsConfig = AgentsConfig()
    """Holds the settings of several agents."""
    gamma: float = parameter(0.99, low=0.0, high=1.0, group="most used")
    """Discounts rewards by this factor per step."""
    q_lambda: float = parameter(0.65, low=0.0, high=1.0, group="most used")
    """Sets the trace decay of the returns: 0 takes one step, 1 the whole rollout."""
    update_epochs: int = parameter(4, low=1, high=10_000, group="most used")
    """Passes this many times over each rollout."""
    num_minibatches: int = parameter(4, low=1, high=LARGEST_INDEX, group="most used")
    """Makes this many gradient steps per pass; must divide num_envs * num_steps, with a core the number of chunks."""

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """Return PQN's functions for an environment; gradients and statistics are reduced over `axis`."""
        if spec.num_agents == 1:
            return pqn(self, spec, axis)
        return self.agents.algorithm(lambda of_agent, _: pqn(self, of_agent, axis), spec)

    def acts_alike(self, spec: EnvSpec, other: EnvSpec) -> bool:
        """Report whether a policy of one world can act in another, with more or fewer agents."""
        return self.agents.acts_alike(spec, other)

    @property
    def needs_reward(self) -> bool:
        """Whether a policy is to be given the reward of each step."""
        return networks.has_memory(self.network) and networks.shows(self.network, "previous_reward")

    def validate(self, spec: EnvSpec, num_envs: int, num_steps: int, groups: int = 1) -> None:
        """Require that the settings can work; the error names the first that cannot."""
        settings.check_fields(self)
        streams, of_group = [num_envs], "/env_groups" if groups > 1 else ""
        checks.check_without_critic(self, "pqn")
        if spec.num_agents > 1:
            self.agents.validate(spec, num_envs)
            streams = [num_envs * size for size in self.agents.sets(spec).sizes]
            spec = self.agents.view(spec).spec_of_agent
        checks.check_action_values(self, spec, "pqn")
        if (values := q_networks.values_of(self.network)) != "expected":
            raise ShoalError(
                f"values={values!r} predicts more than pqn's targets, which are numbers; choose 'expected', or c51 or "
                "qr_dqn."
            )
        for count in streams:
            of_agents = f"*{count // num_envs}" if count > num_envs else ""
            checks.check_minibatches(self, count, num_steps, f"num_envs*num_steps{of_agents}{of_group}")


class Shared(NamedTuple):
    """The learned state of PQN; the same on every device."""

    network: PyTree
    optimizer: PyTree
    observation: statistics.RunningMoments | None  # with norm_obs


def pqn(config: PQNConfig, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
    """PQN's functions for one agent; `config` may hold traced numbers."""
    warms_up = config.norm_obs and config.obs_norm_warmup_steps
    return Algorithm(
        functools.partial(init, config, spec.of_actor),
        functools.partial(memories.initial, config, spec.of_actor),
        exploration.policy_of,
        functools.partial(act, config, spec),
        functools.partial(update, config, spec, axis),
        inherit,
        functools.partial(exploration.behaviour, config),
        warm_up=functools.partial(normalisation.warm_up, axis, spec.critic_only) if warms_up else None,
        warm_up_steps=config.obs_norm_warmup_steps,
    )


def init(config: PQNConfig, spec: EnvSpec, key: Array, num_envs: int) -> Learner:
    """Make a learner with a new network."""
    network = stateful.at_rest(config.network.build(spec, key))
    parts, _ = optimisers.split_parameters(config.optimization, network)
    optimizer = optimisers.build_part(config.optimization, 0.0).init(parts)
    return Learner(Shared(network, optimizer, normalisation.initial_moments(config, spec)), ())


def act(
    config: PQNConfig,
    spec: EnvSpec,
    policy: ActingPolicy,
    memory: Memory,
    timestep: TimeStep,
    key: Array,
    *,
    greedy: bool = False,
) -> tuple[Memory, Array, tuple[()]]:
    """Act at one step of N environments; return also the memory after it."""
    noise_key, action_key = jax.random.split(key)
    observation = normalisation.normalise(config, policy.observation, timestep.observation)
    inputs = memories.network_inputs(config, timestep, observation, memory.action)
    network = exploration.network_of(policy, noise_key, greedy=greedy)
    carry, values = q_networks.step(network, memory.carry, inputs)
    action, _ = exploration.choose(config, policy, values, timestep.action_mask, action_key, greedy=greedy)
    previous = action_features(spec.action_space, action) if jax.tree.leaves(memory.action) else ()
    return Memory(carry, previous), action, ()


def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
    """Take over another run's network and normaliser.

    Raises:
      ShoalError: the networks or the normalisers differ; names the first entry that does.
    """
    return learner._replace(shared=struct.with_saved_parts(learner.shared, saved, ("network", "observation")))


METRICS = ("q_loss", "q_mean", "grad_norm")  # of each gradient step, in this order


def update(
    config: PQNConfig,
    spec: EnvSpec,
    axis: tuple[str, ...],
    learner: Learner,
    trajectory: Trajectory,
    keys: Keys,
    clock: Clock,
) -> tuple[Learner, Metrics, Checks]:
    """Make epochs of gradient steps towards the Q(λ) returns of one rollout."""
    trajectory = trajectory._replace(timesteps=for_actor(trajectory.timesteps, spec))
    rows = make_rows(config, spec, learner.shared, trajectory)
    before, weight = jax.tree.map(lambda x: x[:-1], trajectory.timesteps), transitions(trajectory).weight
    moments = normalisation.observe(learner.shared.observation, before.observation, weight, axis)
    rate = optimisers.schedule_factor(config.optimization.lr_schedule, clock.progress)
    parts, merge = optimisers.split_parameters(config.optimization, learner.shared.network)
    optimizer = optimisers.build_part(config.optimization, rate)

    orders = minibatches.shuffled_rows(rows, config.update_epochs, config.num_minibatches, keys.local)
    orders = orders.reshape(-1, orders.shape[-1])
    # The shared key again: noise is in the network, which all devices have in common; rows are each device's own.
    noise_keys = jax.random.split(jax.random.fold_in(keys.shared, 1), len(orders))
    step = functools.partial(gradient_step, config, axis, optimizer, merge, rows)
    totals = minibatches.total_weights(axis, rows, orders)
    state_of_network = network_state.initial(config, learner.shared.network, keys.local)
    state = GradientState(parts, learner.shared.optimizer, state_of_network)
    state, history = jax.lax.scan(step, state, (orders, totals, noise_keys))
    network = network_state.merged(merge(state.parts), state.network_state)

    steps = dict(zip(METRICS, history.T, strict=True))
    metrics = {name: metric_means.scalar_mean(jnp.mean(x)) for name, x in steps.items()} | {
        "epsilon": metric_means.scalar_mean(exploration.random_share(config, learner.shared.network, clock)),
        "learning_rate": metric_means.scalar_mean(config.optimization.learning_rate * rate),
        "gradient_steps": metric_means.scalar_mean(len(orders)),
    }
    not_finite = {
        "loss": ~jnp.all(jnp.isfinite(steps["q_loss"])),
        "gradient": ~jnp.all(jnp.isfinite(steps["grad_norm"])),
    }
    return Learner(Shared(network, state.optimizer, moments), learner.local), metrics, not_finite


def make_rows(config: PQNConfig, spec: EnvSpec, shared: Shared, trajectory: Trajectory) -> Rows:
    """Compute the Q(λ) returns of a rollout with the network that acted, and lay the rollout out as rows.

    The value of a time-step is that of its best legal action. Traces are not cut at random actions (Peng's Q(λ)).
    """
    timesteps, steps = trajectory.timesteps, transitions(trajectory)
    observation = normalisation.normalise(config, shared.observation, timesteps.observation)
    previous = memories.previous_actions(spec, trajectory.memory.action, trajectory.actions)
    inputs = memories.network_inputs(config, timesteps, observation, previous)
    if memories.is_recurrent(config):
        start_steps = minibatches.start_steps(config, len(trajectory.actions))
        carry = trajectory.memory.carry
        values, starts, _ = sequences.apply_in_parts(shared.network, carry, inputs, start_steps)
    else:
        values, starts = shared.network.values(observation), ()
    reward = config.reward_scale * timesteps.reward[1:]
    returns = jax.vmap(off_policy.q_lambda_peng, in_axes=(1, 1, 1, 1, None, 1), out_axes=1)(
        reward,
        config.gamma * steps.discount,
        timesteps.last[1:],
        legal(values, timesteps.action_mask)[1:],
        config.q_lambda,
        steps.weight,
    )
    inputs = jax.tree.map(lambda x: x[:-1], inputs)
    rows = Rows(
        inputs=inputs,
        raw_action=trajectory.actions,
        target=returns,
        weight=steps.weight,
    )
    rows = minibatches.masked(config, rows)
    start = minibatches.chunk_starts(config, rows.inputs, starts)
    return minibatches.to_rows(config, rows)._replace(start=start)


class GradientState(NamedTuple):
    """The state that a gradient step changes."""

    parts: optimisers.Parts  # the network's parameters
    optimizer: PyTree
    network_state: network_state.State


def gradient_step(
    config: PQNConfig,
    axis: tuple[str, ...],
    optimizer: optax.GradientTransformation,
    merge: Callable[[optimisers.Parts], PyTree],
    rows: Rows,
    state: GradientState,
    minibatch: tuple[Array, Array, Array],
) -> tuple[GradientState, Array]:
    """Make one gradient step on a minibatch: its rows, their total weight, and a key; return also its METRICS."""
    index, weight, key = minibatch
    batch = jax.tree.map(lambda x: x[index], rows)
    loss_of_rows = network_state.in_mode(loss, state.network_state, axis)
    gradient, means, *statistics = mean_gradient(
        lambda network, batch: loss_of_rows(with_noise(network, key), batch),
        merge,
        state.parts,
        batch,
        weight=weight,
        num_chunks=num_chunks(
            batch.weight.shape, network_state.chunk_rows(state.network_state, _chunk_rows(config))
        ),
        axis=axis,
    )
    updates, opt_state = optimizer.update(gradient, state.optimizer, state.parts)
    parts = optax.apply_updates(state.parts, updates)
    after = network_state.following(state.network_state, statistics)
    return GradientState(parts, opt_state, after), jnp.stack([*means, optax.tree.norm(gradient)])


def loss(network: PyTree, batch: Rows) -> tuple[Array, tuple[Array, Array]]:
    """Compute half the squared error of each row's value, and that value; 0 where there is no transition."""
    batch, values = minibatches.unrolled(functools.partial(q_networks.unroll, network), batch)
    chosen = jnp.take_along_axis(values, batch.raw_action[..., None], axis=-1)[..., 0]
    is_transition = batch.weight > 0
    losses = jnp.where(is_transition, value_losses.squared(chosen, batch.target), 0.0)
    return losses, (losses, jnp.where(is_transition, chosen, 0.0))


def _chunk_rows(config: PQNConfig) -> int:
    return 0 if memories.is_recurrent(config) else default_chunk_rows(networks.widest_layer(config.network))
