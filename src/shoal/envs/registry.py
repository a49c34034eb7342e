"""Environments by name: `make("CartPole-v1", gravity=9.8)`, `make("my_package:MyEnv")`.

This module imports neither JAX nor any environment, so that listing the names costs nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shoal.arguments import names, shown, text
from shoal.envs.grid import names as grid_names
from shoal.errors import ShoalError, nearest
from shoal.imports import imported

if TYPE_CHECKING:
    from shoal.types import Environment

# Every environment has these parameters; None means no limit, and no trials.
TIME_LIMIT = "max_episode_steps"
TRIAL = "trial_episodes"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A registered constructor, the time limit that its environment has, and what else the name stands for."""

    constructor: Callable[..., Environment] | str  # a callable, or "module:attribute" (imported when made)
    max_episode_steps: int | None = None
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_entries: dict[str, Entry] = {}


def register(
    name: str,
    constructor: Callable[..., Environment] | str,
    *,
    max_episode_steps: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> None:
    """Gives an environment a name.

    Args:
      name: what `make` and the command line will know it by; without a colon.
      constructor: an environment class, a function that returns an environment, or `"module:attribute"`
        of either, which is imported when the environment is first made.
      max_episode_steps: the time limit that `make` adds unless told otherwise; None for none.
      parameters: values of the environment's parameters that this name stands for, such as a size; `make`
        may still be told others.
      replace: whether the name may be taken already.

    Raises:
      ShoalError: the name has a colon, or is taken and `replace` is not given; or an argument is of another type.
    """
    text("name", name, "MyEnv-v0")
    if not isinstance(constructor, str) and not callable(constructor):
        raise ShoalError(
            f"constructor={shown(constructor)} is neither a class or function that makes an environment, nor "
            "'module:Name' of one"
        )
    if ":" in name:
        raise ShoalError(
            f"the name {name!r} has a colon; try {name.replace(':', '-')!r} (a colon is for module:Name)"
        )
    if name in _entries and not replace:
        raise ShoalError(f"the name {name!r} is taken already; give replace=True to replace it")
    limit = _checked_count(name, TIME_LIMIT, max_episode_steps)
    _entries[name] = Entry(constructor, limit, dict(names("parameters", parameters)))


def environments() -> list[str]:
    """The names that `make` knows, sorted."""
    return sorted(_entries)


def make(name: str, **parameters: Any) -> Environment:
    """The environment of a name, with parameters of its own.

    Args:
      name: a registered name, or `"module:Name"` for a class (or function) that can be imported.
      **parameters: fields of the environment (physics, sizes, rules); `max_episode_steps`, its time limit
        (None for none); and `trial_episodes`, how many episodes a `Trial` joins into one (None for no trials).
        Numbers may be arrays and may be traced: to have many worlds, map over it,
        `jax.vmap(lambda gravity: make("MountainCar-v0", gravity=gravity).step(...))`.

    Raises:
      ShoalError: the name or a parameter is unknown, or a value has the wrong type.
    """
    entry = _entry(name)
    constructor = _resolve(name, entry.constructor)
    known = parameters_of(name)
    parameters = {**entry.parameters, **parameters}
    for parameter, value in parameters.items():
        parameters[parameter] = _checked(name, parameter, value, known)
    around = {TIME_LIMIT: entry.max_episode_steps, TRIAL: None}  # what wrappers do, unless it does so itself
    for parameter in around.keys() - _own_parameters(constructor).keys():
        around[parameter] = parameters.pop(parameter, around[parameter])
    for parameter, declared in known.items():
        if declared.default is inspect.Parameter.empty and parameter not in parameters:
            raise ShoalError(f"{name} needs the parameter {parameter!r}, which has no default")
    env = constructor(**parameters)
    _check_is_environment(name, env)
    return _wrapped(env, around[TIME_LIMIT], around[TRIAL])


def lasting(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an environment as a run writes them down.

    An environment whose parameters name something that may change or move, such as a file, has a static method
    `lasting_parameters` that makes them mean the same later and from anywhere.
    """
    settle = getattr(_resolve(name, _entry(name).constructor), "lasting_parameters", dict)
    return settle(parameters)


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """The parameters that `make` takes for a name, each with its type (`annotation`) and `default`.

    Raises:
      ShoalError: the name is unknown.
    """
    entry = _entry(name)
    known = {
        parameter: inspect.Parameter(
            parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=int | None
        )
        for parameter, default in ((TIME_LIMIT, entry.max_episode_steps), (TRIAL, None))
    } | _own_parameters(_resolve(name, entry.constructor))
    own = {
        parameter: known[parameter].replace(default=value)
        for parameter, value in entry.parameters.items()
        if parameter in known  # `make` says what is wrong otherwise
    }
    return known | own


def _wrapped(env: Environment, limit: int | None, trial: int | None) -> Environment:
    """An environment with its time limit, and as trials of so many episodes."""
    from shoal.envs.trials import Trial  # noqa: PLC0415  (imports JAX)
    from shoal.envs.wrappers import TimeLimit  # noqa: PLC0415

    limited = env if limit is None else TimeLimit(env, limit)
    return limited if trial is None else Trial(limited, trial)


def _entry(name: str) -> Entry:
    text("name", name, "CartPole-v1")
    if name in _entries:
        return _entries[name]
    if ":" in name:
        return Entry(name)
    raise ShoalError(
        f"there is no environment {name!r}{nearest(name, _entries) or f'; there are {_listed(_entries)}'}"
    )


def _resolve(name: str, constructor: Callable[..., Environment] | str) -> Callable[..., Environment]:
    """The callable that makes an environment, imported if it is given as "module:attribute"."""
    if not isinstance(constructor, str):
        return constructor
    found = imported(constructor)
    if not callable(found):
        raise ShoalError(
            f"{name} is of type {type(found).__name__}, not a class or function that makes an environment"
        )
    return found


def _own_parameters(constructor: Callable[..., Environment]) -> dict[str, inspect.Parameter]:
    """A constructor's parameters by name, their annotations as types where they can be resolved."""
    hinted = constructor if inspect.isclass(constructor) or inspect.isfunction(constructor) else None
    try:
        hints = typing.get_type_hints(hinted) if hinted is not None else {}
    except NameError:  # an annotation that exists for the type checker only
        hints = {}
    return {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in inspect.signature(constructor).parameters.items()
    }


def _checked(name: str, parameter: str, value: Any, known: Mapping[str, inspect.Parameter]) -> Any:
    """A parameter's value, if the environment takes it."""
    if parameter in (TIME_LIMIT, TRIAL):
        return _checked_count(name, parameter, value)
    if parameter not in known:
        if any(declared.kind is inspect.Parameter.VAR_KEYWORD for declared in known.values()):
            return value
        raise ShoalError(
            f"{name} has no parameter {parameter!r} (it has {_listed(known)}){nearest(parameter, known)}"
        )
    declared = known[parameter].annotation
    if not _fits(value, declared):
        wanted = {float: "a number", int: "a whole number"}.get(declared, f"a {_type_name(declared)}")
        default = known[parameter].default
        example = "" if default is inspect.Parameter.empty else f", such as {default!r}"
        raise ShoalError(
            f"{name}: {parameter}={value!r} is of type {type(value).__name__}; give {wanted}{example}"
        )
    return value


def _fits(value: Any, declared: Any) -> bool:
    """Whether a value may stand for a parameter of that type; arrays (traced too) are numbers."""
    if declared is float:
        if hasattr(value, "dtype"):
            return str(value.dtype).startswith(("float", "bfloat", "int", "uint"))
        return isinstance(value, int | float) and not isinstance(value, bool)
    if declared is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if declared in (bool, str):
        return isinstance(value, declared)
    return True  # arrays, environments, tuples: the constructor knows best


def _checked_count(name: str, parameter: str, value: Any) -> int | None:
    """A whole number of 1 or more, or None."""
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ShoalError(
            f"{name}: {parameter}={value!r} is not a whole number of 1 or more, nor None for none"
        )
    return count


def _check_is_environment(name: str, env: Any) -> None:
    for attribute in ("observation_space", "action_space", "num_agents", "info_summaries", "reset", "step"):
        if not hasattr(env, attribute):
            raise ShoalError(
                f"{name} made a {type(env).__name__}, which has no `{attribute}`; is @environment missing?"
            )


def _type_name(declared: Any) -> str:
    return getattr(declared, "__name__", str(declared))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


for _name, _attribute, _limit in (
    ("Acrobot-v1", "classic.acrobot:Acrobot", 500),
    ("CartPole-NoVelocity-v1", "classic.no_velocity:cartpole", 500),
    ("CartPole-v1", "classic.cartpole:CartPole", 500),
    ("MemoryChain-v0", "memory_chain:MemoryChain", None),
    ("MountainCar-v0", "classic.mountain_car:MountainCar", 200),
    ("MountainCarContinuous-v0", "classic.mountain_car_continuous:MountainCarContinuous", 999),
    ("Pendulum-NoVelocity-v1", "classic.no_velocity:pendulum", 200),
    ("Pendulum-v1", "classic.pendulum:Pendulum", 200),
    ("probe/action", "probes:ActionReward", None),
    ("probe/action-and-observation", "probes:ActionAndObservationReward", None),
    ("probe/constant", "probes:ConstantReward", None),
    ("probe/continuous-action", "probes:ContinuousAction", None),
    ("probe/delay", "probes:DelayedReward", None),
    ("probe/endless", "probes:Endless", None),
    ("probe/observation", "probes:ObservationReward", None),
):
    register(_name, f"shoal.envs.{_attribute}", max_episode_steps=_limit)
for _name, _constructor, _parameters in grid_names.entries():
    register(_name, _constructor, parameters=_parameters)
