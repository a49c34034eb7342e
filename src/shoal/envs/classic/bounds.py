"""Bounds of spaces that are parameters of an environment."""

import jax
import numpy as np

from shoal.types import Array


def bound_of(parameter: Array | float, unknown: float = np.inf) -> float:
    """Return a parameter as a bound; `unknown` where it is traced, or differs between stacked environments."""
    is_known = isinstance(parameter, int | float | np.ndarray | np.generic | jax.Array)
    is_known = is_known and not isinstance(parameter, jax.core.Tracer) and np.ndim(parameter) == 0
    return float(parameter) if is_known else unknown
