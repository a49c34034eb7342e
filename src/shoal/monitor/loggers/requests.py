"""The loggers that a run is asked to have, from the command line and from Python."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from shoal.base.errors import ShoalError, nearest
from shoal.base.files import user_path
from shoal.monitor.companions import Companion
from shoal.monitor.loggers import logger_names

KEYS = ("shoal", "cleanrl")  # whose names the numbers may get

Loggers = Mapping[str, Mapping[str, object]]  # arguments by the name of a logger


class Requested(NamedTuple):
    """How a logger is asked for."""

    arguments: Mapping[str, str] = {}  # of its class, as words
    keys: str = KEYS[0]  # whose names the numbers get


def check_loggers(loggers: object) -> dict[str, Requested]:
    """Return how the loggers of a caller are asked for, by their names; he gives names, or arguments by name.

    Raises:
      ShoalError: they are neither, or there is no such logger.
    """
    if isinstance(loggers, str):
        loggers = [loggers]
    if not isinstance(loggers, Mapping | Sequence):
        raise ShoalError(
            f"loggers={loggers!r} is neither a list of names nor arguments by name; give one such as ['tensorboard']."
        )
    named = loggers if isinstance(loggers, Mapping) else {name: {} for name in loggers}
    return {logger_names.checked_name(name): _requested(name, own) for name, own in named.items()}


def _requested(name: str, own: object) -> Requested:
    if not isinstance(own, Mapping):
        raise ShoalError(f"loggers={{{name!r}: {own!r}}} has no arguments by name; give some or {{}}.")
    words = {key: _word(value) for key, value in own.items()}
    if (keys := words.pop("keys", KEYS[0])) not in KEYS:
        raise ShoalError(f"keys={keys!r} of the logger {name} is none of {', '.join(KEYS)}.")
    if "dir" in words:  # which must be the same one from another directory
        words["dir"] = str(user_path(words["dir"], "dir").absolute())
    return Requested(words, keys)


def companions_of(loggers: Mapping[str, Requested]) -> tuple[Companion, ...]:
    """Return the processes of loggers that go beside a run."""
    return tuple(companion_of(name, requested) for name, requested in loggers.items())


def companion_of(name: str, requested: Requested, **further: object) -> Companion:
    """Return the process of a logger, with further entries of what is asked of it."""
    request = {"logger": name, **requested._asdict(), **further}
    later = f"`shoal log {{path}} --logger {name}` sends what is missing"
    return Companion(name, f"logger {name}", "shoal.monitor.loggers.child", request, later)


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclasses.dataclass(frozen=True)
class LoggerFlags:
    """The flags of commands that log."""

    logger: tuple[str, ...] = ()
    """Sends the numbers of the run to these: wandb, tensorboard, mlflow, trackio, csv, or a class of your own as
    module:Name."""
    logger_args: tuple[str, ...] = ()
    """Passes arguments to loggers, such as wandb.tags=a,b or csv.dir=numbers."""
    logger_keys: Literal["shoal", "cleanrl"] = "shoal"
    """Gives the numbers Shoal's names (shoal), or those of CleanRL (cleanrl), which Open RL Benchmark reads."""
    track: bool = False
    """Sends the numbers to Weights and Biases, as the logger wandb."""
    wandb_project_name: str = ""
    """Puts the run into this project there (wandb)."""
    wandb_entity: str = ""
    """Takes the project of this user or team (wandb)."""

    def loggers(self) -> dict[str, Requested]:
        """Return how the loggers are asked for, by their names.

        Raises:
          ShoalError: an argument is of a logger that is not there, or is not of the form NAME.key=value.
        """
        names = [*self.logger, *(["wandb"] if self.track and "wandb" not in self.logger else [])]
        found: dict[str, dict[str, object]] = {name: {"keys": self.logger_keys} for name in names}
        of_wandb = {"project": self.wandb_project_name, "entity": self.wandb_entity}
        if any(of_wandb.values()) and "wandb" not in found:
            raise ShoalError(
                "wandb_project_name and wandb_entity have no effect without the logger wandb; add --track."
            )
        words = [f"wandb.{name}={value}" for name, value in of_wandb.items() if value]
        for word in [*words, *self.logger_args]:
            target, separator, value = word.partition("=")
            name, dot, key = target.rpartition(".")
            if not separator or not dot:
                raise ShoalError(f"logger_args={word!r} is not NAME.key=value, such as wandb.tags=baseline.")
            if name not in found:
                raise ShoalError(
                    f"logger_args={word!r} is of a logger that the run does not have; add --logger {name}"
                    f"{nearest(name, found)}."
                )
            found[name][key] = value
        return check_loggers(found)
