"""Environments with gymnax's functions, `reset_env(key, params)` and `step_env(key, state, action, params)`.

The flag that `step_env` returns is a termination in gymnax 1.0 and newer, and mixes death and time limit in Craftax.
The packages' own limits are set out of reach, so that it is a termination in both; Shoal's own limit truncates. Tasks
that observe the time keep theirs, as a truncation.
"""

import dataclasses
import functools
import inspect
import urllib.error
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.user_errors import describe_error
from shoal.config.struct import Bounds
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.gymnax_like import craftax_scores, pictures
from shoal.envs.parameters import check_value
from shoal.envs.registry import MAX_COUNT, check_count, resolve
from shoal.envs.suites import packages, static_values
from shoal.envs.suites.conversion import Converted, converted, of_types, require_interface, subject_of
from shoal.envs.suites.families import FAMILIES
from shoal.envs.wrappers import TimeLimit
from shoal.types import Array, Environment, PyTree, State, TimeStep
from shoal.types.spaces import Box, Space

INTERFACE = ("reset_env", "step_env", "default_params", "action_space", "observation_space")
LIMITS = ("max_steps_in_episode", "max_timesteps")  # the parameter, in gymnax and in Craftax
# Classes whose observation has the time, or the share of the limit that has passed.
OBSERVES_TIME = ("BernoulliBandit", "DiscountingChain", "GaussianBandit", "MetaMaze", "PointRobot")


class Facts(NamedTuple):
    """The properties of an object, read once by tracing a reset and a step with its default parameters."""

    observation: Any  # shapes and dtypes, as are the next two
    state: PyTree
    info: Mapping[str, Any]


@environment
class GymnaxLike:
    """An environment of gymnax, of Craftax, or of a class with gymnax's functions.

    Attributes:
      params: the parameters of the package, which are data.
      world: the package's own object.
      actions: the package's space for these parameters. It is static, so that environments whose actions have other
        bounds are not stacked.
    """

    params: Any
    world: Any = static()
    actions: Converted = static()

    @property
    def action_space(self) -> Space:
        """The package's space for these parameters."""
        return self.actions.space

    @property
    def observation_space(self) -> Space:
        """The package's space; unbounded where its bounds depend on parameters that are not known."""
        return _spaces(self.world, _known(self.world, self.params))[0].space

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """The reduction of each entry of `info`: the last value, which of an achievement is whether it was reached."""
        return MappingProxyType({})

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros."""
        facts = _facts(self.world)
        observation, state = self.world.reset_env(key, self.params)
        state = of_types(facts.state, state)
        info = {name: jnp.zeros(x.shape, x.dtype) for name, x in facts.info.items()}
        return state, restart(self._shown(observation), info=info)

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step, without the package's own reset."""
        action = self.actions.to_package(action)
        observation, after, reward, is_over, info = self.world.step_env(key, state, action, self.params)
        after = of_types(_facts(self.world).state, after)
        is_cut = self.world.is_truncated(after, self.params) if observes_time(self.world) else False
        return after, transition(
            self._shown(observation),
            jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(is_over, bool),
            truncated=jnp.asarray(is_cut, bool),
            info=_info(self.world, after, info),
        )

    def _shown(self, observation: PyTree) -> PyTree:
        """Return the observation in the dtypes of its space, which may differ from those that are made."""
        return _spaces(self.world, None)[0].to_shoal(observation)


@environment
class Drawn(GymnaxLike):
    """An environment that its package can draw."""

    def render(self, state: State) -> np.ndarray:
        """Draw a state, uint8 [height, width, 3], by the package's own functions."""
        return pictures.draw(self.world, self.params, state)


def observes_time(world: Any) -> bool:
    """Report whether the observation holds the time, so that the limit is a part of the task."""
    return packages.is_one_of(world, "gymnax", OBSERVES_TIME)


def _limit_name(params: Any) -> str:
    return next((name for name in LIMITS if hasattr(params, name)), "")


def _limit(world: Any, params: Any) -> int | None:
    """Return the limit that Shoal keeps in place of the package, None where there is none or the package keeps it."""
    name = _limit_name(params)
    limit = getattr(params, name, None)
    if not observes_time(world):
        return check_count(type(world).__name__, name, limit)
    check_value(f"{type(world).__name__}: {name}", limit, float | None, Bounds(low=1))
    return None


