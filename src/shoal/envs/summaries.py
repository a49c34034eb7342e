"""How the entries of `info` are summed up over an episode, as an environment's `info_summaries` say."""

from collections.abc import Mapping

import jax.numpy as jnp

from shoal.errors import ShoalError, nearest
from shoal.types import Array

REDUCTIONS = ("last", "sum", "mean", "max")  # an entry that is not named is "last"

Info = Mapping[str, Array]


def reduction_of(entry: str, summaries: Mapping[str, str]) -> str:
    """How an entry is summed up.

    Raises:
      ShoalError: in a way that there is not.
    """
    reduction = summaries.get(entry, "last")
    if reduction not in REDUCTIONS:
        raise ShoalError(
            f"info_summaries[{entry!r}] is {reduction!r}; 'last', 'sum', 'mean' or 'max' would be right"
            f"{nearest(str(reduction), REDUCTIONS)}"
        )
    return reduction


def initial(info: Info, summaries: Mapping[str, str]) -> dict[str, Array]:
    """The sums of episodes without a step; what is added up is float32, so that yes and yes are two.

    Raises:
      ShoalError: an entry is to be summed up in a way that there is not.
    """
    for entry in summaries:
        reduction_of(entry, summaries)

    def zero(entry: str, x: Array) -> Array:
        is_added = reduction_of(entry, summaries) in ("sum", "mean")
        return jnp.zeros_like(x, jnp.float32 if is_added else None)

    return {entry: zero(entry, x) for entry, x in info.items()}


def accumulate(sums: Info, info: Info, summaries: Mapping[str, str], first: Array) -> dict[str, Array]:
    """The sums with one more step; `first` where it is an episode's first, of the entries' leading axes."""

    def add(entry: str, sums: Array, new: Array) -> Array:
        reduction = reduction_of(entry, summaries)
        if reduction == "last":
            return new.astype(sums.dtype)
        if reduction == "max":
            return jnp.where(_expand_like(first, new), new, jnp.maximum(sums, new))
        return sums + new  # sum; a mean is divided by the length at the end

    return {entry: add(entry, x, info[entry]) for entry, x in sums.items()}


def finalise(sums: Info, summaries: Mapping[str, str], length: Array) -> dict[str, Array]:
    """The sums, with those that are declared means divided by the steps of the episodes."""
    steps = jnp.maximum(length, 1.0)
    return {
        entry: x / _expand_like(steps, x) if reduction_of(entry, summaries) == "mean" else x
        for entry, x in sums.items()
    }


def _expand_like(x: Array, other: Array) -> Array:
    """An array of the leading axes of another, with axes of length 1 for the rest."""
    return x.reshape(x.shape + (1,) * (other.ndim - x.ndim))
