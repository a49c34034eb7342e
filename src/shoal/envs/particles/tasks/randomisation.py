"""Parameters that are drawn again in every episode."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.arguments import short_repr
from shoal.config.struct import is_traced
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
    """Convert the value of a parameter to a distribution: a number, two of them, or a distribution.

    Raises:
      ShoalError: it is none of these, or the ends are in the wrong order.
    """
    is_row = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)
    ends = tuple(value) if is_row else (value, value)
    if len(ends) != 2 or not all(_is_number(x) for x in ends):
        given = short_repr(list(value) if is_row else value)
        raise ShoalError(
            f"{name}={given} is neither a number nor a range [low, high] of two numbers; give such as 1.0 "
            "or [1.0, 2.0]."
        )
    low, high = ends
    if not is_traced(low, high) and np.any(np.asarray(low) > np.asarray(high)):
        raise ShoalError(f"{name}=[{low:g}, {high:g}] is not a range: its low must be at most its high.")
    return Uniform(low, high)


def _is_number(x: object) -> bool:
    """Report whether a value is a number, or an array of numbers, as that of several worlds is."""
    if hasattr(x, "dtype"):
        return np.issubdtype(x.dtype, np.integer) or np.issubdtype(x.dtype, np.floating)
    return isinstance(x, int | float) and not isinstance(x, bool)
