"""Checks that do not run the environment: the protocol's attributes, and the spaces."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from shoal.base.errors import nearest
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.struct import as_arrays, data_fields, is_struct, named_leaves
from shoal.envs.checking.check_findings import Finding, describe
from shoal.envs.summaries import REDUCTIONS
from shoal.types import TEAM_RETURNS
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

_ATTRIBUTES = {
    "observation_space": "a space of shoal.types.spaces",
    "action_space": "a space of shoal.types.spaces",
    "num_agents": "a positive int, 1 if there is no agent axis",
    "info_summaries": "a mapping from entries of `info` to 'last', 'sum', 'mean' or 'max', {} for none",
}


def check_protocol(env: Any) -> Iterator[Finding]:
    """Check for the attributes and methods that every environment has."""
    name = type(env).__name__
    if isinstance(env, type):
        yield Finding("protocol", f"{env.__name__} is a class; an environment is an instance of one")
        return
    for attribute, right in _ATTRIBUTES.items():
        try:
            getattr(env, attribute)
        except AttributeError:
            yield Finding("protocol", f"{name} has no `{attribute}`; it would be {right}")
        except Exception as error:
            yield Finding("protocol", f"{name}.{attribute} raises {describe(error)}; it would be {right}")
    for method, signature in {"reset": "reset(key)", "step": "step(state, action, key)"}.items():
        if not callable(getattr(env, method, None)):
            yield Finding(
                "protocol", f"{name} has no method `{signature}`; it would return (state, TimeStep)"
            )
    agents = getattr(env, "num_agents", 1)
    if isinstance(agents, bool) or not isinstance(agents, int | np.integer) or agents < 1:
        yield Finding("protocol", f"num_agents is {agents!r}; a positive int would be right")
    elif agents > 1:
        yield from _check_team(env, int(agents))


def _check_team(env: Any, agents: int) -> Iterator[Finding]:
    """Check the declarations for several agents: their roles, and how their returns add up."""
    team_return, roles = getattr(env, "team_return", "sum"), getattr(env, "roles", ())
    if team_return not in TEAM_RETURNS:
        yield Finding(
            "protocol", f"team_return is {team_return!r}; 'sum' or 'mean' over agents would be right"
        )
    if not isinstance(roles, tuple) or len(roles) not in (0, agents):
        right = f"a tuple of {agents} numbers, one for each agent, or () if all have the same"
        yield Finding("protocol", f"roles is {roles!r}; {right} would be right")


def check_summaries(env: Any, info: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that `info_summaries` names entries that `info` has, and reductions that exist."""
    summaries = env.info_summaries
    if not isinstance(summaries, Mapping):
        yield Finding("info-summary", f"info_summaries is {summaries!r}; a mapping would be right")
        return
    for entry, summary in summaries.items():
        if summary not in REDUCTIONS:
            hint = nearest(str(summary), REDUCTIONS)
            right = "'last', 'sum', 'mean' or 'max' would be right"
            yield Finding("info-summary", f"info_summaries[{entry!r}] is {summary!r}; {right}{hint}")
        if entry not in info:
            has = f"has {', '.join(map(repr, sorted(info)))}" if info else "is empty"
            hint = nearest(str(entry), info)
            yield Finding("info-summary", f"info_summaries names {entry!r}, but `info` {has}{hint}")


def check_parameters(env: Any) -> Iterator[Finding]:
    """Check that the environment is a pytree whose leaves are numbers and whose static part is hashable."""
    name = type(env).__name__
    if jax.tree_util.all_leaves([env]):
        yield Finding(
            "not-a-pytree",
            f"{name} is not a pytree, so its parameters cannot be data of a compiled program; "
            "`@shoal.envs.environment` above the class makes it one",
        )
        return
    for path, leaf in named_leaves(env).items():
        if not isinstance(leaf, bool | int | float | np.generic | np.ndarray | jax.Array):
            yield Finding(
                "not-a-pytree",
                f"the parameter {path!r} of {name} is {leaf!r}, a {type(leaf).__name__}; "
                "a number would be right, or a field that is declared static",
            )
            return
    as_arrays(env)
    yield from _check_static_fields(env)


