"""Environments by name: `make("CartPole-v1", gravity=9.8)`, `make("my_package:MyEnv")`.

This module imports neither JAX nor any environment, so that listing the names is fast.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.base import registers
from shoal.base.errors import ShoalError, alternatives, nearest
from shoal.base.imports import import_object
from shoal.base.user_errors import reports_user_code
from shoal.config.arguments import LARGEST_INDEX, mapping, short_repr, text
from shoal.envs.grid.tasks import task_names as grid_names
from shoal.envs.suites.families import FAMILIES, actors_of, closest_environment

if TYPE_CHECKING:
    from shoal.config.struct import Bounds
    from shoal.types import Environment

# Parameters of every environment; None means no limit, and no trials.
TIME_LIMIT = "max_episode_steps"
TRIAL = "trial_episodes"

# Packages whose environments have another interface.
OTHER_LIBRARIES = (
    *("brax", "craftax", "dm_env", "gym", "gymnasium", "gymnax", "jaxmarl", "jumanji", "mujoco_playground"),
    *("navix", "pettingzoo", "pgx"),
)


class Registration(NamedTuple):
    """A registered constructor, the time limit of its environment, and the parameters that the name sets."""

    constructor: Callable[..., Environment] | str  # a callable, or "module:attribute" (imported when made)
    max_episode_steps: int | None = None
    parameters: Mapping[str, object] = MappingProxyType({})


# Shoal's own, without the checks of `register`, which every command would wait for.
_entries = {
    name: Registration(f"shoal.envs.{constructor}", limit, parameters)
    for name, constructor, limit, parameters in (
        ("Acrobot-v1", "classic.acrobot:Acrobot", 500, {}),
        ("CartPole-NoVelocity-v1", "classic.no_velocity:cartpole", 500, {}),
        ("CartPole-v1", "classic.cartpole:CartPole", 500, {}),
        ("Hunt-v0", "hunt:Hunt", None, {}),
        ("MemoryChain-v0", "memory_chain:MemoryChain", None, {}),
        ("MountainCar-v0", "classic.mountain_car:MountainCar", 200, {}),
        ("MountainCarContinuous-v0", "classic.mountain_car_continuous:MountainCarContinuous", 999, {}),
        ("Pendulum-NoVelocity-v1", "classic.no_velocity:pendulum", 200, {}),
        ("Pendulum-v1", "classic.pendulum:Pendulum", 200, {}),
        ("mpe/SpeakerListener-v0", "mpe.speaker_listener:SpeakerListener", 25, {}),
        ("mpe/Spread-v0", "mpe.spread:Spread", 25, {}),
        ("mpe/Tag-v0", "mpe.tag:Tag", 25, {}),
        ("particles/MultiNavigator-v0", "particles.tasks.navigators:MultiNavigator", 128, {}),
        ("particles/MultiRoller-v0", "particles.tasks.rollers:MultiRoller", 128, {}),
        ("particles/Navigator-v0", "particles.tasks.navigators:Navigator", 128, {}),
        ("particles/Roller-v0", "particles.tasks.rollers:Roller", 128, {}),
        ("particles/Swarm-v0", "particles.tasks.swarm:Swarm", 128, {}),
        ("probe/action", "probes:ActionReward", None, {}),
        ("probe/action-and-observation", "probes:ActionAndObservationReward", None, {}),
        ("probe/constant", "probes:ConstantReward", None, {}),
        ("probe/continuous-action", "probes:ContinuousAction", None, {}),
        ("probe/delay", "probes:DelayedReward", None, {}),
        ("probe/endless", "probes:Endless", None, {}),
        ("probe/observation", "probes:ObservationReward", None, {}),
        ("probe/team", "team_probe:TeamProbe", None, {}),
        *grid_names.names(),
    )
}


def register(
    name: str,
    constructor: Callable[..., Environment] | str,
    *,
    max_episode_steps: int | None = None,
    parameters: Mapping[str, object] | None = None,
    replace: bool = False,
) -> None:
    """Register a name for an environment.

    Args:
      constructor: an environment class, a function that returns an environment, or `"module:attribute"`
        of either, which is imported when the environment is first made.
      max_episode_steps: the time limit in steps that `make` adds by default; None for none.
      parameters: values of the environment's parameters that this name sets, such as a size; `make`
        may override them.
    Raises:
      ShoalError: the name has a colon, or is taken and `replace` is not given; or an argument has a wrong type.
    """
    text("name", name, "MyEnv-v0")
    if not isinstance(constructor, str) and not callable(constructor):
        raise ShoalError(
            f"constructor={short_repr(constructor)} is neither a class or function that makes an environment, nor "
            "'module:Name' of one"
        )
    if ":" in name:
        raise ShoalError(
            f"the name {name!r} has a colon; try {name.replace(':', '-')!r} (a colon is for module:Name)"
        )
    if name in _entries and not replace:
        raise ShoalError(f"the name {name!r} is taken already; give replace=True to replace it")
    limit = check_count(name, TIME_LIMIT, max_episode_steps)
    _entries[name] = Registration(constructor, limit, dict(mapping("parameters", parameters)))


def environments() -> list[str]:
    """List the registered names, sorted."""
    registers.import_modules(known=False)
    return sorted(_entries)


def family_of(name: str) -> str:
    """Return the prefix of a name of another package's environment; "" if it is none."""
    return next((prefix for prefix in FAMILIES if name.startswith(prefix) and name not in _entries), "")


