"""One of JaxMARL's environments as an environment of Shoal's."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.base.user_errors import describe_error
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.jaxmarl import conversion, endings, worlds
from shoal.envs.suites.conversion import Converted, converted, of_types
from shoal.envs.suites.static_values import declare, plain_parameters
from shoal.types import GLOBAL_STATE, OBSERVATION, TEAM_RETURNS, Array, PyTree, State, TimeStep
from shoal.types.spaces import Box, Dict, Discrete, Space

WORLD_STATE = "world_state"
WON = "won"  # entry of `info` of SMAX
# How entries of JaxMARL's `info` are reduced over an episode; the others keep their last value.
SUMMARIES = {
    WON: "max",
    "shaped_reward": "sum",  # Overcooked
    "inner_episode_done": "sum",  # Coin Game
    **dict.fromkeys(("NumC", "GoalR", "AgentC", "MapC", "TimeO", "Return"), "sum"),  # JaxNav
}


class Facts(NamedTuple):
    """The properties of one of JaxMARL's objects, read once by tracing a reset and a step."""

    world: Any
    agents: tuple[Any, ...]  # their names, which STORM has as numbers
    rule: endings.Rule
    observations: tuple[Converted, ...]  # of each agent, as are the next
    actions: tuple[Converted, ...]
    observation_space: Space  # of one agent, the widest
    action_space: Space
    own_actions: np.ndarray | None  # [A, n], the actions that an agent has at all; of discrete ones
    legal: str  # the name of the method for legal actions; empty if there is none
    roles: tuple[int, ...]
    state: PyTree  # shapes and dtypes after a step, as are the next two
    info: Mapping[str, Any]
    world_state: Any  # None if there is none


