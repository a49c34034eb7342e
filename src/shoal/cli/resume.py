"""`shoal resume RUN`: go on with a run from its newest sound checkpoint."""

import time
from collections.abc import Sequence

from shoal.cli import STARTED, flags

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal resume RUN"
DESCRIPTION = (
    "Goes on with a run from its newest sound checkpoint, to the same end, bit for bit on the same machine. Settings "
    "that are given change it: --total-steps, with which a finished run goes on too, numbers of the algorithm such as "
    "--learning-rate, and those of checkpoints and log points."
)


def main(arguments: Sequence[str]) -> int:
    """Resume a run, and print the result."""
    words = flags.leading_words(arguments)
    run_dir = words[0] if words else ""
    if not run_dir and not set(arguments) & set(flags.HELP_FLAGS):
        flags.require("run", "shoal resume runs/CartPole", run_dir)
    ...
