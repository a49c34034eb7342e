"""Metrics of an update as pairs of a weighted sum and its weight (`Mean`)."""

from collections.abc import Sequence

import jax.numpy as jnp

from shoal.ops import statistics
from shoal.types import Array, Mean


def scalar_mean(x: Array | float) -> Mean:
    """Return a metric of weight 1, with one value per update."""
    return Mean(jnp.asarray(x, jnp.float32), jnp.ones(()))


def moment_metrics(name: str, x: Array, weight: Array, axis: tuple[str, ...]) -> dict[str, Mean]:
    """Return mean and standard deviation of a batch as metrics."""
    mean, variance = statistics.weighted_moments(x, weight, axis_name=axis)
    return {f"{name}_mean": scalar_mean(mean), f"{name}_std": scalar_mean(jnp.sqrt(variance))}


def step_means(steps: dict[str, Array], actors: Sequence[str]) -> dict[str, Mean]:
    """Average the metrics of gradient steps, [steps] each; those of the actor over the steps that updated it."""
    actor_updated = steps["actor_updates"]
    weights = {name: actor_updated if name in actors else jnp.ones_like(actor_updated) for name in steps}
    return {name: Mean(jnp.sum(x * weights[name]), jnp.sum(weights[name])) for name, x in steps.items()}
