"""PPO on worlds whose values are known: it finds the value and the best action of each within a second or two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_worlds import populate

from shoal import envs
from shoal.algos.acting.normalisation import normalise
from shoal.algos.learning.value_normalisation import denormalise
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings

GAMMA = 0.8
OBSERVATIONS = np.array([[-1.0], [0.0], [1.0]], np.float32)

# Which observations the world shows, how many updates, how close the critic must come, and further settings.
PROBES = {
    "constant": ([0.0], 30, 0.02, {}),
    "observation": ([-1.0, 1.0], 60, 0.05, {}),
    "delay": ([0.0, 1.0], 80, 0.05, {}),
    "action": ([0.0], 60, 0.1, {}),
    "action-and-observation": ([-1.0, 1.0], 100, 0.1, {"norm_obs": True}),
    "endless": ([0.0], 200, 0.1, {}),
    "continuous-action": ([-1.0, 0.0, 1.0], 150, 0.1, {"initial_std": 0.5}),
}


def trained(env, updates, **settings):
    """A critic's values and an actor's distributions at OBSERVATIONS, after training on a world."""
    defaults = {
        "gamma": GAMMA,
        "hidden_sizes": (16,),
        "learning_rate": 0.02,
        "lr_schedule": "linear",
        "num_minibatches": 1,
        "vf_coef": 1.0,
        "max_grad_norm": 10.0,
    }
    config = with_settings(PPOConfig(), **defaults | settings).resolved()
    sizes = {"num_envs": 32, "num_steps": 16, "total_updates": updates}
    population, compiled = populate(env, config, **sizes)
    population, _ = compiled.train(population, jnp.int32(updates))

    @jax.jit
    def read(population):
        shared = jax.tree.map(lambda x: x[0], population.learner.shared)
        observation = normalise(config, shared.observation, jnp.asarray(OBSERVATIONS))
        value = denormalise(shared.value, shared.network.value(observation))
        return value, shared.network.policy(observation)

    return jax.device_get(read(population))


def rows(shown):
    return [int(np.flatnonzero(OBSERVATIONS[:, 0] == x)[0]) for x in shown]


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.full
@pytest.mark.rare("action", "observation", "constant", "delay", "endless")
def test_it_finds_the_known_value_and_the_best_action(name):
    shown, updates, tolerance, settings = PROBES[name]
    env = envs.make(f"probe/{name}")
    value, policy = trained(env, updates, **settings)
    shown = rows(shown)
    known = np.asarray(env.value(OBSERVATIONS, GAMMA))
    np.testing.assert_allclose(value[shown], known[shown], atol=tolerance)
    best = np.asarray(env.best_action(OBSERVATIONS))
    if name.startswith("action"):
        assert (np.asarray(policy.mode())[shown] == best[shown]).all()
        assert (np.exp(np.asarray(policy.log_prob(jnp.asarray(best))))[shown] > 0.95).all()
    if name == "continuous-action":
        np.testing.assert_allclose(np.asarray(policy.mode())[shown], best[shown], atol=0.1)


@pytest.mark.full
def test_a_normalised_reward_leaves_the_best_action():
    """Rewards of a thousand, observations of one in a thousand: both are brought to size."""
    env = envs.RewardScale(envs.make("probe/action-and-observation"), 1000.0)
    value, policy = trained(env, 100, norm_obs=True, norm_reward=True)
    best = np.asarray(env.env.best_action(OBSERVATIONS))
    shown = rows([-1.0, 1.0])
    assert (np.exp(np.asarray(policy.log_prob(jnp.asarray(best))))[shown] > 0.95).all()
    assert np.all(np.abs(value[shown]) < 10)  # without, it would be asked for a thousand


@pytest.mark.parametrize(
    "settings",
    [
        {"norm_value": "running"},
        {"norm_value": "popart", "shared_torso": True},
        {"norm_value": "popart", "recompute": "epoch", "advantage": "vtrace"},
        {"norm_value": "running", "recompute": "minibatch", "advantage": "vtrace", "num_minibatches": 2},
    ],
)
@pytest.mark.full
@pytest.mark.rare("settings0", "settings2", "settings3")
def test_values_of_a_thousand_are_learned_by_a_critic_of_normalised_ones(settings):
    """The known values of rewards of a thousand, by the step size of rewards of one; estimated once and again."""
    env = envs.RewardScale(envs.make("probe/action-and-observation"), 1000.0)
    value, policy = trained(env, 100, **settings)
    shown = rows([-1.0, 1.0])
    known = 1000.0 * np.asarray(env.env.value(OBSERVATIONS, GAMMA))
    np.testing.assert_allclose(value[shown], known[shown], atol=100.0)
    best = np.asarray(env.env.best_action(OBSERVATIONS))
    assert (np.exp(np.asarray(policy.log_prob(jnp.asarray(best))))[shown] > 0.95).all()


@pytest.mark.parametrize(
    "settings, learns", [({"core": "gru"}, True), ({"core": "mingru", "chunk_length": 8}, True), ({}, False)]
)
@pytest.mark.full
@pytest.mark.rare("settings2-False", "settings0-True")
def test_what_was_seen_at_the_start_is_remembered_to_the_end(settings, learns):
    """A bit is shown at the start and asked for four steps later: a coin's toss without memory, sure with it."""
    config = with_settings(
        PPOConfig(),
        **{"hidden_sizes": (16,), "core_size": 16, "learning_rate": 0.003, "shared_torso": True} | settings,
    ).resolved()
    env = envs.make("MemoryChain-v0", length=3)
    sizes = {"num_envs": 32, "num_steps": 16, "total_updates": 60, "eval_episodes": 256}
    population, compiled = populate(env, config, **sizes)
    population, _ = compiled.train(population, jnp.int32(60))
    _, scores = compiled.evaluate(population)
    right = float(scores["info_success"][0])
    assert right == 1.0 if learns else right < 0.65
