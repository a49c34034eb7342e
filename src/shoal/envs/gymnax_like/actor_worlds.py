"""Worlds of several actors with gymnax's functions, such as those of jaxagents.

`reset_env(key, params)` returns one observation for all actors and a state, and `step_env(key, state, actions, params)`
an observation, a state, rewards [A], a flag and `info`. The flag includes the world's own time limit, which
`info["truncated"]` names. The worlds declare no spaces: the observation is traced, actions are given.
"""

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, alternatives, nearest
from shoal.base.imports import import_name, import_object
from shoal.base.user_errors import describe_error
from shoal.config.arguments import short_repr
from shoal.config.struct import Bounds
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.parameters import ANY_NUMBER, check_parameters, check_value, convert_to_declared
from shoal.envs.registry import check_count
from shoal.envs.suites import packages
from shoal.envs.suites.conversion import Converted, converted, of_types
from shoal.envs.suites.families import actors_of
from shoal.envs.suites.static_values import PLAIN
from shoal.envs.suites.suite import Adapted, Facts, Parameters, trace
from shoal.types import Array, Environment, PyTree, State, TimeStep
from shoal.types.spaces import Box, Discrete, Space

GYMNAX_BASE = "gymnax.environments.environment"  # whose class has all names, most without a meaning
BOUND = float | tuple[float, ...] | None
SETTINGS: Parameters = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=declared)
    for name, declared, default in (
        ("params", Any, None),
        ("actions", int | None, None),
        ("low", BOUND, None),
        ("high", BOUND, None),
        ("limit_terminates", bool, False),
        ("team_return", Literal["sum", "mean"], "sum"),
    )
}
# The fields of `params` are parameters too, which are known once it is given.
FIELDS: Parameters = {"fields": inspect.Parameter("fields", inspect.Parameter.VAR_KEYWORD, annotation=Any)}


