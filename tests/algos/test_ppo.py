"""PPO held to its contract: purity, invariants of the replay, switches, early stopping, probes."""

import contextlib
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from recomputed_rollouts import gradient_of_sum

from shoal import envs
from shoal.algos import ppo
from shoal.algos.acting import actions
from shoal.algos.acting.normalisation import normalise
from shoal.algos.learning import optimisers
from shoal.algos.policy_gradient import A2CConfig, ReinforceConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Episodes
from shoal.envs.batch import Batch
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.actor_critic_config import ActorCriticConfig
from shoal.nets.noisy import NoisyMLP
from shoal.types import Clock, EnvSpec, Keys, restart, spec_of, transition
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

NUM_ENVS, NUM_STEPS = 8, 16


@envs.environment
class Masked:
    """Two parts to choose, the second of a changing set; the observation is a dictionary."""

    observation_space = Dict({"count": Discrete(5), "noise": Box(-1.0, 1.0, (2,))})
    action_space = MultiDiscrete((3, 4))

    def observe(self, count, key):
        noise = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        legal = jnp.arange(4) <= count % 4
        return {"count": count, "noise": noise}, jnp.concatenate([jnp.ones(3, bool), legal])

    def reset(self, key):
        observation, mask = self.observe(jnp.int32(0), key)
        return jnp.int32(0), restart(observation, action_mask=mask)

    def step(self, state, action, key):
        state = state + 1
        observation, mask = self.observe(jnp.minimum(state, 4), key)
        reward = action.sum().astype(jnp.float32)
        return state, transition(observation, reward, terminated=state >= 5, action_mask=mask)


class Noisy(ActorCritic):
    """PPO's network with a noisy layer in the place of the actor's."""

    def __init__(self, spec, *, key):
        super().__init__(spec, ActorCriticConfig(hidden_sizes=(8,)), key=key)
        self.actor.mlp = NoisyActor(self.actor.mlp, key)


class NoisyActor(nnx.Module):
    def __init__(self, mlp, key):
        self.layers = NoisyMLP(mlp.in_features, (8,), mlp.out_features, key=key)

    def with_features(self, x):
        return self.layers(x), x


@pytest.mark.full
def test_noisy_layers_act_by_one_draw_in_a_rollout_and_its_update():
    """So the ratio of the first gradient step is 1; evaluation takes the means, and the next rollout another draw."""
    config = with_settings(PPOConfig(), network=Noisy, update_epochs=1, num_minibatches=1).resolved()
    env = envs.make("CartPole-v1")

    def collect(key):
        algorithm, batch = config.algorithm(spec_of(env)), Batch(env, num_envs=NUM_ENVS)
        learner, (state, timestep) = algorithm.init(key, NUM_ENVS), batch.reset(key)
        zeros = jnp.zeros(NUM_ENVS)
        begin = RolloutState(
            state, timestep, algorithm.memory((NUM_ENVS,)), Episodes(zeros, zeros), no_ended_episodes()
        )
        policy = algorithm.behaviour(learner, Clock.zero())
        return learner, policy, rollout(batch, algorithm, policy, begin, key, NUM_STEPS)[1]

    learner, acted, trajectory = jax.jit(collect)(jax.random.key(0))
    new, metrics = updated(config, env, learner, trajectory)
    assert abs(metrics["approx_kl"].value) < 1e-6
    algorithm = config.algorithm(spec_of(env))
    evaluated, again = algorithm.policy(new, Clock.zero()), algorithm.behaviour(new, Clock.zero())
    observation = trajectory.timesteps.observation[0]
    logits = [x.actor.policy(observation).logits for x in (evaluated, again, acted)]
    assert not np.allclose(logits[0], logits[1])
    before, after = (x.shared.network.actor.mlp.layers.deviations for x in (learner, new))
    assert not np.allclose(before[0].kernel, after[0].kernel)
    assert not np.array_equal(
        jax.random.key_data(learner.shared.noise), jax.random.key_data(new.shared.noise)
    )


def environment(name):
    return Masked() if name == "masked" else envs.make(name)


