"""A KL stop that computes the critic's gradients alone, and the loss of a whole rollout, beside their plain forms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.algos import ppo
from shoal.algos.learning import metric_means, minibatches
from shoal.algos.ppo_config import PPOConfig
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Episodes
from shoal.envs.batch import Batch
from shoal.nets.memory import sequences
from shoal.types import Clock, Keys, spec_of
from shoal.xla import loops

NUM_ENVS, NUM_STEPS = 8, 16
SMALL = {"hidden_sizes": (16,), "learning_rate": 0.01, "target_kl": 1e-4, "num_minibatches": 2}


def config_of(**settings):
    return with_settings(PPOConfig(), **(SMALL | settings)).resolved()


def experience(config, env, key):
    """A learner and a rollout of it."""
    algorithm, batch = config.algorithm(spec_of(env)), Batch(env, num_envs=NUM_ENVS)
    learner, (state, timestep) = algorithm.init(key, NUM_ENVS), batch.reset(key)
    shape = NUM_ENVS if env.num_agents == 1 else (NUM_ENVS, env.num_agents)
    episodes = Episodes(jnp.zeros(shape), jnp.zeros(NUM_ENVS))
    begin = RolloutState(
        state, timestep, algorithm.memory((NUM_ENVS,)), episodes, no_ended_episodes(env.num_agents)
    )
    policy = algorithm.policy(learner, Clock.zero())
    return learner, rollout(batch, algorithm, policy, begin, key, NUM_STEPS)[1]


def updates(config, env, count=2, members=()):
    """The learner after some updates from one rollout, and the metrics of each; with `members`, of each target_kl."""

    def run(config, key):
        learner, trajectory = experience(config, env, key)
        algorithm, metrics = config.algorithm(spec_of(env)), []
        for k in range(count):
            keys = Keys.of_one_group(jax.random.fold_in(key, k))
            learner, of_update, _ = algorithm.update(learner, trajectory, keys, Clock.zero())
            metrics.append(of_update)
        return learner, metrics

    config, keys = struct.as_arrays(config), jax.random.key(0)
    if members:
        stacked = [dataclasses.replace(config, target_kl=jnp.float32(x)) for x in members]
        config = jax.tree.map(lambda *xs: jnp.stack(xs), *stacked)
        run, keys = jax.vmap(run), jax.random.split(keys, len(members))
    return jax.device_get(jax.jit(run)(config, keys))


def assert_same_bits(first, second):
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


CASES = {
    "apart": {},
    "shared": {"shared_torso": True, "norm_value": "popart", "gradient_chunk": 16},
    "own optimisers": {"critic_learning_rate": 1e-3, "critic_update_epochs": 6},
    "fewer epochs of the critic": {"critic_update_epochs": 2, "surrogate": "penalty"},
    "adaptive": {"lr_schedule": "adaptive", "desired_kl": 1e-3},
    "epoch": {"recompute": "epoch", "norm_adv": "batch", "advantage": "vtrace"},
    "minibatch": {"recompute": "minibatch"},
    "memory": {"core": "gru", "core_size": 8, "chunk_length": 4, "previous_reward": True},
    "one memory": {"core": "lstm", "core_size": 8, "shared_torso": True, "recompute": "minibatch"},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.1},
}


@pytest.mark.full
@pytest.mark.quick("apart", "one memory")
@pytest.mark.rare("minibatch", "memory", "lamb")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.rare("shared", "apart", "epoch", "fewer epochs of the critic")
def test_a_kl_stop_gives_the_bits_of_masked_steps(name, monkeypatch):
    """Where the actor has stopped its gradient is not computed; masked, it changes nothing either."""
    env, config = envs.make("CartPole-v1"), config_of(**CASES[name])
    result = updates(config, env)
    assert 0 < result[1][0]["actor_updates"].total < config.update_epochs * config.num_minibatches
    monkeypatch.setattr(loops, "uses_plain_form", lambda _: True)
    assert_same_bits(result, updates(config, env))


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"parameters": "agent"}], ids=["shared", "agent"])
@pytest.mark.rare("agent")
def test_sets_of_agents_stop_each_by_itself(settings, monkeypatch):
    env, config = envs.make("mpe/Spread-v0"), config_of(**settings)
    result = updates(config, env)
    assert result[1][0]["actor_updates"].total < result[1][0]["actor_updates"].weight
    monkeypatch.setattr(loops, "uses_plain_form", lambda _: True)
    assert_same_bits(result, updates(config, env))


@pytest.mark.slow
def test_members_stop_each_by_itself_and_wait_for_the_slowest(monkeypatch):
    env, config = envs.make("CartPole-v1"), config_of()
    limits = (1e-6, 1e9, 5e-4)
    result = updates(config, env, members=limits)
    made = result[1][0]["actor_updates"].total
    assert made[0] < made[2] < made[1] == 8
    monkeypatch.setattr(loops, "uses_plain_form", lambda _: True)
    assert_same_bits(result, updates(config, env, members=limits))


@pytest.mark.parametrize("stops", [0, 3, 5, 9])
def test_the_rest_is_made_once_the_steps_are_not_needed(stops):
    def step(total, x):
        return total + x, (total, jnp.ones(()))

    def rest(total, x):
        return total + x, (total, jnp.zeros(()))

    def run(stop, xs):
        return loops.scan_while(lambda total, x: total < stop, step, rest, jnp.zeros(()), xs)

    last, (totals, made) = jax.jit(run)(jnp.float32(stops), jnp.ones(7))
    np.testing.assert_array_equal(totals, np.arange(7.0))
    assert last == 7 and made.tolist() == [k < stops for k in range(7)]
    # Of several members each makes as many as any of them needs.
    _, (_, made) = jax.jit(jax.vmap(run, (0, None)))(jnp.array([stops, 2.0]), jnp.ones(7))
    assert made.tolist() == [[k < max(stops, 2) for k in range(7)]] * 2


def estimates(config, trajectory, value):
    """Advantages and targets of a rollout by a double loop in NumPy, and the weights of its transitions."""
    timesteps = jax.device_get(trajectory.timesteps)
    weight = ~timesteps.last[:-1]
    advantage, carried = np.zeros(weight.shape), np.zeros(NUM_ENVS)
    for t in reversed(range(NUM_STEPS)):
        discount = float(config.gamma) * timesteps.discount[t + 1]
        error = timesteps.reward[t + 1] + discount * value[t + 1] - value[t]
        going_on = np.where(timesteps.last[t + 1], 0.0, carried)
        carried = np.where(weight[t], error + discount * float(config.gae_lambda) * going_on, 0.0)
        advantage[t] = carried
    return advantage, advantage + value[:-1], weight


def standardised(x):
    return (x - x.mean()) / x.std()


def outputs(config, env, network, learner, trajectory):
    """The values of all time-steps, [T+1, N], and the logits at which was acted, [T, N, 2]."""
    inputs, _ = ppo.replay_rollout(config, spec_of(env), learner, trajectory)
    _, distribution, value = sequences.unroll(network, sequences.Memories(()), inputs)
    return np.asarray(value, np.float64), np.asarray(distribution.logits, np.float64)[:-1]


def jitted_update(config, env):
    def run(config, key):
        learner, trajectory = experience(config, env, key)
        keys = Keys.of_one_group(key)
        new, metrics, _ = config.algorithm(spec_of(env)).update(learner, trajectory, keys, Clock.zero())
        return learner, trajectory, new, {name: x.value for name, x in metrics.items()}

    return jax.jit(run)(struct.as_arrays(config), jax.random.key(3))


@pytest.mark.full
@pytest.mark.quick("none-minibatch")
@pytest.mark.parametrize("recompute", ["never", "epoch", "minibatch"])
@pytest.mark.parametrize("norm_adv", ["minibatch", "none"])
def test_moments_of_what_is_learned_are_those_of_the_loss(recompute, norm_adv):
    """With steps that change nothing all estimates are those of the first network, which NumPy makes here."""
    env = envs.make("CartPole-v1")
    config = config_of(learning_rate=1e-30, target_kl=1e9, recompute=recompute, norm_adv=norm_adv)
    learner, trajectory, _, metrics = jitted_update(config, env)
    value, _ = outputs(config, env, learner.shared.network, learner, trajectory)
    advantage, target, weight = estimates(config, trajectory, value)

    rows = [x.reshape(-1) for x in (target, advantage, weight)]
    if recompute == "minibatch":  # of whole environments
        rows = [x.T for x in (target, advantage, weight)]
    orders = minibatches.shuffled_rows(
        minibatches.Rows(weight=rows[2]), config.update_epochs, config.num_minibatches, jax.random.key(3)
    )
    batches = []
    for index in np.asarray(orders).reshape(-1, orders.shape[-1]):
        target, advantage, weight = (x[index] for x in rows)
        target, advantage = target[weight], advantage[weight]
        advantage = standardised(advantage) if norm_adv == "minibatch" else advantage
        batches.append((target, advantage))
    if recompute != "minibatch":  # of all of them together
        batches = [[np.concatenate(x) for x in zip(*batches, strict=True)]]
    found = [[f(x) for x in columns for f in (np.mean, np.std)] for columns in batches]
    names = metric_means.LEARNED
    np.testing.assert_allclose([metrics[x] for x in names], np.mean(found, axis=0), rtol=1e-4, atol=1e-4)
    if norm_adv == "none":
        assert abs(metrics["loss_advantage_std"] - 1) > 0.1


@pytest.mark.full
@pytest.mark.quick("never")
@pytest.mark.parametrize("recompute", ["never", "epoch", "minibatch"])
def test_the_loss_of_the_rollout_is_that_of_the_new_network(recompute):
    env = envs.make("CartPole-v1")
    config = config_of(
        target_kl=1e9,
        recompute=recompute,
        rollout_loss=True,
        gradient_chunk=0 if recompute == "minibatch" else 16,
    )
    learner, trajectory, new, metrics = jitted_update(config, env)
    value, logits = outputs(config, env, new.shared.network, learner, trajectory)
    before, _ = outputs(config, env, learner.shared.network, learner, trajectory)
    advantage, target, weight = estimates(config, trajectory, before if recompute == "never" else value)

    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    acted = np.take_along_axis(log_probs, np.asarray(trajectory.actions)[..., None], axis=-1)[..., 0]
    log_ratio = (acted - np.asarray(trajectory.extras.log_prob))[weight]
    ratio, advantage = np.exp(log_ratio), standardised(advantage[weight])
    clip = float(config.clip_coef)
    expected = {
        "policy_loss": -np.minimum(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage).mean(),
        "value_loss": 0.5 * np.square(value[:-1] - target)[weight].mean(),
        "entropy": -(np.exp(log_probs) * log_probs).sum(axis=-1)[weight].mean(),
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": (np.abs(ratio - 1) > clip).mean(),
    }
    expected["total_loss"] = (
        expected["policy_loss"]
        - float(config.ent_coef) * expected["entropy"]
        + float(config.vf_coef) * expected["value_loss"]
    )
    assert {f"rollout_{x}" for x in expected} == {x for x in metrics if x.startswith("rollout_")}
    for name, x in expected.items():
        np.testing.assert_allclose(metrics[f"rollout_{name}"], x, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.full
def test_groups_of_environments_stop_together(monkeypatch):
    """As on devices: what the stop is decided by is reduced over them, and so are the metrics."""
    env, config = envs.make("CartPole-v1"), struct.as_arrays(config_of(rollout_loss=True))

    def update():
        def of_group(key):
            learner, trajectory = experience(config, env, key)
            same = jax.tree.map(lambda x: jax.lax.all_gather(x, "env")[0], learner.shared)
            algorithm, keys = config.algorithm(spec_of(env), ("env",)), Keys(jax.random.key(0), key)
            new, metrics, _ = algorithm.update(learner._replace(shared=same), trajectory, keys, Clock.zero())
            return new.shared, metrics

        return jax.device_get(
            jax.jit(jax.vmap(of_group, axis_name="env"))(jax.random.split(jax.random.key(0)))
        )

    shared, metrics = update()
    for x in jax.tree.leaves((shared, metrics)):
        np.testing.assert_array_equal(x[0], x[1])
    assert 0 < metrics["actor_updates"].total[0] < 8
    monkeypatch.setattr(loops, "uses_plain_form", lambda _: True)
    assert_same_bits((shared, metrics), update())
