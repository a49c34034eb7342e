"""The loggers by their names; each is imported where it is made."""

import inspect
from collections.abc import Mapping

from shoal.base import registers
from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import import_object
from shoal.monitor.loggers.logger import Logger

LOGGERS = {
    "csv": "shoal.monitor.loggers.csv_logger:CsvLogger",
    "mlflow": "shoal.monitor.loggers.mlflow_logger:MlflowLogger",
    "tensorboard": "shoal.monitor.loggers.tensorboard_logger:TensorBoardLogger",
    "trackio": "shoal.monitor.loggers.trackio_logger:TrackioLogger",
    "wandb": "shoal.monitor.loggers.wandb_logger:WandbLogger",
}


def register_logger(name: str, logger: registers.Target, *, replace: bool = False) -> None:
    """Register a name for a logger, which may then be given by it.

    Args:
      logger: a class with `shoal.Logger` as base, or its `"module:Name"`. The process of the logger imports it, so that
        its module must not be the script itself.
      replace: whether another logger of the name is replaced.
    Raises:
      ShoalError: the name is not valid, taken, or one of Shoal's own; or the logger is neither, or no process could
        import it.
    """
    right = "a class with shoal.Logger as base"
    registers.add("logger", name, logger, replace=replace, own=LOGGERS, right=right)


def checked_name(name: object) -> str:
    """Return the name by which another process finds a logger: one of Shoal's own, or `module:Name`.

    Raises:
      ShoalError: it is no name, or an unknown one.
    """
    target = registers.resolved("logger", name, "logger", LOGGERS)
    if isinstance(target, type) and (target is name or target.__module__ == "__main__"):
        raise ShoalError(
            f"the logger {target.__name__} is a class; give its name, as in 'my_module:{target.__name__}', since "
            "another process imports it: its module must not be the script itself."
        )
    if not isinstance(target, str | type):
        raise ShoalError(f"logger={name!r} is none of {', '.join(LOGGERS)}, nor module:Name.")
    return registers.portable(target)


def make(name: str, arguments: Mapping[str, str]) -> Logger:
    """Make a logger.

    Raises:
      ShoalError: there is none of that name, it is no logger, or it does not take one of the arguments.
    """
    name = checked_name(name)
    kind = import_object(LOGGERS.get(name, name))
    if not isinstance(kind, type) or not issubclass(kind, Logger) or kind.add_scalars is Logger.add_scalars:
        raise ShoalError(
            f"logger={name!r} is not a class with shoal.Logger as base and a method add_scalars."
        )
    parameters = inspect.signature(kind).parameters
    takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values())
    for argument in arguments:
        if argument not in parameters and not takes_any:
            hint = nearest(argument, parameters)
            known = ", ".join(parameters) or "no arguments"
            raise ShoalError(f"the logger {name} has no argument {argument!r}; it has {known}{hint}.")
    return kind(**arguments)
