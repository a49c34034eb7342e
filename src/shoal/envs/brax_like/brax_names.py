"""Brax's own objects behind its names."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from shoal.base.errors import ShoalError
from shoal.envs.brax_like.pictures import draw_without_a_window
from shoal.envs.registry import resolve
from shoal.envs.suites.packages import cannot_be_made, import_suite, undisturbed, unknown_name
from shoal.envs.suites.static_values import defaults_of, plain_parameters

PREFIX = "brax/"
EPISODE_LENGTH = 1000  # of Brax's training


def _class_of(name: str) -> Callable[..., Any]:
    """Return the class of a name.

    Raises:
      ShoalError: there is no such name, or Brax is not installed.
    """
    draw_without_a_window()
    classes = import_suite(PREFIX, "brax.envs")._envs
    if ":" in name:
        return resolve(f"{PREFIX}{name}", name)
    if name not in classes:
        raise unknown_name(PREFIX, name, classes)
    return classes[name]


def limit_of(name: str) -> int:
    """Return the time limit in steps."""
    return EPISODE_LENGTH


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a name's class that are numbers or texts."""
    return plain_parameters(defaults_of(_class_of(name)))


@functools.cache
def world_of(name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    """Make Brax's object of a name, one for each set of arguments, since it is hashed by its identity.

    Raises:
      ShoalError: it cannot be made.
    """
    maker = _class_of(name)
    try:
        with undisturbed():
            return maker(**dict(arguments))
    except Exception as error:
        raise cannot_be_made(f"{PREFIX}{name}", arguments, error) from error


def randomiser_of(name: str) -> Any:
    """Refuse: Brax has no randomisers of its own.

    Raises:
      ShoalError: always.
    """
    raise ShoalError(f"{PREFIX}{name} has no domain randomiser; leave randomize out")
