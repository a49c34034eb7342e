"""The loggers by their names; each is imported where it is made."""

import inspect
from collections.abc import Mapping

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


def check_name(name: object) -> None:
    """Require that a name is one of a logger, or of the form `module:Name`.

    Raises:
      ShoalError: it is neither.
    """
    if isinstance(name, type):
        raise ShoalError(
            f"the logger {name.__name__} is a class; give its name, as in 'my_module:{name.__name__}', since another "
            "process imports it: its module must not be the script itself."
        )
    if not isinstance(name, str) or (":" not in name and name not in LOGGERS):
        hint = nearest(str(name), LOGGERS)
        raise ShoalError(f"logger={name!r} is none of {', '.join(LOGGERS)}, nor module:Name{hint}.")


def make(name: str, arguments: Mapping[str, str]) -> Logger:
    """Make a logger.

    Raises:
      ShoalError: there is none of that name, it is no logger, or it does not take one of the arguments.
    """
    check_name(name)
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
