"""Tag in cases that are worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.mpe.tag import Tag, TagState, leaving_penalty


def state_of(position, obstacles):
    position = jnp.asarray(position, jnp.float32)
    velocity = jnp.arange(position.size, dtype=jnp.float32).reshape(position.shape)
    return TagState(position, velocity, jnp.asarray(obstacles, jnp.float32).reshape(-1, 2))


HUNT = state_of([[0, 0], [0.2, 0], [0.1, 0.1], [0.1, 0.0]], [[0.5, 0.5], [-0.5, 0.5]])


def test_a_catch_pays_all_adversaries():
    reward, info = jax.jit(Tag().rewards)(HUNT)
    np.testing.assert_allclose(reward, [30, 30, 30, -30])
    assert info["catches"] == 3
    reward, _ = jax.jit(Tag(catch_reward=2.0).rewards)(HUNT)
    np.testing.assert_allclose(reward, [6, 6, 6, -6])


def test_each_prey_loses_for_itself():
    env = Tag(num_adversaries=2, num_prey=2, num_obstacles=0)
    reward, info = jax.jit(env.rewards)(state_of([[0, 0], [0.5, 0], [0.1, 0], [-0.95, 1.5]], []))
    np.testing.assert_allclose(reward, [10, 10, -10, -(0.5 + np.exp(1.0))], rtol=1e-5)
    assert info["catches"] == 1


def test_leaving_the_field_costs():
    x = jnp.asarray([0, 0.89, 0.95, 1.0, 1.5, 2.5, 500])
    np.testing.assert_allclose(leaving_penalty(x), [0, 0, 0.5, 1.0, np.e, 10, 10], rtol=1e-5, atol=1e-6)


def test_observations_are_padded_to_the_adversaries():
    seen = np.asarray(jax.jit(Tag().observe)(HUNT))
    assert seen.shape == (4, 16)
    np.testing.assert_allclose(seen[0, -2:], [6, 7])  # the velocity of the prey
    np.testing.assert_array_equal(seen[3, -2:], 0)
    np.testing.assert_allclose(seen[3, 8:14], [-0.1, 0, 0.1, 0, 0, 0.1], atol=1e-7)
    other = Tag(num_prey=2, num_adversaries=1, num_obstacles=0)
    assert jax.eval_shape(other.observe, state_of([[0, 0], [1, 0], [0, 1]], [])).shape == (3, 4 + 4 + 4)


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
