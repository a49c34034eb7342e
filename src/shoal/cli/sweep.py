"""`shoal sweep ENV`: train many settings as populations, rank them, and train the best again."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from shoal.cli import STARTED
from shoal.cli.searching import SearchFlags, groups_of, print_result, read_search
from shoal.search.sweep import SweepOptions, run_sweep

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal sweep ENV [name=value ...]"
DESCRIPTION = (
    "Trains many settings of an algorithm, each with several seeds, as populations of few compiled programs; ranks "
    "them, trains the best three again on new seeds, and writes a directory with the results. Settings that are "
    "numbers differ within a program, others divide the sweep into several. The same command resumes a sweep "
    "that was interrupted, and extends it with a larger --samples. All other flags are those of `shoal train`."
)


@dataclasses.dataclass(frozen=True)
class SweepFlags(SearchFlags, SweepOptions):
    """The flags that are not settings of a run."""

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = groups_of(
        *("grid", "random", "space", "samples", "sobol", "objective", "confirm_seeds", "halving"),
        *("min_steps", "run_dir"),
    )


def main(arguments: Sequence[str]) -> int:
    """Sweep, and print the best settings."""
    example = "shoal sweep CartPole-v1 --grid learning_rate=1e-4,1e-3"
    request, space, options, choices = read_search(
        COMMAND, DESCRIPTION, SweepFlags, SweepOptions, example, arguments
    )
    call = choices.call(IMPORT_SECONDS, COMMAND, arguments, own_process=False)
    return print_result(run_sweep(request, space, options, call))