def limit_of(prefix: str, name: str, parameters: Mapping[str, Any]) -> int | None:
    """Return the time limit in steps; None where the package keeps it."""
    arguments = _arguments(prefix, name, parameters)
    world = world_of(prefix, name, arguments)
    try:
        return _limit(world, world.default_params)
    except ShoalError as error:
        raise packages.cannot_be_made(f"{prefix}{name}", arguments, error) from error


def adapted(world: Any) -> Environment:
    """Make an environment, with its time limit, of an object or of the pair that `gymnax.make` returns.

    Raises:
      ShoalError: it begins new episodes itself, as Craftax's classes without NoAutoReset do, or is a wrapper.
    """
    if isinstance(world, tuple) and len(world) != 2:
        raise ShoalError(
            f"a tuple of {len(world)} is not the pair that `gymnax.make` returns: an object and its parameters"
        )
    world, params = world if isinstance(world, tuple) else (world, None)
    _require_bare("", world)
    params = world.default_params if params is None else params
    if type(params) is not type(world.default_params):
        raise ShoalError(
            f"{type(world).__name__} has other parameters than the pair's; give those that `gymnax.make` gives"
        )
    limit, made = _limit(world, params), _environment(world, params, {})
    return made if limit is None else TimeLimit(made, limit)


def _require_bare(name: str, world: Any) -> None:
    """Require that an object has gymnax's functions, and neither wraps another nor begins new episodes itself."""
    require_interface(name, world, *INTERFACE)
    # Of the class: gymnax's wrappers pass on the attributes of the object inside, whose steps they would not change.
    if not hasattr(type(world), "step_env"):
        raise ShoalError(
            f"{subject_of(name, world)} has no `step_env` of its own; give the environment inside the wrapper"
        )
    if packages.is_one_of(world, "craftax", ("EnvironmentAutoReset",)):
        raise ShoalError(
            f"{subject_of(name, world)} begins new episodes itself; give one that does not, as Craftax's NoAutoReset do"
        )


def _environment(world: Any, params: Any, changes: Mapping[str, Any]) -> Environment:
    """Make the environment of an object from its parameters and changes of them, with its own limit out of reach."""
    if (name := _limit_name(params)) and not observes_time(world):
        changes = {**changes, name: MAX_COUNT}
    with packages.by_convention(world):
        params = params.replace(**changes) if changes else params
        # Python's numbers become float32 where they are traced, and the packages require integers to be integers.
        params = jax.tree.map(lambda x: np.asarray(x, np.int32) if type(x) is int else x, params)
        actions = _spaces(world, _known(world, params))[1]
    kind = Drawn if pictures.can_draw(world) else GymnaxLike
    return kind(params, world, actions)  # type: ignore[return-value]


