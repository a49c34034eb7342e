"""`shoal check ENV`: names what is wrong with an environment."""

import dataclasses
from collections.abc import Sequence

from shoal import api
from shoal.cli import flags

COMMAND = "shoal check ENV [name=value ...]"
DESCRIPTION = (
    "Looks for mistakes in an environment, one sentence each; the exit status is 1 if there are any. "
    "ENV may be module:Name, found from the current directory."
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of a check."""

    keys: int = 16
    """Runs this many environments at once, each from a key of its own; 2 or more."""
    steps: int = 128
    """Makes this many random steps in each environment in one block."""
    max_steps: int = 10_000
    """Counts an episode as one that never ends after this many random steps."""
    seed: int = 0
    """Sets the seed of all keys and actions."""
    ignore: tuple[str, ...] = ()
    """Skips these rules, which are meant to be broken, such as key-ignored for a deterministic environment."""
    seconds: float = 60.0
    """Gives up a part of the check, such as tracing reset or running it, with a finding after this many seconds.
    What takes more than 5 seconds is named on standard error."""


def main(arguments: Sequence[str]) -> int:
    """Checks, and prints the report."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, Settings(), arguments)
    environment, parameters = flags.parse_environment(words)
    flags.require("environment", "shoal check CartPole-v1", environment)
    findings = api.check(environment, **dataclasses.asdict(settings), progress=True, **parameters)
    print(api.report_text(findings, environment))
    return 1 if findings else 0
