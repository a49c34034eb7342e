"""Shoal: reinforcement learning as one compiled JAX program.

Every name here is imported when it is first used, so that `import shoal` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.api import (
        Environment,
        RolloutResult,
        Sweep,
        TimeStep,
        TrainedPolicy,
        TrainedRun,
        check,
        cross_play,
        environment,
        environments,
        evaluate,
        load,
        make,
        make_train,
        parameter,
        pbt,
        register,
        render,
        replay,
        restart,
        resume,
        rollout,
        sweep,
        train,
        transition,
        tune,
    )
    from shoal.base.errors import SavingError, ShoalError
    from shoal.config.requirements import Needs
    from shoal.config.struct import struct
    from shoal.monitor.loggers.logger import Logger
    from shoal.monitor.loggers.wandb_listener import WandbListener
    from shoal.reports.compare import compare
    from shoal.reports.metrics_table import metrics
    from shoal.reports.page import report

__version__ = "0.1.0"

__all__ = [
    "Environment",
    "Logger",
    "Needs",
    "RolloutResult",
    "SavingError",
    "ShoalError",
    "Sweep",
    "TimeStep",
    "TrainedPolicy",
    "TrainedRun",
    "WandbListener",
    "__version__",
    "check",
    "compare",
    "cross_play",
    "environment",
    "environments",
    "evaluate",
    "load",
    "make",
    "make_train",
    "metrics",
    "parameter",
    "pbt",
    "register",
    "render",
    "replay",
    "report",
    "restart",
    "resume",
    "rollout",
    "struct",
    "sweep",
    "train",
    "transition",
    "tune",
]

# Names that do not need the whole api: the registry, and what reads directories, import no JAX.
_MODULE_OF = {
    "Logger": "reporting.loggers.logger",
    "Needs": "config.requirements",
    "SavingError": "base.errors",
    "ShoalError": "base.errors",
    "WandbListener": "reporting.loggers.wandb_listener",
    "compare": "reporting.compare",
    "environments": "envs.registry",
    "make": "envs.registry",
    "metrics": "reporting.metrics_table",
    "register": "envs.registry",
    "report": "reporting.page",
    "struct": "config.struct",
}


# Parts with public names of their own: `import shoal` is enough for `shoal.envs.TimeLimit`.
_PARTS = {name: name for name in ("algos", "envs", "nets", "ops", "types")} | {"spaces": "types.spaces"}


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{_PARTS[name]}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, 'api')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])
