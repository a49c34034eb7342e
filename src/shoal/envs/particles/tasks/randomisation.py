"""Parameters that are drawn anew in every episode."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ShoalError
from shoal.types import Array


class Uniform(NamedTuple):
    """A uniform distribution; one number, if both ends are equal."""

    low: float
    high: float

    def draw(self, key: Array, shape: tuple[int, ...] = ()) -> Array:
        """Draw numbers of a shape."""
        fraction = jax.random.uniform(key, shape)
        return self.low + fraction * (jnp.asarray(self.high) - self.low)


def as_uniform(name: str, value: Any) -> Uniform:
    """Return a distribution of what is given for a parameter: a number, two of them, or a distribution.

    Raises:
      ShoalError: the ends are in the wrong order.
    """
    if isinstance(value, tuple | list) and len(value) == 2:
        low, high = value
        if not _is_traced(low, high) and np.any(np.asarray(low) > np.asarray(high)):
            raise ShoalError(
                f"{name}=[{low:g}, {high:g}] is no range: the first end must be at most the second."
            )
        return Uniform(low, high)
    return Uniform(value, value)


def _is_traced(*values: Any) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in values)
