"""Distributions over vectors of real numbers, whose entries are independent."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

from shoal.ops.distributions._arguments import as_vectors, broadcast_shape, common_shape, parameter
from shoal.ops.distributions._stirling import beta_divergence, binet, binet_slope, deviance

Array = jax.Array
Bound = float | tuple[float, ...]
_STATIC = {"static": True}  # no leaf of the pytree


class Normal(NamedTuple):
    """Independent normal entries: float32 [..., n], unbounded."""

    loc: Array  # [..., n]
    scale: Array  # standard deviation, above 0, [..., n]

    def sample(self, key: Array) -> Array:
        """[..., n], differentiable in loc and scale."""
        loc, scale = self._loc_and_scale
        return loc + scale * jax.random.normal(key, self._shape, jnp.result_type(loc, scale))

    def mode(self) -> Array:
        """The mean, [..., n]."""
        return jnp.broadcast_to(self._loc_and_scale[0], self._shape)

    def log_prob(self, x: Array) -> Array:
        """[..., n] -> [...]."""
        loc, scale = self._loc_and_scale
        z = (as_vectors(x, self._shape) - loc) / scale
        return jnp.sum(-0.5 * jnp.square(z) - jnp.log(scale) - _HALF_LOG_2PI, axis=-1)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-density."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """Differential entropy in nats, [...]."""
        terms = 0.5 + _HALF_LOG_2PI + jnp.log(self._loc_and_scale[1])
        return jnp.sum(jnp.broadcast_to(terms, self._shape), axis=-1)

    def kl(self, other: "Normal") -> Array:
        """KL(self || other), [...]."""
        shape = common_shape(self=self._shape, other=other._shape)
        (loc, scale), (other_loc, other_scale) = self._loc_and_scale, other._loc_and_scale
        log_ratio = jnp.log(scale) - jnp.log(other_scale)
        z = (loc - other_loc) / other_scale
        # (e^2x - 1) / 2 - x is 0 and not a rounding error below it where the scales are equal.
        terms = 0.5 * (jnp.expm1(2.0 * log_ratio) + jnp.square(z)) - log_ratio
        return jnp.sum(jnp.broadcast_to(terms, shape), axis=-1)

    @property
    def _loc_and_scale(self) -> tuple[Array, Array]:
        return parameter(loc=self.loc), parameter(scale=self.scale)

    @property
    def _shape(self) -> tuple[int, ...]:
        return broadcast_shape(loc=jnp.shape(self.loc), scale=jnp.shape(self.scale))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TanhNormal:
    """A Normal squashed by tanh and stretched to an interval: float32 [..., n] in [low, high].

    The raw methods speak of the Normal's sample u, the others of the action
    `x = low + (high - low) (tanh(u) + 1) / 2`. The log-density is that of x in both.
    The bounds are static: numbers, or tuples with one for each entry.
    """

    loc: Array  # of the Normal, [..., n]
    scale: Array  # of the Normal, [..., n]
    low: Bound = dataclasses.field(default=-1.0, metadata=_STATIC)
    high: Bound = dataclasses.field(default=1.0, metadata=_STATIC)

    def sample_raw(self, key: Array) -> Array:
        """Sample u, [..., n]; store this of an action."""
        return self._normal.sample(key)

    def mode_raw(self) -> Array:
        """The u of `mode`, [..., n]."""
        return self._normal.mode()

    def from_raw(self, raw: Array) -> Array:
        """Return the action of a u."""
        low, width = self._interval
        unit = 0.5 * jnp.tanh(as_vectors(raw, self._normal._shape)) + 0.5
        return jnp.clip(low + width * unit, low, jnp.asarray(self.high, unit.dtype))

    def log_prob_raw(self, raw: Array) -> Array:
        """Log-density of the action with this raw sample, [..., n] -> [...]; accurate for every u."""
        _, width = self._interval
        raw = as_vectors(raw, self._normal._shape)
        # log(1 - tanh(u)²), without the cancellation.
        log_slope = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        return self._normal.log_prob(raw) - jnp.sum(log_slope + jnp.log(0.5 * width), axis=-1)

    def sample(self, key: Array) -> Array:
        """An action, [..., n], differentiable in loc and scale."""
        return self.from_raw(self.sample_raw(key))

    def mode(self) -> Array:
        """The action of the Normal's mean (its median; the density may have its maximum at the bounds), [..., n]."""
        return self.from_raw(self.mode_raw())

    def log_prob(self, x: Array) -> Array:
        """[..., n] -> [...]. Actions within 6e-7 of the interval's length of a bound count as that far from it."""
        low, width = self._interval
        unit = 2.0 * (as_vectors(x, self._normal._shape) - low) / width - 1.0
        return self.log_prob_raw(jnp.arctanh(jnp.clip(unit, -1.0 + _EDGE, 1.0 - _EDGE)))

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-density, better near the bounds than that of `log_prob`."""
        raw = self.sample_raw(key)
        return self.from_raw(raw), self.log_prob_raw(raw)

    def entropy_estimate(self) -> Array:
        """Estimate the differential entropy in nats, [...]; there is no closed form.

        Deterministic, differentiable, and within 4e-6 of the truth for each entry of the action for any loc
        and scale (in addition to float32's rounding); its gradient in loc is within 1e-5. The error is that
        of a fit and not random: the expectation of log cosh is replaced by that of a function that is this
        close to it everywhere and whose expectation has a closed form.
        """
        _, width = self._interval
        loc, scale = jnp.broadcast_arrays(*self._normal._loc_and_scale)
        log_slope = 2.0 * math.log(2.0) - 2.0 * _expected_log_2cosh(loc, scale)
        return self._normal.entropy() + jnp.sum(log_slope + jnp.log(0.5 * width), axis=-1)

    def kl(self, other: "TanhNormal") -> Array:
        """KL(self || other), [...], for equal bounds: that of the Normals."""
        _same_bounds(self, other)
        return self._normal.kl(other._normal)

    @property
    def _normal(self) -> Normal:
        return Normal(self.loc, self.scale)

    @property
    def _interval(self) -> tuple[Array, Array]:
        return _interval(self, self._normal._shape, jnp.result_type(*self._normal._loc_and_scale))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Beta:
    """Independent Betas stretched to an interval: float32 [..., n] in (low, high), for parameters up to 1e7.

    The bounds are static: numbers, or tuples with one for each entry. Samples and the arguments of
    `log_prob` are kept 1e-6 of the interval's length away from the bounds, where a density may be 0 or infinite.
    """

    alpha: Array  # above 0, [..., n]
    beta: Array  # above 0, [..., n]
    low: Bound = dataclasses.field(default=0.0, metadata=_STATIC)
    high: Bound = dataclasses.field(default=1.0, metadata=_STATIC)

    def sample(self, key: Array) -> Array:
        """[..., n], differentiable in alpha and beta."""
        alpha, beta = self._alpha_and_beta
        return self._scale_to_interval(
            jax.random.beta(key, alpha, beta, self._shape, jnp.result_type(alpha, beta))
        )

    def mode(self) -> Array:
        """The point of highest density, [..., n]: a bound where a parameter is at most 1, the middle if flat."""
        alpha, beta = (parameter - 1.0 for parameter in self._alpha_and_beta)
        inside = (alpha > 0) & (beta > 0)
        peak = alpha / jnp.where(inside, alpha + beta, 1.0)
        edge = jnp.where(alpha > beta, 1.0, jnp.where(alpha < beta, 0.0, 0.5))
        return self._scale_to_interval(jnp.where(inside, peak, edge))

    def log_prob(self, x: Array) -> Array:
        """[..., n] -> [...]."""
        alpha, beta = self._alpha_and_beta
        low, width = self._interval
        unit = jnp.clip((as_vectors(x, self._shape) - low) / width, _BETA_EDGE, 1.0 - _BETA_EDGE)
        total, rest = alpha + beta, 1.0 - unit
        # The density of x is that of a coin with the probability x, thrown alpha + beta times, by Stirling.
        difference = alpha * rest - beta * unit
        coin = deviance(alpha, total * unit, difference) + deviance(beta, total * rest, -difference)
        stirling = 0.5 * jnp.log(alpha * (beta / total)) - binet(alpha) - binet(beta) + binet(total)
        terms = stirling - _HALF_LOG_2PI - coin - jnp.log(unit) - jnp.log1p(-unit)
        return jnp.sum(terms - jnp.log(width), axis=-1)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-density."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """Differential entropy in nats, [...]."""
        a, b = self._alpha_and_beta
        total = a + b
        # lnB - (a - 1) ψ(a) - (b - 1) ψ(b) + (a + b - 2) ψ(a + b), by Stirling: the large terms cancel.
        terms = 0.5 * jnp.log(a * (b / total)) - jnp.log(total) + _HALF_LOG_2PI + 0.5
        terms += 1.0 / total - 0.5 / a - 0.5 / b
        terms += binet(a) + binet(b) - binet(total)
        terms += (total - 2.0) * binet_slope(total) - (a - 1.0) * binet_slope(a) - (b - 1.0) * binet_slope(b)
        return jnp.sum(terms + jnp.log(self._interval[1]), axis=-1)

    def kl(self, other: "Beta") -> Array:
        """KL(self || other), [...], for equal bounds."""
        shape = common_shape(self=self._shape, other=other._shape)
        _same_bounds(self, other)
        parameters = (*self._alpha_and_beta, *other._alpha_and_beta)
        dtype = jnp.result_type(*parameters)
        terms = beta_divergence(*(jnp.broadcast_to(p, shape).astype(dtype) for p in parameters))
        return jnp.sum(terms, axis=-1)

    def _scale_to_interval(self, unit: Array) -> Array:
        low, width = self._interval
        return low + width * jnp.clip(unit, _BETA_EDGE, 1.0 - _BETA_EDGE)

    @property
    def _alpha_and_beta(self) -> tuple[Array, Array]:
        alpha, beta = jnp.broadcast_to(parameter(alpha=self.alpha), self._shape), parameter(beta=self.beta)
        return alpha, jnp.broadcast_to(beta, self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        return broadcast_shape(alpha=jnp.shape(self.alpha), beta=jnp.shape(self.beta))

    @property
    def _interval(self) -> tuple[Array, Array]:
        return _interval(self, self._shape, jnp.result_type(*self._alpha_and_beta))


class Deterministic(NamedTuple):
    """One vector with probability 1: any dtype, [..., n]."""

    value: Array

    def sample(self, key: Array) -> Array:
        """The value; the key is not used."""
        return self.value

    def mode(self) -> Array:
        """The value."""
        return self.value

    def log_prob(self, x: Array) -> Array:
        """Log-probability, [..., n] -> [...]: 0 where x is the value, else -inf."""
        common_shape(x=jnp.shape(x), value=self.value.shape)
        return jnp.where(jnp.all(x == self.value, axis=-1), 0.0, -jnp.inf)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """The value and 0."""
        return self.value, jnp.zeros(self.value.shape[:-1], jnp.float32)

    def entropy(self) -> Array:
        """0, [...]."""
        return jnp.zeros(self.value.shape[:-1], jnp.float32)

    def kl(self, other: "Deterministic") -> Array:
        """KL(self || other), [...]: 0 where the values are equal, else infinite."""
        return 0.0 - other.log_prob(self.value)


_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_EDGE = 1.2e-6  # of [-1, 1]; float32 has steps of 6e-8 there
_BETA_EDGE = 1e-6  # of [0, 1]


def _interval(d: "TanhNormal | Beta", shape: tuple[int, ...], dtype: jnp.dtype) -> tuple[Array, Array]:
    """Return the lower bound and the width, each a number or [n]."""
    for name, bound in (("low", d.low), ("high", d.high)):
        if np.ndim(bound) > 0 and np.shape(bound) != shape[-1:]:
            raise ValueError(f"{name}={bound} must be a number or, for {list(shape)}, {shape[-1]} of them.")
    low = jnp.asarray(d.low, dtype)
    return low, jnp.asarray(d.high, dtype) - low


def _same_bounds(p: TanhNormal | Beta, q: TanhNormal | Beta) -> None:
    if np.any(np.not_equal(p.low, q.low)) or np.any(np.not_equal(p.high, q.high)):
        raise ValueError(
            f"self has the bounds low={p.low}, high={p.high} and other low={q.low}, high={q.high}; "
            "they must be equal."
        )


# log(2 cosh u) = u erf(C u) + sum_k A_k exp(-B_k u²), within 1.7e-6 for every u (derivative: 4.5e-6). Fitted
# by least squares to value and derivative.
_LOG_COSH_C = 0.92527198
_LOG_COSH_B = (0.19993489, 0.40315449, 0.83265669, 1.88550118)
_LOG_COSH_A = (0.00627707, 0.05041021, 0.64354119, -0.00708076)


def _expected_log_2cosh(loc: Array, scale: Array) -> Array:
    """Compute E log(2 cosh u) for u of N(loc, scale²), by the fit above, each of whose terms has an expectation."""
    c, variance = _LOG_COSH_C, jnp.square(scale)
    spread = 1.0 + 2.0 * c * c * variance
    root = jax.lax.rsqrt(spread)
    expected = loc * erf(c * loc * root)
    expected += 2.0 * c * variance * root / math.sqrt(math.pi) * jnp.exp(-jnp.square(c * loc * root))
    for a, b in zip(_LOG_COSH_A, _LOG_COSH_B, strict=True):
        root = jax.lax.rsqrt(1.0 + 2.0 * b * variance)
        expected += a * root * jnp.exp(-b * jnp.square(loc * root))
    return expected
