"""`shoal log RUN`: send the numbers of a run to loggers, or what they have not received yet."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from shoal.base.errors import ShoalError
from shoal.cli import flags
from shoal.monitor.loggers import later
from shoal.monitor.loggers.requests import LoggerFlags

COMMAND = "shoal log RUN"
DESCRIPTION = (
    "Sends the numbers and files of a run, or of all runs of a sweep, to loggers: all of an old run, and what is "
    "missing of one whose logger was killed, hung or had no network. A run that trains is followed to its end."
)


@dataclasses.dataclass(frozen=True)
class LogFlags(LoggerFlags):
    """The flags of the command."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {"most used": ("logger", "logger_args", "track")}


def main(arguments: Sequence[str]) -> int:
    """Send what is missing, and say how much it was."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, LogFlags(), arguments)
    path = flags.require(
        "run", "shoal log runs/CartPole-v1-ppo-20260131-093000 --logger csv", "".join(words[:1])
    )
    if len(words) > 1:
        raise ShoalError(f"shoal log takes one run, and was given {' '.join(words)}.")
    loggers = settings.loggers()
    flags.require("logger", "--logger tensorboard", " ".join(loggers))
    for name, requested in loggers.items():
        for line in later.send(path, name, requested):
            print(line)
    return 0
