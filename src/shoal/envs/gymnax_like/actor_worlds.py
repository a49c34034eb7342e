"""Worlds of several actors with gymnax's functions, such as those of jaxagents.

`reset_env(key, params)` returns one observation for all actors and a state, and `step_env(key, state, actions, params)`
an observation, a state, rewards [A], a flag and `info`. The flag includes the world's own time limit, which
`info["truncated"]` names. The worlds declare no spaces: the observation is traced, actions are given.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import import_object
from shoal.config.struct import Bounds
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.parameters import ANY_NUMBER, check_parameters, check_value, convert_to_declared
from shoal.envs.registry import check_count
from shoal.envs.suites import packages
from shoal.envs.suites.conversion import Converted, converted, of_types
from shoal.envs.suites.families import actors_of
from shoal.envs.suites.static_values import plain_parameters
from shoal.envs.suites.suite import Adapted, Facts, Parameters, numbers_of, trace
from shoal.types import Array, Environment, PyTree, State, TimeStep
from shoal.types.spaces import Box, Discrete, Space

GYMNAX_BASE = "gymnax.environments.environment"  # whose class has all names, most without a meaning
_BOUND = float | tuple[float, ...] | None
_OPTIONAL = {"params": Any, "actions": int | None, "low": _BOUND, "high": _BOUND}
# Of a name, and as `fields` any of those of `params`, which are known once it is given.
SETTINGS: Parameters = {
    **{
        k: inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=x)
        for k, x in _OPTIONAL.items()
    },
    **plain_parameters({"limit_terminates": False, "team_return": "sum"}),
    "fields": inspect.Parameter("fields", inspect.Parameter.VAR_KEYWORD),
}


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
        lost = (
            f"{type(self.world).__name__} resets within `step` and has no `step_env`, so that an episode's true last "
            "observation is lost: where it is truncated, the value of the next episode's start stands for it"
        )
        return "" if declares(self.world, "step_env") else lost

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros."""
        facts = self._facts()
        observation, state = function_of(self.world, "reset")(key, self.params)
        shown = self._shown(observation)
        return of_types(facts.state, state), restart(shown, num_agents=self.num_agents, info=facts.no_info())

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step by the world's inner function, without its own reset where it has both."""
        observation, after, rewards, flag, info = self._stepped(state, action, key)
        is_over, is_cut = jnp.reshape(flag, ()) != 0, jnp.reshape(info.get("truncated", False), ()) != 0
        died = is_over | is_cut
        if not self.limit_terminates:
            died = jnp.reshape(info.get("terminated", is_over & ~is_cut), ()) != 0
        return of_types(after, after), transition(
            self._shown(observation),
            jnp.reshape(jnp.asarray(rewards, jnp.float32), (self.num_agents,) if self.roles else ()),
            terminated=died,
            truncated=is_over | is_cut,
            info=self._numbers(info),
        )

    def _stepped(self, state: State, action: PyTree, key: Array) -> Any:
        """Return what the world's own step does, given actions of Shoal's space.

        Raises:
          ShoalError: rewards or flag have another shape than the convention's.
        """
        each = action if self.num_agents > 1 else jnp.asarray(action)[None]
        own = jnp.reshape(jax.vmap(self.actions.to_package)(each), (self.num_agents, *self.action_shape))
        made = function_of(self.world, "step")(key, state, own, self.params)
        for what, shape, right in (
            ("rewards", np.shape(made[2]), (self.num_agents,)),
            ("a flag", np.shape(made[3]), ()),
        ):
            if shape != right and (np.prod(shape), np.prod(right)) != (1, 1):
                who = type(self.world).__name__
                raise ShoalError(f"{who} returns {what} of shape {shape}; {right} would be right")
        return made

    def _shown(self, observation: PyTree) -> Array:
        """Return the observation as a vector, or as one for each of several actors, [A, o]."""
        parts = [jnp.ravel(jnp.asarray(x, jnp.float32)) for x in jax.tree.leaves(observation)]
        flat = jnp.concatenate(parts)
        return jnp.broadcast_to(flat, (self.num_agents, flat.size)) if self.num_agents > 1 else flat

    def _numbers(self, info: Mapping[str, object]) -> dict[str, Array]:
        """Return the entries that are one number, or one for each of several actors."""
        count = self.num_agents
        numbers = {name: x for name, x in numbers_of(info).items() if x.size in (1, count)}
        return {name: jnp.reshape(x, () if x.size == 1 else (count,)) for name, x in numbers.items()}

    def _facts(self) -> Facts:
        """Read shapes and dtypes, for parameters that may be traced."""

        def play(key: Array) -> tuple[PyTree, PyTree, Mapping[str, Array]]:
            _, state = function_of(self.world, "reset")(key, self.params)
            actions: Any = jax.vmap(self.action_space.sample)(jax.random.split(key, self.num_agents))
            after, timestep = self.step(state, actions if self.roles else actions[0], key)
            return after, timestep.observation, timestep.info

        return trace(self.world, play)


