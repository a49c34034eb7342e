"""Distributions of distrax and tensorflow-probability with the methods of Shoal's own; neither package is imported.

They are recognised by `sample(seed=)` and `log_prob`. Theirs are also `entropy`, `mode` and `kl_divergence`, and raise
NotImplementedError where there is no closed form.
"""

import dataclasses
import inspect
from typing import Any

import jax
import jax.numpy as jnp

from shoal.ops.distributions.continuous import Beta, TanhNormal

Array = jax.Array


def is_foreign(x: object) -> bool:
    """Report whether this is a distribution whose samples are drawn by `sample(seed=)`."""
    sample = getattr(x, "sample", None)
    return callable(sample) and hasattr(x, "log_prob") and "seed" in inspect.signature(sample).parameters


def adapted(distribution: Any) -> Any:
    """Return another package's distribution with Shoal's methods, and everything else as it is.

    A Beta becomes Shoal's own of its parameters on [-1, 1].
    """
    if not is_foreign(distribution):
        return distribution
    if _is_a(_within(distribution), "Beta"):
        beta = _within(distribution)
        # distrax and tensorflow-probability name them differently.
        names = ("alpha", "beta") if hasattr(beta, "alpha") else ("concentration1", "concentration0")
        one, other = jnp.broadcast_arrays(*(getattr(beta, x) for x in names))
        return Beta(one, other, low=-1.0, high=1.0)
    return Foreign(distribution)


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Another package's distribution: one action for each batch entry, int32 [...] or a vector of numbers [..., n].

    Entries of a vector that are events by themselves, as those of a Normal [..., n], are independent: their
    log-probabilities are summed. A distribution transformed by a bijector, without an entropy of its own, has raw
    methods as `TanhNormal`: the raw sample is that of the base distribution, so the bijector must be fixed.

    It is no pytree: theirs may hold arrays without batch axes, which cannot be indexed or stacked with the others.
    """

    distribution: Any
    is_step: bool = False  # whether its first axis, of length 1, is time, which results do not have

    def sample_raw(self, key: Array) -> Array:
        """Sample before the bijectors, [...] or [..., n]."""
        return self._result(_numbers(self._base.sample(seed=key)))

    def mode_raw(self) -> Array:
        """Return the mode of the base distribution."""
        return self._result(_numbers(self._base.mode()))

    def from_raw(self, raw: Array) -> Array:
        """Return the action of a raw sample."""
        return self._result(self._transform(self._argument(raw))[0])

    def log_prob_raw(self, raw: Array) -> Array:
        """Log-probability (density) of the action with this raw sample, [...]."""
        return self._result(self._log_prob(self._argument(raw)))

    def sample(self, key: Array) -> Array:
        """An action."""
        return self.from_raw(self.sample_raw(key))

    def mode(self) -> Array:
        """The action of the base distribution's mode."""
        return self.from_raw(self.mode_raw())

    def log_prob(self, x: Array) -> Array:
        """Log-probability (density) of actions, [...], by the distribution's own inverse of its bijectors."""
        x = self._argument(x)
        return self._result(_summed(self.distribution, self.distribution.log_prob(x), x))

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """An action and its log-probability."""
        raw = self.sample_raw(key)
        return self.from_raw(raw), self.log_prob_raw(raw)

    def entropy(self) -> Array:
        """In nats, [...]; where there is no closed form that of `TanhNormal`, or an estimate by one sample.

        The sample is differentiable where the distribution's are; its key is made of the distribution's own numbers.
        """
        base, layers = self._base, self._layers
        entropy = _entropy(base)
        if entropy is not None and not layers:
            return self._result(_summed(base, entropy, base.mode()))
        if len(layers) == 1 and _is_tanh(layers[0].bijector) and _is_a(_within(base), *_NORMALS):
            return self._result(TanhNormal(base.mean(), base.stddev()).entropy_estimate())
        # Another draw for other parameters, so that no gradient step has the same noise as the one before.
        key = jax.random.key(0)
        number = jax.lax.stop_gradient(jnp.sum(base.sample(seed=key), dtype=jnp.float32))
        x = base.sample(seed=jax.random.fold_in(key, jax.lax.bitcast_convert_type(number, jnp.uint32)))
        if entropy is None:
            return self._result(-self._log_prob(x))
        return self._result(_summed(base, entropy, x) + self._transform(x)[1])

    def kl(self, other: "Foreign") -> Array:
        """KL(self || other), [...], for equal bijectors: that of the base distributions."""
        base = self._base
        return self._result(_summed(base, base.kl_divergence(other._base), base.mode()))

    @property
    def has_bijectors(self) -> bool:
        """Whether raw samples differ from actions."""
        return bool(self._layers)

    @property
    def _base(self) -> Any:
        return self._layers[0].distribution if self._layers else self.distribution

    @property
    def _layers(self) -> list[Any]:
        """The transformed distributions, from the innermost; one with an entropy of its own is as it is."""
        layers, inner = [], self.distribution
        while _entropy(inner) is None and (_is_transformed(inner) or hasattr(inner, _INDEPENDENT)):
            layers += [inner] if _is_transformed(inner) else []
            inner = inner.distribution
        return layers[::-1]

    def _transform(self, x: Array) -> tuple[Array, Array]:
        """Return the action of a raw sample, and the logarithm of the transformation's Jacobian determinant."""
        log_det = jnp.zeros(())
        for layer in self._layers:
            function = layer.bijector.forward_log_det_jacobian
            takes_size = "event_ndims" in inspect.signature(function).parameters
            size = {"event_ndims": len(layer.distribution.event_shape)} if takes_size else {}
            log_det = log_det + _summed(layer.distribution, function(x, **size), x)
            x = layer.bijector.forward(x)
        return x, log_det

    def _log_prob(self, raw: Array) -> Array:
        return _summed(self._base, self._base.log_prob(raw), raw) - self._transform(raw)[1]

    def _argument(self, x: Array) -> Array:
        return x[None] if self.is_step else x

    def _result(self, x: Array) -> Array:
        return x[0] if self.is_step else x


_NORMALS = ("Normal", "MultivariateNormalDiag")
_INDEPENDENT = "reinterpreted_batch_ndims"


def _is_a(x: object, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(x).__mro__)


def _is_tanh(bijector: Any) -> bool:
    # distrax's Block applies it to a vector.
    return _is_a(bijector._bijector if _is_a(bijector, "Block") else bijector, "Tanh")


def _is_transformed(distribution: Any) -> bool:
    return hasattr(distribution, "bijector") and hasattr(distribution, "distribution")


def _within(distribution: Any) -> Any:
    """Return the distribution within an Independent."""
    return _within(distribution.distribution) if hasattr(distribution, _INDEPENDENT) else distribution


def _entropy(distribution: Any) -> Array | None:
    """Return the entropy, None where there is no closed form."""
    try:
        entropy: Array = distribution.entropy()
    except NotImplementedError:
        return None
    return entropy


def _numbers(x: Array) -> Array:
    """Convert integers of any width to int32, as actions are; several samples, of a joint distribution, stay."""
    is_integer = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.integer)
    return x.astype(jnp.int32) if is_integer else x


def _summed(distribution: Any, terms: Array, x: Array) -> Array:
    """Sum what there is of each entry of vectors x that are events by themselves."""
    if len(distribution.event_shape) or not jnp.issubdtype(x.dtype, jnp.floating):
        return terms
    return jnp.sum(jnp.broadcast_to(terms, x.shape), axis=-1)