def live(config, env, key):
    """A learner and a rollout of it."""
    algorithm, batch = config.algorithm(spec_of(env)), Batch(env, num_envs=NUM_ENVS)
    reset_key, init_key, roll_key = jax.random.split(key, 3)
    state, timestep = batch.reset(reset_key)
    learner, zeros = algorithm.init(init_key, NUM_ENVS), jnp.zeros(NUM_ENVS)
    rollout_state = RolloutState(
        state, timestep, algorithm.memory((NUM_ENVS,)), Episodes(zeros, zeros), no_ended_episodes()
    )
    policy = algorithm.policy(learner, Clock.zero())
    return learner, rollout(batch, algorithm, policy, rollout_state, roll_key, NUM_STEPS)[1]


# Compiled once for all configs that differ in numbers alone.


@jax.jit
def _lived(config, env, key):
    return live(config, env, key)


def experience(config, env):
    """A learner and a rollout of it, compiled."""
    return _lived(struct.as_arrays(config), struct.as_arrays(env), jax.random.key(0))


@functools.partial(jax.jit, static_argnums=1)
def _updated(config, spec, learner, trajectory, keys, clock):
    return config.algorithm(spec).update(learner, trajectory, keys, clock)


def updated(config, env, learner, trajectory, progress=0.0):
    """The learner after an update, and the update's metrics, compiled."""
    keys = Keys.of_one_group(jax.random.key(1))
    arguments = learner, trajectory, keys, Clock.zero()._replace(progress=jnp.float32(progress))
    return _updated(struct.as_arrays(config), spec_of(env), *arguments)[:2]


@functools.partial(jax.jit, static_argnums=1)
def _prepared(config, spec, learner, trajectory):
    return ppo.prepare(config, spec, (), learner, trajectory)


def prepared(config, env, learner, trajectory):
    """The rows of a rollout, the learner with its new statistics, and metrics, compiled."""
    return _prepared(struct.as_arrays(config), spec_of(env), learner, trajectory)


@jax.jit
def _gradient(config, learner, rows):
    network, is_split = learner.shared.network, config.is_split
    parts, merge = optimisers.split_parameters(config.optimization, network, is_split=is_split)
    return gradient_of_sum(config, learner.shared, merge, rows, parts)[0]


def gradient(config, learner, rows):
    """The gradient of all rows at once, compiled."""
    return _gradient(struct.as_arrays(config), learner, rows)


VARIANTS = {
    "cartpole": ("CartPole-v1", {}),
    "shared": ("CartPole-v1", {"shared_torso": True}),
    "normalised": ("CartPole-v1", {"norm_obs": True, "norm_reward": True, "norm_adv": "batch"}),
    "penalty": ("CartPole-v1", {"surrogate": "penalty"}),
    "dpo": ("CartPole-v1", {"surrogate": "dpo", "clip_vloss": True}),
    "separate": (
        "CartPole-v1",
        {"critic_learning_rate": 1e-3, "critic_update_epochs": 6, "critic_optimizer": "sgd"},
    ),
    "kl_stop": ("CartPole-v1", {"target_kl": 0.01, "norm_adv": "batch"}),
    "categorical": (
        "CartPole-v1",
        {"value_head": "categorical", "value_low": 0.0, "value_high": 50.0, "value_loss": "hl_gauss"},
    ),
    "categorical_shared": (
        "CartPole-v1",
        {"value_head": "categorical", "value_low": -9.0, "value_high": 9.0, "value_loss": "two_hot"}
        | {
            "shared_torso": True,
            "norm_value": "running",
            "recompute": "epoch",
            "advantage": "lambda_returns",
        },
    ),
    "adaptive": ("CartPole-v1", {"lr_schedule": "adaptive", "layer_norm": True}),
    "normal": ("Pendulum-v1", {}),
    "clipped": ("Pendulum-v1", {"action_scaling": "clip", "state_dependent_std": True}),
    "tanh_normal": ("Pendulum-v1", {"distribution": "tanh_normal", "surrogate": "penalty"}),
    "beta": ("Pendulum-v1", {"distribution": "beta"}),
    "correlated": ("Pendulum-v1", {"correlated_noise": True}),
    "gsde": ("Pendulum-v1", {"distribution": "gsde", "gsde_steps": 3, "surrogate": "penalty"}),
    "masked": ("masked", {}),
    "masked_encoders": ("masked", {"encoder": "mlp_each", "norm_obs": True, "norm_reward": True}),
}


