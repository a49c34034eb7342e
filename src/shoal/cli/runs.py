"""`shoal runs [DIR]`: list runs, sweeps and studies, finished or not."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from shoal.base.errors import ShoalError
from shoal.base.terminal import fit
from shoal.cli import flags
from shoal.records.json_files import json_text
from shoal.records.new_directory import RUNS_DIR
from shoal.reports import runs_list

COMMAND = "shoal runs [DIR]"
DESCRIPTION = (
    "Lists the runs, sweeps and studies in a directory and below it (runs/ without DIR): state, environment steps, "
    "score with its interval, date in UTC, size on disk, name, tags, settings that differ from the preset, and note. "
    "DIR may be a run itself. A run is interrupted if `shoal resume` continues it, and failed if all its seeds failed."
)


@dataclasses.dataclass(frozen=True)
class RunsFlags:
    """The flags of the list."""

    sort: runs_list.Order = "date"
    """Puts the newest first (date), the best (score), the largest (size), or the longest trained (steps), or sorts by
    the environment's name; what has no score comes last."""
    tag: tuple[str, ...] = ()
    """Shows only what has all these tags."""
    environment: str = ""
    """Shows only what was trained in this environment, a name or a pattern such as 'MiniGrid-*'."""
    state: Literal["all", "training", "interrupted", "finished", "failed", "damaged"] = "all"
    """Shows only what is in this state."""
    json: bool = False
    """Prints everything as JSON."""


def main(arguments: Sequence[str]) -> int:
    """List what a directory holds."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, RunsFlags(), arguments)
    if len(words) > 1:
        raise ShoalError(f"shoal runs lists one directory, not {words[0]!r} and {words[1]!r}.")
    listed = runs_list.entries(
        words[0] if words else RUNS_DIR,
        tags=settings.tag,
        environment=settings.environment,
        state="" if settings.state == "all" else settings.state,
    )
    listed = runs_list.in_order(listed, settings.sort)
    if settings.json:
        print(json_text([runs_list.to_json(entry) for entry in listed]), end="")
    else:
        print(fit(runs_list.table(listed)))
    return 0
