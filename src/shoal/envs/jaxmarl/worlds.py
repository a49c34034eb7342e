"""JaxMARL's own objects: the classes behind its names, their parameters, and how they are made.

JaxMARL is imported when the first of these is used. Importing it makes arrays, so that JAX starts.
"""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import import_object
from shoal.envs.suites.conversion import require_interface, subject_of
from shoal.envs.suites.packages import (
    cannot_be_made,
    classes_of,
    import_suite,
    is_one_of,
    undisturbed,
    unknown_name,
)
from shoal.envs.suites.static_values import from_static, to_static

PREFIX = "jaxmarl/"

# JaxMARL's names and their classes. Not here are
#   storm: its observations have no row for each agent,
#   storm_2p: it takes a tuple of actions, and reads the keys of a dictionary as if they were actions,
#   LearnedPolicyEnemySMAX: it needs a policy,
#   and those that need a further package (brax, jaxrobotarium).
CLASSES = {
    "MPE_simple_v3": "SimpleMPE",
    "MPE_simple_tag_v3": "SimpleTagMPE",
    "MPE_simple_world_comm_v3": "SimpleWorldCommMPE",
    "MPE_simple_spread_v3": "SimpleSpreadMPE",
    "MPE_simple_crypto_v3": "SimpleCryptoMPE",
    "MPE_simple_speaker_listener_v4": "SimpleSpeakerListenerMPE",
    "MPE_simple_push_v3": "SimplePushMPE",
    "MPE_simple_adversary_v3": "SimpleAdversaryMPE",
    "MPE_simple_reference_v3": "SimpleReferenceMPE",
    "MPE_simple_facmac_v1": "SimpleFacmacMPE",
    "MPE_simple_facmac_3a_v1": "SimpleFacmacMPE3a",
    "MPE_simple_facmac_6a_v1": "SimpleFacmacMPE6a",
    "MPE_simple_facmac_9a_v1": "SimpleFacmacMPE9a",
    "switch_riddle": "SwitchRiddle",
    "SMAX": "SMAX",
    "HeuristicEnemySMAX": "HeuristicEnemySMAX",
    "storm_np": "InTheMatrix",
    "hanabi": "Hanabi",
    "overcooked": "Overcooked",
    "overcooked_v2": "OvercookedV2",
    "coin_game": "CoinGame",
    "jaxnav": "JaxNav",
}
# Parameters that JaxMARL's MPE classes pass on to `SimpleMPE` by `**kwargs`.
OF_SIMPLE_MPE = ("max_steps", "dt")

Arguments = tuple[tuple[str, Any], ...]


def full_name(name: str) -> str:
    """Return the name for `shoal.make`."""
    return f"{PREFIX}{name}"


def check_name(name: str) -> None:
    """Require that a name is one of JaxMARL's that can be made, or the `module:Name` of a class."""
    if name not in CLASSES and ":" not in name:
        raise unknown_name(PREFIX, name, CLASSES)


def class_of(name: str) -> Callable[..., Any]:
    """Return the class, or the function, that makes JaxMARL's object of a name.

    Raises:
      ShoalError: there is no such name, or JaxMARL is not installed.
    """
    check_name(name)
    package = _package()
    return import_object(name) if ":" in name else getattr(package, CLASSES[name])


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a name's class, with those that it passes on by `**kwargs` to a class known here."""
    constructor = class_of(name)
    own = inspect.signature(constructor).parameters
    passed_on: Mapping[str, inspect.Parameter] = {}
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in own.values()):
        bases = classes_of(constructor, "jaxmarl")
        if "EnemySMAX" in bases:
            passed_on = inspect.signature(_package().SMAX).parameters
        elif "SimpleMPE" in bases:
            of_base = inspect.signature(_package().SimpleMPE).parameters
            passed_on = {parameter: of_base[parameter] for parameter in OF_SIMPLE_MPE}
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        parameter: declared.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Any)
        for parameter, declared in {**passed_on, **own}.items()
        if declared.kind in by_keyword
    }


def to_arguments(name: str, values: Mapping[str, Any]) -> Arguments:
    """Convert parameters to static arguments: hashable, in order, without those that have their default value.

    Raises:
      ShoalError: a value is traced, or cannot be hashed.
    """
    known = parameters_of(name)
    arguments = []
    for parameter, value in sorted(values.items()):
        where = f"{full_name(name)}: {parameter}"
        static_value = to_static(where, value)
        default = known[parameter].default if parameter in known else inspect.Parameter.empty
        with contextlib.suppress(TypeError, ShoalError):  # a default that has no hash is another value
            if static_value == to_static(where, default):
                continue
        arguments.append((parameter, static_value))
    return tuple(arguments)


@functools.cache
def world_of(name: str, arguments: Arguments) -> Any:
    """Make JaxMARL's object of a name, one for each set of arguments, since it is hashed by its identity.

    Raises:
      ShoalError: it cannot be made with these arguments.
    """
    constructor, known = class_of(name), parameters_of(name)
    values = {}
    for parameter, value in arguments:
        default = known[parameter].default if parameter in known else inspect.Parameter.empty
        values[parameter] = _named_value(name, parameter, from_static(value, default))
    try:
        with undisturbed():
            world = constructor(**values)
    except Exception as error:
        raise cannot_be_made(full_name(name), arguments, error) from error
    require_bare(full_name(name), world)
    return world


def require_bare(name: str, world: Any) -> None:
    """Require that an object, which a name made if it is not empty, has JaxMARL's functions and wraps none."""
    require_interface(name, world, "agents", "reset", "step_env", "observation_space", "action_space")
    if is_one_of(world, "jaxmarl", ("JaxMARLWrapper",)):
        raise ShoalError(
            f"{subject_of(name, world)} is one of JaxMARL's wrappers; give the environment inside it, its `_env`"
        )


def _package() -> Any:
    """Import JaxMARL's environments."""
    return import_suite(PREFIX, "jaxmarl.environments")


def _named_value(name: str, parameter: str, value: Any) -> Any:
    """Return the value of a text where JaxMARL has a table of values: SMAX's scenarios and Overcooked's layouts.

    Raises:
      ShoalError: the table lacks the text.
    """
    package = _package()
    tables: dict[str, Callable[[], Mapping[str, Any]]] = {
        "scenario": lambda: importlib.import_module(package.SMAX.__module__).MAP_NAME_TO_SCENARIO,
        "layout": lambda: (
            package.overcooked_layouts if name == "overcooked" else package.overcooked_v2_layouts
        ),
    }
    if not isinstance(value, str) or parameter not in tables or ":" in name:
        return value
    table = tables[parameter]()
    if value not in table:
        hint = nearest(value, table) or f"; there are {', '.join(table)}"
        raise ShoalError(f"{full_name(name)}: there is no {parameter} {value!r}{hint}")
    return table[value]
