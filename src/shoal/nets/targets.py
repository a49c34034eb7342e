"""Target networks: slowly updated copies of a network, from which a loss computes its targets."""

import jax
import jax.numpy as jnp
import optax

from shoal.base.errors import ShoalError
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
      ShoalError: τ is outside of 0 to 1.
    Source: Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging"; Lillicrap
    et al. 2016, "Continuous Control with Deep Reinforcement Learning", algorithm 1, for target networks.
    """
    if not isinstance(tau, jax.core.Tracer) and not 0.0 <= float(tau) <= 1.0:
        raise ShoalError(f"tau={tau} of a target network must be between 0 and 1, such as 0.005.")
    return optax.incremental_update(network, target, tau)


def periodic(target: PyTree, network: PyTree, step: Array | int, period: Array | int) -> PyTree:
    """Return the network if `step` is a multiple of the period, else the target.

    Source: Mnih et al. 2015, "Human-Level Control through Deep Reinforcement Learning", algorithm 1.
    """
    return optax.periodic_update(network, target, step, period)
