"""The refusal of traced values: where a setting is a part of the program, and in functions of the host."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config.fields import is_traced
from shoal.config.settings import settings_of

Function = TypeVar("Function", bound=Callable[..., Any])


def check_static(name: str, value: object, reason: str = "") -> None:
    """Require that a value which is a part of a tree's structure, or holds such values, is not traced.

    A compiled function that received it would compare it with those of every later call, which fails.

    Args:
      reason: why the value cannot be traced, where it is another one, and what would be right.
    """
    if part := _traced_part(name, value):
        shapes = "it shapes the program, compiled anew for each value; give numbers of Python, one by one"
        raise ShoalError(
            f"{part} is traced, as within jax.vmap or jax.jit, and cannot be: {reason or shapes}."
        )


def _traced_part(name: str, value: Any) -> str:
    """Return the name of the first traced number in a value, such as `environment.gravity`; "" if there is none."""
    if is_traced(value):
        return name
    as_dataclass = getattr(value, "__dataclass_params__", None)
    # A listener may be a dataclass that holds itself, but hardly a frozen one.
    if as_dataclass and as_dataclass.frozen and not isinstance(value, type):
        parts = {f".{field.name}": getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        parts = {f"[{key!r}]": x for key, x in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"[{index}]": x for index, x in enumerate(value)}
    else:
        return name if is_traced(*jax.tree.leaves(value)) else ""
    return next(filter(None, (_traced_part(name + part, x) for part, x in parts.items())), "")


def on_host(function: Function) -> Function:
    """Make a public function that reads numbers on the host refuse traced ones, and report errors of user code."""
    reporting, names = reports_user_code(function), tuple(inspect.signature(function).parameters)
    reason = (
        f"shoal.{function.__name__} writes files, or reads its results on the host; what may be mapped and compiled is "
        "the function that shoal.make_train returns, and an environment's own reset and step"
    )

    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> Any:
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            check_static(name, value, reason)
        try:
            return reporting(*args, **kwargs)
        except Exception as error:
            if isinstance(error, ShoalError) or not is_traced(jnp.zeros(())):
                raise
            raise ShoalError(f"the call is within jax.jit, and cannot be: {reason}.") from error

    return cast(Function, wrapper)


def check_traced(config: object) -> None:
    """Require that of a config's settings only data are traced."""
    static = {name: x.value for name, x in settings_of(config).items() if not (x.is_keyed or x.field.is_data)}
    if is_traced(*jax.tree.leaves(list(static.values()))):  # one of them
        for name, value in static.items():
            check_static(name, value)
