"""The ends of JaxMARL's episodes: the game's own, or a time limit; and which agents end before their world.

JaxMARL has one flag for both, `done`. Here each family has a rule, read from its code (version 0.2.0):

    MPE, Overcooked, Coin Game, STORM   only the clock ends them
    SMAX                                a side is destroyed, or the clock; a unit that dies ends alone
    Switch Riddle                       someone tells, or the clock
    Hanabi                              the game ends by its own rules only
    JaxNav                              each agent arrives or collides, or the clock; if `evaporating`, each alone
    any other class                     the clock, where `state.step` has reached `max_steps`; else the game
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from shoal.envs.suites.packages import classes_of
from shoal.types import Array, State


class PlayedStep(NamedTuple):
    """One step of a world, as JaxMARL makes it."""

    world: Any
    before: State  # the state
    actions: tuple[Array, ...]  # in the order of the agents
    after: State  # the state
    is_done: Array  # of the world


class Ends(NamedTuple):
    """The agents that the game has ended for, and those that take part from here on."""

    terminated: Array  # [A], or one for all
    alive: Array | None = None  # [A]; None where agents end together only


class Rule(NamedTuple):
    """The rule by which the ends of a family are read."""

    ends: Callable[[PlayedStep], Ends]
    ends_agents: Callable[[Any], bool] = lambda world: False  # whether agents end before their world
    pays_absent: bool = False  # whether JaxMARL's score has the rewards of agents that ended


def rule_of(world: object) -> Rule:
    """Return the rule of a world's class, or of the nearest class that it inherits from."""
    return next((RULES[x] for x in classes_of(type(world), "jaxmarl") if x in RULES), Rule(_other_ends))


def battle(state: object) -> Any:
    """Return SMAX's own state, inside of that with an enemy policy."""
    return getattr(state, "state", state)


def battle_is_won(world: Any, state: State) -> Array:
    """Report whether the allies of SMAX have won; a battle in which nobody survives is not."""
    alive = battle(state).unit_alive
    return jnp.any(alive[: world.num_allies]) & ~jnp.any(alive[world.num_allies :])


def _ends_by_clock(step: PlayedStep) -> Ends:
    return Ends(jnp.asarray(False))


def _ends_by_game(step: PlayedStep) -> Ends:
    return Ends(step.is_done)


def _battle_ends(step: PlayedStep) -> Ends:
    units = battle(step.after).unit_alive
    allies, enemies = jnp.split(units, [step.world.num_allies])
    is_over = ~jnp.any(allies) | ~jnp.any(enemies)
    alive = units[: len(step.actions)]  # the allies alone, where the enemies have a policy of their own
    return Ends(is_over | ~alive, alive)


def _riddle_ends(step: PlayedStep) -> Ends:
    action = jnp.stack(step.actions)[step.before.agent_in_room]
    return Ends(action == step.world.game_actions["TELL"])


def _navigation_ends(step: PlayedStep) -> Ends:
    is_finished = step.before.done | step.after.goal_reached | step.after.move_term
    if step.world.evaporating:
        return Ends(is_finished, ~is_finished)
    return Ends(step.is_done & is_finished)


def _other_ends(step: PlayedStep) -> Ends:
    """Read the clock that JaxMARL's base class of states has; agents end together."""
    limit, steps = getattr(step.world, "max_steps", None), getattr(step.after, "step", None)
    is_cut = jnp.asarray(False) if limit is None or steps is None else jnp.asarray(steps) >= limit
    return Ends(step.is_done & ~is_cut)


_CLOCK, _BATTLE = Rule(_ends_by_clock), Rule(_battle_ends, lambda world: True, pays_absent=True)
RULES: Mapping[str, Rule] = {
    "SimpleMPE": _CLOCK,
    "Overcooked": _CLOCK,
    "OvercookedV2": _CLOCK,
    "CoinGame": _CLOCK,
    "InTheMatrix": _CLOCK,
    "SMAX": _BATTLE,
    "EnemySMAX": _BATTLE,
    "SwitchRiddle": Rule(_riddle_ends),
    "HanabiEnv": Rule(_ends_by_game),
    "JaxNav": Rule(_navigation_ends, lambda world: bool(world.evaporating)),
}
