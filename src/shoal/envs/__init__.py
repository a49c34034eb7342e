"""Environments: the registry, wrappers, the batch, the checker, and the built-in worlds.

Names are imported when they are first used, so that the registry can be read without JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.envs.base import Wrapper, environment, parameter, render, restart, static, transition
    from shoal.envs.batch import Batch, BatchState
    from shoal.envs.geometry import Geometry
    from shoal.envs.registry import environments, make, parameters_of, register
    from shoal.envs.trials import Trial
    from shoal.envs.wrappers import Flatten, FrameStack, Hide, RewardScale, StepCount, TimeLimit

_NAMES_IN = {
    "base": ("Wrapper", "environment", "parameter", "render", "restart", "static", "transition"),
    "batch": ("Batch", "BatchState"),
    "geometry": ("Geometry",),
    "registry": ("environments", "make", "parameters_of", "register"),
    "trials": ("Trial",),
    "wrappers": ("Flatten", "FrameStack", "Hide", "RewardScale", "StepCount", "TimeLimit"),
}
_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}

# Listed in full for type checkers, which do not run the module.
__all__ = [
    "Batch",
    "BatchState",
    "Flatten",
    "FrameStack",
    "Geometry",
    "Hide",
    "RewardScale",
    "StepCount",
    "TimeLimit",
    "Trial",
    "Wrapper",
    "environment",
    "environments",
    "make",
    "parameter",
    "parameters_of",
    "register",
    "render",
    "restart",
    "static",
    "transition",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
