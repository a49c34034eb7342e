"""The damping ratio against an independent solution of the equation of motion, by SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from shoal.envs.particles.physics.restitution import damping_ratio

RESTITUTIONS = (0.02, 0.1353352832366127, 0.2, 0.5, 0.8, 0.98)


def rebound(ratio: float, power: float) -> float:
    """Speed after an impact at speed 1 without tension: x'' = -max(0, x^p + 2 ζ g x^((p-1)/2) x')."""
    factor = 2 * ratio if power == 1 else 2 * np.sqrt(5 / 6) * ratio * np.sqrt(1.5)

    def force(x, v):
        return max(x, 0.0) ** power + factor * max(x, 0.0) ** ((power - 1) / 2) * v

    def ends(t, y):
        return force(*y) if t > 1e-3 else 1.0  # where the force turns to pulling

    ends.terminal = True
    solution = solve_ivp(
        lambda t, y: (y[1], -force(*y)), (0, 2000), (1e-12, 1.0), events=ends, rtol=1e-10, atol=1e-13
    )
    return -solution.y[1, -1]


@pytest.mark.parametrize("power", [1.0, 1.5])
def test_an_impact_without_tension_has_the_restitution_that_is_asked_for(power):
    with jax.enable_x64(True):
        ratios = np.asarray(jax.jit(damping_ratio)(jnp.asarray(RESTITUTIONS)))
    for e, ratio in zip(RESTITUTIONS, ratios, strict=True):
        assert rebound(float(ratio), power) == pytest.approx(e, rel=2e-6)


def test_known_values():
    with jax.enable_x64(True):
        ratios = jax.jit(damping_ratio)(jnp.asarray([1.0, np.exp(-2), 0.5, 1e-6]))
        assert ratios[0] == 0 and ratios[1] == pytest.approx(1, abs=1e-12)
        # With the formula of contacts that may pull, 0.5 is asked for and 0.55 measured.
        pulling = np.log(2) / np.sqrt(np.pi**2 + np.log(2) ** 2)
        assert rebound(pulling, 1.0) == pytest.approx(0.550, abs=1e-3)
        assert ratios[2] > pulling and np.isfinite(ratios[3]) and ratios[3] > 100


@pytest.mark.full
def test_it_is_smooth_and_the_same_in_float32():
    e = np.linspace(0.05, 0.999, 200)
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(damping_ratio)(jnp.asarray(e)))
        slope = np.asarray(jax.jit(jax.vmap(jax.grad(damping_ratio)))(jnp.asarray(e)))
        shifted = np.asarray(jax.jit(damping_ratio)(jnp.asarray(e + 1e-7)))
    np.testing.assert_allclose(slope, (shifted - exact) / 1e-7, rtol=1e-4)
    rounded = jax.jit(damping_ratio)(jnp.asarray(e, jnp.float32))
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, exact, rtol=2e-6, atol=2e-7)
    assert np.isfinite(jax.jit(jax.grad(damping_ratio))(1.0))
