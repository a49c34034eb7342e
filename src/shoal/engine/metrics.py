"""Names and shapes of metrics that an algorithm and a user's function may add to Shoal's own."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax.numpy as jnp

from shoal.types.contract import described, refuse
from shoal.types.metrics import Metric, Metrics

# The entries of a row of metrics.jsonl, or of an evaluation, other than its metrics.
RESERVED = frozenset(
    ["kind", "step", "updates", "evaluation", "seed", "train_seconds", "steps_per_second", "score"]
)


def checked_means(function: Callable, metrics: Any, own_names: Collection[str]) -> Metrics:
    """Require that each metric that an algorithm's function returned is of scalars, and under a name that is free.

    Raises:
      ShoalError: one is not; the sentence names the entry.
    """
    _check_names(function, metrics, own_names)
    for name, x in metrics.items():
        if not isinstance(x, Metric):
            refuse(function, f"the metric {name!r} as {described(x)}", "a shoal.types.Mean(total, weight)")
        for field, number in x._asdict().items():
            _check_number(function, f"{name}.{field}", number)
    return metrics


def checked_numbers(
    function: Callable, metrics: Any, own_names: Collection[str], what: str = "metric"
) -> Mapping[str, Any]:
    """Require that each metric that a user's function returned is one number under a name that is free.

    Raises:
      ShoalError: one is not; the sentence names the entry.
    """
    _check_names(function, metrics, own_names, what)
    for name, x in metrics.items():
        _check_number(function, name, x)
    return metrics


def _check_names(function: Callable, metrics: Any, own_names: Collection[str], what: str = "metric") -> None:
    if not isinstance(metrics, Mapping):
        refuse(function, described(metrics), f"a mapping from names to {what}s")
    for name in metrics:
        if not isinstance(name, str):
            refuse(function, f"a {what} under the name {name!r}", "names that are texts")
        if name in own_names or name in RESERVED:
            is_metric = what == "check" and name in own_names
            taken = "as a metric is named too" if is_metric else "a name that Shoal uses itself"
            refuse(function, f"a {what} {name!r}, {taken}", "it under another one")


def _check_number(function: Callable, name: str, x: Any) -> None:
    try:
        array = None if x is None else jnp.asarray(x)  # JAX would convert None to NaN
    except (TypeError, ValueError):
        array = None
    real = jnp.bool_, jnp.integer, jnp.floating
    if array is None or array.shape or not any(jnp.issubdtype(array.dtype, kind) for kind in real):
        refuse(function, f"{name!r} as {described(x if array is None else array)}", "one number")