@environment
class JaxMARL:
    """One of JaxMARL's environments (Rutherford et al. 2024), stepped by its `step_env`, without auto-reset.

    Observations are [A, ...] in the order of JaxMARL's `agents`; vectors of different lengths are padded with zeros.
    Discrete actions of different numbers have a mask, joined with JaxMARL's own mask where there is one.
    `shoal.envs.jaxmarl.endings` says which ends are terminations and which are truncations.

    Attributes:
      world_name: JaxMARL's name of it, or `module:Name` of a class with the interface of JaxMARL's `MultiAgentEnv`; of
        an object that is given, the name of its class.
      arguments: the parameters of its class that are not the default, (name, value) each.
      global_state: whether a critic is shown JaxMARL's world state. The observation is then a dictionary of
        "observation", [A, ...], and "global_state", [S], for the critic only.
      team_return: how the agents' returns add up, "mean" or "sum".
      given_world: one of JaxMARL's objects, which is used as it is; None to make one by its name.
    Raises:
      ShoalError: when it is made, if JaxMARL is not installed or cannot make it, its spaces cannot be joined, or it has
        no world state.
    """

    world_name: str
    arguments: tuple = ()
    global_state: bool = False
    team_return: str = "mean"
    given_world: Any = static(default=None)

    def __post_init__(self) -> None:
        if self.team_return not in TEAM_RETURNS:
            raise ShoalError(
                f"team_return={self.team_return!r} is not one of {', '.join(TEAM_RETURNS)}"
                f"{nearest(str(self.team_return), TEAM_RETURNS)}"
            )
        if self._facts.world_state is None and self.global_state:
            raise ShoalError(
                f"{worlds.full_name(self.world_name)} has no world state; global_state=True needs one, as SMAX has"
            )

    @property
    def _facts(self) -> Facts:
        world = self.given_world
        if world is None:
            world = worlds.world_of(self.world_name, self.arguments)
        return facts_of(self.world_name, world)

    @property
    def world(self) -> Any:
        """JaxMARL's own object."""
        return self._facts.world

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, in the order of their axis."""
        return tuple(map(str, self._facts.agents))

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return len(self._facts.agents)

    @property
    def roles(self) -> tuple[int, ...]:
        """The role of each agent: those with equal spaces whose names differ by a number only have the same."""
        return self._facts.roles

    @property
    def pays_absent(self) -> bool:
        """Whether the score includes rewards of agents that ended, which in SMAX still belong to their side."""
        return self._facts.rule.pays_absent

    @property
    def observation_space(self) -> Space:
        """The widest of the agents' observations; with the world state, a dictionary of both."""
        space = self._facts.observation_space
        if not self.global_state:
            return space
        return Dict({OBSERVATION: space, GLOBAL_STATE: Box(-np.inf, np.inf, self._facts.world_state.shape)})

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The world state, if the critic is shown it."""
        return (GLOBAL_STATE,) if self.global_state else ()

    @property
    def action_space(self) -> Space:
        """The widest of the agents' actions."""
        return self._facts.action_space

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """The reduction of each entry of `info`."""
        return MappingProxyType({name: SUMMARIES[name] for name in self._facts.info if name in SUMMARIES})

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros, since JaxMARL has none yet."""
        facts = self._facts
        observation, state = facts.world.reset(key)
        state = of_types(facts.state, state)
        alive = jnp.ones(self.num_agents, bool) if self._ends_agents else None
        info = {name: jnp.zeros(x.shape, x.dtype) for name, x in facts.info.items()}
        return state, restart(
            self._observation(observation),
            num_agents=self.num_agents,
            action_mask=self._action_mask(state),
            alive=alive,
            info=info,
        )

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step; the observation of a last time-step is of the state that ended."""
        facts = self._facts
        rows = tuple(action) if self.num_agents > 1 else (action,)
        actions = tuple(of.to_package(row) for of, row in zip(facts.actions, rows, strict=True))
        observation, after, rewards, dones, info = facts.world.step_env(
            key, state, dict(zip(facts.agents, actions, strict=True))
        )
        after, is_done = of_types(facts.state, after), jnp.asarray(dones["__all__"], bool)
        ends = facts.rule.ends(endings.Step(facts.world, state, actions, after, is_done))
        terminated = self._squeeze(jnp.broadcast_to(ends.terminated, len(actions)))
        return after, transition(
            self._observation(observation),
            self._squeeze(jnp.stack(conversion.rows_of(rewards, facts.agents)).astype(jnp.float32)),
            terminated=terminated,
            truncated=is_done & ~jnp.all(terminated),
            action_mask=self._action_mask(after),
            alive=ends.alive if self._ends_agents else None,
            info=_info(facts.world, facts.agents, info, after),
        )

    @property
    def _ends_agents(self) -> bool:
        return self.num_agents > 1 and self._facts.rule.ends_agents(self._facts.world)

    def _squeeze(self, x: PyTree) -> PyTree:
        """Remove the axis of agents where there is one agent."""
        return x if self.num_agents > 1 else jax.tree.map(lambda leaf: leaf[0], x)

    def _observation(self, observation: Any) -> PyTree:
        facts = self._facts
        rows = zip(facts.observations, conversion.rows_of(observation, facts.agents), strict=True)
        of_agents = self._squeeze(
            conversion.stack(facts.observation_space, [of.to_shoal(row) for of, row in rows])
        )
        if not self.global_state:
            return of_agents
        return {OBSERVATION: of_agents, GLOBAL_STATE: observation[WORLD_STATE].astype(jnp.float32)}

    def _action_mask(self, state: State) -> Array | None:
        """Combine the actions that an agent has with those legal in a state; None where both are all."""
        facts = self._facts
        if facts.own_actions is None or not isinstance(facts.action_space, Discrete):
            return None
        if not facts.legal:
            return None if facts.own_actions.all() else self._squeeze(jnp.asarray(facts.own_actions))
        legal = conversion.rows_of(getattr(facts.world, facts.legal)(state), facts.agents)
        width = (facts.action_space.n,)
        mask = jnp.stack([conversion.padded(jnp.asarray(row, bool), width) for row in legal])
        return self._squeeze(mask & facts.own_actions)


def limit_of(prefix: str, name: str, parameters: Mapping[str, Any]) -> None:
    """Return None: JaxMARL's own time limit is kept, as a truncation."""


def adapted(world: Any) -> JaxMARL:
    """Make an environment of one of JaxMARL's objects, which keeps its own time limit.

    Raises:
      ShoalError: it is a wrapper, or is none of those that can be adapted.
    """
    name = type(world).__name__
    worlds.require_bare("", world)
    try:
        return JaxMARL(name, given_world=world)
    except ShoalError:
        raise
    except Exception as error:
        raise ShoalError(f"{worlds.full_name(name)} cannot be adapted: {describe_error(error)}") from error


