"""Log-gamma functions of the Beta distribution, in forms whose digits do not cancel.

A Beta's entropy, divergence and density are small differences of lnΓ and ψ, which are as large as its parameters
are: for parameters of 1e6 nothing is left of them in float32. Here the large parts are taken out first, by
Stirling's formula

    lnΓ(x) = (x - 1/2) ln x - x + ln(2π) / 2 + μ(x),   ψ(x) = ln x - 1 / (2 x) + μ'(x)

of which only Binet's μ, at most 1 / (12 x), is a series. It is asymptotic: small x are first moved up by the
recursion of Γ.
"""

import jax
import jax.numpy as jnp

Array = jax.Array

# B_2k / (2 k (2 k - 1)), the coefficients of x^(1 - 2 k) in μ(x).
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)


def binet(x: Array) -> Array:
    """Compute Binet's μ(x) = lnΓ(x) - (x - 1/2) ln x + x - ln(2π) / 2, for x above 0."""
    shift, series = _shift_and_series(x)
    far, small = _shift_up(x, shift)
    total = _power_series(series, 1.0 / jnp.square(far)) / far
    for k in range(shift):  # μ(z) - μ(z + 1), of which too little is left where z is large
        z = x + k
        total += jnp.where(small, (z + 0.5) * jnp.log1p(1.0 / z) - 1.0, 0.0)
    return total


def binet_slope(x: Array) -> Array:
    """Compute the derivative μ'(x) = ψ(x) - ln x + 1 / (2 x), for x above 0."""
    shift, series = _shift_and_series(x)
    far, small = _shift_up(x, shift)
    slopes = tuple(-(2 * k + 1) * c for k, c in enumerate(series))
    squared = 1.0 / jnp.square(far)
    total = _power_series(slopes, squared) * squared
    for k in range(shift):
        z = x + k
        total += jnp.where(small, jnp.log1p(1.0 / z) - (z + 0.5) / (z * (z + 1.0)), 0.0)
    return total


def deviance(a: Array, b: Array, difference: Array) -> Array:
    """a ln(a / b) - (a - b), which is never negative, for a and b above 0; the caller may know `difference`,
    a - b, to more digits.

    Source: Loader 2000, "Fast and Accurate Computation of Binomial Probabilities".
    """
    v = difference / (a + b)  # ln(a / b) = 2 artanh(v)
    near = jnp.abs(v) < 0.1
    ratio = jnp.where(near, 1.0, a / b)
    v = jnp.where(near, v, 0.0)
    odd = tuple(1 / (2 * k + 3) for k in range(len(_shift_and_series(a)[1])))
    series = difference * v + 2.0 * a * v**3 * _power_series(odd, jnp.square(v))
    return jnp.where(near, series, a * jnp.log(ratio) - difference)


def beta_divergence(a: Array, b: Array, other_a: Array, other_b: Array) -> Array:
    """KL(Beta(a, b) || Beta(other_a, other_b)), of floating arrays of one shape.

    It is D(a', a) + D(b', b) - D(a' + b', a + b) with D(y, x) = lnΓ(y) - lnΓ(x) - ψ(x) (y - x), and

        D(y, x) = sum_k [r_k - ln(1 + r_k)] + D(y + n, x + n),   r_k = (y - x) / (x + k),   k = 0..n-1

    by the recursion of Γ. What Stirling's y ln y - y contributes to the three D together is the divergence of two
    coins, thrown a' + b' + 2 n times: here the large parts cancel, and are never computed.
    """
    shift, _ = _shift_and_series(a)
    da, db = other_a - a, other_b - b
    x, y = (a + shift, b + shift), (other_a + shift, other_b + shift)
    # y_a x_b - x_a y_b, by whichever of its two forms rounds less.
    close = (jnp.abs(da) < y[0]) & (jnp.abs(db) < y[1])
    crossed = jnp.where(close, da * x[1] - x[0] * db, y[0] * x[1] - x[0] * y[1])
    difference, scale = crossed / (x[0] + x[1]), (y[0] + y[1]) / (x[0] + x[1])
    coins = deviance(y[0], x[0] * scale, difference) + deviance(y[1], x[1] * scale, -difference)
    parts = _divergence_beyond_coins(a, other_a, da, shift) + _divergence_beyond_coins(b, other_b, db, shift)
    return coins + parts - _divergence_beyond_coins(a + b, other_a + other_b, da + db, 2 * shift)


def _divergence_beyond_coins(x: Array, y: Array, difference: Array, shift: int) -> Array:
    """Compute D(y, x) less y' ln(y' / x') - (y' - x'), where y' = y + shift and x' = x + shift."""

    def excess(x: Array, y: Array) -> Array:
        """Compute r - ln(1 + r), r = (y - x) / x."""
        return deviance(x, y, -difference) / x

    # As an axis, since that compiles faster.
    steps = jnp.arange(shift, dtype=x.dtype).reshape(-1, *(1 for _ in x.shape))
    total = jnp.sum(excess(x + steps, y + steps), axis=0) + 0.5 * excess(x + shift, y + shift)
    # Of x^-m the D is (y - x)² u² w (m u^(m-1) + (m - 1) u^(m-2) w + ... + w^(m-1)), u = 1 / x, w = 1 / y.
    u, w = 1.0 / (x + shift), 1.0 / (y + shift)
    series = _shift_and_series(x)[1]
    power, ones, weighted, binets = jnp.ones_like(w), jnp.zeros_like(w), jnp.zeros_like(w), jnp.zeros_like(w)
    for m in range(1, 2 * len(series)):
        ones, power = u * ones + power, power * w
        weighted = u * weighted + ones
        if m % 2 == 1:
            binets += series[m // 2] * weighted
    return total + (difference * u) * (difference * w) * u * binets


def _shift_and_series(x: Array) -> tuple[int, tuple[float, ...]]:
    """Return the shift of small arguments, and the terms of the series that the dtype's digits then need."""
    return (4, _SERIES[:4]) if x.dtype == jnp.float32 else (10, _SERIES)


def _shift_up(x: Array, shift: int) -> tuple[Array, Array]:
    """Return arguments at which the series is accurate, and which of them were shifted."""
    small = x < shift
    return jnp.where(small, x + shift, x), small


def _power_series(coefficients: tuple[float, ...], x: Array) -> Array:
    total = jnp.zeros_like(x)
    for c in reversed(coefficients):
        total = total * x + c
    return total
