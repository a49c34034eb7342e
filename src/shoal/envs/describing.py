"""Conversion of environments to JSON, from which `make` makes them again.

    {"name": "shoal.envs.wrappers:FrameStack",
     "parameters": {"env": {"name": "CartPole-v1", "parameters": {"gravity": 9.8, ...}}, "frames": 4}}

A parameter is a number, a text, true, false, null, a list (a tuple), an array `{"dtype": "float32", "values":
[...]}`, a function or class `{"imported": "module:name"}`, or again a name with parameters: an environment, a struct
or a NamedTuple. What cannot be written so is a gap, which is written down with its reason.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.base.errors import ShoalError, UserCodeError
from shoal.base.imports import import_name, import_object, is_found_by_name
from shoal.config import struct
from shoal.envs import registry
from shoal.envs.base import Wrapper, unwrapped
from shoal.envs.registry import TIME_LIMIT, TRIAL
from shoal.envs.suites.suite import Adapted
from shoal.envs.trials import Trial
from shoal.envs.wrappers import TimeLimit
from shoal.types import Environment

MAX_ARRAY_SIZE = 50_000  # numbers; a larger array is not written into a config
CLASS_KEY = "class"  # a gap of the class itself; a keyword of Python cannot name a parameter
GIVEN = "it is an object that was given itself, and a name makes another"
PLAIN_DTYPES = ("float32", "int32", "bool")  # dtypes of a number that is written without its dtype


class Description(NamedTuple):
    """The name and parameters by which `make` makes an environment again, and the reasons where it cannot."""

    name: str
    parameters: Mapping[str, object]  # complete: includes those that have their default value
    gaps: Mapping[str, str]  # the reason, by the parameter (or CLASS_KEY) that could not be written down


def describe(environment: Environment) -> Description:
    """Describe an environment that is given as an object.

    If it has several registered names, the name that needs the fewest parameters is used; if it has none, the
    import name of its class; that of the object inside where it is adapted, also within further wrappers.
    A description without gaps is tested: it makes an equal environment.
    """
    inner, wrapper_parameters = _unwrap(environment)
    adapted_name = _name_of_adapted(unwrapped(inner))
    is_adapted = adapted_name and unwrapped(inner) is inner
    candidates = [
        (name, _own_parameters(name, inner, wrapper_parameters))
        for name in registry.names_of_class(type(inner))
    ]
    if is_adapted and getattr(inner, "world_name", ""):  # JaxMARL's, made by a name
        name = f"{registry.family_of_object(inner.world)}{inner.world_name}"
        candidates.append((name, _own_parameters(name, inner, wrapper_parameters) | dict(inner.arguments)))
    candidates.sort(key=lambda candidate: len(candidate[1]))
    by_import, reason = import_name(type(inner)), GIVEN if is_adapted else _reason_not_writable(type(inner))
    if not reason:
        candidates.append((by_import, _own_parameters(by_import, inner, wrapper_parameters)))
    for name, parameters in candidates:
        description = describe_named(name, parameters)
        if adapted_name and not is_adapted and description.gaps:
            return description._replace(name=adapted_name, gaps={CLASS_KEY: GIVEN})
        reason = "" if description.gaps else _reason_not_equal(description, environment)
        if not reason:
            return description
    return Description(
        adapted_name or by_import, wrapper_parameters if adapted_name else {}, {CLASS_KEY: reason}
    )


def _name_of_adapted(environment: object) -> str:
    """Return the import name of the object in an adapter, after its package's prefix; "" for another environment."""
    if not isinstance(environment, Adapted):
        return ""
    return f"{registry.family_of_object(environment.world)}{import_name(type(environment.world))}"


def describe_named(name: str, parameters: Mapping[str, object]) -> Description:
    """Describe the environment that `make(name, **parameters)` makes.

    Default values are written down, so that the environment stays the same if a later version has other
    defaults. Parameters that the name itself sets, and defaults that cannot be written down, are left out.
    """
    known, registered = registry.parameters_of(name), registry.registered_parameters(name)
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    defaults = {
        parameter: declared.default
        for parameter, declared in known.items()
        if declared.kind in by_keyword and declared.default is not inspect.Parameter.empty
        if parameter not in registered
    }
    if TIME_LIMIT in defaults and registry.family_of(name):  # whose limit may depend on the parameters
        defaults[TIME_LIMIT] = registry.default_limit(name, parameters)
    complete = registry.portable_parameters(name, {**defaults, **parameters})
    gaps = {parameter: reason for parameter, x in complete.items() if (reason := _reason_not_writable(x))}
    return Description(
        name,
        {parameter: x for parameter, x in complete.items() if parameter not in gaps},
        {parameter: reason for parameter, reason in gaps.items() if parameter in parameters},
    )


