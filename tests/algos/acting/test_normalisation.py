"""Observations and rewards as the learner is shown them: statistics, bounds, entries, and scales."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recomputed_rollouts import SPEC, acted, made
from tiny_worlds import Halves, populate

from shoal.algos import ppo
from shoal.algos.acting.normalisation import initial_moments, normalise
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import settings_of, with_settings
from shoal.envs.team_probe import TeamProbe
from shoal.ops import statistics
from shoal.types import Clock, EnvSpec
from shoal.types.spaces import Box, Dict, Discrete

PARTS = {
    "position": Box(-np.inf, np.inf, (2,)),
    "arm": Dict({"speed": Box(-np.inf, np.inf, (1,))}),
    "n": Discrete(9),
}
OF_PARTS = EnvSpec(Dict(PARTS), Discrete(2))


def small(**settings):
    return with_settings(
        PPOConfig(), hidden_sizes=(4,), num_minibatches=1, update_epochs=1, **settings
    ).resolved()


def test_nothing_is_clipped_before_there_are_statistics():
    """A first observation of any scale reaches the network as it is, and is clipped when it is normalised."""
    config, spec = (
        small(norm_obs=True, obs_norm_max_deviation=0.5),
        EnvSpec(Box(-np.inf, np.inf, (3,)), Discrete(2)),
    )
    algorithm = config.algorithm(spec)
    moments = jax.jit(lambda key: algorithm.policy(algorithm.init(key, 4), Clock.zero()).observation)(
        jax.random.key(0)
    )
    shown = np.asarray([3.0, 12.0, 200.0], np.float32)
    np.testing.assert_array_equal(normalise(config, moments, shown), shown)
    after = statistics.update_moments(moments, np.stack([shown, shown + 2.0]))
    np.testing.assert_allclose(normalise(config, after, shown + 101.0), [10.0, 10.0, 10.0])


@pytest.mark.quick("settings1-expected1")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[3.0, -50.0], [7.0]]),
        ({"obs_clip": 5.0, "obs_clip_entries": ("arm=6", "position = inf")}, [[3.0, -50.0], [6.0]]),
        ({"norm_obs": True}, [[1.0, -10.0], [5.0]]),
        ({"norm_obs": True, "obs_norm_min_deviation": 4.0, "obs_clip": np.inf}, [[0.5, -12.75], [1.25]]),
        ({"norm_obs": True, "obs_norm_max_deviation": 0.5}, [[4.0, -10.0], [10.0]]),
        ({"norm_obs": True, "obs_norm_entries": ("arm/speed",)}, [[3.0, -50.0], [5.0]]),
        (
            {"norm_obs": True, "obs_norm_entries": ("position",), "obs_clip_entries": ("arm/speed=2",)},
            [[1.0, -10.0], [2.0]],
        ),
    ],
)
def test_each_entry_is_normalised_and_clipped_as_configured(settings, expected):
    """Positions have mean 1 and deviation 2, speeds 2 and 1; integers are never changed."""
    config = small(**settings)
    config.validate(OF_PARTS, 4, 8)
    moments = initial_moments(config, OF_PARTS)
    if moments is not None:
        samples = {
            "position": jnp.asarray([[-1.0, -1.0], [3.0, 3.0]]),
            "arm": {"speed": jnp.asarray([[1.0], [3.0]])},
            "n": jnp.asarray([20, 0]),
        }
        moments = statistics.update_moments(moments, samples)
    observation = {
        "position": jnp.asarray([3.0, -50.0]),
        "arm": {"speed": jnp.asarray([7.0])},
        "n": jnp.int32(8),
    }
    found = normalise(config, moments, observation)
    np.testing.assert_allclose(found["position"], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found["arm"]["speed"], expected[1], rtol=1e-6)
    assert found["n"] == 8


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"obs_norm_min_deviation": 2.0, "obs_norm_max_deviation": 1.0},
            "obs_norm_min_deviation=2 is greater than",
        ),
        ({"obs_clip_entries": ("n=2",)}, "obs_clip_entries names 'n', which is not an entry of floats"),
        ({"obs_norm_entries": ("speed",)}, "there are arm/speed, position; did you mean 'arm/speed'"),
        (
            {"obs_clip_entries": ("position",)},
            "obs_clip_entries='position' is not name=bound with a bound above 0",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(settings, sentence):
    with pytest.raises(ShoalError, match=sentence):
        small(norm_obs=True, **settings).validate(OF_PARTS, 4, 8)


@pytest.mark.full
def test_random_actions_before_training_give_the_first_statistics():
    """Episodes of three steps show 0, 1 and 2; two rollouts of 4 x 8 steps make 40 or more, of all groups."""
    env, config = Halves(short=3, long=3), small(norm_obs=True, obs_norm_warmup_steps=40)
    population, _ = populate(env, config, groups=2)
    moments = jax.tree.map(lambda x: x[0], population.learner.shared.observation)
    assert float(moments.count) == 2 * 4 * 8 * 3 / 4
    np.testing.assert_allclose(moments.mean, 1.0, rtol=1e-6)
    np.testing.assert_allclose(moments.variance, 2 / 3, rtol=1e-6)
    for name, x in struct.named_leaves(population.best.policy.observation).items():
        np.testing.assert_array_equal(x, struct.named_leaves(population.learner.shared.observation)[name])
    without, _ = populate(env, small(norm_obs=True), groups=2)
    assert float(without.learner.shared.observation.count[0]) == 0
    assert jax.tree.all(jax.tree.map(np.array_equal, population.timestep, without.timestep))


@pytest.mark.parametrize("opponent", ["latest", "past"])
@pytest.mark.full
def test_each_set_of_agents_has_its_first_statistics(opponent):
    further = {"opponent": "past", "opponent_pool": 2} if opponent == "past" else {}
    config = small(norm_obs=True, obs_norm_warmup_steps=1, parameters="role", **further)
    shared = populate(TeamProbe(float("nan")), config)[0].learner.shared
    for part in shared.latest if further else shared:
        assert float(part.observation.count[0]) > 0
        assert jax.tree.all(jax.tree.map(lambda x: bool(np.isfinite(x).all()), part.observation.mean))
    if further:
        assert all((np.asarray(part.observation.count) > 0).all() for part in shared.pool)


@pytest.mark.full
def test_a_scale_of_rewards_is_data_that_only_the_learner_sees():
    config = small()
    assert settings_of(config)["reward_scale"].is_data
    population, programs = populate(Halves(), config, seeds=(0, 0))
    scaled = dataclasses.replace(population.config, reward_scale=jnp.asarray([1.0, 0.125]))
    _, metrics = programs.train(dataclasses.replace(population, config=scaled), 2, True)
    np.testing.assert_array_equal(metrics["episode_return"].value, metrics["episode_length"].value)
    returned, loss = metrics["episode_return"].total, metrics["value_loss"].total
    assert returned[0] == returned[1] and loss[0] > 2 * loss[1]


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"norm_reward": True}, {"norm_value": "running"}], ids=str)
def test_rewards_are_scaled_after_they_were_normalised(settings):
    """Without normalisation as by a wrapper around the environment; powers of 2, so that nothing is rounded."""
    config = made(advantage="gae", **settings)

    @jax.jit
    def prepared(scale, by_environment):
        learner, trajectory = acted(config, jax.random.key(0), reward_scale=by_environment)
        chosen = dataclasses.replace(config, reward_scale=scale)
        rows, _, _, rollout = ppo.prepare(chosen, SPEC, (), learner, trajectory)
        return rollout.transitions.reward, rows

    (plain, _), (scaled, rows) = prepared(1.0, 1.0), prepared(0.25, 1.0)
    np.testing.assert_array_equal(scaled, 0.25 * plain)
    if settings == {}:
        _, wrapped = prepared(1.0, 0.25)
        assert jax.tree.all(jax.tree.map(np.array_equal, rows, wrapped))