@jax.jit
def everything(config, env, key):
    """A learner, a rollout of it, what a replay of that gives, and an update: one program for each variant."""
    learner, trajectory = live(config, env, key)
    algorithm = config.algorithm(spec_of(env))

    policy = algorithm.policy(learner, Clock.zero())
    before = jax.tree.map(lambda x: x[:-1], trajectory.timesteps)
    observation = normalise(config, policy.observation, before.observation)
    distribution = policy.actor.policy(observation, before.action_mask)
    replayed = actions.log_prob(distribution, ppo.raw_actions(trajectory))

    rows, prepared, *_ = ppo.prepare(config, spec_of(env), (), learner, trajectory)
    size = NUM_ENVS * NUM_STEPS // config.num_minibatches
    batch = jax.tree.map(lambda x: x[:size], rows)
    _, parts = ppo.loss(config, (), prepared.shared, jnp.asarray(True), prepared.shared.network, batch)

    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectory.actions)
    new, metrics, *_ = algorithm.update(
        learner, trajectory, Keys.of_one_group(jax.random.key(1)), Clock.zero()
    )
    return {
        "learner": learner,
        "trajectory": trajectory,
        "replayed": replayed,
        "first minibatch": {
            name: x.sum() / size for name, x in parts._replace(learned=jnp.zeros(1))._asdict().items()
        },
        "legal": jax.vmap(env.action_space.contains)(flat),
        "update": (new, metrics),
    }


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request):
    """What `everything` gives for a config and its environment, and gives again."""
    name, settings = VARIANTS[request.param]
    config, env = with_settings(PPOConfig(), hidden_sizes=(16,), **settings).resolved(), environment(name)
    arguments = struct.as_arrays(config), struct.as_arrays(env), jax.random.key(0)
    return everything(*arguments), everything(*arguments)


def small(**settings):
    """A config of a small network; what it does not change of `small()` may learn from that one's experience."""
    return with_settings(PPOConfig(), hidden_sizes=(16,), **settings).resolved()


# For several tests of updates of the actor and the critic apart, which are then of one program.
APART = {
    **{"learning_rate": 0.05, "lr_schedule": "linear", "kl_stop": True},
    **{"update_epochs": 2, "critic_update_epochs": 3},
}


