"""`shoal check ENV`: find errors in an environment."""

import dataclasses
from collections.abc import Sequence

from shoal.cli import flags
from shoal.envs.checking.check import check
from shoal.envs.checking.checker import report as report_text

COMMAND = "shoal check ENV [name=value ...]"
DESCRIPTION = (
    "Looks for errors in an environment and describes each in one sentence; the exit status is 1 if there are any. "
    "ENV may be module:Name, imported from the current directory."
)


@dataclasses.dataclass(frozen=True)
class CheckFlags:
    """The flags of a check."""

    keys: int = 16
    """Runs this many environments at once, each with its own random key; 2 or more."""
    steps: int = 128
    """Makes this many random steps in each environment in one block."""
    max_steps: int = 10_000
    """Counts an episode that is longer than this many random steps as one that never ends."""
    seed: int = 0
    """Sets the seed of all keys and actions."""
    ignore: tuple[str, ...] = ()
    """Skips these rules, which the environment breaks on purpose, such as key-ignored for a deterministic one."""


def main(arguments: Sequence[str]) -> int:
    """Check an environment and print the report."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, CheckFlags(), arguments)
    environment, parameters = flags.parse_environment(words)
    flags.require("environment", "shoal check CartPole-v1", environment)
    findings = check(
        environment, **dataclasses.asdict(settings), progress=True, environment_parameters=parameters
    )
    print(report_text(findings, environment))
    return 1 if findings else 0
