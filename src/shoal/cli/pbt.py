"""`shoal pbt ENV`: population-based training, and the replay of a schedule that it found."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from shoal.base.errors import ShoalError
from shoal.cli import STARTED, flags
from shoal.cli.searching import groups_of, read_request
from shoal.cli.train import RunFlags, parse_settings, print_result
from shoal.records.directory import RunDirectory
from shoal.runs.plan.defaults import defaults
from shoal.search.pbt import PbtOptions, read_tuned, run_pbt, run_replay
from shoal.search.space import assignments

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal pbt ENV [name=value ...]"
DESCRIPTION = (
    "Trains a population whose worst fifth copies the best fifth at every exchange and changes the settings that it "
    "tunes (population-based training). The directory is that of any run, with the lineage of the members; `shoal "
    "resume` continues it. --replay trains new seeds with the schedule that was found. All other flags are those "
    "of `shoal train`."
)
EXAMPLE = "shoal pbt CartPole-v1 --tune learning_rate=log:1e-5:1e-2 --ready-every 50000"


@dataclasses.dataclass(frozen=True)
class PbtFlags(RunFlags, PbtOptions):
    """The flags that are not settings of a run."""

    groups: ClassVar[Mapping[str, tuple[str, ...]]] = groups_of(
        "tune", "start", "ready_every", "members", "replay"
    )

    tune: tuple[str, ...] = ()
    """Tunes a setting within bounds: NAME=log:LOW:HIGH, uniform:LOW:HIGH or one-minus-log:LOW:HIGH; may be given
    several times."""
    start: tuple[str, ...] = ()
    """Draws the first values of a tuned setting from narrower bounds, in the same form; may be given several times."""
    replay: str = ""
    """Trains new seeds with the schedule of the best policy of this run instead; then ENV is left out."""


def main(arguments: Sequence[str]) -> int:
    """Train, and print the result."""
    if replay := flags.value_of("--replay", arguments):
        return _replay(replay, arguments)
    choices, request = read_request(COMMAND, DESCRIPTION, PbtFlags, EXAMPLE, arguments)
    tuned = read_tuned(
        assignments("tune", choices.tune, "learning_rate=log:1e-5:1e-2"),
        assignments("start", choices.start, "learning_rate=log:1e-5:1e-4"),
    )
    options = PbtOptions(ready_every=choices.ready_every, members=choices.members)
    return print_result(run_pbt(request, tuned, options, choices.call(IMPORT_SECONDS, COMMAND, arguments)))


def _replay(run: str, arguments: Sequence[str]) -> int:
    """Train with the schedule of a run, and print the result."""
    of_run = defaults(config_file=RunDirectory.open(run).path)
    choices, overrides, words = parse_settings(COMMAND, DESCRIPTION, PbtFlags, of_run, arguments)
    names = ("--tune", "--start", "--ready-every", "--members", "--config", "--eval-env")
    others = [flag for flag in names if flags.value_of(flag, arguments)]
    if words or others:
        raise ShoalError(
            f"{' '.join([*words, *others])} has no effect with --replay {run}, which has all settings of that run; "
            "leave it out."
        )
    return print_result(run_replay(run, overrides, choices.call(IMPORT_SECONDS, COMMAND, arguments)))