def distance(first, second):
    """The largest difference between two trees of parameters."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(float(jnp.abs(x - y).max()) for x, y in pairs)


FEW = pytest.mark.quick("tanh_normal", "masked_encoders")
RARE = pytest.mark.rare(
    "cartpole", "penalty", "separate", "normal", "beta", "masked", "adaptive", "clipped", "gsde"
)


@pytest.mark.full
@FEW
@RARE
def test_replaying_a_rollout_gives_the_log_probabilities_that_acting_gave(variant):
    acted = variant[0]["trajectory"].extras.log_prob
    np.testing.assert_allclose(variant[0]["replayed"], acted, rtol=1e-5, atol=1e-5)


@FEW
@RARE
def test_the_first_minibatch_has_ratio_one(variant):
    means = variant[0]["first minibatch"]
    assert abs(float(means["approx_kl"])) < 1e-6
    assert float(means["clip_fraction"]) == 0.0


@FEW
@RARE
def test_an_update_is_pure_finite_and_moves_the_parameters(variant):
    learner, (new, metrics), (again, _) = variant[0]["learner"], variant[0]["update"], variant[1]["update"]
    assert jax.tree.all(jax.tree.map(np.array_equal, new, again))
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), (new, metrics)))
    moved = jax.tree.map(lambda x, y: not np.array_equal(x, y), learner.shared.network, new.shared.network)
    assert any(jax.tree.leaves(moved))

    def avals(tree):
        return [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]

    assert jax.tree.structure(learner) == jax.tree.structure(new)
    assert avals(learner) == avals(new)


@FEW
@RARE
def test_actions_are_legal(variant):
    trajectory = variant[0]["trajectory"]
    assert variant[0]["legal"].shape == (NUM_ENVS * NUM_STEPS,)
    assert bool(variant[0]["legal"].all())
    mask = trajectory.timesteps.action_mask
    if mask is not None:
        chosen = np.take_along_axis(
            np.asarray(mask)[:-1, :, 3:], np.asarray(trajectory.actions)[..., 1:], axis=-1
        )
        assert chosen.all()


@pytest.mark.full
def test_chunks_of_the_gradient_do_not_change_it():
    env = envs.make("CartPole-v1")
    whole = small(gradient_chunk=0)
    learner, trajectory = experience(small(), env)
    rows, *_ = prepared(small(), env, learner, trajectory)
    one = gradient(whole, learner, rows)
    many = gradient(dataclasses.replace(whole, gradient_chunk=32), learner, rows)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


@envs.environment
class Ending:
    """Three steps, then a terminal observation that is given: no action is taken there and nothing follows it."""

    final: float = 0.0

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.int32(0), restart(jnp.zeros(2))

    def step(self, state, action, key):
        state = state + 1
        seen = jnp.stack([state.astype(jnp.float32), jax.random.normal(key)])
        ends = state >= 3
        return state, transition(jnp.where(ends, self.final, seen), action * 1.0, terminated=ends)


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm_obs": True, "norm_reward": True, "norm_adv": "batch"},
        {"norm_obs": True, "shared_torso": True, "core": "gru", "core_size": 8},
        {"norm_obs": True, "core": "lstm", "core_size": 8, "chunk_length": 8, "burn_in": 4},
        {"core": "mingru", "core_size": 8, "chunk_length": 8, "previous_observation": True},
    ],
    ids=["plain", "normalised", "shared memory", "two memories", "a scan at once"],
)
def test_a_terminal_observation_may_hold_anything(settings):
    """It is in no statistic, no loss and no memory: NaN there gives the same parameters, bit for bit."""
    config = with_settings(PPOConfig(), hidden_sizes=(8,), num_minibatches=2, **settings).resolved()

    def after_two_updates(final):
        env = Ending(final)
        learner, trajectory = experience(config, env)
        for _ in range(2):
            learner, metrics = updated(config, env, learner, trajectory)
        return learner.shared, metrics  # a memory from after the end is cleared before it is used

    known, broken = after_two_updates(0.0), after_two_updates(float("nan"))
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), known))
    assert jax.tree.all(jax.tree.map(np.array_equal, known, broken))


@pytest.mark.full
def test_the_kl_stop_ends_the_actors_updates_only_and_the_critic_may_have_more_epochs():
    env = envs.make("CartPole-v1")
    config = small(**APART, target_kl=1e-7)
    learner, trajectory = experience(config, env)
    new, metrics = updated(config, env, learner, trajectory)
    # The first minibatch has KL 0 and is taken; the second sees the first's effect and stops the actor.
    assert float(metrics["actor_updates"].total) == 1.0
    assert float(metrics["actor_updates"].weight) == 12.0
    before, after = learner.shared.network, new.shared.network
    one_step = 0.05 * 1.01  # Adam's first step is at most the learning rate
    assert 0 < distance(before.actor, after.actor) < one_step
    assert distance(before.critic, after.critic) > 2 * one_step

    free = dataclasses.replace(config, target_kl=1e9)
    unstopped, metrics = updated(free, env, learner, trajectory)
    assert float(metrics["actor_updates"].total) == 2 * config.num_minibatches == 8.0
    assert float(metrics["actor_updates"].weight) == 3 * config.num_minibatches
    assert distance(before.actor, unstopped.shared.network.actor) > 2 * one_step


@pytest.mark.full
@pytest.mark.parametrize(
    "schedule,progress,factor", [("linear", 0.25, 0.75), ("cosine", 0.5, 0.5), ("constant", 0.9, 1.0)]
)
def test_the_learning_rate_follows_its_schedule(schedule, progress, factor):
    env = envs.make("CartPole-v1")
    learner, trajectory = experience(small(**APART), env)
    config = small(**APART | {"learning_rate": 1e-3, "lr_schedule": schedule})
    _, metrics = updated(config, env, learner, trajectory, progress)
    np.testing.assert_allclose(metrics["learning_rate"].value, 1e-3 * factor, rtol=1e-5)


@pytest.mark.full
def test_the_adaptive_learning_rate_moves_against_the_kl():
    env = envs.make("CartPole-v1")
    learner, trajectory = experience(small(), env)
    for desired, moved in ((1e-9, 1 / 1.5), (1e3, 1.5)):
        config = small(learning_rate=1e-3, lr_schedule="adaptive", desired_kl=desired)
        new, _ = updated(config, env, learner, trajectory)
        np.testing.assert_allclose(new.shared.learning_rate_scale, moved, rtol=1e-6)


@pytest.mark.full
def test_a_coefficient_of_the_penalty_that_does_not_adapt_is_the_configs():
    """A run's config may change while it trains; the learner is from before."""
    env = envs.make("CartPole-v1")
    config = small(surrogate="penalty", adaptive_kl_coef=False, kl_coef=1.0)
    learner, trajectory = experience(config, env)
    new, metrics = updated(dataclasses.replace(config, kl_coef=50.0), env, learner, trajectory)
    assert float(metrics["kl_coef"].value) == float(new.shared.kl_coef) == 50.0
    assert distance(new.shared.network, updated(config, env, learner, trajectory)[0].shared.network) > 1e-4