def make_actor_world(subject: str, world: Any, given: Mapping[str, Any]) -> Environment:
    """Make the environment of a world of several actors.

    Args:
      subject: the beginning of a sentence about it.
      given: values of `SETTINGS`, and of fields of `params`.
    Raises:
      ShoalError: a setting is missing or wrong, or the world's functions are not those of the convention.
    """
    values = {name: x.default for name, x in SETTINGS.items()}
    for name in given.keys() & SETTINGS.keys():
        where, declared = f"{subject}: {name}", SETTINGS[name].annotation
        values[name] = convert_to_declared(where, given[name], declared)
        check_value(where, values[name], declared, Bounds(low=1) if name == "actions" else ANY_NUMBER)
    check_count(subject, "n_actors", actors_of(world))
    fields = {name: x for name, x in given.items() if name not in SETTINGS}
    params = params_of(subject, world, values["params"], fields)
    actions, shape = _actions(subject, world, params, values["actions"], values["low"], values["high"])
    with packages.by_convention(world), jax.ensure_compile_time_eval():
        shown, _ = jax.eval_shape(function_of(world, "reset"), jax.random.key(0), params)
        space = Box(-np.inf, np.inf, (sum(x.size for x in jax.tree.leaves(shown)),))
    settings = values["limit_terminates"], values["team_return"]
    env: Any = ActorWorld(params, world, space, actions, shape, *settings)
    check_parameters(env)
    env._facts()
    return env


def params_of(subject: str, world: Any, given: Any, fields: Mapping[str, object]) -> Any:
    """Return what the world's functions take, with some of its fields changed; whole numbers are int32.

    Args:
      given: itself, what makes it, or `module:Name` of either; None for the world's own `default_params`.
    Raises:
      ShoalError: there is none, or a field is unknown or wrong.
    """
    if given is None and not declares(world, "default_params"):
        raise ShoalError(
            f"{subject} has no default_params; give params, which its functions take, or module:Name of its class, "
            "such as params=hunting_env:EnvParams"
        )
    named = import_object(given) if isinstance(given, str) else given
    with packages.by_convention(world):
        params = world.default_params if given is None else named() if callable(named) else named
    own = _fields_of(params)
    if unknown := next(iter(fields.keys() - own.keys()), ""):
        raise ShoalError(f"{subject} has no parameter {unknown!r}{nearest(unknown, [*SETTINGS, *own])}")
    changes = {name: _like(f"{subject}: {name}", x, own[name]) for name, x in fields.items()}
    replace: Callable[..., Any] = getattr(params, "_replace", functools.partial(dataclasses.replace, params))
    params = replace(**changes) if changes else params
    return jax.tree.map(lambda x: np.asarray(x, np.int32) if type(x) is int else x, params)


def portable(world: Any, parameters: Mapping[str, object], of_class: Parameters) -> dict[str, object]:
    """Return parameters, with all numbers and texts of a `params` that is named, whose defaults may change later."""
    if not isinstance(given := parameters.get("params"), str):
        return dict(parameters)
    fields = _fields_of(params_of(type(world).__name__, world, given, {}))
    reserved = SETTINGS.keys() | of_class.keys()
    return {k: x for k, x in fields.items() if np.ndim(x) == 0 and k not in reserved} | dict(parameters)


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
    if (low is None) != (high is None) or (count is not None and low is not None):
        raise ShoalError(
            f"{subject}: actions={count}, low={low}, high={high}; give actions, or both bounds and no actions"
        )
    if count is not None:
        return Converted(Discrete(count), (), np.int32), ()
    if low is None:
        if not declares(world, "action_space"):
            raise ShoalError(
                f"{subject} has no action_space; give actions=4 for whole numbers from 0 to 3, or low=-1.0 and high=1.0"
            )
        with packages.by_convention(world):
            own = converted(world.action_space(params))
        if not isinstance(own.space, Box):
            return own, own.shape
        low, high = own.space.low, own.space.high
    try:
        shape = np.broadcast_shapes(np.shape(low), np.shape(high))
    except ValueError as error:
        raise ShoalError(f"{subject}: low={low}, high={high} have different lengths") from error
    return Converted(Box(low, high, shape or (1,))), shape


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