def _check_static_fields(env: Any) -> Iterator[Finding]:
    """Check that static fields can be compared and hashed, since compiled programs are cached by them."""
    if not is_struct(env):
        return
    for field in dataclasses.fields(env):
        value = getattr(env, field.name)
        if field.name in data_fields(env):
            yield from _check_static_fields(value)
            continue
        try:
            hash(value)
        except TypeError:
            yield Finding(
                "not-a-pytree",
                f"the static field `{field.name}` of {type(env).__name__} is {value!r}, a {type(value).__name__}, "
                "which has no hash; a number, a string or a tuple would be right",
            )


def check_shown(env: Any) -> Iterator[Finding]:
    """Check that `critic_only` and `actor_only` name entries of observations, and leave some for the other."""
    for whose, other in (("critic", "actor"), ("actor", "critic")):
        yield from (Finding(f"{whose}-only", text) for text in _shown_only(env, f"{whose}_only", other))
    names = [getattr(env, attribute, ()) for attribute in ("critic_only", "actor_only")]
    for name in names[0] if all(isinstance(x, tuple) for x in names) else ():
        if name in names[1]:
            text = f"critic_only and actor_only both name {name!r}, which nobody is shown; one would do"
            yield Finding("actor-only", text)


def _shown_only(env: Any, attribute: str, other: str) -> Iterator[str]:
    names, space = getattr(env, attribute, ()), env.observation_space
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        yield f"{attribute} is {names!r}; a tuple of names would be right, () for none"
        return
    if names and not isinstance(space, Dict):
        yield f"{attribute} is {names!r}, but observation_space is {space}; it would be a Dict"
        return
    for name in names:
        if name not in space:
            has = ", ".join(map(repr, space))
            yield f"{attribute} names {name!r}, but observation_space has {has}{nearest(name, tuple(space))}"
    if names and set(names) >= set(space):
        yield f"{attribute} names all entries of observation_space, {names!r}; leave some for the {other}"


def check_space(name: str, space: Any) -> Iterator[Finding]:
    """Check that a space has elements; `name` is its name in the finding."""
    if isinstance(space, Discrete | MultiDiscrete):
        numbers = (space.n,) if isinstance(space, Discrete) else space.nvec
        if not numbers:
            yield Finding("space", f"{name} is MultiDiscrete(()), which has no part; give it one or more")
        for i, n in enumerate(numbers):
            if not 0 < n <= LARGEST_INDEX:
                what = (
                    f"{name} is Discrete({n})" if isinstance(space, Discrete) else f"{name}.nvec[{i}] is {n}"
                )
                yield Finding("space", f"{what}; a positive int of at most {LARGEST_INDEX} would be right")
    elif isinstance(space, Box):
        yield from _check_box(name, space)
    elif isinstance(space, Dict):
        if not space.spaces:
            yield Finding("space", f"{name} is Dict({{}}), which has no entry; give it one or more")
        for entry, part in space.items():
            yield from check_space(f"{name}[{entry!r}]", part)
    else:
        kind = f"{type(space).__module__}.{type(space).__qualname__}"
        yield Finding(
            "space",
            f"{name} is a {kind}; a Discrete, MultiDiscrete, Box or Dict of shoal.types.spaces would be right",
        )


def _check_box(name: str, space: Box) -> Iterator[Finding]:
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    if 0 in space.shape:
        yield Finding(
            "space", f"{name} has shape {space.shape}, which has no element; 1 or more would be right"
        )
        return
    wrong = ~((low <= high) & (low < np.inf) & (high > -np.inf))
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        bounds = f"low {low[index]:g} and high {high[index]:g}{f' at {list(index)}' if index else ''}"
        yield Finding(
            "space", f"{name} is a Box with {bounds}, between which no number lies; low would be lower"
        )
