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
    """Of a check."""

    keys: int = 16
    """How many environments run at once, each from a key of its own."""
    steps: int = 128
    """How many random steps each makes in one block."""
    max_steps: int = 10_000
    """After how many random steps an episode counts as one that never ends."""
    seed: int = 0
    """Of all keys and actions."""
    ignore: tuple[str, ...] = ()
    """Rules that are meant to be broken, such as key-ignored for a deterministic environment."""
    seconds: float = 60.0
    """How long one part of the check may take, such as tracing reset or running it; then it is given up with a
    finding. What takes more than 5 seconds is named on standard error."""


def main(arguments: Sequence[str]) -> int:
    """Checks, and prints the report."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, Settings(), arguments)
    environment, parameters = flags.environment(words)
    flags.required("environment", "shoal check CartPole-v1", environment)
    findings = api.check(environment, **dataclasses.asdict(settings), progress=True, **parameters)
    print(api.report(findings, environment))
    return 1 if findings else 0