@pytest.mark.full
def test_the_normaliser_that_acted_is_the_one_that_learns():
    """Its new statistics are those of the observations that were acted on, without the terminal ones."""
    env, config = Ending(100.0), small(norm_obs=True)
    learner, trajectory = experience(config, env)
    rows, after, *_ = prepared(config, env, learner, trajectory)
    before = jax.tree.map(lambda x: np.asarray(x[:-1]), trajectory.timesteps)
    raw = before.observation.reshape(-1, 2)
    live = np.asarray(rows.weight) > 0
    np.testing.assert_array_equal(live, ~before.last.reshape(-1))
    np.testing.assert_allclose(
        np.asarray(rows.inputs.observation)[live],
        np.asarray(normalise(config, learner.shared.observation, raw))[live],
        rtol=1e-6,
    )
    merged = after.shared.observation
    assert float(merged.count) == live.sum() < live.size
    np.testing.assert_allclose(merged.mean, raw[live].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(merged.variance, raw[live].var(0), rtol=1e-5)


@pytest.mark.parametrize(
    "settings,message",
    [
        (
            {"num_minibatches": 7},
            "num_minibatches=7 does not divide num_envs*num_steps=128; the nearest that do are 4 and 8",
        ),
        ({"gamma": 1.5}, "gamma=1.5 is out of bounds"),
        ({"learning_rate": 0.0}, "learning_rate=0 is out of bounds: it must be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan is out of bounds: it must be greater than 0"),
        ({"surrogate": "clipp"}, "did you mean 'clip'"),
        ({"distribution": "normal"}, "does not fit action_space=Discrete(n=2); categorical does"),
        ({"optimizer_args": ("eps",)}, "is not name=value"),
        ({"optimizer_args": ("epsilon=1e-5",)}, "does not take"),
        ({"network": "shoal.nets:Nothing"}, "cannot be imported"),
        ({"shared_torso": True, "critic_learning_rate": 1e-3}, "shared_torso=True"),
        ({"correlated_noise": True}, "correlated_noise=True needs"),
        ({"norm_obs": True, "encoder": "one_hot"}, "norm_obs=True replaces the integers"),
        ({"learning_rate": math.inf}, "learning_rate=inf is out of bounds"),
        ({"learning_rate": "fast"}, "learning_rate='fast' is not a number"),
        ({"learning_rate": True}, "learning_rate=True is not a number"),
        ({"update_epochs": 2.5}, "update_epochs=2.5 is not a whole number"),
        ({"gradient_chunk": -2}, "gradient_chunk=-2 is out of bounds: it must be at least -1"),
        ({"critic_learning_rate": 0.0}, "critic_learning_rate=0 is out of bounds: it must be greater than 0"),
        ({"hidden_sizes": 64}, "hidden_sizes=64 is not a tuple of whole numbers; give one such as (64, 64)"),
        (
            {"hidden_sizes": (64, 0)},
            "hidden_sizes=(64, 0) is out of bounds: each number of it must be at least 1",
        ),
        ({"norm_obs": 1}, "norm_obs=1 is not True or False"),
        ({"activation": 3}, "activation=3 is not a text"),
    ],
)
def test_bad_settings_are_one_sentence(settings, message):
    with pytest.raises(ShoalError) as error:
        with_settings(PPOConfig(), **settings).resolved().validate(
            EnvSpec(Box(-1.0, 1.0, (4,)), Discrete(2)), NUM_ENVS, NUM_STEPS
        )
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "agents", "sizes", "sentence"),
    [
        (
            {"num_minibatches": 32},
            1,
            (4, 8),
            "each minibatch has one step .*=32.*=32.*choose num_minibatches=16,",
        ),
        ({"num_minibatches": 9}, 1, (3, 3), "choose num_minibatches=3, or norm_adv='none'"),
        ({"num_minibatches": 1}, 1, (1, 1), "choose more num_steps"),
        ({"core": "gru", "chunk_length": 1, "num_minibatches": 32}, 1, (4, 8), "each minibatch has one step"),
        ({"recompute": "minibatch", "num_minibatches": 4}, 1, (4, 1), "each minibatch has one step"),
        ({"num_minibatches": 8, "parameters": "agent"}, 3, (1, 8), "each minibatch has one step"),
        # Several steps in each: of a chunk, of all groups, and of all agents of a world that a network is shown.
        ({"core": "gru", "chunk_length": 2, "num_minibatches": 16}, 1, (4, 8), ""),
        ({"num_minibatches": 8, "network": "shoal.nets.joint:JointActorCritic"}, 3, (1, 8), ""),
        ({"num_minibatches": 32, "norm_adv": "none"}, 1, (4, 8), ""),
    ],
)
def test_advantages_are_not_normalised_one_by_one(settings, agents, sizes, sentence):
    config = with_settings(PPOConfig(), **settings).resolved()
    with pytest.raises(ShoalError, match=sentence) if sentence else contextlib.nullcontext():
        config.validate(EnvSpec(Box(-1.0, 1.0, (4,)), Discrete(2), agents), *sizes)


