"""Rewards of several agents: whose count, and what they make together."""

import jax.numpy as jnp

from shoal.errors import ShoalError, nearest
from shoal.types import TEAM_RETURNS, Array, Environment, TimeStep


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
    """Join a number of each agent, [..., A], to that of the team, [...]; of one agent it is the same."""
    convention = team_return_of(environment)
    if not convention:
        return x
    return jnp.sum(x, axis=-1) if convention == "sum" else jnp.mean(x, axis=-1)


def counted_reward(timestep: TimeStep, before: TimeStep) -> Array:
    """Return the rewards of a step, 0 for agents that took no part in it: whose do not count, whatever they are.

    Args:
      timestep: after the step.
      before: the time-step at which the agents acted.
    """
    return timestep.reward if before.alive is None else jnp.where(before.alive, timestep.reward, 0.0)


def zeros(environment: Environment, count: int) -> Array:
    """Return a zero for each environment, or for each agent of each: [N] or [N, A]."""
    return jnp.zeros(count if environment.num_agents == 1 else (count, environment.num_agents))
