"""Algorithms by name. Each is imported when it is first used, so that listing them is fast."""

import dataclasses
from typing import Any

from shoal.base import registers
from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import import_object
from shoal.config.arguments import short_repr

_algorithms: dict[str, str] = {
    "ppo": "shoal.algos.ppo_config:PPOConfig",
    "mappo": "shoal.algos.agents.mappo:MAPPOConfig",
    "a2c": "shoal.algos.policy_gradient:A2CConfig",
    "reinforce": "shoal.algos.policy_gradient:ReinforceConfig",
    "dqn": "shoal.algos.dqn_config:DQNConfig",
    "c51": "shoal.algos.dqn_config:C51Config",
    "rainbow": "shoal.algos.dqn_config:RainbowConfig",
    "qr_dqn": "shoal.algos.dqn_config:QRDQNConfig",
    "pqn": "shoal.algos.pqn:PQNConfig",
    "sac": "shoal.algos.sac_config:SACConfig",
    "td3": "shoal.algos.td3_config:TD3Config",
    "ddpg": "shoal.algos.td3_config:DDPGConfig",
}


def register_algorithm(name: str, algorithm: registers.Target, *, replace: bool = False) -> None:
    """Register a name for an algorithm, which may then be given by it.

    Args:
      algorithm: the class of its config, or `"module:Name"` of that, which is imported when it is used.
      replace: whether another algorithm of the name is replaced.
    Raises:
      ShoalError: the name is not valid, or taken; or the algorithm is neither.
    """
    right = "the class of an algorithm's config"
    registers.add("algorithm", name, algorithm, replace=replace, own=_algorithms, right=right)


def algorithms() -> list[str]:
    """List the names of the algorithms, sorted: Shoal's own, and those that are registered."""
    return sorted([*_algorithms, *registers.names_of("algorithm")])


def is_builtin(name: str) -> bool:
    """Report whether a name is that of an algorithm of Shoal, and not of a user's class."""
    return name in _algorithms


def config_class(name: str) -> type[Any]:
    """Return the config class of an algorithm, given by its name, registered or not, or as `module:Name`.

    Raises:
      ShoalError: there is no such algorithm, or `module:Name` is not the config of an algorithm.
    """
    target = _algorithms.get(name) or registers.target_of("algorithm", name)
    if target is None and ":" not in name:
        raise ShoalError(
            f"there is no algorithm {name!r}; there are {', '.join(algorithms())}{nearest(name, algorithms())}."
        )
    target = target or name
    imported = import_object(target) if isinstance(target, str) else target
    if not dataclasses.is_dataclass(imported) or not hasattr(imported, "algorithm"):
        raise ShoalError(f"{name!r} is not an algorithm's config: a dataclass with a method `algorithm`.")
    return imported if isinstance(imported, type) else type(imported)


def portable_name(name: str) -> str:
    """Return the name of an algorithm by which any process finds it; of a registered one `module:Name`."""
    target = None if name in _algorithms else registers.target_of("algorithm", name)
    return name if target is None else registers.portable(target)


def name_of(config: object) -> str:
    """Return the name of a config's algorithm: one of Shoal's own, or `module:Name`."""
    path = f"{type(config).__module__}:{type(config).__qualname__}"
    return next((name for name, other in _algorithms.items() if other == path), path)


def check_algorithm(algorithm: object, argument: str = "algorithm") -> None:
    """Require that an algorithm, given as an argument of this name, is a name, a config or the class of a config."""
    is_config = dataclasses.is_dataclass(algorithm) and hasattr(algorithm, "algorithm")
    if not isinstance(algorithm, str) and not is_config:
        raise ShoalError(
            f"{argument}={short_repr(algorithm)} is neither a name such as 'ppo' nor an algorithm's config: a "
            "dataclass with a method `algorithm`."
        )