@environment
class ActorWorld(Adapted):
    """A world of several actors, who are all shown its one observation, flat.

    Each actor has a role of its own. `info` has the entries that are one number, or one for each actor.

    Attributes:
      params: what the world's functions take, a pytree; its numbers are data.
      world: the object itself.
      observation_space: of what each actor is shown, [o].
      actions: the space of one actor's actions.
      action_shape: the shape of one actor's action as the world takes it: () for a number.
      limit_terminates: whether an end by the world's own time limit terminates; else it truncates.
      team_return: how the actors' returns add up, "sum" or "mean".
    """

    params: PyTree
    world: Any = static()
    observation_space: Box = static()
    actions: Converted = static()
    action_shape: tuple[int, ...] = ()
    limit_terminates: bool = False
    team_return: str = "sum"

    @property
    def action_space(self) -> Space:
        """The space of one actor's actions."""
        return self.actions.space

    @property
    def num_agents(self) -> int:
        """The number of actors."""
        return actors_of(self.world)

    @property
    def roles(self) -> tuple[int, ...]:
        """A role for each actor, since nothing says that two are alike."""
        return tuple(range(self.num_agents)) if self.num_agents > 1 else ()

    @property
    def caution(self) -> str:
        """What is lost in a world that resets within its only step; empty for others."""
        if declares(self.world, "step_env"):
            return ""
        return (
            f"{type(self.world).__name__} resets within `step` and has no `step_env`, so that an episode's true last "
            "observation is lost: where it is truncated, the value of the next episode's start stands for it"
        )

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros."""
        facts = self._facts()
        observation, state = function_of(self.world, "reset")(key, self.params)
        return of_types(facts.state, state), restart(
            self._shown(observation), num_agents=self.num_agents, info=facts.no_info()
        )

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step by the world's inner function, without its own reset where it has both."""
        observation, after, rewards, flag, info = self._stepped(state, action, key)
        is_over, is_cut = (
            jnp.reshape(jnp.asarray(x, bool), ()) for x in (flag, info.get("truncated", False))
        )
        died = is_over | is_cut
        if not self.limit_terminates:
            died = jnp.reshape(jnp.asarray(info.get("terminated", is_over & ~is_cut), bool), ())
        return of_types(after, after), transition(
            self._shown(observation),
            jnp.reshape(jnp.asarray(rewards, jnp.float32), (self.num_agents,) if self.roles else ()),
            terminated=died,
            truncated=is_over | is_cut,
            info=dict(self._numbers(info)),
        )

    def _stepped(self, state: State, action: PyTree, key: Array) -> Any:
        """Return what the world's own step does, given actions of Shoal's space."""
        each = action if self.num_agents > 1 else jnp.asarray(action)[None]
        own = jnp.reshape(jax.vmap(self.actions.to_package)(each), (self.num_agents, *self.action_shape))
        return function_of(self.world, "step")(key, state, own, self.params)

    def _shown(self, observation: PyTree) -> Array:
        """Return the observation as a vector, or as one for each of several actors, [A, o]."""
        parts = [jnp.ravel(jnp.asarray(x, jnp.float32)) for x in jax.tree.leaves(observation)]
        flat = jnp.concatenate(parts)
        return jnp.broadcast_to(flat, (self.num_agents, flat.size)) if self.num_agents > 1 else flat

    def _numbers(self, info: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
        """Yield the entries that are one number, or one for each of several actors."""
        for name, x in info.items():
            kinds = bool | int | float | np.ndarray | np.generic | jax.Array
            if isinstance(x, kinds) and (np.size(x) == 1 or np.shape(x) == (self.num_agents,)):
                array = jnp.asarray(x)
                yield name, jnp.reshape(array, () if array.size == 1 else array.shape).astype(array.dtype)

    def _facts(self) -> Facts:
        """Read shapes and dtypes, for parameters that may be traced."""

        def play(key: Array) -> tuple[PyTree, PyTree, dict[str, Array]]:
            after, timestep = self.step(*self._first(key), key)
            return after, timestep.observation, dict(timestep.info)

        return trace(self.world, play)

    def _first(self, key: Array) -> tuple[State, Array]:
        """Return a first state of the world and random actions."""
        state = function_of(self.world, "reset")(key, self.params)[1]
        each = jax.vmap(self.action_space.sample)(jax.random.split(key, self.num_agents))
        return state, each if self.num_agents > 1 else each[0]


def make_actor_world(subject: str, world: Any, given: Mapping[str, object]) -> Environment:
    """Make the environment of a world of several actors.

    Args:
      subject: the beginning of a sentence about it.
      given: values of `SETTINGS`, and of fields of `params`.
    Raises:
      ShoalError: a setting is missing or wrong, or the world's functions are not those of the convention.
    """
    check_count(subject, "n_actors", actors_of(world) or 0)
    settings = {name: x.default for name, x in SETTINGS.items()}
    for name in settings.keys() & given.keys():
        where, declared = f"{subject}: {name}", SETTINGS[name].annotation
        settings[name] = convert_to_declared(where, given[name], declared)
        check_value(where, settings[name], declared, Bounds(low=1) if name == "actions" else ANY_NUMBER)
    fields = {name: x for name, x in given.items() if name not in SETTINGS}
    params = _as_numbers(subject, params_of(subject, world, settings.pop("params"), fields))
    bounds = [settings.pop(name) for name in ("actions", "low", "high")]
    actions, shape = _actions(subject, world, params, *bounds)
    with packages.by_convention(world), jax.ensure_compile_time_eval():
        key = jax.random.key(0)
        shown = jax.eval_shape(lambda key: function_of(world, "reset")(key, params)[0], key)
        size = sum(x.size for x in jax.tree.leaves(shown))
    observations = Box(-np.inf, np.inf, (size,))
    env: Any = ActorWorld(params, world, observations, actions, shape, **settings)
    check_parameters(env)
    with packages.by_convention(world):
        rewards, flag = jax.eval_shape(lambda key: env._stepped(*env._first(key), key)[2:4], key)
    _check_shape(subject, "rewards", rewards, (env.num_agents,))
    _check_shape(subject, "a flag", flag, ())
    env._facts()
    return env


def params_of(subject: str, world: Any, given: Any, fields: Mapping[str, object]) -> Any:
    """Return what the world's functions take, with some of its fields changed.

    Args:
      given: itself, what makes it, or `module:Name` of either; None for the world's own `default_params`.
    """
    if given is None and not declares(world, "default_params"):
        raise ShoalError(
            f"{subject} has no default_params; give params, which its functions take, or module:Name of its class, "
            "such as params=hunting_env:EnvParams"
        )
    params = world.default_params if given is None else given
    params = import_object(params) if isinstance(params, str) else params
    try:
        params = params() if callable(params) else params
    except Exception as error:
        raise ShoalError(f"{subject}: params={short_repr(given)} failed: {describe_error(error)}") from error
    own = _fields_of(params)
    for name in fields:
        if name not in own:
            options = [*SETTINGS, *own]
            has = alternatives(name, options, "shoal envs", "it has")
            raise ShoalError(f"{subject} has no parameter {name!r} ({has}){nearest(name, options)}")
    changes = {name: _like(f"{subject}: {name}", x, own[name]) for name, x in fields.items()}
    replace: Callable[..., Any] = getattr(params, "_replace", functools.partial(dataclasses.replace, params))
    return replace(**changes) if changes else params


def portable(world: Any, parameters: Mapping[str, object]) -> dict[str, object]:
    """Return parameters with `params` by its class and all its fields, where each can be written down."""
    reserved = {*SETTINGS, *inspect.signature(type(world)).parameters}
    fields = {name: x for name, x in parameters.items() if name not in reserved}
    params = params_of(type(world).__name__, world, parameters.get("params"), fields)
    values, cls = _fields_of(params), type(params)
    is_plain = all(
        isinstance(y, PLAIN) for x in values.values() for y in (x if isinstance(x, tuple) else (x,))
    )
    is_importable = getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls
    if not values or not is_plain or not is_importable or reserved & values.keys():
        return dict(parameters)
    if any(x.default is inspect.Parameter.empty for x in inspect.signature(cls).parameters.values()):
        return dict(parameters)
    return {**parameters, **values, "params": import_name(cls)}


def declares(world: Any, name: str) -> bool:
    """Report whether an object has an attribute that gymnax's base class does not merely name."""
    owner = next((cls for cls in type(world).__mro__ if name in vars(cls)), type(world))
    return owner.__module__ != GYMNAX_BASE and hasattr(world, name)


def function_of(world: Any, name: str) -> Callable[..., Any]:
    """Return the inner function `reset_env` or `step_env`, else `reset` or `step`."""
    return getattr(world, f"{name}_env" if declares(world, f"{name}_env") else name)


def _actions(
    subject: str, world: Any, params: PyTree, count: int | None, low: Any, high: Any
) -> tuple[Converted, tuple[int, ...]]:
    """Return the space of one actor's actions, and the shape of one as the world takes it."""
    if count is not None and (low is not None or high is not None):
        raise ShoalError(
            f"{subject}: actions={count} are whole numbers, and low={low}, high={high} bound others; give one of both"
        )
    if (low is None) != (high is None):
        raise ShoalError(f"{subject}: low={low}, high={high}; give both bounds of actions")
    if count is not None:
        return Converted(Discrete(count), (), np.int32), ()
    if low is not None:
        try:
            shape = np.broadcast_shapes(np.shape(low), np.shape(high))
            return Converted(Box(low, high, shape or (1,))), shape
        except ValueError as error:
            raise ShoalError(f"{subject}: low={low}, high={high} have different lengths") from error
    if not declares(world, "action_space"):
        raise ShoalError(
            f"{subject} has no action_space; give actions=4 for whole numbers from 0 to 3, or low=-1.0 and high=1.0"
        )
    with packages.by_convention(world):
        of_world = converted(world.action_space(params))
    shape = of_world.shape if not isinstance(of_world.space, Box) else of_world.space.shape
    if isinstance(of_world.space, Box) and not shape:
        of_world = Converted(Box(of_world.space.low, of_world.space.high, (1,)))
    return of_world, shape


def _as_numbers(subject: str, params: PyTree) -> PyTree:
    """Return params with whole numbers in int32, which are floats where they are data otherwise.

    Raises:
      ShoalError: a leaf is no number.
    """
    for leaf in jax.tree.leaves(params):
        if not isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array):
            raise ShoalError(
                f"{subject}: params has a {type(leaf).__name__}; a pytree of numbers would be right"
            )
    return jax.tree.map(lambda x: np.asarray(x, np.int32) if type(x) is int else x, params)


def _check_shape(subject: str, what: str, made: Any, shape: tuple[int, ...]) -> None:
    """Require the shape of what a step returns; where it has one number any shape of one is right."""
    own = np.shape(made)
    if own != shape and (math.prod(own), math.prod(shape)) != (1, 1):
        raise ShoalError(f"{subject} returns {what} of shape {own}; {shape} would be right")


def _fields_of(params: Any) -> dict[str, Any]:
    """Return the fields of a dataclass or a NamedTuple by name; empty for another pytree."""
    names = [x.name for x in dataclasses.fields(params)] if dataclasses.is_dataclass(params) else ()
    return {name: getattr(params, name) for name in names or getattr(params, "_fields", ())}


def _like(where: str, value: Any, default: Any) -> Any:
    """Return the value of a field of params in the type of its default."""
    declared = jax.Array if isinstance(default, jax.Array | np.ndarray) else type(default)
    value = convert_to_declared(where, value, declared, default)
    check_value(where, value, declared, Bounds(), default)
    return float(value) if isinstance(value, int) and declared is float else value
