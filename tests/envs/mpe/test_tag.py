"""Tag in cases that are worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.mpe.tag import Tag, TagState, leaving_penalty


def state_of(position, obstacles):
    position = jnp.asarray(position, jnp.float32)
    velocity = jnp.arange(position.size, dtype=jnp.float32).reshape(position.shape)
    return TagState(position, velocity, jnp.asarray(obstacles, jnp.float32).reshape(-1, 2))


HUNT = state_of([[0, 0], [0.2, 0], [0.1, 0.1], [0.1, 0.0]], [[0.5, 0.5], [-0.5, 0.5]])


def test_a_catch_pays_all_adversaries():
    reward, info = Tag().rewards(HUNT)
    np.testing.assert_allclose(reward, [30, 30, 30, -30])
    assert info["catches"] == 3
    reward, _ = Tag(catch_reward=2.0).rewards(HUNT)
    np.testing.assert_allclose(reward, [6, 6, 6, -6])


def test_each_prey_loses_for_itself():
    env = Tag(num_adversaries=2, num_prey=2, num_obstacles=0)
    reward, info = env.rewards(state_of([[0, 0], [0.5, 0], [0.1, 0], [-0.95, 1.5]], []))
    np.testing.assert_allclose(reward, [10, 10, -10, -(0.5 + np.exp(1.0))], rtol=1e-5)
    assert info["catches"] == 1


@pytest.mark.parametrize(
    ("x", "penalty"), [(0, 0), (0.89, 0), (0.95, 0.5), (1.0, 1.0), (1.5, np.e), (2.5, 10), (500, 10)]
)
def test_leaving_the_field_costs(x, penalty):
    np.testing.assert_allclose(leaving_penalty(jnp.asarray(x, jnp.float32)), penalty, rtol=1e-5, atol=1e-6)


def test_observations_are_padded_to_the_adversaries():
    seen = np.asarray(Tag().observe(HUNT))
    assert seen.shape == (4, 16)
    np.testing.assert_allclose(seen[0, -2:], [6, 7])  # the velocity of the prey
    np.testing.assert_array_equal(seen[3, -2:], 0)
    np.testing.assert_allclose(seen[3, 8:14], [-0.1, 0, 0.1, 0, 0, 0.1], atol=1e-7)
    assert Tag(num_prey=2, num_adversaries=1, num_obstacles=0).observe(
        state_of([[0, 0], [1, 0], [0, 1]], [])
    ).shape == (3, 4 + 4 + 4)


def test_obstacles_stop_agents_and_stay():
    env = Tag(num_adversaries=1, num_prey=1, num_obstacles=1)
    state = TagState(
        jnp.asarray([[-1.0, 0.0], [0.0, 0.9]]), jnp.asarray([[1.0, 0.0], [0, 0]]), jnp.zeros((1, 2))
    )
    step = jax.jit(env.step)
    touching = 0.275  # their radii together
    for t in range(100):
        state, _ = step(state, jnp.asarray([2, 0]), jax.random.key(0))
        assert state.position[0, 0] < 0
        assert t < 50 or state.position[0, 0] > -2 * touching  # it is driven on, and bounces
    np.testing.assert_array_equal(state.obstacles, 0)
