"""Vectors that turn with a tangent plane, against a rotation matrix; gradients where a vector is zero."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.particles.physics.vectors import length, shortened, turned, unit


def test_a_spring_turns_with_the_tangent_plane_and_keeps_its_length():
    random = np.random.default_rng(0)
    normal, after = (x / np.linalg.norm(x, axis=0) for x in random.normal(size=(2, 3, 50)))
    after = normal + 0.5 * after
    after /= np.linalg.norm(after, axis=0)
    spring = np.cross(normal, random.normal(size=(3, 50)), axis=0)
    found = np.asarray(turned(jnp.asarray(spring), jnp.asarray(after)))
    np.testing.assert_allclose((found * after).sum(0), 0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), np.linalg.norm(spring, axis=0), rtol=1e-5)
    # A spring along the axis about which the plane turns stays; one across it turns with the plane (Rodrigues).
    axis = np.cross(normal, after, axis=0)
    sine, cosine = np.linalg.norm(axis, axis=0), (normal * after).sum(0)
    axis /= sine
    across = np.cross(axis, normal, axis=0)
    np.testing.assert_allclose(turned(jnp.asarray(axis), jnp.asarray(after)), axis, atol=1e-5)
    rotated = across * cosine + np.cross(axis, across, axis=0) * sine
    np.testing.assert_allclose(turned(jnp.asarray(across), jnp.asarray(after)), rotated, atol=1e-5)


def test_a_length_of_what_is_no_number_is_none():
    found = length(jnp.asarray([[np.nan, 0.0, 3.0], [1.0, 0.0, 4.0]]))
    np.testing.assert_array_equal(found, [np.nan, 0.0, 5.0])


def test_vectors_of_no_length_have_finite_gradients():
    def total(x):
        return (
            (unit(x)[0] + turned(x, jnp.asarray([0.0, 0.0, 1.0]))).sum() + length(x) + shortened(x, 0.1).sum()
        )

    assert np.isfinite(jax.grad(total)(jnp.zeros(3))).all()
