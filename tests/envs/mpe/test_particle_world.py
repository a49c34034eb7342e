"""What all particle worlds have in common: the checker, time-steps, spaces, roles and the critic's observation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_play import played

import shoal
from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.base import unwrapped
from shoal.envs.checking.checker import check
from shoal.types import spec_of
from shoal.types.spaces import Box, Dict

NAMES = ("mpe/SpeakerListener-v0", "mpe/Spread-v0", "mpe/Tag-v0")
EACH = pytest.mark.parametrize("name", NAMES)
SIZES = {  # of the whole world: positions, velocities, landmarks or obstacles, and goal and word
    "mpe/SpeakerListener-v0": 2 * 2 + 2 + 3 * 2 + 3 + 3,
    "mpe/Spread-v0": 3 * 2 + 3 * 2 + 3 * 2,
    "mpe/Tag-v0": 4 * 2 + 4 * 2 + 2 * 2,
}


@functools.cache
def episode(name, global_state=False):
    """The time-steps of a batch under random actions, [T+1, N, ...]."""
    return played(envs.make(name, global_state=global_state), 4, 27)[2]


@EACH
@pytest.mark.parametrize("global_state", [False, True])
@pytest.mark.slow
def test_the_checker_finds_nothing(name, global_state):
    assert check(envs.make(name, global_state=global_state)) == []


@pytest.mark.full
@EACH
def test_an_episode_is_cut_after_25_steps(name):
    timesteps = episode(name)
    np.testing.assert_array_equal(np.flatnonzero(timesteps.last[:, 0]), [25])
    np.testing.assert_array_equal(np.flatnonzero(timesteps.first[:, 0]), [0, 26])
    assert (timesteps.discount == 1).all() and timesteps.alive is None
    agents = envs.make(name).num_agents
    assert timesteps.reward.shape == (28, 4, agents)
    assert timesteps.observation.shape == (28, 4, agents, *envs.make(name).observation_space.shape)
    assert envs.make(name, max_episode_steps=7).max_steps == 7


@pytest.mark.full
@EACH
def test_the_critic_is_shown_the_whole_world(name):
    plain, shown = envs.make(name), envs.make(name, global_state=True)
    size = SIZES[name]
    assert isinstance(plain.observation_space, Box) and plain.critic_only == ()
    assert isinstance(shown.observation_space, Dict) and shown.critic_only == ("global_state",)
    assert shown.observation_space["observation"] == plain.observation_space
    assert shown.observation_space["global_state"].shape == (size,)
    assert spec_of(shown).of_actor.observation_space == Dict({"observation": plain.observation_space})
    one, other = episode(name), episode(name, global_state=True)
    np.testing.assert_array_equal(one.observation, other.observation["observation"])
    assert other.observation["global_state"].shape == (28, 4, size)
    state, timestep = jax.jit(shown.reset)(jax.random.key(1))
    inner = state.env
    expected = np.concatenate([inner.position.ravel(), inner.velocity.ravel(), inner[2].ravel()])
    whole = timestep.observation["global_state"]
    if "Speaker" in name:  # whose velocity is always 0, and is left out
        expected = np.concatenate([np.delete(expected, (4, 5)), np.eye(3)[int(inner.goal)], np.zeros(3)])
    np.testing.assert_array_equal(whole, expected)


def test_roles_and_teams():
    spread, pair, tag = (unwrapped(envs.make(name)) for name in ("mpe/Spread-v0", *NAMES[::2]))
    assert (spread.num_agents, spread.roles, spread.team_return) == (3, (), "mean")
    assert (pair.num_agents, pair.roles, pair.team_return) == (2, (0, 1), "mean")
    assert (tag.num_agents, tag.roles, tag.team_return) == (4, (0, 0, 0, 1), "sum")
    many = unwrapped(envs.make("mpe/Tag-v0", num_adversaries=2, num_prey=3))
    assert (many.num_agents, many.roles) == (5, (0, 0, 1, 1, 1))


def test_parameters_are_data_and_numbers_of_bodies_are_sizes():
    @jax.jit
    @jax.vmap
    def reward(local_ratio):
        env = envs.make("mpe/Spread-v0", local_ratio=local_ratio, num_agents=4)
        state, _ = env.reset(jax.random.key(0))
        return env.step(state, jnp.zeros(4, jnp.int32), jax.random.key(0))[1].reward

    rewards = np.asarray(reward(jnp.asarray([0.0, 0.5, 1.0])))
    assert rewards.shape == (3, 4)
    np.testing.assert_allclose(rewards[1], (rewards[0] + rewards[2]) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("mpe/Spread-v0", {"num_agents": 1}, "num_agents=1 is out of bounds: it must be at least 2"),
        ("mpe/Spread-v0", {"local_ratio": 1.5}, "local_ratio=1.5 is out of bounds"),
        ("mpe/Tag-v0", {"num_prey": 0}, "num_prey=0 is out of bounds: it must be at least 1"),
        ("mpe/Tag-v0", {"num_obstacles": -1}, "num_obstacles=-1 is out of bounds"),
        ("mpe/Spraed-v0", {}, "did you mean 'mpe/Spread-v0'"),
    ],
)
def test_bad_parameters_are_refused(name, parameters, sentence):
    with pytest.raises(ShoalError, match=sentence):
        shoal.make(name, **parameters)