@functools.cache
def constructor_of(prefix: str, name: str) -> Callable[..., JaxMARL]:
    """Return the function that makes an environment from the parameters of JaxMARL's class, by keyword.

    Raises:
      ShoalError: there is no such name, or JaxMARL is not installed.
    """
    known = worlds.parameters_of(name)

    def make(*, global_state: bool = False, team_return: str = "mean", **parameters: Any) -> JaxMARL:
        return JaxMARL(name, worlds.to_arguments(name, parameters), global_state, team_return)

    shown = {**known, **plain_parameters({"global_state": False, "team_return": "mean"})}
    documentation = f"{getattr(worlds.class_of(name), '__name__', name)} of the package jaxmarl."
    return declare(make, worlds.full_name(name), shown, documentation)


@functools.cache
def facts_of(name: str, world: Any) -> Facts:
    """Read the facts about one of JaxMARL's objects, whose name is for errors.

    Raises:
      ShoalError: the spaces of its agents cannot be joined.
    """
    agents = tuple(world.agents)
    where = worlds.full_name(name)
    of_actions = [converted(world.action_space(agent)) for agent in agents]
    rows, state, observed, info = _trace(world, agents, of_actions)
    of_observations = [converted(world.observation_space(a), x) for a, x in zip(agents, rows, strict=True)]
    observations, actions = ([x.space for x in spaces] for spaces in (of_observations, of_actions))
    own_actions = None
    if all(isinstance(space, Discrete) for space in actions):
        sizes = np.asarray([space.n for space in actions])  # type: ignore[union-attr]
        own_actions = np.arange(sizes.max()) < sizes[:, None]
    return Facts(
        world=world,
        agents=agents,
        rule=endings.rule_of(world),
        observations=tuple(of_observations),
        actions=tuple(of_actions),
        observation_space=_widest(where, "observations", observations),
        action_space=_widest(where, "actions", actions),
        own_actions=own_actions,
        legal="" if own_actions is None else _legal_method(world, agents, state, own_actions.sum(axis=1)),
        roles=conversion.roles_of(agents, list(zip(observations, actions, strict=True))),
        state=state,
        info=info,
        world_state=observed.get(WORLD_STATE) if isinstance(observed, Mapping) else None,
    )


def _trace(
    world: Any, agents: tuple[Any, ...], actions: Sequence[Converted]
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return shapes and dtypes: each agent's observation after a reset, and state, observation and info of a step."""

    def reset_and_step(key: Array) -> Any:
        first, state = world.reset(key)
        played = {agent: x.to_package(x.space.sample(key)) for agent, x in zip(agents, actions, strict=True)}
        observation, after, _, _, info = world.step_env(key, state, played)
        return conversion.rows_of(first, agents), after, observation, _info(world, agents, info, after)

    with jax.ensure_compile_time_eval():
        key = jax.random.key(0)
    return jax.eval_shape(reset_and_step, key)


def _info(world: Any, agents: tuple[Any, ...], info: Mapping[str, Any], state: Any) -> dict[str, Array]:
    """Return JaxMARL's info, and of SMAX whether the step won the battle."""
    entries = conversion.numeric_info(info, agents)
    if hasattr(endings.battle(state), "unit_alive"):
        entries[WON] = endings.battle_is_won(world, state).astype(jnp.float32)
    return entries


def _widest(where: str, what: str, spaces: list[Space]) -> Space:
    """Return the space that holds the observations, or the actions, of all agents."""
    lengths = {space.shape for space in spaces if isinstance(space, Box)}
    space = None if what == "actions" and len(lengths) > 1 else conversion.widest(spaces)
    if space is None:
        different = ", ".join(map(repr, dict.fromkeys(spaces)))
        remedy = " (action_type='Discrete')" * (what == "actions")
        raise ShoalError(
            f"the {what} of the agents of {where} are {different}, which cannot be padded to one space; vectors of "
            f"observations and discrete actions{remedy} can"
        )
    return space


def _legal_method(world: Any, agents: tuple[Any, ...], state: Any, sizes: np.ndarray) -> str:
    """Return the name of the method for legal actions, "" if there is none for discrete actions of these sizes."""
    method = "get_legal_moves" if hasattr(world, "get_legal_moves") else "get_avail_actions"
    try:
        legal = jax.eval_shape(lambda state: conversion.rows_of(getattr(world, method)(state), agents), state)
    except (AttributeError, NotImplementedError):
        return ""
    return method if [x.shape for x in legal] == [(size,) for size in sizes] else ""
