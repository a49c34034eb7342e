"""Distributions over finitely many choices: actions by number, and values on a support of atoms."""

import functools
import itertools
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.ops._checks import real
from shoal.ops._selects import in_range
from shoal.ops.distributions._arguments import (
    as_integers,
    broadcast_shape,
    common_shape,
    parameter,
    same_last_axis,
    widen,
)

Array = jax.Array
T = TypeVar("T", "Categorical", "MultiCategorical")


class Categorical(NamedTuple):
    """One of n actions: int32 [...]. See `masked` for legal actions.

    A number that is none of 0..n-1 is not an action: its log-probability is NaN, without a gradient.
    """

    logits: Array  # [..., n], not normalised

    def sample(self, key: Array) -> Array:
        """One action for each batch entry, by the inverse of the distribution function at one uniform number.

        Never an action of probability 0. The frequency of an action of a probability below 2**-24 is only
        approximate, since the uniform number has no more digits.
        """
        probabilities = jax.nn.softmax(_actions_first(parameter(logits=self.logits)), axis=0)
        uniform = jax.random.uniform(key, probabilities.shape[1:], probabilities.dtype)
        if len(probabilities) <= _MAX_UNROLLED:
            return _inverse_cdf_unrolled(probabilities, uniform)
        return _inverse_cdf(probabilities, uniform)

    def mode(self) -> Array:
        """The likeliest action, the first of equals, [...]."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, x: Array) -> Array:
        """[...] -> [...]; NaN where x is none of 0..n-1."""
        log_prob, exists = self._log_prob_and_exists(x)
        return jnp.where(exists, log_prob, jnp.nan)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-probability."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """In nats, [...]; 0 where one action is legal."""
        shifted, log_total = self._log_weights()
        weights = jnp.exp(shifted)
        return log_total - jnp.sum(_masked_product(weights, shifted), axis=0) / jnp.sum(weights, axis=0)

    def kl(self, other: "Categorical") -> Array:
        """KL(self || other), [...]; infinite where self takes actions that are illegal in other."""
        same_last_axis(self=self.logits.shape, other=other.logits.shape)
        shifted_p, log_total_p = self._log_weights(jnp.ndim(other.logits) - 1)
        shifted_q, log_total_q = other._log_weights(jnp.ndim(self.logits) - 1)
        log_p, log_q = shifted_p - log_total_p, shifted_q - log_total_q
        return jnp.sum(_masked_product(jnp.exp(log_p), log_p - log_q), axis=0)

    def _log_prob_and_exists(self, x: Array) -> tuple[Array, Array]:
        """Return the log-probability of each index that is an action, and whether it is one, each [...]."""
        x = as_integers(x, self.logits.shape[:-1])
        shifted, log_total = self._log_weights(x.ndim)
        # A select and a sum, for its gradient is again a select: a gather's would be a scatter.
        is_chosen = _actions_first(_one_hot(x, len(shifted)), shifted.ndim - 1)
        return jnp.sum(jnp.where(is_chosen, shifted, 0.0), axis=0) - log_total, in_range(x, len(shifted))

    def _log_weights(self, batch_ndim: int = 0) -> tuple[Array, Array]:
        """Return logits less the greatest of them, [n, ...], and the logarithm of the sum of their exponentials, [...].

        Their difference is the log-probability. They have `batch_ndim` batch axes or more.
        """
        logits = _actions_first(parameter(logits=self.logits), batch_ndim)
        shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=0))
        return shifted, jnp.log(jnp.sum(jnp.exp(shifted), axis=0))


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
        """[..., parts] -> [...]; NaN where one of the parts' choices does not exist."""
        batch = self.logits[0].shape[:-1]
        same_last_axis(x=jnp.shape(x), parts=(*batch, len(self.logits)))
        log_probs, exist = zip(
            *(part._log_prob_and_exists(x[..., i]) for i, part in enumerate(self.parts)), strict=True
        )
        # One select for all: where a part is none, the others get no gradient either.
        return jnp.where(functools.reduce(jnp.logical_and, exist), _sum(log_probs), jnp.nan)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-probability."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """In nats, summed over the parts, [...]."""
        return _sum(part.entropy() for part in self.parts)

    def kl(self, other: "MultiCategorical") -> Array:
        """KL(self || other), summed over the parts, [...]."""
        sizes, others = ([part.shape[-1] for part in d.logits] for d in (self, other))
        if sizes != others:
            raise ValueError(f"self has parts of {sizes} and other of {others} choices; they must be equal.")
        return _sum(p.kl(q) for p, q in zip(self.parts, other.parts, strict=True))


def masked(distribution: T, mask: Array) -> T:
    """Restrict a distribution to legal actions: the others have probability 0 and get no gradient.

    The logit of an illegal action may be any number, NaN included. Where no action is legal, all are taken to
    be equally likely.

    Args:
      mask: True (or not 0) where legal, [..., n]; of a MultiCategorical [..., sum(n_i)], the
        parts' one after the other.
    Raises:
      ValueError: the mask's last axis is not as long as there are logits.
    """
    parts = distribution.logits if isinstance(distribution, MultiCategorical) else (distribution.logits,)
    sizes = [part.shape[-1] for part in parts]
    masks = jnp.split(_boolean_mask(mask, sum(sizes)), np.cumsum(sizes)[:-1].tolist(), axis=-1)
    legal = tuple(_legal_logits(m, parameter(logits=part)) for m, part in zip(masks, parts, strict=True))
    if isinstance(distribution, MultiCategorical):
        return MultiCategorical(legal)
    return Categorical(legal[0])


class EpsilonGreedy(NamedTuple):
    """The best action, but with probability ε any legal one: int32 [...].

        π(a) = ε / number of legal actions + (1 - ε) / number of best actions, where a is one of the best

    The best are the legal actions of the highest value; where several have it they share 1 - ε equally, and
    all do where a value is NaN or no action is legal (then as if all were). Values get no gradient, ε does.

    Source: Sutton and Barto 2018, "Reinforcement Learning", section 2.2.
    """

    values: Array  # [..., n]; an illegal action's may be any number, NaN included
    epsilon: Array | float  # in [0, 1], a number or [...]
    mask: Array | None = None  # True (or not 0) where legal, [..., n]; None: everywhere

    def sample(self, key: Array) -> Array:
        """An action, [...], at one uniform number for each batch entry."""
        return self.categorical.sample(key)

    def mode(self) -> Array:
        """The best action, the first of equals, for any ε, [...]."""
        return jnp.argmax(self._legal_and_best[1], axis=-1).astype(jnp.int32)

    def log_prob(self, x: Array) -> Array:
        """[...] -> [...]; -inf of actions that are never taken, NaN where x is none of 0..n-1."""
        return self.categorical.log_prob(x)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-probability."""
        return self.categorical.sample_and_log_prob(key)

    def entropy(self) -> Array:
        """In nats, [...]."""
        return self.categorical.entropy()

    def kl(self, other: "EpsilonGreedy") -> Array:
        """KL(self || other), [...]; infinite where self takes actions that other never does."""
        return self.categorical.kl(other.categorical)

    @property
    def categorical(self) -> Categorical:
        """Return the same distribution as a Categorical with its log-probabilities."""
        legal, best = self._legal_and_best
        if isinstance(self.epsilon, int | float) and not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon={self.epsilon} must be between 0 and 1.")
        real(epsilon=jnp.asarray(self.epsilon))
        broadcast_shape(epsilon=jnp.shape(self.epsilon), batch=best.shape[:-1])
        epsilon = widen(self.epsilon)[..., None]
        probabilities = epsilon * _uniform_over(legal) + (1.0 - epsilon) * _uniform_over(best)
        possible = probabilities > 0
        return Categorical(jnp.where(possible, jnp.log(jnp.where(possible, probabilities, 1.0)), -jnp.inf))

    @property
    def _legal_and_best(self) -> tuple[Array, Array]:
        values = jax.lax.stop_gradient(parameter(values=self.values))
        legal = jnp.ones(values.shape, bool)
        if self.mask is not None:
            legal = jnp.broadcast_to(_boolean_mask(self.mask, values.shape[-1]), values.shape)
            legal |= ~jnp.any(legal, axis=-1, keepdims=True)
        highest = jnp.max(jnp.where(legal, values, -jnp.inf), axis=-1, keepdims=True)
        return legal, legal & ~(values < highest)  # and not >=, which would hold for none where one is NaN