def adapted(environment: Any) -> Any:
    """Make an environment of an object of another package that Shoal has an adapter for; others are returned unchanged.

    Args:
      environment: an environment, or what `gymnax.make` returns, one with its parameters.
    Raises:
      ShoalError: the adapter cannot use it.
    """
    is_pair = isinstance(environment, tuple) and len(environment) == 2
    made = environment[0] if is_pair else environment
    family = FAMILIES.get(family_of_object(made))
    is_state = not hasattr(made, "step") and actors_of(made) is None  # or parameters
    if family is None or is_state or (is_pair and not family.makes_pairs):
        return environment
    return family.adapter().adapted(environment)


def family_of_object(world: object) -> str:
    """Return the prefix of the package whose class an object is of, or inherits from; "" if there is none.

    A world of several actors with gymnax's functions is one of gymnax's, whatever its class.
    """
    packages = {"gymnax"} if actors_of(world) is not None else _packages_of(world)
    return next((prefix for prefix, family in FAMILIES.items() if family.package in packages), "")


def _packages_of(world: object) -> set[str]:
    return {cls.__module__.partition(".")[0] for cls in type(world).__mro__}


@reports_user_code
def make(name: object, /, **parameters: object) -> Environment:
    """Make the environment of a name, or of another package's object whose settings are parameters.

    Args:
      name: a registered name, `"module:Name"` for a class (or function) that can be imported, or an object with
        gymnax's functions and `n_actors`, or one of JaxDEM's environments.
      **parameters: fields of the environment (physics, sizes, rules); `max_episode_steps`, its time limit in
        steps (None for none); and `trial_episodes`, the number of episodes that a `Trial` joins into one (None for
        no trials). Numbers may be arrays and may be traced: to have many different environments, map over it,
        `jax.vmap(lambda gravity: make("MountainCar-v0", gravity=gravity).step(...))`. Where an array is
        declared, a list of numbers may be given.
    Raises:
      ShoalError: the name or a parameter is unknown, or a value has the wrong type or is out of its bounds. NaN
        always is; infinity is, unless the field's bounds admit it (see `parameter`).
    """
    from shoal.config import struct  # noqa: PLC0415  (imports JAX)
    from shoal.config.traced import check_static  # noqa: PLC0415
    from shoal.envs.parameters import check_parameters  # noqa: PLC0415

    if not isinstance(name, str) and (made := _made_of_object(name, parameters)) is not None:
        return made
    name = text("name", name, "CartPole-v1")
    entry = _entry(name)
    constructor = resolve(name, entry.constructor)
    known, bounds = parameters_of(name), bounds_of(name)
    parameters = {
        parameter: _check_parameter(name, parameter, value, known, bounds)
        for parameter, value in {**entry.parameters, **parameters}.items()
    }
    cls = inspect.unwrap(constructor)
    # Before the constructor, which may compute with a static number.
    if struct.is_struct(cls):
        may_be_data: Iterable[str] = struct.data_fields(cls)
    else:
        takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in known.values())
        may_be_data = parameters if takes_any else known
    for parameter in parameters.keys() - set(may_be_data):
        check_static(f"{name}: {parameter}", parameters[parameter])
    # The parameters of wrappers, unless the environment has its own of that name.
    wrapper_parameters: dict[str, Any] = {TIME_LIMIT: default_limit(name, parameters), TRIAL: None}
    for parameter in wrapper_parameters.keys() - _constructor_parameters(constructor).keys():
        wrapper_parameters[parameter] = parameters.pop(parameter, wrapper_parameters[parameter])
    for parameter, declared in known.items():
        is_required = declared.kind is not inspect.Parameter.VAR_KEYWORD
        if is_required and declared.default is inspect.Parameter.empty and parameter not in parameters:
            raise ShoalError(f"{name} needs the parameter {parameter!r}, which has no default")
    env = constructor(**parameters)
    check_is_environment(f"{name} made", env)
    check_parameters(env)
    return _wrap(env, wrapper_parameters[TIME_LIMIT], wrapper_parameters[TRIAL])


