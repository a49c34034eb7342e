"""Proximal Policy Optimisation in plain JAX, on Shoal's environments and operations; made for reading.

    python examples/ppo.py CartPole-v1

One algorithm without a switch: a policy of separate actions, one seed or several at once, no files. It makes the same
update as `src/shoal/algos/ppo.py`, which has everything that this leaves out (a test compares the two).
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import shoal
from shoal.nets.initialisers import orthogonal
from shoal.ops import policy_losses, returns, statistics, value_losses
from shoal.records import scores

SEEDS, TOTAL_STEPS, NUM_ENVS, NUM_STEPS = 10, 500_000, 4, 128
NUM_EPOCHS, NUM_MINIBATCHES = 4, 4
LEARNING_RATE, MAX_GRAD_NORM = 1e-3, 0.5
GAMMA, LAMBDA, CLIP, VALUE_WEIGHT = 0.99, 0.95, 0.2, 0.5

Params = dict[str, list[dict[str, jax.Array]]]  # of actor and critic: a kernel and a bias for each layer


# ---- the networks


def init_mlp(key: jax.Array, sizes: list[int], last_scale: float) -> list[dict[str, jax.Array]]:
    """Make the layers of a network; the last one's weights decide how large its first outputs are."""
    scales = [2**0.5] * (len(sizes) - 2) + [last_scale]
    keys = jax.random.split(key, len(scales))
    return [
        {"kernel": orthogonal(k, (rows, columns), scale), "bias": jnp.zeros(columns)}
        for k, rows, columns, scale in zip(keys, sizes[:-1], sizes[1:], scales, strict=True)
    ]


