"""The common part of all particle worlds: time-steps, spaces and the observation of the whole world."""

import abc
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.mpe import particles
from shoal.types import GLOBAL_STATE, OBSERVATION, Array, State
from shoal.types.spaces import Box, Dict, Discrete
from shoal.xla.batch_last import batch_last


@environment
class ParticleWorld(abc.ABC):
    """The base class of the particle worlds; a task defines its start, its step, its observations and its picture.

    With `global_state` the observation is a dictionary: "observation" is each agent's own, and "global_state" that of
    the whole world, without an axis of agents, which only a critic is shown.
    """

    damping: float = parameter(default=0.25, low=0, high=1)  # fraction of the velocity that is lost in a step
    time_step: float = parameter(default=0.1, above=0)
    global_state: bool = False

    action_space = Discrete(len(particles.MOVES))  # stay, left, right, down, up
    info_summaries: ClassVar[Mapping[str, str]]
    frames_per_second = 10

    @property
    def observation_space(self) -> Box | Dict:
        """A vector, and also the one of the whole world if a critic is shown it."""
        own = Box(-np.inf, np.inf, (self.observation_size,))
        if not self.global_state:
            return own
        return Dict({OBSERVATION: own, GLOBAL_STATE: Box(-np.inf, np.inf, (self.global_state_size,))})

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The vector of the whole world, if there is one."""
        return (GLOBAL_STATE,) if self.global_state else ()

    @property
    @abc.abstractmethod
    def num_agents(self) -> int:
        """The number of agents, 2 or more."""

    @property
    @abc.abstractmethod
    def observation_size(self) -> int:
        """The number of entries of an agent's observation, the widest of all roles."""

    @property
    @abc.abstractmethod
    def global_state_size(self) -> int:
        """The number of entries of the vector of the whole world."""

    @abc.abstractmethod
    def start(self, key: Array) -> State:
        """Draw the state in which an episode starts."""

    @abc.abstractmethod
    def advance(self, state: State, action: Array) -> State:
        """Make one step from a state by the actions of all agents, [A, ...].

        As for all functions of physics, arrays may have further axes at their end; so may the parameters.
        """

    @abc.abstractmethod
    def rewards(self, state: State) -> tuple[Array, Mapping[str, Array]]:
        """Return the reward of each agent for reaching a state, [A, ...], and the entries of `info`, float32.

        Arrays may have further axes at their end, as in `advance`.
        """

    @abc.abstractmethod
    def observe(self, state: State) -> Array:
        """Return the observation of each agent, [A, observation_size]."""

    def observe_world(self, state: State) -> Array:
        """Return the vector of the whole world, [global_state_size]: all entries of the state."""
        return jnp.concatenate([x.reshape(-1) for x in state])

    def moved(self, state: State, force: Array) -> tuple[Array, Array]:
        """Return the positions and velocities, [A, 2, ...], after one time step under the forces on the agents."""
        return particles.move(state.position, state.velocity, force, self.damping, self.time_step)

    def legal_actions(self) -> np.ndarray | None:
        """Return the mask of the actions that each agent has, [A, 5]; None where all have all."""
        return None

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start an episode: everything is at rest at a random place."""
        state = self.start(key)
        info = dict.fromkeys(self.info_summaries, jnp.zeros(()))
        timestep = restart(
            self._observation(state), num_agents=self.num_agents, action_mask=self._mask(), info=info
        )
        return state, timestep

    def step(self, state: object, action: Array, key: Array) -> tuple[State, TimeStep]:
        """Make one step; deterministic, the key is not used. No step terminates an episode."""
        state, reward, info = batch_last(_advance_and_reward)(self, state, jnp.asarray(action))
        return state, transition(self._observation(state), reward, action_mask=self._mask(), info=info)

    def _observation(self, state: object) -> State:
        own = self.observe(state)
        return {OBSERVATION: own, GLOBAL_STATE: self.observe_world(state)} if self.global_state else own

    def _mask(self) -> Array | None:
        mask = self.legal_actions()
        return None if mask is None else jnp.asarray(mask)


def _advance_and_reward(
    env: ParticleWorld, state: object, action: Array
) -> tuple[State, Array, Mapping[str, Array]]:
    """Make one step; return the state, the reward of each agent and the entries of `info`."""
    state = env.advance(state, action)
    return state, *env.rewards(state)
