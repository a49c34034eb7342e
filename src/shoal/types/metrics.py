"""The kinds of metrics of an update, which join what they have counted: over updates, devices and sets of agents."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


class Mean(NamedTuple):
    """A weighted mean that is not divided yet, so that means of chunks and devices can be joined.

    Zeros are a mean of nothing, and so it is with the other kinds of metrics.
    """

    total: Array
    weight: Array

    @property
    def value(self) -> Array:
        """The mean; NaN if nothing was counted."""
        return self.total / self.weight

    def joined(self, other: "Mean") -> "Mean":
        """Return the mean of what both have counted."""
        return Mean(self.total + other.total, self.weight + other.weight)


class Deviation(NamedTuple):
    """A standard deviation that is not divided yet, about the mean so far, so that a large mean costs no digits."""

    weight: Array
    mean: Array
    squares: Array  # the sum of the weighted squared distances from the mean

    @property
    def value(self) -> Array:
        """The (biased) standard deviation; NaN if nothing was counted."""
        return (self.squares / self.weight) ** 0.5

    def joined(self, other: "Deviation") -> "Deviation":
        """Return the deviation of what both have counted (Chan, Golub and LeVeque 1983)."""
        weight, distance = self.weight + other.weight, other.mean - self.mean
        share = other.weight / jnp.where(weight > 0, weight, 1.0)
        squares = self.squares + other.squares + distance**2 * self.weight * share
        return Deviation(weight, self.mean + distance * share, squares)


class Greatest(NamedTuple):
    """The greatest of the numbers that were counted."""

    number: Array  # 0 if nothing was counted
    weight: Array

    @property
    def value(self) -> Array:
        """The number; NaN if nothing was counted."""
        return self.number / (self.weight > 0)

    def joined(self, other: "Greatest") -> "Greatest":
        """Return the greatest of what both have counted."""
        chosen = self._chosen(self.number, other.number)
        number = jnp.where(other.weight > 0, jnp.where(self.weight > 0, chosen, other.number), self.number)
        return type(self)(number, self.weight + other.weight)

    def _chosen(self, x: Array, y: Array) -> Array:
        return jnp.maximum(x, y)


class Least(Greatest):
    """The least of the numbers that were counted."""

    def _chosen(self, x: Array, y: Array) -> Array:
        return jnp.minimum(x, y)


Metric = Mean | Deviation | Greatest
Metrics = Mapping[str, Metric]


def joined(metrics: Metrics, other: Metrics) -> dict[str, Metric]:
    """Return the metrics of what two mappings with the same names and kinds have counted together."""
    return {name: metric.joined(other[name]) for name, metric in metrics.items()}  # type: ignore[arg-type]
