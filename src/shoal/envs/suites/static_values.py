"""Parameters of other packages' classes as static values, which can be hashed."""

import inspect
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from shoal.config.traced import check_static

PLAIN = (bool, int, float, str)


def defaults_of(maker: Callable[..., object]) -> dict[str, object]:
    """Return the defaults of the parameters of a class or function, by name."""
    return {x.name: x.default for x in inspect.signature(maker).parameters.values()}


def plain_parameters(defaults: Mapping[str, object]) -> dict[str, inspect.Parameter]:
    """Return a parameter, to be given by keyword, for each default that is a number or a text."""
    return {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=type(value))
        for name, value in defaults.items()
        if isinstance(value, PLAIN)
    }


def changed_arguments(
    where: str, parameters: Mapping[str, object], known: Mapping[str, inspect.Parameter]
) -> tuple[tuple[str, object], ...]:
    """Return those of the known parameters whose value is not the default, in order.

    Raises:
      ShoalError: one is traced; `where` begins the sentence.
    """
    values = {k: to_static(f"{where}: {k}", x) for k, x in sorted(parameters.items()) if k in known}
    return tuple((k, x) for k, x in values.items() if x != to_static("the default", known[k].default))


def to_static(where: str, value: object) -> object:
    """Convert arrays, lists and dictionaries to tuples, so that a value can be hashed."""
    check_static(where, value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return tuple((key, to_static(where, part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(to_static(where, part) for part in value)
    return value


def from_static(value: object, default: object) -> object:
    """Convert a tuple back to the kind of the parameter's default."""
    if not isinstance(value, tuple):
        return value
    if isinstance(default, jax.Array):
        return jnp.asarray(value, default.dtype)
    if isinstance(default, np.ndarray):
        return np.asarray(value, default.dtype)
    return type(default)(value) if isinstance(default, dict | list) else value
