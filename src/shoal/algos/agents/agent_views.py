"""The inputs of one agent of several and of its critic: its spec and its time-steps.

Flags are integers, which `norm_obs` leaves as they are: normalised, one that never changes would be 0.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.nets.encoders.parts import observation_parts
from shoal.types import GLOBAL_STATE, OBSERVATION, Array, EnvSpec, PyTree, TimeStep, without_entries
from shoal.types.agent_axis import PRESENT, alive_of, observations_of_agents
from shoal.types.spaces import Box, Dict, Space

IDENTITY, EVERYBODY = "agent_id", "everybody"  # entries that are added


class View(NamedTuple):
    """The choice of the inputs of an agent and of its critic; static.

    Attributes:
      agent_id: whether the agent is shown its own number, one-hot.
      critic_input: "own", "state", "everybody" or "state_and_own".
      says_who_is_present: whether there is an entry that says who takes part, for a network of all agents.
      agent_input: "own" or "everybody"; a critic's "own" is what the agent is shown.
    """

    spec: EnvSpec
    agent_id: bool
    critic_input: str
    says_who_is_present: bool = False
    agent_input: str = "own"

    @property
    def spec_of_agent(self) -> EnvSpec:
        """The spec of one agent, without an axis of agents; with their number where all are shown at once."""
        of_world = _entries(self.spec.observation_space)
        entries = {name: x for name, x in of_world.items() if self._shows(name)}
        critic_only = {name for name in self.spec.critic_only if name in entries}
        if self.says_who_is_present:
            entries[PRESENT] = Box(0, 1, (1,), np.int8)
        if self._has_identity:
            entries[IDENTITY] = Box(0, 1, (self.spec.num_agents,), np.int8)
            critic_only |= set() if self.agent_id else {IDENTITY}
        if self._has_everybody:
            width = 1 + sum(part.num_features for part in observation_parts(Dict(self._own(of_world))))
            entries[EVERYBODY] = Box(-np.inf, np.inf, (self.spec.num_agents * width,))
            critic_only |= {EVERYBODY} if self.agent_input == "own" else set()
        space = Dict(entries) if self._is_dictionary else entries[OBSERVATION]
        for_critics = {
            "state": critic_only,
            "everybody": critic_only | {EVERYBODY},
        }.get(self.critic_input, entries.keys() - set(self.spec.actor_only))
        actor_only = tuple(x for x in entries if x not in for_critics)
        num_agents = self.spec.num_agents if self.says_who_is_present else 1
        return EnvSpec(space, self.spec.action_space, num_agents, tuple(sorted(critic_only)), (), actor_only)

    def of_actors(self, timestep: TimeStep) -> TimeStep:
        """Return the agents' time-step, [..., N, A, ...], without the entries for critics only."""
        observation = without_entries(dict(_entries(timestep.observation)), self.spec.critic_only)
        shown = {name: x for name, x in observation.items() if self._shows(name)}
        if self.says_who_is_present:
            shown[PRESENT] = _presence(timestep)
        if self.agent_input == "everybody":
            shown[EVERYBODY] = _of_everybody(self._own(observation), self.spec.observation_space, timestep)
        if self.agent_id:
            shown[IDENTITY] = self._identities(timestep)
        return timestep._replace(observation=shown if self._is_dictionary else shown[OBSERVATION])

    def of_critics(self, timestep: TimeStep) -> TimeStep:
        """Return the time-step with all entries for agents and their critics, [..., N, A, ...]."""
        observation = _entries(observations_of_agents(timestep))
        shown = {name: x for name, x in observation.items() if self._shows(name)}
        if self.says_who_is_present:
            shown[PRESENT] = _presence(timestep)
        if self._has_identity:
            shown[IDENTITY] = self._identities(timestep)
        if self._has_everybody:
            shown[EVERYBODY] = _of_everybody(self._own(observation), self.spec.observation_space, timestep)
        return timestep._replace(observation=shown if self._is_dictionary else shown[OBSERVATION])

    def check(self) -> None:
        """Require that the world has the entries that the critic needs."""
        space = self.spec.observation_space
        if "state" in self.critic_input and GLOBAL_STATE not in _entries(space):
            raise ShoalError(
                f"critic_input={self.critic_input!r} shows the critic the state of the world, but observation_space="
                f"{space} has no entry {GLOBAL_STATE!r}; critic_input='everybody' works."
            )

    def _shows(self, name: str) -> bool:
        """Report whether an entry of the environment's observations is shown to anybody."""
        if name == GLOBAL_STATE:
            return "state" in self.critic_input
        return self.agent_input == "own" or name in self.spec.critic_only + self.spec.actor_only

    def _own(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of an agent that may be shown to everybody."""
        return without_entries(dict(entries), (*self.spec.critic_only, *self.spec.actor_only, GLOBAL_STATE))

    @property
    def _has_everybody(self) -> bool:
        return "everybody" in (self.agent_input, self.critic_input)

    @property
    def _has_identity(self) -> bool:
        return self.agent_id or self.critic_input == "state_and_own"

    @property
    def _is_dictionary(self) -> bool:
        is_extended = self._has_identity or self.says_who_is_present or self._has_everybody
        return is_extended or isinstance(self.spec.observation_space, Dict)

    def _identities(self, timestep: TimeStep) -> Array:
        num_agents = self.spec.num_agents
        return jnp.broadcast_to(jnp.eye(num_agents, dtype=jnp.int8), (*timestep.reward.shape, num_agents))


def _entries(observation: object) -> dict[str, Any]:
    """Return an observation, or its space, as a dictionary of entries."""
    return dict(observation) if isinstance(observation, Mapping) else {OBSERVATION: observation}


def _presence(timestep: TimeStep) -> Array:
    return alive_of(timestep)[..., None].astype(jnp.int8)


def _of_everybody(own: Mapping[str, PyTree], space: Space, timestep: TimeStep) -> Array:
    """Join the observations of all agents of a world, each with a flag of presence; zeros for absent agents."""
    alive = alive_of(timestep)
    spaces = {name: part for name, part in _entries(space).items() if name in own}
    numbers = [part.flatten(own) for part in observation_parts(Dict(spaces))]
    present = jnp.where(alive[..., None], jnp.concatenate([jnp.ones((*alive.shape, 1)), *numbers], -1), 0.0)
    together = present.reshape(*alive.shape[:-1], 1, -1)
    return jnp.broadcast_to(together, (*alive.shape, together.shape[-1]))
