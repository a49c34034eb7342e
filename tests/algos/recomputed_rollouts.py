"""Rollouts with every kind of end, of networks that acted, and V-trace as a plain loop over them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algos import ppo
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.types import Clock, EnvSpec, TimeStep, Trajectory
from shoal.types.spaces import Box, Discrete
from shoal.xla.chunked_gradients import mean_gradient, num_chunks

T, N = 8, 12
SPEC = EnvSpec(Box(-3.0, 3.0, (2,)), Discrete(3))

NETWORKS = {
    "no memory": {},
    "a shared torso": {"shared_torso": True},
    "two memories": {"core": "gru", "previous_action": True, "previous_reward": True},
    "one memory": {"core": "lstm", "shared_torso": True, "first_flag": True},
    "a scan at once": {"core": "mingru", "previous_observation": True},
}


def made(**settings):
    small = {"hidden_sizes": (5,), "num_minibatches": 1, "advantage": "vtrace"}
    small |= {"core_size": 4} if "core" in settings else {}
    return with_settings(PPOConfig(), **small | settings).resolved()


def noisy(tree, key, size=0.3):
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [x + size * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


def ends(key):
    """First, last and discount of T+1 steps of N environments; half of the ends are terminations."""
    last = np.zeros((T + 1, N), bool)
    rng = np.random.default_rng(int(jax.random.randint(key, (), 0, 1000)))
    for t in range(T + 1):
        last[t] = rng.uniform(size=N) < 0.25
        last[t] &= ~last[t - 1] if t else True  # what begins an episode does not end it
    first = np.concatenate([rng.uniform(size=(1, N)) < 0.3, last[:-1]])
    first[0] &= ~last[0]
    discount = np.where(last & (rng.uniform(size=last.shape) < 0.5), 0.0, 1.0).astype(np.float32)
    return first, last, discount


ENDS = ends(jax.random.key(0))


def acted(config, key, unread=0.0, reward_scale=1.0, spec=SPEC):
    """A learner in the midst of training, and a rollout of it; what may not be read is `unread`."""
    algorithm = config.algorithm(spec)
    keys = jax.random.split(key, 6)
    first, last, discount = ENDS
    reward = reward_scale * jax.random.normal(keys[0], first.shape)
    observation = jax.random.normal(keys[1], (*first.shape, 2))
    terminal = last & (discount == 0)
    timesteps = TimeStep(
        observation=jnp.where(terminal[..., None], unread, observation),
        reward=jnp.where(first, unread, reward),
        discount=jnp.asarray(discount),
        first=jnp.asarray(first),
        last=jnp.asarray(last),
    )
    learner = algorithm.init(keys[2], N)
    learner = learner._replace(
        shared=learner.shared._replace(network=noisy(learner.shared.network, keys[3])),
        local=noisy(learner.local, keys[4]),
    )
    memory = noisy(algorithm.memory((N,)), keys[4])
    policy = algorithm.policy(learner, Clock.zero())

    def step(memory, timestep_and_key):
        memory, action, extras = algorithm.act(policy, memory, *timestep_and_key)
        return memory, (action, extras)

    steps = jax.tree.map(lambda x: x[:-1], timesteps), jax.random.split(keys[5], T)
    _, (actions, extras) = jax.lax.scan(step, memory, steps)
    return learner, Trajectory(timesteps, actions, extras, memory)


def plain_vtrace(config, reward, value, log_ratio):
    """Advantages and targets [T, N] of the rollout's ends, by a loop backwards over each environment in float64."""
    _, last, discount = ENDS
    reward, value, log_ratio = (np.asarray(x, np.float64) for x in (reward, value, log_ratio))
    advantage, target = np.zeros((T, N)), np.array(value[:-1])
    gamma, lambda_ = float(config.gamma), float(config.gae_lambda)
    for n in range(N):
        following = 0.0  # of the next step, its target minus its value
        for t in reversed(range(T)):
            if last[t, n]:
                following = 0.0
                continue
            if last[t + 1, n]:
                following = 0.0
            next_value = gamma * value[t + 1, n] if discount[t + 1, n] else 0.0
            error = reward[t + 1, n] + next_value - value[t, n]
            carried = gamma * lambda_ * discount[t + 1, n] * following
            ratio = np.exp(log_ratio[t, n])
            advantage[t, n] = error + carried
            following = (
                min(ratio, float(config.rho_clip)) * error + min(ratio, float(config.c_clip)) * carried
            )
            target[t, n] = value[t, n] + following
    return advantage, target


def gradient_of_sum(config, shared, merge, rows, parts):
    """The gradient of PPO's loss and its parts, summed over all rows."""
    settings = {"weight": 1.0, "num_chunks": num_chunks(rows.weight.shape, config.gradient_chunk), "axis": ()}
    loss = functools.partial(ppo.loss, config, (), shared, jnp.asarray(True))
    gradient, means = mean_gradient(loss, merge, parts, rows, **settings)
    return gradient, jnp.stack(means[:-1])  # the last ones are moments, where the loss has them
