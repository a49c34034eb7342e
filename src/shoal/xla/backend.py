"""The backend that programs are compiled for, and functions that differ by it."""

from collections.abc import Callable
from typing import Any

import jax

from shoal.xla.plain import USE_PLAIN


def is_cpu() -> bool:
    """Whether programs are compiled for the CPU, the backend that most of the fast forms are for.

    It starts the backend. A program that may be compiled for another one asks by `by_platform` instead.
    """
    return jax.default_backend() == "cpu"


def by_platform(*arguments: Any, cpu: Callable, default: Callable) -> Any:
    """Compute `default(*arguments)`, on the CPU by `cpu(*arguments)`.

    The platform is that which the program is lowered for. Both functions return the same; the loops with an unknown
    number of turns that are fast on a CPU make an accelerator wait for the host.
    """
    if USE_PLAIN:
        return by_platform_plain(*arguments, cpu=cpu, default=default)
    return jax.lax.platform_dependent(*arguments, cpu=cpu, default=default)


def by_platform_plain(*arguments: Any, cpu: Callable, default: Callable) -> Any:
    """Compute `default(*arguments)`: the plain form of `by_platform`."""
    return default(*arguments)
