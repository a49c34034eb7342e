"""What networks give: distributions over actions, and values."""

from typing import Protocol

import jax

Array = jax.Array


class ActionDistribution(Protocol):
    """A distribution over actions with batch axes [...], as those of `shoal.ops.distributions`."""

    def sample(self, key: Array) -> Array:
        """Draw actions, [...] or [..., n]."""
        ...

    def mode(self) -> Array:
        """Return the most probable actions."""
        ...

    def log_prob(self, x: Array) -> Array:
        """Return the log-probability (density) of actions, [...]."""
        ...


class ValueDistribution(Protocol):
    """A distribution over numbers, [...]."""

    def mean(self) -> Array:
        """Return the numbers that it stands for, [...]."""
        ...


Value = Array | ValueDistribution
