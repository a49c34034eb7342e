"""`shoal pbt ENV`: population-based training, and the replay of a schedule that it found."""

import dataclasses
import time
from collections.abc import Sequence
from typing import ClassVar

from shoal import api
from shoal.cli import STARTED, flags
from shoal.cli.searching import read_request
from shoal.cli.train import RunChoices, parse_settings, print_result

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal pbt ENV [name=value ...]"
DESCRIPTION = (
    "Trains a population whose worst fifth copies the best fifth at every exchange and changes the settings that it "
    "tunes (population-based training). --members N sets the number of members (16). The directory is that of any run, "
    "with the lineage of the members; `shoal resume` goes on with it. --replay trains new seeds with the schedule that "
    "was found. All other flags are those of `shoal train`."
)
EXAMPLE = "shoal pbt CartPole-v1 --tune learning_rate=log:1e-5:1e-2 --ready-every 50000"
MAPPINGS = ("auto", "map", "vmap")  # values of --members that are those of `shoal train`


@dataclasses.dataclass(frozen=True)
class Choices(RunChoices):
    """The flags that are no settings of a run."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "most used": ("tune", "start", "ready_every", "replay", "algorithm", "config", "preset", "quiet"),
        "evaluation and logging": ("eval_env",),
    }

    tune: tuple[str, ...] = ()
    """Tunes a setting within bounds: NAME=log:LOW:HIGH, uniform:LOW:HIGH or one-minus-log:LOW:HIGH; may be given
    several times."""
    start: tuple[str, ...] = ()
    """Draws the first values of a tuned setting from narrower bounds, in the same form; may be given several times."""
    ready_every: int = 0
    """Evaluates and exchanges every so many environment steps of a member."""
    replay: str = ""
    """Trains new seeds with the schedule of the best policy of this run instead; then ENV is left out."""
    eval_env: tuple[str, ...] = ()
    """Evaluates all members in an environment with this parameter, NAME=VALUE; may be given several times."""


def main(arguments: Sequence[str]) -> int:
    """Train, and print the result."""
    if replay := flags.value_of("--replay", arguments):
        return _replay(replay, arguments)
    members, arguments = _take_members(arguments)
    choices, request = read_request(COMMAND, DESCRIPTION, Choices, EXAMPLE, arguments)
    options = api.PbtOptions(
        tune=api.assignments("tune", choices.tune, "learning_rate=log:1e-5:1e-2"),
        start=api.assignments("start", choices.start, "learning_rate=log:1e-5:1e-4"),
        ready_every=choices.ready_every,
        members=members,
    )
    call = api.Call(progress=not choices.quiet, import_seconds=IMPORT_SECONDS, own_process=True)
    return print_result(api.run_pbt(request, options, call))


def _replay(run: str, arguments: Sequence[str]) -> int:
    """Train with the schedule of a run, and print the result."""
    defaults = api.defaults(config_file=api.RunDirectory.open(run).path)
    choices, overrides, words = parse_settings(COMMAND, DESCRIPTION, Choices, defaults, arguments)
    others = [f"--{name.replace('_', '-')}" for name in ("tune", "start", "ready_every", "config", "eval_env")
              if getattr(choices, name)]  # fmt: skip
    if words or others:
        raise api.ShoalError(
            f"{' '.join([*words, *others])} has no effect with --replay {run}, which has all settings of that run; "
            "leave it out."
        )
    call = api.Call(progress=not choices.quiet, import_seconds=IMPORT_SECONDS, own_process=True)
    return print_result(api.run_replay(run, overrides, call))


def _take_members(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of members, and the words without it; `--members map` is a setting of the run, and stays."""
    given = flags.value_of("--members", arguments)
    if not given or given in MAPPINGS:
        return api.PbtOptions.members, list(arguments)
    if not given.isdecimal():
        raise api.ShoalError(f"--members {given} is not a whole number; give one such as 16.")
    words, rest = iter(arguments), []
    for word in words:
        if word == "--members":
            next(words)
        elif not word.startswith("--members="):
            rest.append(word)
    return int(given), rest
