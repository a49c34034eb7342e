"""Metrics of an update, as means that are not divided yet."""

from collections.abc import Sequence

import jax.numpy as jnp

from shoal.ops import statistics
from shoal.types import Array, Mean


def once(x: Array) -> Mean:
    """A metric counted once an update."""
    return Mean(jnp.asarray(x, jnp.float32), jnp.ones(()))


def moments_of(name: str, x: Array, weight: Array, axis: tuple[str, ...]) -> dict[str, Mean]:
    """Mean and standard deviation of a batch as metrics."""
    mean, variance = statistics.weighted_moments(x, weight, axis_name=axis)
    return {f"{name}_mean": once(mean), f"{name}_std": once(jnp.sqrt(variance))}


def summed(steps: dict[str, Array], actors: Sequence[str]) -> dict[str, Mean]:
    """Metrics of an update's gradient steps, [steps] each; those of the actor count where it was updated."""
    on = steps["actor_updates"]
    weights = {name: on if name in actors else jnp.ones_like(on) for name in steps}
    return {name: Mean(jnp.sum(x * weights[name]), jnp.sum(weights[name])) for name, x in steps.items()}
