"""One of JaxMARL's environments as an environment of Shoal's."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.jaxmarl import agent_rows, endings, worlds
from shoal.envs.jaxmarl.joined_agents import WON, WORLD_STATE, Team, info_of, team_of
from shoal.envs.suites.conversion import of_types
from shoal.envs.suites.static_values import from_static, plain_parameters
from shoal.envs.suites.suite import Adapted, Arguments, Parameters, Suite
from shoal.types import GLOBAL_STATE, OBSERVATION, Array, Environment, PyTree, State, TimeStep
from shoal.types.spaces import Box, Dict, Space

# How entries of JaxMARL's `info` are reduced over an episode; the others keep their last value.
SUMMARIES = {
    WON: "max",
    "shaped_reward": "sum",  # Overcooked
    "inner_episode_done": "sum",  # Coin Game
    **dict.fromkeys(("NumC", "GoalR", "AgentC", "MapC", "TimeO", "Return"), "sum"),  # JaxNav
}


@environment
class JaxMARL(Adapted):
    """One of JaxMARL's environments (Rutherford et al. 2024), stepped by its `step_env`, without auto-reset.

    Observations are [A, ...] in the order of JaxMARL's `agents`; vectors of different lengths are padded with zeros.
    Discrete actions of different numbers have a mask, joined with JaxMARL's own mask where there is one.
    `shoal.envs.jaxmarl.endings` says which ends are terminations and which are truncations.

    Attributes:
      world: JaxMARL's own object.
      world_name: JaxMARL's name of it, or `module:Name` of a class with the interface of JaxMARL's `MultiAgentEnv`; of
        an object that is given "".
      arguments: the parameters of its class that are not the default, (name, value) each.
      global_state: whether a critic is shown JaxMARL's world state. The observation is then a dictionary of
        "observation", [A, ...], and "global_state", [S], for the critic only.
      team_return: how the agents' returns add up, "mean" or "sum".
    Raises:
      ShoalError: when it is made, if its spaces cannot be joined, or it has no world state.
    """

    world: Any = static()
    world_name: str = ""
    arguments: tuple = ()
    global_state: bool = False
    team_return: str = "mean"

    def __post_init__(self) -> None:
        if self._team.world_state is None and self.global_state:
            raise ShoalError(
                f"{worlds.PREFIX}{self.world_name} has no world state; global_state=True needs one, as SMAX has"
            )

    @property
    def _team(self) -> Team:
        return team_of(self.world)

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, in the order of their axis."""
        return tuple(map(str, self._team.names))

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return len(self._team.names)

    @property
    def roles(self) -> tuple[int, ...]:
        """The role of each agent: those with equal spaces whose names differ by a number only have the same."""
        return self._team.roles

    @property
    def pays_absent(self) -> bool:
        """Whether the score includes rewards of agents that ended, which in SMAX still belong to their side."""
        return self._team.rule.pays_absent

    @property
    def observation_space(self) -> Space:
        """The widest of the agents' observations; with the world state, a dictionary of both."""
        space = self._team.observation_space
        if not self.global_state:
            return space
        return Dict({OBSERVATION: space, GLOBAL_STATE: Box(-np.inf, np.inf, self._team.world_state.shape)})

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The world state, if the critic is shown it."""
        return (GLOBAL_STATE,) if self.global_state else ()

    @property
    def action_space(self) -> Space:
        """The widest of the agents' actions."""
        return self._team.action_space

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """The reduction of each entry of `info`."""
        return MappingProxyType(
            {name: SUMMARIES[name] for name in self._team.facts.info if name in SUMMARIES}
        )

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros, since JaxMARL has none yet."""
        team = self._team
        observation, state = self.world.reset(key)
        state = of_types(team.facts.state, state)
        alive = jnp.ones(self.num_agents, bool) if self._ends_agents else None
        return state, restart(
            self._observation(observation),
            num_agents=self.num_agents,
            action_mask=self._action_mask(state),
            alive=alive,
            info=team.facts.no_info(),
        )

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step; the observation of a last time-step is of the state that ended."""
        team = self._team
        rows = tuple(action) if self.num_agents > 1 else (action,)
        actions = tuple(of.to_package(row) for of, row in zip(team.actions, rows, strict=True))
        observation, after, rewards, dones, info = self.world.step_env(
            key, state, dict(zip(team.names, actions, strict=True))
        )
        after, is_done = of_types(team.facts.state, after), jnp.asarray(dones["__all__"], bool)
        ends = team.rule.ends(endings.PlayedStep(self.world, state, actions, after, is_done))
        terminated = self._squeeze(jnp.broadcast_to(ends.terminated, len(actions)))
        return after, transition(
            self._observation(observation),
            self._squeeze(jnp.stack(agent_rows.rows_of(rewards, team.names)).astype(jnp.float32)),
            terminated=terminated,
            truncated=is_done & ~jnp.all(terminated),
            action_mask=self._action_mask(after),
            alive=ends.alive if self._ends_agents else None,
            info=info_of(self.world, team.names, info, after),
        )

    @property
    def _ends_agents(self) -> bool:
        return self.num_agents > 1 and self._team.rule.ends_agents(self.world)

    def _squeeze(self, x: PyTree) -> PyTree:
        """Remove the axis of agents where there is one agent."""
        return x if self.num_agents > 1 else jax.tree.map(lambda leaf: leaf[0], x)

    def _observation(self, observation: PyTree) -> PyTree:
        team = self._team
        rows = zip(team.observations, agent_rows.rows_of(observation, team.names), strict=True)
        of_agents = self._squeeze(
            agent_rows.stack(team.observation_space, [of.to_shoal(row) for of, row in rows])
        )
        if not self.global_state:
            return of_agents
        return {OBSERVATION: of_agents, GLOBAL_STATE: observation[WORLD_STATE].astype(jnp.float32)}

    def _action_mask(self, state: State) -> Array | None:
        """Combine the actions that an agent has with those legal in a state; None where both are all."""
        team = self._team
        if team.own_actions is None or (team.own_actions.all() and not team.legal):
            return None
        mask = jnp.asarray(team.own_actions)
        if team.legal:
            legal = agent_rows.rows_of(getattr(self.world, team.legal)(state), team.names)
            mask &= jnp.stack([agent_rows.padded(jnp.asarray(row, bool), mask.shape[1:]) for row in legal])
        return self._squeeze(mask)


