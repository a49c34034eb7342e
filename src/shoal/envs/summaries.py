"""How the entries of `info` are summed up over an episode, as an environment's `info_summaries` say."""

from collections.abc import Mapping

import jax.numpy as jnp

from shoal.errors import ShoalError, nearest
from shoal.types import Array

SUMMARIES = ("last", "sum", "mean", "max")  # an entry that is not named is "last"

Info = Mapping[str, Array]


def summary_of(entry: str, summaries: Mapping[str, str]) -> str:
    """How an entry is summed up.

    Raises:
      ShoalError: in a way that there is not.
    """
    how = summaries.get(entry, "last")
    if how not in SUMMARIES:
        raise ShoalError(
            f"info_summaries[{entry!r}] is {how!r}; 'last', 'sum', 'mean' or 'max' would be right"
            f"{nearest(str(how), SUMMARIES)}"
        )
    return how


def nothing(info: Info, summaries: Mapping[str, str]) -> dict[str, Array]:
    """The sums of episodes without a step; what is added up is float32, so that yes and yes are two.

    Raises:
      ShoalError: an entry is to be summed up in a way that there is not.
    """
    for entry in summaries:
        summary_of(entry, summaries)

    def empty(entry: str, x: Array) -> Array:
        adds = summary_of(entry, summaries) in ("sum", "mean")
        return jnp.zeros_like(x, jnp.float32 if adds else None)

    return {entry: empty(entry, x) for entry, x in info.items()}


def added(so_far: Info, info: Info, summaries: Mapping[str, str], first: Array) -> dict[str, Array]:
    """The sums with one more step; `first` where it is an episode's first, of the entries' leading axes."""

    def add(entry: str, so_far: Array, now: Array) -> Array:
        how = summary_of(entry, summaries)
        if how == "last":
            return now.astype(so_far.dtype)
        if how == "max":
            return jnp.where(_beside(first, now), now, jnp.maximum(so_far, now))
        return so_far + now  # sum; a mean is divided by the length at the end

    return {entry: add(entry, x, info[entry]) for entry, x in so_far.items()}


def averaged(so_far: Info, summaries: Mapping[str, str], length: Array) -> dict[str, Array]:
    """The sums, with those that are declared means divided by the steps of the episodes."""
    steps = jnp.maximum(length, 1.0)
    return {
        entry: x / _beside(steps, x) if summary_of(entry, summaries) == "mean" else x
        for entry, x in so_far.items()
    }


def _beside(x: Array, other: Array) -> Array:
    """An array of the leading axes of another, with axes of length 1 for the rest."""
    return x.reshape(x.shape + (1,) * (other.ndim - x.ndim))