def _made_of_object(world: object, parameters: Mapping[str, object]) -> Environment | None:
    """Make the environment of another package's object with these parameters; None if it has no parameters here."""
    family = FAMILIES.get(family_of_object(world))
    if family is None:
        return None
    suite, settings = family.adapter(), dict(parameters)
    wrappers = {x: settings.pop(x) for x in (TIME_LIMIT, TRIAL) if x in settings}
    counts = {k: check_count(type(world).__name__, k, x) for k, x in wrappers.items()}
    suite.require("", world)
    if (made := suite.with_settings(world, settings)) is None:
        return None
    env, limit = made
    return _wrap(env, counts.get(TIME_LIMIT, limit), counts.get(TRIAL))


def default_limit(name: str, parameters: Mapping[str, object]) -> int | None:
    """Return the time limit in steps of an environment with these parameters, None for none.

    Another package's environment may have one that depends on them, such as a size.
    """
    prefix = family_of(name)
    if not prefix:
        return _entry(name).max_episode_steps
    return FAMILIES[prefix].adapter().limit_of(name.removeprefix(prefix), parameters)


def portable_parameters(name: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """Convert the parameters of an environment to those that a run writes down.

    An environment with parameters that name something that may change or move, such as a file, has a static
    method `portable_parameters`. It returns parameters that keep their meaning later and from any directory.
    """
    to_portable = getattr(resolve(name, _entry(name).constructor), "portable_parameters", dict)
    return {k: os.fspath(x) if isinstance(x, os.PathLike) else x for k, x in to_portable(parameters).items()}


def registered_parameters(name: str) -> Mapping[str, object]:
    """Return the parameters that a name itself sets."""
    return _entry(name).parameters


@reports_user_code
def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters that `make` takes for a name, each with its type (`annotation`) and `default`.

    Raises:
      ShoalError: the name is unknown.
    """
    entry = _entry(name)
    known = {
        parameter: inspect.Parameter(
            parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=int | None
        )
        for parameter, default in ((TIME_LIMIT, entry.max_episode_steps), (TRIAL, None))
    } | _constructor_parameters(resolve(name, entry.constructor))
    registered = {
        parameter: known[parameter].replace(default=value)
        for parameter, value in entry.parameters.items()
        if parameter in known  # `make` raises the error for unknown ones
    }
    return known | registered


def documentation(name: str) -> str:
    """Return the documentation of an environment's constructor, with the parameters that the name sets.

    The parameters follow the first line, such as "Two rooms: ... (height=5, width=5)". Empty for a
    constructor without documentation.

    Raises:
      ShoalError: the name is unknown.
    """
    entry = _entry(name)
    first, _, rest = (inspect.getdoc(resolve(name, entry.constructor)) or "").partition("\n")
    if settings := ", ".join(
        f"{key}={value}" for key, value in entry.parameters.items() if key != TIME_LIMIT
    ):
        first = f"{first} ({settings})"
    return f"{first}\n{rest}".strip()


def bounds_of(name: str) -> dict[str, Bounds]:
    """Return the bounds that the parameters of a name declare, by parameter.

    A function that makes environments can declare none, unless it wraps a class by `functools.wraps`.

    Raises:
      ShoalError: the name is unknown.
    """
    from shoal.config import struct  # noqa: PLC0415  (imports JAX)

    constructor = inspect.unwrap(resolve(name, _entry(name).constructor))
    bounds = struct.bounds_of(constructor) if dataclasses.is_dataclass(constructor) else {}
    return bounds | dict.fromkeys((TIME_LIMIT, TRIAL), struct.Bounds(low=1))


def score_bounds_of(name: str) -> tuple[float, float] | None:
    """Return the mean returns of random actions and of the best policy, by which scores are normalised.

    An environment declares them in its class attribute `score_bounds`; None where it declares none.

    Raises:
      ShoalError: the name is unknown.
    """
    return getattr(inspect.unwrap(resolve(name, _entry(name).constructor)), "score_bounds", None)


def names_of_class(cls: type) -> list[str]:
    """List the registered names whose environments (inside `max_episode_steps` and `trial_episodes`) are of a class.

    These are the names that are registered with the class itself, or with a function whose attribute
    `environment_class` is the class.
    """
    constructors = {name: _if_imported(entry.constructor) for name, entry in _entries.items()}
    return sorted(
        name
        for name, constructor in constructors.items()
        if cls in (constructor, getattr(constructor, "environment_class", None))
    )


def _if_imported(constructor: Callable[..., Environment] | str) -> object:
    """Return a constructor if it is Shoal's own or its module is imported; other modules cannot have made an object."""
    if not isinstance(constructor, str):
        return constructor
    module, _, attribute = constructor.partition(":")
    if module.partition(".")[0] == "shoal":
        return import_object(constructor)
    return getattr(sys.modules.get(module), attribute, None)


def _wrap(env: Environment, limit: int | None, episodes: int | None) -> Environment:
    """Add a time limit and trials to an environment."""
    from shoal.envs.trials import Trial  # noqa: PLC0415  (imports JAX)
    from shoal.envs.wrappers import TimeLimit  # noqa: PLC0415

    with_time_limit = env if limit is None else TimeLimit(env, limit)
    return with_time_limit if episodes is None else Trial(with_time_limit, episodes)


def _entry(name: str) -> Registration:
    text("name", name, "CartPole-v1")
    registers.import_modules(known=True)  # which may replace a name
    if name not in _entries and not family_of(name) and ":" not in name:
        registers.import_modules(known=False)
    if name in _entries:
        return _entries[name]
    if prefix := family_of(name):
        adapter, own_name = FAMILIES[prefix].adapter(), name.removeprefix(prefix)
        return Registration(adapter.constructor_of(own_name), adapter.limit_of(own_name, {}))
    if ":" in name:
        return Registration(name)
    if family := FAMILIES.get(f"{name}/"):
        raise ShoalError(
            f"{name!r} begins the names of {family.title}'s environments, such as {family.prefix}{family.names[0]}; "
            "`shoal envs` lists them"
        )
    best = closest_environment(name, _entries)
    hint = (
        f"did you mean {best!r}?" if best else "`shoal envs` lists them, and module:Name is one of your own"
    )
    raise ShoalError(f"there is no environment {name!r}; {hint}")


def resolve(name: str, constructor: Callable[..., Environment] | str) -> Callable[..., Environment]:
    """Return the callable that makes an environment; import it if it is given as "module:attribute"."""
    if not isinstance(constructor, str):
        return constructor
    found = import_object(constructor)
    if not callable(found):
        raise ShoalError(
            f"{name} is of type {type(found).__name__}, not a class or function that makes an environment"
        )
    return found


def _constructor_parameters(constructor: Callable[..., Environment]) -> dict[str, inspect.Parameter]:
    """Return a constructor's parameters by name, their annotations as types where they can be resolved."""
    from shoal.envs.parameters import declared_types  # noqa: PLC0415  (imports JAX)

    hints = declared_types(constructor)
    fields: Iterable[Any] = dataclasses.fields(constructor) if dataclasses.is_dataclass(constructor) else ()
    factory_defaults = {
        x.name: x.default_factory() for x in fields if x.default_factory is not dataclasses.MISSING
    }
    return {
        name: x.replace(annotation=hints.get(name, Any), default=factory_defaults.get(name, x.default))
        for name, x in inspect.signature(constructor).parameters.items()
    }


def _check_parameter(
    name: str,
    parameter: str,
    value: object,
    known: Mapping[str, inspect.Parameter],
    bounds: Mapping[str, Bounds],
) -> object:
    """Validate and return a parameter's value."""
    from shoal.envs import parameters  # noqa: PLC0415  (imports JAX)

    if parameter in (TIME_LIMIT, TRIAL):
        return check_count(name, parameter, value)
    if parameter not in known:
        if any(declared.kind is inspect.Parameter.VAR_KEYWORD for declared in known.values()):
            return value
        raise ShoalError(
            f"{name} has no parameter {parameter!r} "
            f"({alternatives(parameter, known, f'shoal envs {name}', 'it has')}){nearest(parameter, known)}"
        )
    declared = known[parameter].annotation
    default = known[parameter].default
    default = None if default is inspect.Parameter.empty else default
    where = f"{name}: {parameter}"
    value = parameters.convert_to_declared(where, value, declared, default)
    # A field that declares no bounds must be finite; this is checked once the environment is made.
    parameters.check_value(where, value, declared, bounds.get(parameter, parameters.ANY_NUMBER), default)
    return value


def check_count(name: str, parameter: str, value: Any) -> int | None:
    """Return a whole number of 1 or more, or None."""
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= LARGEST_INDEX or isinstance(value, bool):
        limit_note = f", at most {LARGEST_INDEX:,}" * (count > LARGEST_INDEX)
        raise ShoalError(
            f"{name}: {parameter}={short_repr(value)} is not a whole number of 1 or more{limit_note}, nor None for none"
        )
    return count


def check_is_environment(subject: str, env: object) -> None:
    """Require that an object has the attributes and methods of an environment.

    Args:
      subject: the beginning of the sentence, such as "mine:Name made".
    Raises:
      ShoalError: it lacks an attribute; if its class is another library's, the sentence names the library.
    """
    for attribute in ("observation_space", "action_space", "num_agents", "info_summaries", "reset", "step"):
        # A property is not read: the sizes that it computes with may be out of bounds, which is said later.
        if inspect.getattr_static(env, attribute, None) is None and not hasattr(env, attribute):
            library = next((name for name in OTHER_LIBRARIES if name in _packages_of(env)), "")
            hint = (
                f"it is an environment of {library}, and Shoal runs its own, which are pure functions "
                "(@shoal.environment)"
                if library
                else "is @environment missing?"
            )
            raise ShoalError(f"{subject} a {type(env).__name__}, which has no `{attribute}`; {hint}")
