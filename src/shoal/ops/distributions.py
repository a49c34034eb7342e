"""Distributions over actions, as pytrees: batch axes [...] first, the axis of a vector action last.

Every distribution has `sample(key)`, `mode()`, `log_prob(x)` [...], `sample_and_log_prob(key)`, and, where
there is a closed form, `entropy()` [...] and `kl(other)` [...]: KL(self || other). The log-probability of a
vector action is the sum over its entries, which are independent.

Discrete actions are int32. `TanhNormal` has a second set of the same methods for what it squashes
(`sample_raw`, `mode_raw`, `log_prob_raw`, `from_raw`): remember the raw sample, not the action, and nothing
is lost near the bounds.

Nothing here is NaN or infinite, nor its gradient, for logits of ±1e4, scales from 1e-6 to 1e6, actions at the
bound, or one legal action.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, digamma, erf

Array = jax.Array
Bound = float | tuple[float, ...]
T = TypeVar("T", "Categorical", "MultiCategorical")

ILLEGAL = -1e9  # the logit of an illegal action: finite, so that 0 times its log-probability is 0


class Categorical(NamedTuple):
    """One of n actions: int32 [...]. See `masked` for legal actions."""

    logits: Array  # [..., n], not normalised

    def sample(self, key: Array) -> Array:
        """One action for each batch entry, by the inverse of the distribution function at one uniform number.

        Never an action of probability 0. One of a probability below 2**-24 is drawn only roughly as often
        as it should be: the uniform number has no more digits.
        """
        probabilities = jax.nn.softmax(self.logits)
        uniform = jax.random.uniform(key, self.logits.shape[:-1])
        if self.logits.shape[-1] <= _UNROLLED:
            return _inverse_unrolled(probabilities, uniform)
        return _inverse(probabilities, uniform)

    def mode(self) -> Array:
        """The likeliest action, the first of equals, [...]."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, x: Array) -> Array:
        """[...] -> [...]."""
        log_probabilities = jax.nn.log_softmax(self.logits)
        # A select and a sum, for its gradient is again a select: a gather's would be a scatter.
        chosen = jnp.arange(self.logits.shape[-1]) == x[..., None]
        return jnp.sum(jnp.where(chosen, log_probabilities, 0.0), axis=-1)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-probability."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """In nats, [...]; 0 where one action is legal."""
        log_probabilities = jax.nn.log_softmax(self.logits)
        return -jnp.sum(_times(jnp.exp(log_probabilities), log_probabilities), axis=-1)

    def kl(self, other: "Categorical") -> Array:
        """KL(self || other), [...]; very large where self takes actions that are illegal in other."""
        log_p, log_q = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return jnp.sum(_times(jnp.exp(log_p), log_p - log_q), axis=-1)


class MultiCategorical(NamedTuple):
    """Several independent choices at once, of different sizes: int32 [..., parts]."""

    logits: tuple[Array, ...]  # each [..., n_i]

    @property
    def parts(self) -> tuple[Categorical, ...]:
        """The choices one by one."""
        return tuple(Categorical(logits) for logits in self.logits)

    def sample(self, key: Array) -> Array:
        """One choice of each part, [..., parts]."""
        keys = jax.random.split(key, len(self.logits))
        return jnp.stack([part.sample(k) for part, k in zip(self.parts, keys, strict=True)], axis=-1)

    def mode(self) -> Array:
        """The likeliest choice of each part, [..., parts]."""
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, x: Array) -> Array:
        """[..., parts] -> [...]."""
        return _total(part.log_prob(x[..., i]) for i, part in enumerate(self.parts))

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-probability."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """In nats, summed over the parts, [...]."""
        return _total(part.entropy() for part in self.parts)

    def kl(self, other: "MultiCategorical") -> Array:
        """KL(self || other), summed over the parts, [...]."""
        return _total(p.kl(q) for p, q in zip(self.parts, other.parts, strict=True))


def masked(distribution: T, mask: Array) -> T:
    """The distribution among legal actions only: the others have probability 0 and get no gradient.

    What an illegal action's logit was does not matter, NaN included. Where no action is legal at all, all
    are taken to be equally likely.

    Args:
      distribution: a Categorical or a MultiCategorical.
      mask: True where legal, [..., n]; of a MultiCategorical [..., sum(n_i)], the parts' one after the other.

    Raises:
      ValueError: the mask's last axis is not as long as there are logits.
    """
    parts = distribution.logits if isinstance(distribution, MultiCategorical) else (distribution.logits,)
    sizes = [part.shape[-1] for part in parts]
    if mask.shape[-1] != sum(sizes):
        raise ValueError(f"mask has shape {list(mask.shape)}; its last axis must be {sum(sizes)} long.")
    masks = jnp.split(mask, np.cumsum(sizes)[:-1].tolist(), axis=-1)
    legal = tuple(jnp.where(m, part, ILLEGAL) for m, part in zip(masks, parts, strict=True))
    if isinstance(distribution, MultiCategorical):
        return MultiCategorical(legal)
    return Categorical(legal[0])


class Normal(NamedTuple):
    """Independent normal entries: float32 [..., n], unbounded."""

    loc: Array  # [..., n]
    scale: Array  # standard deviation, above 0, [..., n]

    def sample(self, key: Array) -> Array:
        """[..., n], differentiable in loc and scale."""
        shape = jnp.broadcast_shapes(jnp.shape(self.loc), jnp.shape(self.scale))
        return self.loc + self.scale * jax.random.normal(key, shape)

    def mode(self) -> Array:
        """The mean, [..., n]."""
        return jnp.broadcast_to(self.loc, jnp.broadcast_shapes(jnp.shape(self.loc), jnp.shape(self.scale)))

    def log_prob(self, x: Array) -> Array:
        """[..., n] -> [...]."""
        z = (x - self.loc) / self.scale
        return jnp.sum(-0.5 * jnp.square(z) - jnp.log(self.scale) - _HALF_LOG_2PI, axis=-1)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-density."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """Differential entropy in nats, [...]."""
        terms = 0.5 + _HALF_LOG_2PI + jnp.log(self.scale)
        return jnp.sum(jnp.broadcast_to(terms, self.mode().shape), axis=-1)

    def kl(self, other: "Normal") -> Array:
        """KL(self || other), [...]."""
        log_ratio = jnp.log(self.scale) - jnp.log(other.scale)
        z = (self.loc - other.loc) / other.scale
        # (e^2x - 1) / 2 - x is 0 and not a rounding error below it where the scales are equal.
        return jnp.sum(0.5 * (jnp.expm1(2.0 * log_ratio) + jnp.square(z)) - log_ratio, axis=-1)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["loc", "scale"], meta_fields=["low", "high"]
)
@dataclasses.dataclass(frozen=True)
class TanhNormal:
    """A Normal squashed by tanh and stretched to an interval: float32 [..., n] in [low, high].

    The raw methods speak of the Normal's sample u, the others of the action
    `x = low + (high - low) (tanh(u) + 1) / 2`. The log-density is that of x in both.
    The bounds are static: numbers, or tuples with one for each entry.
    """

    loc: Array  # of the Normal, [..., n]
    scale: Array  # of the Normal, [..., n]
    low: Bound = -1.0
    high: Bound = 1.0

    def sample_raw(self, key: Array) -> Array:
        """u, [..., n]; what to remember of an action."""
        return self._normal.sample(key)

    def mode_raw(self) -> Array:
        """The u of `mode`, [..., n]."""
        return self._normal.mode()

    def from_raw(self, raw: Array) -> Array:
        """The action of a u."""
        low, width = self._interval
        return jnp.clip(low + width * (0.5 * jnp.tanh(raw) + 0.5), low, jnp.asarray(self.high, jnp.float32))

    def log_prob_raw(self, raw: Array) -> Array:
        """Log-density of the action whose raw sample this is, [..., n] -> [...]; exact wherever u lies."""
        _, width = self._interval
        # log(1 - tanh(u)²), without the cancellation.
        log_slope = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        return self._normal.log_prob(raw) - jnp.sum(log_slope + jnp.log(0.5 * width), axis=-1)

    def sample(self, key: Array) -> Array:
        """An action, [..., n]."""
        return self.from_raw(self.sample_raw(key))

    def mode(self) -> Array:
        """The action of the Normal's mean (its median; the density itself may peak at the bounds), [..., n]."""
        return self.from_raw(self.mode_raw())

    def log_prob(self, x: Array) -> Array:
        """[..., n] -> [...]. Actions within 6e-7 of the interval's length of a bound count as that far from it."""
        low, width = self._interval
        unit = 2.0 * (x - low) / width - 1.0
        return self.log_prob_raw(jnp.arctanh(jnp.clip(unit, -1.0 + _EDGE, 1.0 - _EDGE)))

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-density, better near the bounds than that of `log_prob`."""
        raw = self.sample_raw(key)
        return self.from_raw(raw), self.log_prob_raw(raw)

    def entropy_estimate(self) -> Array:
        """Differential entropy in nats, [...]: an estimate, since there is no closed form.

        Deterministic, differentiable, and within 4e-6 of the truth for each entry of the action whatever loc
        and scale are (beside float32's rounding); its gradient in loc within 1e-5. Not unbiased noise but a fit:
        the expectation of log cosh is taken of a function that is that close to it everywhere and whose
        expectation has a closed form.
        """
        _, width = self._interval
        loc, scale = jnp.broadcast_arrays(self.loc, self.scale)
        log_slope = 2.0 * math.log(2.0) - 2.0 * _expected_log_2cosh(loc, scale)
        return self._normal.entropy() + jnp.sum(log_slope + jnp.log(0.5 * width), axis=-1)

    def kl(self, other: "TanhNormal") -> Array:
        """KL(self || other), [...], for equal bounds: that of the Normals."""
        return self._normal.kl(other._normal)

    @property
    def _normal(self) -> Normal:
        return Normal(self.loc, self.scale)

    @property
    def _interval(self) -> tuple[Array, Array]:
        return _interval(self.low, self.high)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["alpha", "beta"], meta_fields=["low", "high"]
)
@dataclasses.dataclass(frozen=True)
class Beta:
    """Independent Betas stretched to an interval: float32 [..., n] in (low, high).

    The bounds are static: numbers, or tuples with one for each entry. Samples and the arguments of
    `log_prob` are kept 1e-6 of the interval's length away from the bounds, where a density may be 0 or infinite.
    """

    alpha: Array  # above 0, [..., n]
    beta: Array  # above 0, [..., n]
    low: Bound = 0.0
    high: Bound = 1.0

    def sample(self, key: Array) -> Array:
        """[..., n]."""
        shape = jnp.broadcast_shapes(jnp.shape(self.alpha), jnp.shape(self.beta))
        return self._stretched(jax.random.beta(key, self.alpha, self.beta, shape))

    def mode(self) -> Array:
        """Where the density is highest, [..., n]: a bound where a parameter is at most 1, the middle if flat."""
        alpha, beta = self.alpha - 1.0, self.beta - 1.0
        inside = (alpha > 0) & (beta > 0)
        peak = alpha / jnp.where(inside, alpha + beta, 1.0)
        edge = jnp.where(alpha > beta, 1.0, jnp.where(alpha < beta, 0.0, 0.5))
        return self._stretched(jnp.where(inside, peak, edge))

    def log_prob(self, x: Array) -> Array:
        """[..., n] -> [...]."""
        low, width = _interval(self.low, self.high)
        unit = jnp.clip((x - low) / width, _BETA_EDGE, 1.0 - _BETA_EDGE)
        density = (self.alpha - 1.0) * jnp.log(unit) + (self.beta - 1.0) * jnp.log1p(-unit)
        return jnp.sum(density - betaln(self.alpha, self.beta) - jnp.log(width), axis=-1)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-density."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """Differential entropy in nats, [...]."""
        _, width = _interval(self.low, self.high)
        a, b = self.alpha, self.beta
        terms = betaln(a, b) - (a - 1.0) * digamma(a) - (b - 1.0) * digamma(b)
        return jnp.sum(terms + (a + b - 2.0) * digamma(a + b) + jnp.log(width), axis=-1)

    def kl(self, other: "Beta") -> Array:
        """KL(self || other), [...], for equal bounds."""
        a, b = self.alpha, self.beta
        da, db = a - other.alpha, b - other.beta
        terms = da * digamma(a) + db * digamma(b) - (da + db) * digamma(a + b)
        return jnp.sum(betaln(other.alpha, other.beta) - betaln(a, b) + terms, axis=-1)

    def _stretched(self, unit: Array) -> Array:
        low, width = _interval(self.low, self.high)
        return low + width * jnp.clip(unit, _BETA_EDGE, 1.0 - _BETA_EDGE)


class Deterministic(NamedTuple):
    """One action for certain: any dtype, [..., n]."""

    value: Array

    def sample(self, key: Array) -> Array:
        """The value; the key is not used."""
        return self.value

    def mode(self) -> Array:
        """The value."""
        return self.value

    def log_prob(self, x: Array) -> Array:
        """Log-probability, [..., n] -> [...]: 0 where x is the value, else minus infinity."""
        return jnp.where(jnp.all(x == self.value, axis=-1), 0.0, -jnp.inf)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """The value and 0."""
        return self.value, jnp.zeros(self.value.shape[:-1])

    def entropy(self) -> Array:
        """0, [...]."""
        return jnp.zeros(self.value.shape[:-1])


_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_EDGE = 1.2e-6  # of [-1, 1]; float32 has steps of 6e-8 there
_BETA_EDGE = 1e-6  # of [0, 1]
_UNROLLED = 32  # up to so many actions the distribution function is summed one by one


def _total(terms: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, terms)


def _times(probability: Array, x: Array) -> Array:
    """p x, and 0 where p is 0 even if x is infinite, in the gradient too."""
    return probability * jnp.where(probability > 0, x, 0.0)


def _interval(low: Bound, high: Bound) -> tuple[Array, Array]:
    lowest = jnp.asarray(low, jnp.float32)
    return lowest, jnp.asarray(high, jnp.float32) - lowest


def _inverse_unrolled(probabilities: Array, uniform: Array) -> Array:
    """The first action whose cumulative probability exceeds the uniform number (of the total)."""
    n = probabilities.shape[-1]
    # Summed one after the other: an action of probability 0 then adds exactly nothing, and is never the first.
    cumulative = [probabilities[..., 0]]
    for i in range(1, n):
        cumulative.append(cumulative[-1] + probabilities[..., i])
    threshold = uniform * cumulative[-1] * _BELOW_ONE
    return _total((c <= threshold).astype(jnp.int32) for c in cumulative)


def _inverse(probabilities: Array, uniform: Array) -> Array:
    """The same for many actions, whose sums are made in parallel and may round up at an action of 0."""
    cumulative = jnp.cumsum(probabilities, axis=-1)
    threshold = uniform * cumulative[..., -1] * _BELOW_ONE
    exceeds = (cumulative > threshold[..., None]) & (probabilities > 0)
    first = jnp.argmax(exceeds, axis=-1)
    likeliest = jnp.argmax(probabilities, axis=-1)
    return jnp.where(jnp.any(exceeds, axis=-1), first, likeliest).astype(jnp.int32)


# log(2 cosh u) = u erf(C u) + sum_k A_k exp(-B_k u²), within 1.7e-6 for every u (derivative: 4.5e-6). Fitted
# by least squares to value and derivative.
_LOG_COSH_C = 0.92527198
_LOG_COSH_B = (0.19993489, 0.40315449, 0.83265669, 1.88550118)
_LOG_COSH_A = (0.00627707, 0.05041021, 0.64354119, -0.00708076)


def _expected_log_2cosh(loc: Array, scale: Array) -> Array:
    """E log(2 cosh u) for u of N(loc, scale²), by the fit above, each of whose terms has an expectation."""
    c, variance = _LOG_COSH_C, jnp.square(scale)
    spread = 1.0 + 2.0 * c * c * variance
    root = jax.lax.rsqrt(spread)
    expected = loc * erf(c * loc * root)
    expected += 2.0 * c * variance * root / math.sqrt(math.pi) * jnp.exp(-jnp.square(c * loc * root))
    for a, b in zip(_LOG_COSH_A, _LOG_COSH_B, strict=True):
        root = jax.lax.rsqrt(1.0 + 2.0 * b * variance)
        expected += a * root * jnp.exp(-b * jnp.square(loc * root))
    return expected


_BELOW_ONE = 1.0 - 2.0**-22  # keeps a uniform number's product with the total below it in spite of rounding