class DiscreteValued(NamedTuple):
    """A number that is one of n atoms: float32 [...]. What a distributional critic predicts.

    Several atoms may have the same value; entropy and KL are then those of which atom it is.

    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", section 4.
    """

    logits: Array  # [..., n], not normalised
    atoms: Array  # the support, [n] or [..., n]

    def sample(self, key: Array) -> Array:
        """One of the atoms, [...]; differentiable in the atoms, not in the logits."""
        return self._atom(self._categorical.sample(key))

    def mode(self) -> Array:
        """The likeliest atom, the first of equals, [...]."""
        return self._atom(self._categorical.mode())

    def log_prob(self, x: Array) -> Array:
        """[...] -> [...]: -inf unless x is exactly one of the atoms."""
        real(x=x)
        atoms, log_probabilities = self._support, jax.nn.log_softmax(self._categorical.logits)
        broadcast_shape(x=jnp.shape(x), batch=jnp.shape(log_probabilities)[:-1])
        equal = widen(x)[..., None] == atoms
        is_atom = jnp.any(equal, axis=-1)
        read = equal | ~is_atom[..., None]  # all where there is none, so that the gradient is 0 and not NaN
        chosen = jax.nn.logsumexp(jnp.where(read, log_probabilities, -jnp.inf), axis=-1)
        return jnp.where(is_atom, chosen, -jnp.inf)

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An atom and its log-probability."""
        x = self.sample(key)
        return x, self.log_prob(x)

    def entropy(self) -> Array:
        """In nats, [...]."""
        return self._categorical.entropy()

    def kl(self, other: "DiscreteValued") -> Array:
        """KL(self || other), [...], for equal atoms."""
        return self._categorical.kl(other._categorical)

    def mean(self) -> Array:
        """[...]: what an agent acts on."""
        return jnp.sum(jax.nn.softmax(parameter(logits=self.logits)) * self._support, axis=-1)

    def variance(self) -> Array:
        """[...]."""
        probabilities = jax.nn.softmax(parameter(logits=self.logits))
        mean = jnp.sum(probabilities * self._support, axis=-1, keepdims=True)
        return jnp.sum(probabilities * jnp.square(self._support - mean), axis=-1)

    @property
    def _categorical(self) -> Categorical:
        return Categorical(jnp.broadcast_to(parameter(logits=self.logits), self._shape))

    @property
    def _support(self) -> Array:
        return jnp.broadcast_to(parameter(atoms=self.atoms), self._shape)

    @property
    def _shape(self) -> tuple[int, ...]:
        return common_shape(logits=jnp.shape(self.logits), atoms=jnp.shape(self.atoms))

    def _atom(self, index: Array) -> Array:
        return jnp.sum(jnp.where(_one_hot(index, self.logits.shape[-1]), self._support, 0.0), axis=-1)


def _actions_first(x: Array, batch_ndim: int = 0) -> Array:
    """Move the actions first, [..., n] -> [n, ...], with at least `batch_ndim` batch axes for broadcasting.

    Sums over the actions are then sums of whole batches, which XLA fuses with their inputs. Over a last axis
    of a few entries each sum is a kernel of its own on a CPU: a minibatch's loss takes twice as long.
    """
    missing = max(0, batch_ndim - (x.ndim - 1))
    return jnp.expand_dims(jnp.moveaxis(x, -1, 0), tuple(range(1, 1 + missing)))


def _one_hot(index: Array, n: int) -> Array:
    return jnp.arange(n) == index[..., None]


def _boolean_mask(mask: Array, n: int) -> Array:
    """Return the mask as booleans [..., n]."""
    real(mask=mask)
    if jnp.shape(mask)[-1:] != (n,):
        raise ValueError(f"mask has shape {list(jnp.shape(mask))}; its last axis must be {n} long.")
    return jnp.asarray(mask).astype(bool)


def _legal_logits(mask: Array, logits: Array) -> Array:
    """Return the logits of legal actions and -inf for others; zeros where none is legal."""
    return jnp.where(mask, logits, jnp.where(jnp.any(mask, axis=-1, keepdims=True), -jnp.inf, 0.0))


def _uniform_over(mask: Array) -> Array:
    """Return 1 over the number of those chosen, for each of them; 0 for the others."""
    return mask / jnp.sum(mask, axis=-1, keepdims=True, dtype=jnp.float32)


def _sum(terms: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, terms)


def _masked_product(probability: Array, x: Array) -> Array:
    """Compute p x, and 0 where p is 0 even if x is infinite, in the gradient too."""
    return probability * jnp.where(probability > 0, x, 0.0)


def _inverse_cdf_unrolled(probabilities: Array, uniform: Array) -> Array:
    """Return the first action whose cumulative probability [n, ...] exceeds the share `uniform`, [...]."""
    # Summed one after the other: an action of probability 0 then adds exactly nothing, and is never the first.
    cumulative = list(itertools.accumulate(probabilities))
    threshold = uniform * cumulative[-1] * _BELOW_ONE
    return _sum((c <= threshold).astype(jnp.int32) for c in cumulative)


def _inverse_cdf(probabilities: Array, uniform: Array) -> Array:
    """Compute the same for many actions, by parallel sums, which may round up at an action of probability 0."""
    cumulative = jnp.cumsum(probabilities, axis=0)
    threshold = uniform * cumulative[-1] * _BELOW_ONE
    exceeds = (cumulative > threshold) & (probabilities > 0)
    first = jnp.argmax(exceeds, axis=0)
    likeliest = jnp.argmax(probabilities, axis=0)
    return jnp.where(jnp.any(exceeds, axis=0), first, likeliest).astype(jnp.int32)


_MAX_UNROLLED = 32  # up to this many actions the distribution function is summed one by one
_BELOW_ONE = 1.0 - 2.0**-22  # keeps a uniform number times the total below the total in spite of rounding
