"""The backend for which programs are compiled, and functions that depend on it."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from shoal.xla.plain import uses_plain_form


def is_cpu() -> bool:
    """Report whether programs are compiled for the CPU, for which most of the fast forms are made.

    This starts the backend. Use `by_platform` in a program that may be compiled for another backend.
    """
    return jax.default_backend() == "cpu"


def by_platform(*arguments: object, cpu: Callable, default: Callable) -> Any:
    """Compute `cpu(*arguments)` on a CPU, and `default(*arguments)` on other platforms.

    The platform is the one for which the program is lowered. Both functions return the same values. Loops with an
    unknown number of iterations are fast on a CPU, but make an accelerator wait for the host.
    """
    if uses_plain_form("by_platform"):
        return by_platform_plain(*arguments, cpu=cpu, default=default)
    return jax.lax.platform_dependent(*arguments, cpu=cpu, default=default)


def jit_is_disabled() -> bool:
    """Report whether JAX calls the Python code of jitted functions, for debugging, and does not compile them."""
    return bool(getattr(jax.config, "jax_disable_jit", False))


def compile_ahead(function: Callable, *arguments: object, **static: object) -> Callable:
    """Compile a jitted function for these arguments; where JAX's jit is disabled, bind only the static ones.

    Compiling ahead of time is refused by JAX while its jit is disabled, for debugging.
    """
    if jit_is_disabled():
        return functools.partial(function, **static)
    return function.lower(*arguments, **static).compile()  # type: ignore[attr-defined]


def by_platform_plain(*arguments: object, cpu: Callable, default: Callable) -> Any:
    """Compute `default(*arguments)`: the plain form of `by_platform`."""
    return default(*arguments)
