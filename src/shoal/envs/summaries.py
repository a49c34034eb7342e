"""Reduction of the entries of `info` over an episode, as an environment's `info_summaries` declare it."""

from collections.abc import Mapping

import jax.numpy as jnp

from shoal.base.errors import ShoalError, nearest
from shoal.types import Array

REDUCTIONS = ("last", "sum", "mean", "max")  # an entry without a declaration is reduced by "last"

Info = Mapping[str, Array]


def initial(info: Info, summaries: Mapping[str, str]) -> dict[str, Array]:
    """Return the sums before the first step; entries that are added are float32, so that booleans are counted.

    Raises:
      ShoalError: the environment declares a reduction that does not exist.
    """
    for entry, reduction in summaries.items():
        if reduction not in REDUCTIONS:
            raise ShoalError(
                f"info_summaries[{entry!r}] is {reduction!r}; 'last', 'sum', 'mean' or 'max' would be right"
                f"{nearest(str(reduction), REDUCTIONS)}"
            )
    added = {entry for entry, reduction in summaries.items() if reduction in ("sum", "mean")}
    return {entry: jnp.zeros_like(x, jnp.float32 if entry in added else None) for entry, x in info.items()}


def accumulate(sums: Info, info: Info, summaries: Mapping[str, str], first: Array) -> dict[str, Array]:
    """Add one step to the sums; `first`, with the entries' leading axes, is true on an episode's first step."""

    def add(entry: str, sums: Array, new: Array) -> Array:
        reduction = summaries.get(entry, "last")
        if reduction == "last":
            return new.astype(sums.dtype)
        if reduction == "max":
            return jnp.where(_expand_like(first, new), new, jnp.maximum(sums, new))
        return sums + new  # "sum", and "mean", which is divided by the length at the end

    return {entry: add(entry, x, info[entry]) for entry, x in sums.items()}


def finalise(sums: Info, summaries: Mapping[str, str], length: Array) -> dict[str, Array]:
    """Return the sums, those that are declared means divided by the number of steps."""
    steps = jnp.maximum(length, 1.0)
    return {
        entry: x / _expand_like(steps, x) if summaries.get(entry) == "mean" else x
        for entry, x in sums.items()
    }


def _expand_like(x: Array, other: Array) -> Array:
    """Append axes of length 1 to an array until it has as many axes as another."""
    return x.reshape(x.shape + (1,) * (other.ndim - x.ndim))
