"""The agents of one of JaxMARL's objects, and what their spaces have in common, read once by tracing a step."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.jaxmarl import agent_rows, endings, worlds
from shoal.envs.suites.conversion import Converted, converted
from shoal.envs.suites.packages import by_convention
from shoal.envs.suites.suite import Facts, trace
from shoal.types import Array, PyTree, State
from shoal.types.spaces import Box, Discrete, Space

WORLD_STATE = "world_state"
WON = "won"  # entry of `info` of SMAX


class Team(NamedTuple):
    """The agents of one of JaxMARL's objects, and what their spaces have in common."""

    names: tuple[str | int, ...]  # which STORM has as numbers
    rule: endings.Rule
    observations: tuple[Converted, ...]  # of each agent, as are the next
    actions: tuple[Converted, ...]
    observation_space: Space  # of one agent, the widest
    action_space: Space
    own_actions: np.ndarray | None  # [A, n], the actions that an agent has at all; of discrete ones
    legal: str  # the name of the method for legal actions; empty if there is none
    roles: tuple[int, ...]
    facts: Facts  # of all that `step_env` returns
    world_state: State  # its shape and dtype; None if there is none


@functools.cache
def team_of(world: Any) -> Team:
    """Read the facts about one of JaxMARL's objects and its agents.

    Raises:
      ShoalError: the spaces of its agents cannot be joined, or its functions are not JaxMARL's.
    """
    names, where = tuple(world.agents), f"{worlds.PREFIX}{type(world).__name__}"
    with by_convention(world):
        of_actions = [converted(world.action_space(agent)) for agent in names]

    def play(key: Array) -> tuple[PyTree, PyTree, dict[str, Array]]:
        first, state = world.reset(key)
        played = {
            agent: x.to_package(x.space.sample(key)) for agent, x in zip(names, of_actions, strict=True)
        }
        observation, after, _, _, info = world.step_env(key, state, played)
        return after, (agent_rows.rows_of(first, names), observation), info_of(world, names, info, after)

    facts = trace(world, play)
    rows, observed = facts.observation
    with by_convention(world):
        of_observations = [converted(world.observation_space(a), x) for a, x in zip(names, rows, strict=True)]
    observations, actions = ([x.space for x in spaces] for spaces in (of_observations, of_actions))
    own_actions = None
    if all(isinstance(space, Discrete) for space in actions):
        sizes = np.asarray([space.n for space in actions])  # type: ignore[union-attr]
        own_actions = np.arange(sizes.max()) < sizes[:, None]
    return Team(
        names=names,
        rule=endings.rule_of(world),
        observations=tuple(of_observations),
        actions=tuple(of_actions),
        observation_space=_widest(where, "observations", observations),
        action_space=_widest(where, "actions", actions),
        own_actions=own_actions,
        legal=""
        if own_actions is None
        else _legal_method(world, names, facts.state, own_actions.sum(axis=1)),
        roles=agent_rows.roles_of(names, list(zip(observations, actions, strict=True))),
        facts=facts,
        world_state=observed.get(WORLD_STATE) if isinstance(observed, Mapping) else None,
    )


def _widest(where: str, what: str, spaces: list[Space]) -> Space:
    """Return the space that holds the observations, or the actions, of all agents."""
    lengths = {space.shape for space in spaces if isinstance(space, Box)}
    space = None if what == "actions" and len(lengths) > 1 else agent_rows.widest(spaces)
    if space is None:
        different = ", ".join(map(repr, dict.fromkeys(spaces)))
        remedy = " (action_type='Discrete')" * (what == "actions")
        raise ShoalError(
            f"the {what} of the agents of {where} are {different}, which cannot be padded to one space; vectors of "
            f"observations and discrete actions{remedy} can"
        )
    return space


def _legal_method(world: object, agents: tuple[object, ...], state: object, sizes: np.ndarray) -> str:
    """Return the name of the method for legal actions, "" if there is none for discrete actions of these sizes."""
    method = "get_legal_moves" if hasattr(world, "get_legal_moves") else "get_avail_actions"
    try:
        legal = jax.eval_shape(lambda state: agent_rows.rows_of(getattr(world, method)(state), agents), state)
    except (AttributeError, NotImplementedError):
        return ""
    return method if [x.shape for x in legal] == [(size,) for size in sizes] else ""


def info_of(
    world: Any, agents: tuple[object, ...], info: Mapping[str, object], state: State
) -> dict[str, Array]:
    """Return JaxMARL's info, and of SMAX whether the step won the battle."""
    entries = agent_rows.numeric_info(info, agents)
    if hasattr(endings.battle(state), "unit_alive"):
        entries[WON] = endings.battle_is_won(world, state).astype(jnp.float32)
    return entries