def test_what_is_left_at_none_follows_the_actor():
    config = with_settings(
        PPOConfig(), learning_rate=2e-3, max_grad_norm=math.inf, hidden_sizes=(8,), update_epochs=3
    )
    resolved = config.resolved()
    optimization = resolved.optimization
    assert (optimization.critic_learning_rate, optimization.critic_max_grad_norm) == (2e-3, math.inf)
    assert (resolved.critic_update_epochs, resolved.network.as_critic.hidden_sizes) == (3, (8,))
    assert (optimization.critic_optimizer, optimization.critic_optimizer_args) == ("adam", ("eps=1e-5",))
    assert not optimization.separate_updates and not resolved.kl_stop
    assert resolved.resolved() == resolved
    for settings in (
        {"critic_learning_rate": 2e-3},
        {"critic_optimizer": "sgd"},
        {"critic_update_epochs": 1},
    ):
        own = with_settings(config, **settings).resolved()
        assert own.optimization.separate_updates and own.resolved() == own
    assert with_settings(config, critic_optimizer="sgd").resolved().optimization.critic_optimizer_args == ()
    assert not with_settings(config, critic_hidden_sizes=(4,)).resolved().optimization.separate_updates
    assert dataclasses.replace(config, target_kl=0.1).resolved().kl_stop


def test_an_infinite_kl_bound_is_no_bound_and_a_sweep_may_hold_it():
    """One compiled program for every bound, infinity among them, which is the run without a KL stop."""
    env = envs.make("CartPole-v1")
    config = small(**APART)
    learner, trajectory = experience(config, env)
    without = small(**APART | {"kl_stop": False})
    free, _ = updated(without, env, experience(without, env)[0], trajectory)
    bounded, some = updated(dataclasses.replace(config, target_kl=1e-7), env, learner, trajectory)
    programs = _updated._cache_size()
    unbounded, every = updated(dataclasses.replace(config, target_kl=math.inf), env, learner, trajectory)
    assert _updated._cache_size() == programs
    assert every["actor_updates"].total == 2 * config.num_minibatches
    assert 0 < some["actor_updates"].total < 3
    found = unbounded.shared.network
    assert distance(found, free.shared.network) < 1e-5 < distance(found, bounded.shared.network)


def test_a_discrete_head_does_not_fit_a_box():
    with pytest.raises(ShoalError, match="normal or gsde or tanh_normal or beta does"):
        with_settings(PPOConfig(), distribution="categorical").validate(
            EnvSpec(Box(-1, 1, (4,)), Box(-1, 1, (2,))), 4, 128
        )


@pytest.mark.full
@pytest.mark.parametrize("config", [A2CConfig(), ReinforceConfig()], ids=["a2c", "reinforce"])
def test_the_policy_gradient_is_ppo_without_a_ratio(config):
    """On the first and only minibatch, PPO's clipped objective has the policy gradient's gradient."""
    env = envs.make("CartPole-v1")
    config = with_settings(config, hidden_sizes=(16,)).resolved()
    learner, trajectory = experience(small(), env)
    rows, *_ = prepared(config, env, learner, trajectory)
    gradients = [
        gradient(dataclasses.replace(config, surrogate=name), learner, rows)
        for name in ("policy_gradient", "clip")
    ]
    for x, y in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