def rebuild(saved: Mapping[str, Any], overrides: Mapping[str, object]) -> tuple[Environment, Description]:
    """Make the environment that `description_to_json` wrote down, with some parameters overridden.

    Raises:
      ShoalError: it was written down with gaps that are not overridden, or its name or its parameters no longer make
        an environment.
    """
    name, advice = saved["name"], "give the environment itself, as in shoal.load(run, environment=env)"
    for parameter, reason in saved.get("gaps", {}).items():
        if parameter not in overrides:
            what = "" if parameter == CLASS_KEY else f"its parameter {parameter!r} was not written down: "
            raise ShoalError(
                f"the run's environment {name} cannot be made again, since {what}{reason}; {advice}."
            )
    parameters = {k: x for k, x in saved["parameters"].items() if k not in overrides}
    try:
        parameters = decode_parameters(name, parameters) | dict(overrides)
        environment = registry.make(name, **parameters)
    except ShoalError as error:
        if overrides or isinstance(error, UserCodeError):  # an override may be the cause
            raise
        raise ShoalError(
            f"the run's environment {name} cannot be made again: {str(error).rstrip('.')}; {advice}."
        ) from error
    return environment, describe_named(name, parameters)


def description_to_json(description: Description) -> dict[str, Any]:
    """Convert a description into the environment's entry of `config.json`."""
    parameters = {name: to_json(value) for name, value in description.parameters.items()}
    gaps = {"gaps": dict(description.gaps)} if description.gaps else {}
    return {"name": description.name, "parameters": parameters} | gaps


def fields_of(environment: object) -> dict[str, object]:
    """Return the fields of an environment by name; empty if it is not a dataclass."""
    fields = dataclasses.fields(environment) if dataclasses.is_dataclass(environment) else ()
    return {field.name: getattr(environment, field.name) for field in fields if field.init}


def trees_equal(one: object, other: object) -> bool:
    """Report whether two trees have equal structures and leaves; dtypes count, except those of numbers."""
    leaves = jax.tree.leaves(one), jax.tree.leaves(other)
    structures: list[object] = [jax.tree.structure(tree) for tree in (one, other)]
    try:
        return structures[0] == structures[1] and all(
            _leaves_equal(x, y) for x, y in zip(*leaves, strict=True)
        )
    except (TypeError, ValueError):  # values that cannot be compared, such as random keys
        return False


def _leaves_equal(x: Any, y: Any) -> bool:
    if struct.is_traced(x, y):
        return x is y
    dtypes = {np.dtype(z.dtype) for z in (x, y) if np.ndim(z) and hasattr(z, "dtype")}
    return len(dtypes) <= 1 and np.array_equal(x, y)


def _unwrap(environment: object) -> tuple[Any, dict[str, int | None]]:
    """Remove the wrappers that `make` adds to every environment, and return the rest and their parameters.

    A wrapper stays where its parameter is one of the environment's own, which `make` leaves to it.
    """
    wrapper_parameters: dict[str, int | None] = {}
    for wrapper, count, parameter in ((Trial, "episodes", TRIAL), (TimeLimit, "max_steps", TIME_LIMIT)):
        if type(environment) is wrapper and parameter not in fields_of(environment.env):
            wrapper_parameters[parameter] = getattr(environment, count)
            environment = environment.env
    return environment, {
        p: wrapper_parameters.get(p) for p in (TIME_LIMIT, TRIAL) if p not in fields_of(environment)
    }


