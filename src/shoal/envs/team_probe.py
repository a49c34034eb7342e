"""A tiny world of three agents with known values: one ends early, one comes back; two roles, and a hidden state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.types import Array
from shoal.types.spaces import Box, Dict, Discrete

STEPS = 4
ROLES = (0, 0, 1)
# Who takes part at each time-step: the first agent ends with the second step, the second one is away for two steps.
ALIVE = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 1, 1], [0, 0, 0]], bool)
LEGAL = np.array([[1, 1, 0], [0, 1, 1]], bool)  # actions of each role
BEST = np.array([1, 2])  # action of each role


class TeamState(NamedTuple):
    """The number of steps made, and the sign of all rewards, -1 or 1."""

    step: Array
    sign: Array


@environment
class TeamProbe:
    """Four steps of three agents; the reward is 1 for the best action of a role, and the world's hidden sign.

    The sign, -1 or 1, is seen in the global state only: a critic that is not shown it errs by as much. Fails when what
    an absent agent holds is read, when a value is bootstrapped over an absence, or when agents are mixed up.

    Attributes:
      fill: what stands in the place of all numbers of absent agents; NaN shows whether anything reads them.
    """

    fill: float = parameter(0.0)

    observation_space = Dict({"observation": Box(0.0, 1.0, (2,)), "global_state": Box(-1.0, 1.0, (1,))})
    action_space = Discrete(3)
    num_agents = len(ROLES)
    roles = ROLES
    team_return = "sum"
    critic_only = ("global_state",)

    def reset(self, key: Array) -> tuple[TeamState, TimeStep]:
        """Draw the sign."""
        sign = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        state = TeamState(jnp.zeros((), jnp.int32), sign)
        alive = jnp.asarray(ALIVE)[0]
        return state, restart(self._observe(state), num_agents=3, alive=alive, action_mask=self._mask(alive))

    def step(self, state: TeamState, action: Array, key: Array) -> tuple[TeamState, TimeStep]:
        """Reward the agents that take part."""
        before, after = jnp.asarray(ALIVE)[state.step], jnp.asarray(ALIVE)[state.step + 1]
        reward = (action == jnp.asarray(BEST)[jnp.asarray(ROLES)]) + state.sign
        state = TeamState(state.step + 1, state.sign)
        timestep = transition(
            self._observe(state),
            jnp.where(before, reward, self.fill),
            terminated=state.step == STEPS,
            alive=after,
            action_mask=self._mask(after),
        )
        return state, timestep._replace(discount=jnp.where(before | after, timestep.discount, self.fill))

    def value(self, agent: int, step: int, sign: float, gamma: float) -> float:
        """Return the value of an agent that takes part at a step, where all choose the best actions."""
        total, factor = 0.0, 1.0
        while ALIVE[step, agent]:
            total, factor, step = total + factor * (1.0 + sign), factor * gamma, step + 1
        return total

    def _observe(self, state: TeamState) -> dict[str, Array]:
        time = jnp.full(3, state.step / STEPS)
        own = jnp.stack([time, jnp.asarray(ROLES, jnp.float32)], axis=-1)
        alive = jnp.asarray(ALIVE)[state.step]
        return {
            "observation": jnp.where(alive[:, None], own, self.fill),
            "global_state": state.sign[None],
        }

    def _mask(self, alive: Array) -> Array:
        """Return the legal actions of each agent; none are for one that is absent."""
        return jnp.asarray(LEGAL)[jnp.asarray(ROLES)] & alive[:, None]
