"""A continuous distribution of which some entries do not exist."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Restricted(NamedTuple):
    """Some entries of independent continuous ones: the others are 0 in every sample, and count nowhere.

    So agents of several roles have one action space, of the widest: log-probability, entropy and divergence are those
    of the entries that a role has. Parameters of the others may be anything, NaN included, and get no gradient.
    """

    distribution: Any  # a Normal, or a TanhNormal or Beta with bounds that are numbers; [..., n]
    mask: Array  # whether there is the entry, [..., n]

    @property
    def loc(self) -> Array:
        """The means of a Normal, or of the Normal in a TanhNormal; 0 where there is no entry."""
        return jnp.where(self.mask, self.distribution.loc, 0.0)

    @property
    def scale(self) -> Array:
        """The standard deviations of the same; 0 where there is no entry."""
        return jnp.where(self.mask, self.distribution.scale, 0.0)

    def sample_raw(self, key: Array) -> Array:
        """Sample, before a TanhNormal squashes it, [..., n]."""
        # Of a Normal and a Beta the sample itself is raw.
        sample = getattr(self.distribution, "sample_raw", self.distribution.sample)
        return jnp.where(self.mask, sample(key), 0.0)

    def mode_raw(self) -> Array:
        """Return the mode, before a TanhNormal squashes it, [..., n]."""
        return jnp.where(self.mask, getattr(self.distribution, "mode_raw", self.distribution.mode)(), 0.0)

    def from_raw(self, raw: Array) -> Array:
        """Return the action of a raw sample, [..., n]: what a TanhNormal makes of it, or itself."""
        return jnp.where(self.mask, getattr(self.distribution, "from_raw", lambda x: x)(raw), 0.0)

    def log_prob_raw(self, raw: Array) -> Array:
        """Log-density of the entries that there are, [..., n] -> [...]."""
        entries = self._entries
        return self._sum(getattr(entries, "log_prob_raw", entries.log_prob)(raw[..., None]))

    def sample(self, key: Array) -> Array:
        """Return the same as `sample_raw`."""
        return self.sample_raw(key)

    def mode(self) -> Array:
        """Return the same as `mode_raw`."""
        return self.mode_raw()

    def log_prob(self, x: Array) -> Array:
        """Return the same as `log_prob_raw`."""
        return self.log_prob_raw(x)

    def entropy(self) -> Array:
        """Differential entropy in nats of the entries that there are, [...]; an estimate for a TanhNormal."""
        entries = self._entries
        return self._sum(
            entries.entropy_estimate() if hasattr(entries, "entropy_estimate") else entries.entropy()
        )

    def kl(self, other: "Restricted") -> Array:
        """KL(self || other) of the entries that there are, [...]; both have the same ones."""
        return self._sum(self._entries.kl(other._entries))

    @property
    def _entries(self) -> Any:
        """One distribution for each entry, [..., n] of one number; a harmless one where there is none."""
        return jax.tree.map(
            lambda x: jnp.where(self.mask, jnp.broadcast_to(x, self.mask.shape), 1.0)[..., None],
            self.distribution,
        )

    def _sum(self, x: Array) -> Array:
        return jnp.sum(jnp.where(self.mask, x, 0.0), axis=-1)
