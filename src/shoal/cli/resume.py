"""`shoal resume RUN`: resume a run from its newest sound checkpoint, or start a new run from an older one."""

import dataclasses
import time
from collections.abc import Sequence
from typing import ClassVar

from shoal.base.errors import ShoalError
from shoal.cli import STARTED, flags
from shoal.cli.train import LOGGING, OutputFlags, parse_settings, print_result
from shoal.records.directory import RunDirectory
from shoal.runs.plan.defaults import defaults
from shoal.runs.train.drive import resume_run

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal resume RUN"
DESCRIPTION = (
    "Resumes a run from its newest sound checkpoint, to the same end, bit for bit on the same machine. Settings "
    "that are given change it: --total-steps, which continues a finished run too, numbers of the algorithm such as "
    "--learning-rate, and those of checkpoints, log points and evaluations. With --from-step a new run starts from an "
    "older checkpoint; `shoal train --from RUN` takes a run's parameters alone. The defaults shown are the run's."
)


@dataclasses.dataclass(frozen=True)
class ResumeFlags(OutputFlags):
    """The flags that are not settings of a run."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {"most used": ("from_step", "quiet"), **LOGGING}

    from_step: str = ""
    """Starts a new run (--run-dir) from this checkpoint of RUN, optimiser state included: its environment steps,
    best or last; RUN does not change."""


def main(arguments: Sequence[str]) -> int:
    """Resume a run, and print the result."""
    words = flags.leading_words(arguments)
    if not words and not set(arguments) & set(flags.HELP_FLAGS):
        flags.require("run", "shoal resume runs/CartPole-v1-ppo-20260131-093000", "")
    run = words[0] if words else ""
    of_run = defaults(config_file=RunDirectory.open(run).path if run else None)
    choices, overrides, words = parse_settings(COMMAND, DESCRIPTION, ResumeFlags, of_run, arguments)
    if words != [run]:
        raise ShoalError(f"shoal resume takes one run directory, and was given {' '.join(words)}.")
    # Functions have import names in the run's `config.json`; only Python has others to give.
    call = choices.call(IMPORT_SECONDS, COMMAND, arguments)
    resumed = resume_run(run, None, functions={}, overrides=overrides, call=call, from_step=choices.from_step)
    return print_result(resumed)
