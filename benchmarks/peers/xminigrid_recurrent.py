"""Recurrent PPO as xminigrid's own single-task baseline has it: its settings, its network, its order of work.

Written anew from the published settings; rollouts and updates, without evaluation.
"""

from argparse import Namespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import xminigrid
from flax.training.train_state import TrainState
from protocol import Program, serve
from xminigrid.types import TimeStep
from xminigrid.wrappers import DirectionObservationWrapper, GymAutoResetWrapper
from xminigrid_network import CORE, ActorCritic, Inputs

MINIBATCHES, GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_NORM, RATE = 16, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 1e-3
UPDATES = 1_000_000  # what the schedule divides by


class Step(NamedTuple):
    """A transition, [T, N, ...]."""

    inputs: Inputs
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class Position(NamedTuple):
    """Where training stands."""

    key: jax.Array
    learner: TrainState
    timestep: TimeStep
    action: jax.Array  # the previous one
    hidden: jax.Array


def shown(timestep: TimeStep, action: jax.Array) -> Inputs:
    """What the network is shown of one step, [N, 1, ...]."""
    seen = timestep.observation
    return jax.tree.map(lambda x: x[:, None], Inputs(seen["img"], seen["direction"], action, timestep.reward))


def log_probs(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Of actions, under a softmax of the logits."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def rollout(step_env: Any, position: Position, num_steps: int) -> tuple[Position, Step]:
    """T steps of N environments."""

    def step(position: Position, _: None) -> tuple[Position, Step]:
        key, action_key = jax.random.split(position.key)
        inputs = shown(position.timestep, position.action)
        logits, value, hidden = position.learner.apply_fn(position.learner.params, inputs, position.hidden)
        action = jax.random.categorical(action_key, logits)
        log_prob = log_probs(logits, action)
        inputs, action, log_prob, value = jax.tree.map(lambda x: x[:, 0], (inputs, action, log_prob, value))
        timestep = step_env(position.timestep, action)
        done = timestep.last()
        position = Position(key, position.learner, timestep, action, hidden)
        return position, Step(inputs, action, log_prob, value, timestep.reward, done)

    return jax.lax.scan(step, position, None, num_steps)


def advantages(steps: Step, last_value: jax.Array) -> jax.Array:
    """Generalised advantage estimates, [T, N]."""

    def backwards(carry: tuple, step: Step) -> tuple[tuple, jax.Array]:
        advantage, next_value = carry
        discount = GAMMA * (1.0 - step.done)
        delta = step.reward + discount * next_value - step.value
        advantage = delta + LAMBDA * discount * advantage
        return (advantage, step.value), advantage

    start = jnp.zeros_like(last_value), last_value
    return jax.lax.scan(backwards, start, steps, reverse=True)[1]


def loss(params: Any, learner: TrainState, hidden: jax.Array, steps: Step, advantage: jax.Array) -> Any:
    """PPO's loss of whole rollouts of some environments, [B, T]."""
    target = advantage + steps.value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    logits, value, _ = learner.apply_fn(params, steps.inputs, hidden)
    ratio = jnp.exp(log_probs(logits, steps.action) - steps.log_prob)
    clipped = jnp.clip(ratio, 1.0 - CLIP, 1.0 + CLIP)
    policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
    near = steps.value + jnp.clip(value - steps.value, -CLIP, CLIP)
    value_loss = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
    log_softmax = jax.nn.log_softmax(logits)
    entropy = -jnp.sum(jnp.exp(log_softmax) * log_softmax, axis=-1).mean()
    return policy_loss + VALUE * value_loss - ENTROPY * entropy, (policy_loss, value_loss, entropy)


def update(step_env: Any, position: Position, num_steps: int) -> tuple[Position, Any]:
    """A rollout, and one epoch of gradient steps on minibatches of environments."""
    start = position.hidden
    position, steps = rollout(step_env, position, num_steps)
    key, learner = position.key, position.learner
    _, last_value, _ = learner.apply_fn(
        learner.params, shown(position.timestep, position.action), position.hidden
    )
    advantage = advantages(steps, last_value[:, 0])
    key, shuffle_key = jax.random.split(key)
    order = jax.random.permutation(shuffle_key, len(start))
    rows = start, *jax.tree.map(lambda x: x.swapaxes(0, 1), (steps, advantage))
    minibatches = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), rows)

    def improve(learner: TrainState, minibatch: tuple) -> tuple[TrainState, Any]:
        (_, losses), gradient = jax.value_and_grad(loss, has_aux=True)(learner.params, learner, *minibatch)
        return learner.apply_gradients(grads=gradient), losses

    learner, losses = jax.lax.scan(improve, learner, minibatches)
    return position._replace(key=key, learner=learner), losses


def build(sizes: Namespace) -> Program:
    """One update a call."""
    env, params = xminigrid.make(sizes.environment)
    env = DirectionObservationWrapper(GymAutoResetWrapper(env))
    network = ActorCritic(env.num_actions(params))

    def rate(count: jax.Array) -> jax.Array:
        return RATE * (1.0 - (count // MINIBATCHES) / UPDATES)

    optimizer = optax.chain(
        optax.clip_by_global_norm(MAX_NORM), optax.inject_hyperparams(optax.adam)(rate, eps=1e-8)
    )

    @jax.jit
    def start(key: jax.Array) -> Position:
        timestep = jax.vmap(env.reset, (None, 0))(params, jax.random.split(key, sizes.num_envs))
        action = jnp.zeros(sizes.num_envs, jnp.int32)
        hidden = jnp.zeros((sizes.num_envs, CORE))
        weights = network.init(key, shown(timestep, action), hidden)
        learner = TrainState.create(apply_fn=network.apply, params=weights, tx=optimizer)
        return Position(key, learner, timestep, action, hidden)

    def step_env(timestep: TimeStep, action: jax.Array) -> TimeStep:
        return jax.vmap(env.step, (None, 0, 0))(params, timestep, action)

    advance = jax.jit(lambda position: update(step_env, position, sizes.num_steps), donate_argnums=0)
    return Program(advance, start(jax.random.key(0)), sizes.num_envs * sizes.num_steps)


if __name__ == "__main__":
    serve(build, ("xminigrid", "flax"))
