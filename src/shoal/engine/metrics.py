"""Names and shapes of metrics that an algorithm and a user's function may add to Shoal's own."""

from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.types import Mean

# The entries of a row of metrics.jsonl, or of an evaluation, other than its metrics.
RESERVED = frozenset(["kind", "step", "updates", "seed", "train_seconds", "steps_per_second", "score"])


def checked_means(source: str, metrics: Any, own_names: Collection[str]) -> Mapping[str, Mean]:
    """Require that each metric of an algorithm is a `Mean` of scalars under a name that is free.

    Raises:
      ShoalError: one is not; the sentence names the entry.
    """
    _check_names(source, metrics, own_names)
    for name, mean in metrics.items():
        if not isinstance(mean, Mean):
            raise ShoalError(
                f"{source} gives the metric {name!r} as a {type(mean).__name__}; "
                "give shoal.types.Mean(total, weight)."
            )
        _check_number(source, f"{name}.total", mean.total)
        _check_number(source, f"{name}.weight", mean.weight)
    return metrics


def checked_numbers(source: str, metrics: Any, own_names: Collection[str]) -> Mapping[str, Any]:
    """Require that each metric of a user's function is one number under a name that is free.

    Raises:
      ShoalError: one is not; the sentence names the entry.
    """
    _check_names(source, metrics, own_names)
    for name, x in metrics.items():
        _check_number(source, name, x)
    return metrics


def _check_names(source: str, metrics: Any, own_names: Collection[str]) -> None:
    if not isinstance(metrics, Mapping):
        raise ShoalError(f"{source} gives a {type(metrics).__name__}, not a mapping from names to metrics.")
    for name in metrics:
        if not isinstance(name, str):
            raise ShoalError(f"{source} names a metric {name!r}; a name is text.")
        if name in own_names or name in RESERVED:
            raise ShoalError(
                f"{source} gives a metric {name!r}, a name that Shoal uses itself; take another one."
            )


def _check_number(source: str, name: str, x: Any) -> None:
    try:
        if x is None:  # JAX would convert it to NaN
            raise TypeError
        array = jnp.asarray(x)
        shape, dtype = array.shape, array.dtype
    except (TypeError, ValueError):
        raise ShoalError(f"{source} gives {name!r} as a {type(x).__name__}, not as a number.") from None
    is_real = any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
    if shape or not is_real:
        raise ShoalError(f"{source} gives {name!r} of shape {shape} and dtype {dtype}, not as one number.")