class JaxMARLSuite(Suite):
    """The environments of JaxMARL, which keep their own time limits, as truncations."""

    interface = ("agents", "reset", "step_env", "observation_space", "action_space")

    def makers(self) -> Mapping[str, str]:
        """Return the names of JaxMARL's classes by name; JaxMARL is imported once one is known."""
        return worlds.CLASSES

    def maker(self, name: str) -> Callable[..., object]:
        """Return the class, or the function, that makes the object of a name."""
        maker: Any = super().maker(name)
        return getattr(worlds.package(), maker) if isinstance(maker, str) else maker

    def class_parameters(self, name: str) -> Parameters:
        """Return the parameters of the class, of any type."""
        return worlds.parameters_of(self.maker(name))

    def parameters(self, name: str) -> Parameters:
        """Return the parameters of the class and those of `JaxMARL`."""
        return self.class_parameters(name) | plain_parameters({"global_state": False, "team_return": "mean"})

    def values(self, name: str, arguments: Arguments) -> dict[str, object]:
        """Return the values of static arguments, those that JaxMARL has tables of by their names."""
        known = self.class_parameters(name)
        return {k: worlds.named_value(name, k, from_static(x, known[k].default)) for k, x in arguments}

    def made(self, name: str, parameters: Mapping[str, object]) -> Environment:
        """Make the environment of a name, which remembers name and arguments."""
        own: dict[str, Any] = {k: x for k, x in parameters.items() if k in ("global_state", "team_return")}
        of_class = {k: x for k, x in parameters.items() if k not in own}
        arguments = self.arguments(name, of_class)
        return JaxMARL(self.world_of(name, arguments), name, arguments, **own)  # type: ignore[return-value]

    def limit_of(self, name: str, parameters: Mapping[str, object]) -> None:
        """Return None: JaxMARL's own limit is kept, and no object is made to know it."""

    def environment(self, world: Any, *params: PyTree) -> Environment:
        """Make the environment of an object."""
        return JaxMARL(world)  # type: ignore[return-value]


JAXMARL = JaxMARLSuite(worlds.PREFIX)