def _own_parameters(name: str, inner: object, wrapper_parameters: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters with which a name may make an environment: those that differ from the name's own.

    The parameters of a wrapper include those of the environment that it holds, for names whose function makes
    both.
    """
    known = registry.parameters_of(name)
    inner_fields = fields_of(inner.env) if isinstance(inner, Wrapper) else {}
    values = {
        k: x for k, x in {**inner_fields, **fields_of(inner), **wrapper_parameters}.items() if k in known
    }
    return {k: x for k, x in values.items() if not trees_equal(x, known[k].default)}


def _reason_not_equal(description: Description, environment: Environment) -> str:
    """Return why a description does not make an environment; "" if it does."""
    try:
        rebuilt = registry.make(
            description.name,
            **decode_parameters(description.name, description_to_json(description)["parameters"]),
        )
        is_same = trees_equal(rebuilt, environment)
    except Exception as error:  # a user's class may raise any error; the reason is written down
        return f"made from its own fields it fails ({type(error).__name__}: {error})"
    return "" if is_same else "made from its own fields it is another environment"


def _reason_not_writable(value: object) -> str:
    """Return why a value cannot be written down; "" if it can."""
    try:
        to_json(value)
    except ShoalError as error:
        return str(error).rstrip(".")
    return ""


def to_json(value: Any) -> object:
    """Convert a parameter to JSON values, infinities excepted; `from_json` reads it back.

    Raises:
      ShoalError: the value cannot be written down; the message has the reason.
    """
    if struct.is_traced(value):
        raise ShoalError("it is traced, and no number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [to_json(part) for part in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array_to_json(value)
    if not isinstance(value, type) and hasattr(value, "reset") and hasattr(value, "step"):
        description = describe(value)
        for reason in description.gaps.values():
            raise ShoalError(f"{description.name}: {reason}")
        return description_to_json(description)
    cls = type(value)
    if not isinstance(value, type) and (hasattr(value, "_fields") or struct.is_struct(value)):
        parts = value._asdict() if hasattr(value, "_fields") else fields_of(value)
        return {"name": _importable_name(cls), "parameters": {name: to_json(x) for name, x in parts.items()}}
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        return {"imported": _importable_name(value)}
    raise ShoalError(f"a value of type {cls.__name__} cannot be written as JSON")


def _importable_name(target: Any) -> str:
    """Return the import name of a class or a function, if it can be found by it."""
    name = import_name(target)
    if not is_found_by_name(target):
        raise ShoalError(f"{name} cannot be imported by that name")
    return name


def _array_to_json(array: np.ndarray | np.generic | jax.Array) -> object:
    """Convert an array to its values and dtype, or a scalar array to a number."""
    if array.size > MAX_ARRAY_SIZE:
        raise ShoalError(
            f"it is an array of {array.size:,} numbers, and a config holds at most {MAX_ARRAY_SIZE:,} of one"
        )
    kinds = (np.bool_, np.integer, np.floating)
    if not any(jax.dtypes.issubdtype(array.dtype, kind) for kind in kinds):
        raise ShoalError(f"an array of {array.dtype} cannot be written as JSON")
    numbers, dtype = np.asarray(array), np.dtype(array.dtype)
    values = (numbers if dtype.kind in "biu" else numbers.astype(np.float64)).tolist()
    if array.ndim == 0 and (dtype.name in PLAIN_DTYPES or dtype == np.float64):
        return values
    shape = {} if array.size else {"shape": list(array.shape)}
    return {"dtype": dtype.name, "values": values} | shape


def decode_parameters(name: str, parameters: Mapping[str, object]) -> dict[str, object]:
    """Read the saved parameters of a name; a parameter that is declared as text stays text, even "inf"."""
    known = registry.parameters_of(name)
    texts = {parameter for parameter, declared in known.items() if declared.annotation in (str, str | None)}
    return {k: x if k in texts else from_json(x) for k, x in parameters.items()}


def from_json(value: object) -> object:
    """Read a value that `to_json` wrote; lists become tuples, since a static value must be hashable.

    Raises:
      ShoalError: the value names something that cannot be imported, or that is no longer of the same kind.
    """
    if isinstance(value, list):
        return tuple(from_json(part) for part in value)
    if not isinstance(value, dict):
        return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value
    keys = set(value)
    if keys in ({"dtype", "values"}, {"dtype", "values", "shape"}):
        return _array_from_json(value)
    if keys == {"name", "parameters"}:
        return _named_from_json(value["name"], value["parameters"])
    return import_object(value["imported"]) if keys == {"imported"} else value


def _array_from_json(saved: Mapping[str, Any]) -> np.ndarray:
    """Read an array as a NumPy array, since deciding a run may not start a device."""
    array = np.asarray(saved["values"], np.dtype(saved["dtype"]))
    return array.reshape(saved.get("shape", array.shape))


def _named_from_json(name: str, parameters: Mapping[str, object]) -> object:
    """Make an environment from its name, or a struct or NamedTuple from its class."""
    cls = import_object(name) if ":" in name else None
    if cls is None or (isinstance(cls, type) and hasattr(cls, "reset") and hasattr(cls, "step")):
        return registry.make(name, **decode_parameters(name, parameters))
    if isinstance(cls, type) and (hasattr(cls, "_fields") or struct.is_struct(cls)):
        return cls(**{k: from_json(x) for k, x in parameters.items()})
    raise ShoalError(f"{name} is not a class of an environment, a struct or a NamedTuple")
