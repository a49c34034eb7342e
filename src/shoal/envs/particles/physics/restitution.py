"""The damping that gives an impact the coefficient of restitution that is asked for.

The dashpot of a contact is c = 2 ζ √(k m*) of a linear spring, and c = 2 √(5/6) ζ √(S m*), S = 2 E* √(R* δ), of a
Hertzian one. If a contact may pull, ζ = -ln e / √(π² + ln² e). Without tension the bodies separate where the dashpot's
pull is as large as the spring's push, and then

    ln e = -2 ψ cot ψ,   ζ = cos ψ,     for ζ <= 1
    ln e = -2 χ coth χ,  ζ = cosh χ,    for ζ >= 1

This is eqs. 23 to 25 of Schwager and Pöschel for the linear spring, written in one angle. It holds for the Hertzian
contact too, at every speed: with z = δ^(5/4) and the time dτ ~ δ^(1/4) dt its equation is that of a linear spring, and
its force is 0 where z'' is.

Source: Schwager and Pöschel 2007, "Coefficient of restitution and linear-dashpot model revisited"; Tsuji et al. 1992,
"Lagrangian numerical simulation of plug flow of cohesionless particles in a horizontal pipe" (the Hertzian dashpot).
"""

import math

import jax
import jax.numpy as jnp

from shoal.types import Array

NEWTON_STEPS = 16  # from ζ = 0; more than restitutions down to 1e-30 need
UNDAMPED = (math.pi / 2) ** 2  # ψ² of ζ = 0
SERIES_BELOW = 0.25  # magnitude of ψ² up to which the series is used
# Of x cot x and of cos x, in powers of x²; what is left out is below 2e-11 and 1e-15.
COTANGENT_SERIES = (1.0, -1 / 3, -1 / 45, -2 / 945, -1 / 4725, -2 / 93555, -1382 / 638512875)
COSINE_SERIES = tuple((-1) ** i / math.factorial(2 * i) for i in range(7))


def damping_ratio(restitution: Array | float) -> Array:
    """Return the damping ratio ζ at which bodies that do not pull each other separate with a coefficient e in (0, 1].

    Newton's method on -ln e as a function of ψ² (negative: of -χ²), which is analytic, decreasing and concave, so that
    from ψ² = (π/2)² on it converges from one side. The gradient is that of the last step.
    """
    e = jnp.asarray(restitution)
    target = -jnp.log(e)

    def improve(_: int, square: Array) -> Array:
        return _newton(square, jax.lax.stop_gradient(target))

    square = jax.lax.fori_loop(0, NEWTON_STEPS, improve, jnp.full_like(target, UNDAMPED))
    return jnp.where(e < 1, _cosine(_newton(square, target)), 0.0)


def _newton(square: Array, target: Array) -> Array:
    decrement, slope = _decrement(jax.lax.stop_gradient(square))
    return square - (decrement - target) / slope


def _decrement(square: Array) -> tuple[Array, Array]:
    """Return 2 ψ cot ψ as a function of u = ψ², or 2 χ coth χ of u = -χ², and its derivative by u."""
    is_small = jnp.abs(square) < SERIES_BELOW
    size = jnp.sqrt(jnp.maximum(jnp.abs(square), SERIES_BELOW / 2))
    closed = size / jnp.where(square > 0, jnp.tan(size), jnp.tanh(size))
    half = jnp.where(is_small, _polynomial(COTANGENT_SERIES, square), closed)
    away = jnp.where(square > 0, 1.0, -1.0) * size**2
    closed_slope = (half - half**2) / away - 1
    derivative = tuple(2 * i * x for i, x in enumerate(COTANGENT_SERIES))[1:]
    return 2 * half, jnp.where(is_small, _polynomial(derivative, square), closed_slope)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _cosine(square: Array) -> Array:
    """Return cos ψ of ψ², or cosh χ of -χ²."""
    is_small = jnp.abs(square) < SERIES_BELOW
    size = jnp.sqrt(jnp.maximum(jnp.abs(square), SERIES_BELOW / 2))
    closed = jnp.where(square > 0, jnp.cos(size), jnp.cosh(size))
    return jnp.where(is_small, _polynomial(COSINE_SERIES, square), closed)