@functools.cache
def world_of(prefix: str, name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    """Make the package's object of a name, one for each set of arguments, since it is hashed by its identity.

    Raises:
      ShoalError: there is no such name, or it cannot be made.
    """
    maker = _maker(prefix, name)
    try:
        with packages.undisturbed():
            world = maker(**dict(arguments))
    except urllib.error.URLError as error:
        raise ShoalError(f"{prefix}{name} needs a download, which failed: {describe_error(error)}") from error
    except Exception as error:
        raise packages.cannot_be_made(f"{prefix}{name}", arguments, error) from error
    _require_bare(f"{prefix}{name}", world)
    return world


def _maker(prefix: str, name: str) -> Callable[..., Any]:
    """Return the class, or the function, that makes the object of a name."""
    package = packages.import_suite(prefix)
    if ":" in name:
        return resolve(f"{prefix}{name}", name)
    known = FAMILIES[prefix].names if prefix == "craftax/" else tuple(package.registered_envs)
    if name not in known:
        raise packages.unknown_name(prefix, name, known)
    if prefix == "craftax/":
        make = packages.import_suite(prefix, "craftax.craftax_env").make_craftax_env_from_name
        return lambda: make(name, auto_reset=False)
    return packages.import_suite(prefix, "gymnax.registration")._registry[name]


@functools.cache
def constructor_of(prefix: str, name: str) -> Callable[..., Environment]:
    """Return the function that makes an environment of a name, from the parameters of its class and its `params`.

    Raises:
      ShoalError: there is no such name, or its package is not installed.
    """
    of_class, usual = _class_parameters(_maker(prefix, name)), world_of(prefix, name, ())
    default = usual.default_params

    def make(**parameters: Any) -> Environment:
        world = world_of(prefix, name, _arguments(prefix, name, parameters))
        given = {k: x for k, x in parameters.items() if k not in of_class}
        for k, x in given.items():
            bounds = Bounds(low=1 if k in LIMITS else None)
            check_value(f"{prefix}{name}: {k}", x, known[k].annotation, bounds)
        own = {k: _as_default(x, getattr(default, k)) for k, x in given.items()}
        with packages.first_steps(f"{prefix}{name}", parameters.items()):
            return _environment(world, world.default_params, own)

    with packages.by_convention(usual):
        names = [x.name for x in dataclasses.fields(default) if x.name not in LIMITS or observes_time(usual)]
    known = of_class | static_values.plain_parameters({x: getattr(default, x) for x in names})
    owner = "your own" if ":" in name else FAMILIES[prefix].title
    return static_values.declare(make, f"{prefix}{name}", known, f"{type(usual).__name__}, of {owner}.")


def _arguments(prefix: str, name: str, parameters: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the parameters of the class that are not the default, in order."""
    known = _class_parameters(_maker(prefix, name))
    return static_values.changed_arguments(f"{prefix}{name}", parameters, known)


def _class_parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return static_values.plain_parameters(static_values.defaults_of(maker))


def _as_default(value: Any, default: Any) -> Any:
    """Return an integer that is given for a float as a float, whose type the package's code may require."""
    return float(value) if isinstance(default, float) and isinstance(value, int) else value


@functools.cache
def _facts(world: Any) -> Facts:
    """Read the facts about an object."""

    def play(key: Array) -> tuple[Any, PyTree, dict[str, Array]]:
        params = world.default_params
        observation, state = world.reset_env(key, params)
        action = actions.to_package(actions.space.sample(key))
        _, after, _, _, info = world.step_env(key, state, action, params)
        return observation, after, _info(world, after, info)

    with packages.by_convention(world):
        with jax.ensure_compile_time_eval():
            key, actions = jax.random.key(0), converted(world.action_space(world.default_params))
        return Facts(*jax.eval_shape(play, key))


def _info(world: Any, state: State, info: Mapping[str, Any]) -> dict[str, Array]:
    """Return the numbers of `info`; in Craftax the achievements so far, which its own has only at an episode's end."""
    if craftax_scores.package_of(world):
        return craftax_scores.achievements(world, state)
    numbers = {name: jnp.asarray(x) for name, x in info.items() if name != "discount" and _is_number(x)}
    # Naming the dtype makes it a strong one.
    return {name: jnp.asarray(x, x.dtype) for name, x in numbers.items()}


def _is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float | np.ndarray | jax.Array)


def _known(world: Any, params: Any) -> Hashable | None:
    """Return the structure of parameters, and the value of each with an array's dtype.

    None where one is traced, or differs between environments of a stack.
    """
    (leaves, structure), own = jax.tree.flatten(params), jax.tree.leaves(world.default_params)
    is_unknown = any(isinstance(x, jax.core.Tracer | jax.ShapeDtypeStruct) for x in leaves) or any(
        np.ndim(x) != np.ndim(y) for x, y in zip(leaves, own, strict=False)
    )
    pairs = [(x, x.dtype.name if isinstance(x, jax.Array) or np.ndim(x) else "") for x in leaves]
    return None if is_unknown else (structure, static_values.to_static("params", pairs))


@functools.cache
def _spaces(world: Any, known: Any) -> tuple[Converted, Converted]:
    """Return the spaces of observations and actions for what is known of parameters, None where nothing is."""
    params = world.default_params
    with packages.undisturbed(), packages.by_convention(world):
        if known is not None:
            leaves = [jnp.asarray(x, dtype) if dtype else x for x, dtype in known[1]]
            params = jax.tree.unflatten(known[0], leaves)
        observation = converted(world.observation_space(params), _facts(world).observation)
        action, space = converted(world.action_space(params)), observation.space
    if known is None and isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating):
        observation = Converted(Box(-np.inf, np.inf, space.shape, space.dtype))
    return observation, action
