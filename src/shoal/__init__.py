"""Shoal: reinforcement learning as one compiled JAX program.

Every name here is imported when it is first used, so that `import shoal` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.algos.catalogue import register_algorithm
    from shoal.base.errors import SavingError, ShoalError
    from shoal.config.requirements import Needs
    from shoal.config.struct import struct
    from shoal.envs.base import environment, parameter
    from shoal.envs.checking.check import check
    from shoal.envs.registry import environments, make, register
    from shoal.export.api import export
    from shoal.monitor.loggers.logger import Logger
    from shoal.monitor.loggers.logger_names import register_logger
    from shoal.monitor.loggers.wandb_listener import WandbListener
    from shoal.nets.part_names import register_head, register_network, register_torso
    from shoal.reports.metrics_table import metrics
    from shoal.reports.page import report
    from shoal.runs.comparing import compare
    from shoal.runs.policies.collect import RolloutResult
    from shoal.runs.policies.cross_play import cross_play
    from shoal.runs.policies.evaluate import evaluate, render
    from shoal.runs.policies.load import load
    from shoal.runs.policies.rollout import rollout
    from shoal.runs.policies.trained_policy import TrainedPolicy
    from shoal.runs.train.pure_training import make_train
    from shoal.runs.train.results import TrainedRun
    from shoal.runs.train.training import resume, train
    from shoal.search.api import pbt, replay, sweep, tune
    from shoal.search.sweep import Sweep
    from shoal.types import Environment, TimeStep, restart, transition

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
    "export",
    "load",
    "make",
    "make_train",
    "metrics",
    "parameter",
    "pbt",
    "register",
    "register_algorithm",
    "register_head",
    "register_logger",
    "register_network",
    "register_torso",
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

# The registry, and what reads directories, import no JAX.
_MODULE_OF = {
    "Environment": "types",
    "Logger": "monitor.loggers.logger",
    "Needs": "config.requirements",
    "RolloutResult": "runs.policies.collect",
    "SavingError": "base.errors",
    "ShoalError": "base.errors",
    "Sweep": "search.sweep",
    "TimeStep": "types",
    "TrainedPolicy": "runs.policies.trained_policy",
    "TrainedRun": "runs.train.results",
    "WandbListener": "monitor.loggers.wandb_listener",
    "check": "envs.checking.check",
    "compare": "runs.comparing",
    "cross_play": "runs.policies.cross_play",
    "environment": "envs.base",
    "environments": "envs.registry",
    "evaluate": "runs.policies.evaluate",
    "export": "export.api",
    "load": "runs.policies.load",
    "make": "envs.registry",
    "make_train": "runs.train.pure_training",
    "metrics": "reports.metrics_table",
    "parameter": "envs.base",
    "pbt": "search.api",
    "register": "envs.registry",
    "register_algorithm": "algos.catalogue",
    "register_head": "nets.part_names",
    "register_logger": "monitor.loggers.logger_names",
    "register_network": "nets.part_names",
    "register_torso": "nets.part_names",
    "render": "runs.policies.evaluate",
    "replay": "search.api",
    "report": "reports.page",
    "restart": "types",
    "resume": "runs.train.training",
    "rollout": "runs.policies.rollout",
    "struct": "config.struct",
    "sweep": "search.api",
    "train": "runs.train.training",
    "transition": "types",
    "tune": "search.api",
}


# Parts with public names of their own: `import shoal` is enough for `shoal.envs.TimeLimit`.
_PARTS = {name: name for name in ("algos", "envs", "nets", "ops", "types")} | {"spaces": "types.spaces"}


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{_PARTS[name]}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])
