"""Algorithms by name. Imports none of them until asked, so that listing them costs nothing."""

import dataclasses
from typing import Any

from shoal.errors import ShoalError, nearest
from shoal.imports import import_object

_algorithms: dict[str, str] = {
    "ppo": "shoal.algos.ppo:PPOConfig",
    "a2c": "shoal.algos.policy_gradient:A2CConfig",
    "reinforce": "shoal.algos.policy_gradient:ReinforceConfig",
}


def algorithms() -> list[str]:
    """The names of the algorithms."""
    return sorted(_algorithms)


def is_builtin(name: str) -> bool:
    """Whether a name is of an algorithm of Shoal's own, and not of a user's class."""
    return name in _algorithms


def config_class(name: str) -> type[Any]:
    """The config class of an algorithm, by its name or as `module:Name`.

    Raises:
      ShoalError: there is no such algorithm, or what `module:Name` names is no config of one.
    """
    if name not in _algorithms and ":" not in name:
        raise ShoalError(
            f"there is no algorithm {name!r}; there are {', '.join(algorithms())}{nearest(name, _algorithms)}."
        )
    found = import_object(_algorithms.get(name, name))
    if not dataclasses.is_dataclass(found) or not hasattr(found, "algorithm"):
        raise ShoalError(f"{name!r} is not an algorithm's config: a dataclass with a method `algorithm`.")
    return found if isinstance(found, type) else type(found)


def name_of(config: Any) -> str:
    """The name of a config's algorithm: a registered one, or `module:Name`."""
    path = f"{type(config).__module__}:{type(config).__qualname__}"
    return next((name for name, known in _algorithms.items() if known == path), path)
