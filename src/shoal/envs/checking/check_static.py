"""Checks that do not run the environment: the protocol's attributes, and the spaces."""

import dataclasses
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from shoal.base.errors import nearest
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.struct import data_fields, is_struct, named_leaves
from shoal.envs.checking.check_findings import Finding, describe
from shoal.envs.summaries import REDUCTIONS
from shoal.types import TEAM_RETURNS, Environment
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

ATTRIBUTES = {
    "observation_space": "a space of shoal.types.spaces",
    "action_space": "a space of shoal.types.spaces",
    "num_agents": "a positive int, 1 if there is no agent axis",
    "info_summaries": "a mapping from entries of `info` to 'last', 'sum', 'mean' or 'max', {} for none",
}
_METHODS = {"reset": "reset(key)", "step": "step(state, action, key)"}


def check_declarations(env: Environment) -> Iterator[Finding]:
    """Check all that an environment declares of itself; of one that lacks a part, only that is said."""
    protocol = list(_check_protocol(env))
    yield from protocol
    if not protocol:
        yield from _check_space("observation_space", env.observation_space)
        yield from _check_space("action_space", env.action_space)
        yield from _check_shown(env)


def _check_protocol(env: object) -> Iterator[Finding]:
    """Check for the attributes and methods that every environment has."""
    name = type(env).__name__
    if isinstance(env, type):
        yield Finding("protocol", f"{env.__name__} is a class; an environment is an instance of one")
        return
    for attribute, right in ATTRIBUTES.items():
        try:
            getattr(env, attribute)
        except AttributeError:
            yield Finding("protocol", f"{name} has no `{attribute}`; it would be {right}")
        except Exception as error:
            yield Finding("protocol", f"{name}.{attribute} raises {describe(error)}; it would be {right}")
    for method, signature in _METHODS.items():
        if not callable(getattr(env, method, None)):
            text = f"{name} has no method `{signature}`; it would return (state, TimeStep)"
            yield Finding("protocol", text)
    agents = getattr(env, "num_agents", 1)
    if isinstance(agents, bool) or not isinstance(agents, int | np.integer) or agents < 1:
        yield Finding("protocol", f"num_agents is {agents!r}; a positive int would be right")
    elif agents > 1:
        team_return, roles = getattr(env, "team_return", "sum"), getattr(env, "roles", ())
        if team_return not in TEAM_RETURNS:
            text = f"team_return is {team_return!r}; 'sum' or 'mean' over agents would be right"
            yield Finding("protocol", text)
        if not isinstance(roles, tuple) or len(roles) not in (0, agents):
            right = f"a tuple of {agents} numbers, one for each agent, or () if all have the same"
            yield Finding("protocol", f"roles is {roles!r}; {right} would be right")


def check_summaries(env: Environment, info: Mapping[str, object]) -> Iterator[Finding]:
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


def check_parameters(env: Environment) -> Iterator[Finding]:
    """Check that the environment is a pytree whose leaves are numbers and whose static part is hashable."""
    name = type(env).__name__
    if jax.tree_util.all_leaves([env]):  # JAX takes an object that it does not know for a leaf
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
    yield from _check_static_fields(env)


def _check_static_fields(env: Environment) -> Iterator[Finding]:
    """Check that static fields can be compared and hashed, since compiled programs are cached by them."""
    if not is_struct(env):
        return
    for field in dataclasses.fields(env):  # type: ignore[arg-type]
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


def _check_shown(env: Environment) -> Iterator[Finding]:
    """Check that `critic_only` and `actor_only` name entries of observations, and leave some for the other."""
    critic_only, actor_only = getattr(env, "critic_only", ()), getattr(env, "actor_only", ())
    for whose, names, other in (("critic", critic_only, "actor"), ("actor", actor_only, "critic")):
        texts = _shown_only(env, f"{whose}_only", names, other)
        yield from (Finding(f"{whose}-only", text) for text in texts)
    if isinstance(critic_only, tuple) and isinstance(actor_only, tuple):
        for name in critic_only:
            if name in actor_only:
                text = f"critic_only and actor_only both name {name!r}, which nobody is shown; one would do"
                yield Finding("actor-only", text)


def _shown_only(env: Environment, attribute: str, names: object, other: str) -> Iterator[str]:
    space = env.observation_space
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        yield f"{attribute} is {names!r}; a tuple of names would be right, () for none"
    elif names and not isinstance(space, Dict):
        yield f"{attribute} is {names!r}, but observation_space is {space}; it would be a Dict"
    elif names and isinstance(space, Dict):
        has = ", ".join(map(repr, space))
        for name in names:
            if name not in space:
                yield f"{attribute} names {name!r}, but observation_space has {has}{nearest(name, tuple(space))}"
        if set(names) >= set(space):
            yield f"{attribute} names all entries of observation_space, {names!r}; leave some for the {other}"


def _check_space(name: str, space: object) -> Iterator[Finding]:
    """Check that a space has elements; `name` is its name in the finding."""
    if isinstance(space, Dict):
        for entry, part in space.items():
            yield from _check_space(f"{name}[{entry!r}]", part)
    for text in _wrong_space(name, space):
        yield Finding("space", text)


def _wrong_space(name: str, space: object) -> Iterator[str]:
    right = f"a positive int of at most {LARGEST_INDEX} would be right"
    if isinstance(space, Discrete) and not 0 < space.n <= LARGEST_INDEX:
        yield f"{name} is Discrete({space.n}); {right}"
    elif isinstance(space, MultiDiscrete):
        if not space.nvec:
            yield f"{name} is MultiDiscrete(()), which has no part; give it one or more"
        wrong = [(i, n) for i, n in enumerate(space.nvec) if not 0 < n <= LARGEST_INDEX]
        yield from (f"{name}.nvec[{i}] is {n}; {right}" for i, n in wrong)
    elif isinstance(space, Box):
        yield from _wrong_box(name, space)
    elif isinstance(space, Dict) and not space.spaces:
        yield f"{name} is Dict({{}}), which has no entry; give it one or more"
    elif not isinstance(space, Discrete | Dict):
        kind = f"{type(space).__module__}.{type(space).__qualname__}"
        yield f"{name} is a {kind}; a Discrete, MultiDiscrete, Box or Dict of shoal.types.spaces would be right"


def _wrong_box(name: str, space: Box) -> Iterator[str]:
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    if 0 in space.shape:
        yield f"{name} has shape {space.shape}, which has no element; 1 or more would be right"
    wrong = ~((low <= high) & (low < np.inf) & (high > -np.inf))
    for index in np.argwhere(wrong)[:1].tolist():
        place = f" at {index}" if index else ""
        bounds = f"low {low[tuple(index)]:g} and high {high[tuple(index)]:g}{place}"
        yield f"{name} is a Box with {bounds}, between which no number lies; low would be lower"
