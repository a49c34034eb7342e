"""Target networks: slowly updated copies of a network, from which a loss computes its targets."""

import jax
import jax.numpy as jnp
import optax

from shoal.base.errors import ShoalError
from shoal.config.struct import named_leaves
from shoal.types import PyTree

Array = jax.Array


def make_target(network: PyTree) -> PyTree:
    """Return a first target network: a copy of the network in arrays of its own.

    A learner that contains the same array twice cannot be donated to a compiled function.
    """
    return jax.tree.map(jnp.copy, network)


def polyak(target: PyTree, network: PyTree, tau: Array | float) -> PyTree:
    """Move the target towards the network: `θ' ← τ θ + (1 - τ) θ'`.

    Args:
      tau: τ, from 0 (the target does not change) to 1 (it becomes the network); 0.005 is usual.
    Raises:
      ShoalError: the two differ in structure or shapes, or τ is outside of 0 to 1.
    Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging"; Lillicrap
    et al. 2016, "Continuous Control with Deep Reinforcement Learning", algorithm 1, for target networks.
    """
    _check_alike(target, network)
    if not isinstance(tau, jax.core.Tracer) and not 0.0 <= float(tau) <= 1.0:
        raise ShoalError(f"tau={tau} of a target network must be between 0 and 1, such as 0.005.")
    return optax.incremental_update(network, target, tau)


def periodic(target: PyTree, network: PyTree, step: Array | int, period: Array | int) -> PyTree:
    """Return the network if `step` is a multiple of the period, else the target.

    Raises:
      ShoalError: the two differ in structure or shapes, or the period is below 1.
    Source: Mnih et al. 2015, "Human-Level Control through Deep Reinforcement Learning", algorithm 1.
    """
    _check_alike(target, network)
    if not isinstance(period, jax.core.Tracer) and not int(period) >= 1:
        raise ShoalError(f"period={period} of a target network must be 1 or more updates.")
    return optax.periodic_update(network, target, step, period)


def _check_alike(target: PyTree, network: PyTree) -> None:
    theirs, ours = named_leaves(target), named_leaves(network)
    if jax.tree.structure(target) != jax.tree.structure(network):  # type: ignore[operator]
        unmatched = sorted(theirs.keys() ^ ours.keys())
        example = f", such as {unmatched[0]!r}" if unmatched else ""
        raise ShoalError(
            f"target and network must be equal in structure, but their structures differ{example}."
        )
    for name, leaf in ours.items():
        if jnp.shape(leaf) != jnp.shape(theirs[name]):
            raise ShoalError(
                f"target and network must be equal in shape, but {name!r} has shape {jnp.shape(theirs[name])} in "
                f"the target and {jnp.shape(leaf)} in the network."
            )
