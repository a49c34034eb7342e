"""The physics against double loops in NumPy, and the cases that mpe2 never meets."""

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.mpe import particles


def test_moves_go_the_ways_of_their_names():
    forces = particles.drive(jnp.arange(5), jnp.asarray([1.0, 2.0, 3.0, 4.0, 5.0]))
    np.testing.assert_array_equal(forces, [[0, 0], [-2, 0], [3, 0], [0, -4], [0, 5]])
    assert (particles.LEFT, particles.RIGHT, particles.DOWN, particles.UP) == (1, 2, 3, 4)


def loop_repulsion(position, bodies, touching, strength, margin):
    """The forces by a double loop, in float64."""
    forces = np.zeros_like(position)
    for a, here in enumerate(position):
        for b, there in enumerate(bodies):
            away = here - there
            distance = np.sqrt((away**2).sum())
            if distance > 0:
                overlap = np.logaddexp(0, (touching[a, b] - distance) / margin) * margin
                forces[a] += strength * overlap * away / distance
    return forces


@pytest.mark.parametrize("spread", [0.05, 0.3, 2.0])
def test_repulsion_is_that_of_a_double_loop(spread):
    rng = np.random.default_rng(0)
    bodies = rng.uniform(-spread, spread, (7, 2)).astype(np.float32)
    touching = rng.uniform(0.1, 0.4, (4, 7)).astype(np.float32)
    forces = particles.repulsion(jnp.asarray(bodies[:4]), jnp.asarray(bodies), touching, 100.0, 1e-3)
    expected = loop_repulsion(
        bodies[:4].astype(float), bodies.astype(float), touching.astype(float), 100.0, 1e-3
    )
    np.testing.assert_allclose(forces, expected, rtol=1e-5, atol=1e-4)
    assert (np.abs(expected).max() > 1) == (spread < 1)


def test_bodies_that_do_not_touch_leave_each_other_alone_and_pairs_push_alike():
    position = jnp.asarray([[0.0, 0.0], [0.1, 0.0], [1.0, 1.0]])
    forces = particles.repulsion(position, position, 0.3, 100.0, 1e-3)
    np.testing.assert_allclose(forces, [[-20, 0], [20, 0], [0, 0]], atol=1e-3)


def test_bodies_at_one_place_do_not_push_each_other():
    position = jnp.zeros((2, 2))
    forces = particles.repulsion(position, position, 0.3, 100.0, 1e-3)
    np.testing.assert_array_equal(forces, 0)


def test_a_body_moves_by_its_velocity_from_before():
    position, velocity = particles.move(
        jnp.asarray([[1.0, 2.0]]), jnp.asarray([[4.0, 0.0]]), jnp.asarray([[0.0, 5.0]]), 0.25, 0.1
    )
    np.testing.assert_allclose(position, [[1.4, 2.0]])
    np.testing.assert_allclose(velocity, [[3.0, 0.5]])


def test_speed_is_limited_and_slower_velocities_are_the_same_bit_for_bit():
    velocity = jnp.asarray([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [0.6, 0.8000001]])
    limited = particles.limit_speed(velocity, jnp.asarray([1.0, 1.0, 1.0, 2.0]))
    np.testing.assert_allclose(limited[0], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(limited[1:], velocity[1:])


@pytest.mark.quick("3-rest2")
@pytest.mark.parametrize(("agents", "rest"), [(1, ()), (2, (2,)), (3, (2, 3)), (7, ())])
def test_own_entries_are_removed(agents, rest):
    x = np.arange(agents * agents * int(np.prod(rest))).reshape(agents, agents, *rest)
    expected = np.stack([np.delete(x[a], a, axis=0) for a in range(agents)])
    np.testing.assert_array_equal(particles.without_own(jnp.asarray(x)), expected)