def mlp(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Apply a network to inputs [..., features]."""
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x @ layers[-1]["kernel"] + layers[-1]["bias"]


def init_params(key: jax.Array, env: Any) -> Params:
    """Make an actor, whose outputs are logits of the actions, and a critic, whose output is the value."""
    actor_key, critic_key = jax.random.split(key)
    inputs = env.observation_space.shape[0]
    return {
        "actor": init_mlp(actor_key, [inputs, 64, 64, env.action_space.n], 0.01),
        "critic": init_mlp(critic_key, [inputs, 64, 64, 1], 1.0),
    }


# ---- the rollout


def step_or_start(env: Any, state: Any, timestep: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Any]:
    """Step one environment; where its episode has ended, ignore the action and start the next one.

    So the last observation of an episode is in the rollout, and the step after it is no transition.
    """
    step_key, start_key = jax.random.split(key)
    stepped, started = env.step(state, action, step_key), env.reset(start_key)
    return jax.tree.map(lambda new, old: jnp.where(timestep.last, new, old), started, stepped)


class Rollout(NamedTuple):
    """T steps of N environments."""

    timesteps: Any  # [T+1, N]
    actions: jax.Array  # [T, N]
    log_probs: jax.Array  # [T, N], of the actions by the policy that took them


def collect(env: Any, params: Params, state: Any, timestep: Any, key: jax.Array) -> tuple[Any, Any, Rollout]:
    """Act in all environments for NUM_STEPS steps."""

    def step(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], Any]:
        state, timestep = carry
        action_key, step_key = jax.random.split(key)
        logits = mlp(params["actor"], timestep.observation)
        action = jax.random.categorical(action_key, logits)
        keys = jax.random.split(step_key, NUM_ENVS)
        after = jax.vmap(lambda *one: step_or_start(env, *one))(state, timestep, action, keys)
        return after, (timestep, action, log_prob_of(logits, action))

    (state, last), (timesteps, actions, log_probs) = jax.lax.scan(
        step, (state, timestep), jax.random.split(key, NUM_STEPS)
    )
    timesteps = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), timesteps, last)
    return state, last, Rollout(timesteps, actions, log_probs)


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Return the log-probability of each action."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


# ---- the update


class Batch(NamedTuple):
    """What the loss is of: one row for each step, [T N]."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    weight: jax.Array  # 0 where the step is no transition


def make_batch(params: Params, rollout: Rollout) -> Batch:
    """Compute advantages and value targets (Schulman et al. 2015, eq. 16), and put all steps in one row."""
    steps = rollout.timesteps
    value = mlp(params["critic"], steps.observation)[..., 0]  # [T+1, N]
    weight = 1.0 - steps.last[:-1]
    # `discount` is 0 where an episode terminated, and 1 where it was cut by its time limit: there the value counts.
    estimate = jax.vmap(returns.gae, in_axes=(1, 1, 1, 1, 1, None, 1), out_axes=1)
    advantage = estimate(
        steps.reward[1:], GAMMA * steps.discount[1:], steps.last[1:], value[:-1], value[1:], LAMBDA, weight
    )
    batch = Batch(
        steps.observation[:-1], rollout.actions, rollout.log_probs, advantage, advantage + value[:-1], weight
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def loss(params: Params, batch: Batch) -> jax.Array:
    """Compute PPO's loss (Schulman et al. 2017, eq. 9), the weighted mean over the rows."""
    log_ratio = log_prob_of(mlp(params["actor"], batch.observation), batch.action) - batch.log_prob
    value = mlp(params["critic"], batch.observation)[..., 0]
    advantage = statistics.standardise(batch.advantage, batch.weight)
    policy_loss = policy_losses.clip_surrogate(log_ratio, advantage, CLIP)
    value_loss = value_losses.squared(value, batch.target)
    rows = policy_loss + VALUE_WEIGHT * value_loss
    return jnp.sum(batch.weight * rows) / jnp.sum(batch.weight)


optimizer = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.scale_by_adam(eps=1e-5))


def update(
    params: Params, opt_state: Any, batch: Batch, progress: jax.Array, key: jax.Array
) -> tuple[Params, Any]:
    """Pass over the batch NUM_EPOCHS times, in minibatches of a new order each time."""

    def gradient_step(carry: tuple[Params, Any], rows: jax.Array) -> tuple[tuple[Params, Any], None]:
        params, opt_state = carry
        gradient = jax.grad(loss)(params, jax.tree.map(lambda x: x[rows], batch))
        direction, opt_state = optimizer.update(gradient, opt_state)
        rate = LEARNING_RATE * (1.0 - progress)  # falls to 0 over the run
        return (jax.tree.map(lambda p, d: p - rate * d, params, direction), opt_state), None

    num_rows = batch.weight.size
    orders = jax.vmap(lambda k: jax.random.permutation(k, num_rows))(jax.random.split(key, NUM_EPOCHS))
    minibatches = orders.reshape(NUM_EPOCHS * NUM_MINIBATCHES, -1)
    (params, opt_state), _ = jax.lax.scan(gradient_step, (params, opt_state), minibatches)
    return params, opt_state


# ---- the run


def make_train(env: Any) -> Callable[[jax.Array], Params]:
    """Make a function of a key that trains a new policy; it may be jitted, and mapped over keys."""
    num_updates = TOTAL_STEPS // (NUM_ENVS * NUM_STEPS)

    def iterate(carry: tuple[Any, ...], inputs: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, ...], None]:
        params, opt_state, state, timestep = carry
        number, key = inputs
        rollout_key, update_key = jax.random.split(key)
        state, timestep, rollout = collect(env, params, state, timestep, rollout_key)
        batch = make_batch(params, rollout)
        params, opt_state = update(params, opt_state, batch, number / num_updates, update_key)
        return (params, opt_state, state, timestep), None

    def train(key: jax.Array) -> Params:
        params_key, start_key, loop_key = jax.random.split(key, 3)
        params = init_params(params_key, env)
        state, timestep = jax.vmap(env.reset)(jax.random.split(start_key, NUM_ENVS))
        numbers, keys = jnp.arange(num_updates), jax.random.split(loop_key, num_updates)
        carry = (params, optimizer.init(params), state, timestep)
        (params, *_), _ = jax.lax.scan(iterate, carry, (numbers, keys))
        return params

    return train


def evaluate(env: Any, params: Params, key: jax.Array, episodes: int = 128, steps: int = 500) -> jax.Array:
    """Return the mean return of whole episodes, with the most probable actions."""

    def step(carry: tuple[Any, ...], key: jax.Array) -> tuple[tuple[Any, ...], None]:
        state, timestep, total = carry
        action = jnp.argmax(mlp(params["actor"], timestep.observation), axis=-1)
        after, next_step = jax.vmap(env.step)(state, action, jax.random.split(key, episodes))
        total += jnp.where(timestep.last, 0.0, next_step.reward)
        # An episode that has ended stays as it is.
        keep = jax.vmap(lambda last, old, new: jax.tree.map(lambda x, y: jnp.where(last, x, y), old, new))
        return (*keep(timestep.last, (state, timestep), (after, next_step)), total), None

    state, timestep = jax.vmap(env.reset)(jax.random.split(key, episodes))
    carry, _ = jax.lax.scan(step, (state, timestep, jnp.zeros(episodes)), jax.random.split(key, steps))
    return jnp.mean(carry[-1])


def main(name: str) -> None:
    """Train SEEDS policies at once, and print their returns."""
    env = shoal.make(name)
    keys = jax.vmap(jax.random.key)(jnp.arange(SEEDS))
    params = jax.jit(jax.vmap(make_train(env)))(keys)
    found = jax.jit(jax.vmap(lambda p, k: evaluate(env, p, k)))(params, keys)
    print(f"{name}: returns {[round(float(x), 1) for x in found]}, IQM {float(scores.iqm(found)):.1f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "CartPole-v1")
