"""`shoal tune ENV`: train settings that Optuna proposes, batch by batch, and the best again."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from shoal.cli import STARTED
from shoal.cli.searching import SearchFlags, groups_of, print_result, read_search
from shoal.search.trial_runs import TuneOptions, run_tuning

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal tune ENV [name=value ...]"
DESCRIPTION = (
    "Asks Optuna for settings, batch by batch, and trains each batch with several seeds as populations of few compiled "
    "programs; then trains the best three again on new seeds, and writes a directory with the results. Several "
    "processes may work on one study. The same command resumes a tuning that was interrupted, and extends it with "
    "a larger --trials. All other flags are those of `shoal train`."
)


@dataclasses.dataclass(frozen=True)
class TuneFlags(SearchFlags, TuneOptions):
    """The flags that are not settings of a run."""

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = groups_of(
        *("grid", "random", "space", "trials", "batch", "storage", "study", "objective"),
        *("confirm_seeds", "halving", "min_steps", "run_dir"),
    )

    grid: tuple[str, ...] = ()
    """Lets Optuna choose one of these values, NAME=V1,V2,...; may be given several times."""
    random: tuple[str, ...] = ()
    """Lets Optuna propose the values of a setting: NAME=uniform:LOW:HIGH, log:LOW:HIGH, one-minus-log:LOW:HIGH,
    int:LOW:HIGH or choice:A:B:...; may be given several times."""


def main(arguments: Sequence[str]) -> int:
    """Tune, and print the best settings."""
    example = "shoal tune CartPole-v1 --random learning_rate=log:1e-5:1e-2"
    request, space, options, choices = read_search(
        COMMAND, DESCRIPTION, TuneFlags, TuneOptions, example, arguments
    )
    call = choices.call(IMPORT_SECONDS, COMMAND, arguments, own_process=False)
    return print_result(run_tuning(request, space, options, call))
