"""Spread in cases that are worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.mpe.spread import Spread, SpreadState


def state_of(position, landmarks):
    position = jnp.asarray(position, jnp.float32)
    return SpreadState(position, 0.1 * position, jnp.asarray(landmarks, jnp.float32))


APART = state_of([[0, 0], [1, 0], [0, 1]], [[0, 0.5], [1, 0], [-3, -4]])
TOUCHING = state_of([[0, 0], [0.2, 0], [0.1, 0.25]], [[0, 0.05], [0.2, 0.09], [9, 9]])


@pytest.mark.full
def test_the_reward_mixes_ways_and_touches():
    reward, info = Spread(local_ratio=0.25).rewards(APART)
    np.testing.assert_allclose(reward, [-0.75 * 5.5] * 3)
    assert (info["collisions"], info["covered"]) == (0, 1)
    reward, info = Spread(local_ratio=1.0).rewards(TOUCHING)
    np.testing.assert_array_equal(reward, [-2, -2, -2])
    assert (info["collisions"], info["covered"]) == (3, 2)


def test_an_observation_has_the_others_in_their_order():
    seen = np.asarray(Spread().observe(APART))
    np.testing.assert_allclose(
        seen[1], [0.1, 0, 1, 0, -1, 0.5, 0, 0, -4, -4, -1, 0, -1, 1, 0, 0, 0, 0], atol=1e-7
    )


@pytest.mark.quick("2")
@pytest.mark.parametrize("agents", [2, 5])
def test_sizes_follow_the_number_of_agents(agents):
    env = Spread(num_agents=agents)
    assert env.observation_space.shape == (6 * agents,)
    state = state_of(np.eye(agents, 2), np.zeros((agents, 2)))
    assert env.observe(state).shape == (agents, 6 * agents)
