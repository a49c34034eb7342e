"""Metrics of an update as pairs of a weighted sum and its weight (`Mean`)."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from shoal.ops import statistics
from shoal.types import CLIPPING, Array, Checks, Mean, Metrics

CUT = 0.01  # the least share of a target beyond a bound for which the target counts as cut there


def scalar_mean(x: Array | float) -> Mean:
    """Return a metric of weight 1, with one value per update."""
    return Mean(jnp.asarray(x, jnp.float32), jnp.ones(()))


def learned_means(learned: Sequence[Array]) -> dict[str, Mean]:
    """Return the means of the `LEARNED` over what they are of, such as epochs; () where the steps have them."""
    return {name: scalar_mean(jnp.mean(x)) for name, x in zip(LEARNED, learned, strict=False)}


def moment_metrics(name: str, x: Array, weight: Array, axis: tuple[str, ...]) -> dict[str, Mean]:
    """Return mean and standard deviation of a batch as metrics."""
    mean, variance = statistics.weighted_moments(x, weight, axis_name=axis)
    return {f"{name}_mean": scalar_mean(mean), f"{name}_std": scalar_mean(jnp.sqrt(variance))}


LEARNED = ("loss_target_mean", "loss_target_std", "loss_advantage_mean", "loss_advantage_std")


def learned_moments(axis: tuple[str, ...], *weighted: tuple[Array, Array]) -> list[Array]:
    """Return the `LEARNED`: moments of targets and advantages as the loss has them, each given with its weights."""
    moments = [statistics.weighted_moments(x, weight, axis_name=axis) for x, weight in weighted]
    return [x for mean, variance in moments for x in (mean, jnp.sqrt(variance))]


def clipping_metrics(
    x: Array,
    mass: Array,
    needed: Array,
    atoms: Array,
    weight: Array,
    axis: tuple[str, ...],
) -> dict[str, Mean]:
    """Measure the share of targets that lies beyond the bounds of a distribution, and is learned as the bound.

    Args:
      x, mass: the targets' atoms and their probabilities, [..., m].
      needed: the bound that would hold a target, [...].
      atoms: those of the distribution that is learned.
    Returns:
      `clipped_mass`, the share; `clipped_low` and `clipped_high`, the bounds that would hold all targets that are cut
      at either end; of no weight where none is.
    """
    low, high = jnp.min(atoms), jnp.max(atoms)
    slack = 1e-5 * (high - low)  # for rounding

    def share_of(is_beyond: Array) -> Array:
        return jnp.where(weight > 0, jnp.sum(jnp.where(is_beyond, mass, 0.0), axis=-1), 0.0)

    below, above = share_of(x < low - slack), share_of(x > high + slack)
    least = jnp.min(jnp.where(below > CUT, needed, jnp.inf))
    greatest = jnp.max(jnp.where(above > CUT, needed, -jnp.inf))
    total, count = jnp.sum(below + above), jnp.sum(jnp.where(weight > 0, 1.0, 0.0))
    if axis:
        total, count = jax.lax.psum((total, count), axis)
        least, greatest = jax.lax.pmin(least, axis), jax.lax.pmax(greatest, axis)

    def where_finite(bound: Array) -> Mean:
        return Mean(jnp.where(jnp.isfinite(bound), bound, 0.0), jnp.isfinite(bound).astype(jnp.float32))

    metrics = Mean(total, count), where_finite(least), where_finite(greatest)
    return dict(zip(CLIPPING, metrics, strict=True))


def step_means(steps: dict[str, Array], actors: Sequence[str]) -> dict[str, Mean]:
    """Average the metrics of gradient steps, [steps] each; those of the actor over the steps that updated it."""
    actor_updated = steps["actor_updates"]
    weights = {name: actor_updated if name in actors else jnp.ones_like(actor_updated) for name in steps}
    return {name: Mean(jnp.sum(x * weights[name]), jnp.sum(weights[name])) for name, x in steps.items()}


def find_not_finite(metrics: Metrics, steps: Mapping[str, Array]) -> Checks:
    """Report which quantities of an update are not finite; `steps` are the metrics of all gradient steps."""
    loss = steps["policy_loss"] + steps["value_loss"] + steps["entropy"]
    return {
        "advantage": ~jnp.isfinite(metrics["advantage_mean"].value),
        "loss": ~jnp.all(jnp.isfinite(loss)),
        "gradient": ~jnp.all(jnp.isfinite(steps["grad_norm"])),
    }
