"""Spaces whose bounds are parameters of an environment."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shoal.types.spaces import Box


def bounded_box(high: Sequence[Any], low: Sequence[Any] | None = None) -> Box:
    """Return a box; its bounds are infinite where they are traced, or differ between stacked environments.

    Args:
      low: by default `-high`.
    """
    low = [-x for x in high] if low is None else low
    return Box([_bound(x, -np.inf) for x in low], [_bound(x, np.inf) for x in high])


def _bound(value: Any, unknown: float) -> float:
    is_known = not isinstance(value, jax.core.Tracer) and np.ndim(value) == 0
    return float(value) if is_known else unknown
