"""Conversion of the values of several agents to those of their team."""

import jax.numpy as jnp

from shoal.base.errors import ShoalError, nearest
from shoal.types import TEAM_RETURNS, Array, Environment


def team_return_of(environment: Environment) -> str:
    """Return the convention of an environment; "" for one agent.

    Raises:
      ShoalError: there is no such convention.
    """
    if environment.num_agents == 1:
        return ""
    declared = getattr(environment, "team_return", "sum")
    if declared not in TEAM_RETURNS:
        raise ShoalError(
            f"team_return={declared!r} of {type(environment).__name__} is neither 'sum' nor 'mean'"
            f"{nearest(str(declared), TEAM_RETURNS)}."
        )
    return declared


def of_team(environment: Environment, x: Array) -> Array:
    """Reduce a number per agent, [..., A], to one for the team, [...]; with one agent it is unchanged."""
    convention = team_return_of(environment)
    if not convention:
        return x
    return jnp.sum(x, axis=-1) if convention == "sum" else jnp.mean(x, axis=-1)


def zeros(environment: Environment, count: int) -> Array:
    """Return a zero for each environment, or for each agent of each: [N] or [N, A]."""
    return jnp.zeros(count if environment.num_agents == 1 else (count, environment.num_agents))
