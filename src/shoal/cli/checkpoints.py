"""`shoal checkpoints RUN`: list the checkpoints of a run, and verify them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from shoal.base.numbers import format_duration, format_number
from shoal.cli import flags
from shoal.config import arguments
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.records.json_files import json_text

COMMAND = "shoal checkpoints RUN"
DESCRIPTION = (
    "Lists the checkpoints of a run: environment steps, age, score (the interquartile mean over seeds, where it was "
    "written at an evaluation), size, and whether each byte is as it was written."
)


@dataclasses.dataclass(frozen=True)
class CheckpointsFlags:
    """The flags of the list."""

    json: bool = False
    """Prints everything as JSON."""


def main(arguments: Sequence[str]) -> int:
    """List the checkpoints; 1 if one is damaged."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, CheckpointsFlags(), arguments)
    run = flags.require("run", "shoal checkpoints runs/CartPole-v1-ppo-20260131-093000", "".join(words[:1]))
    found = list_checkpoints(run)
    print(json_text(found).rstrip() if settings.json else table(found))
    return 1 if any(row["problem"] for row in found) else 0


def table(found: list[dict[str, Any]]) -> str:
    """Format a line for each checkpoint."""
    lines = [f"{'steps':>14}{'age':>10}{'score':>10}{'size':>10}  state"]
    for row in found:
        score = "" if row["score"] is None else format_number(row["score"])
        size = f"{row['bytes'] / 1e6:.1f} MB"
        lines.append(
            f"{row['steps']:>14,}{format_duration(row['seconds']):>10}{score:>10}{size:>10}  "
            f"{row['problem'] or 'sound'}"
        )
    return "\n".join(lines) if found else "no checkpoints"


def list_checkpoints(run: str) -> list[dict[str, Any]]:
    """List the checkpoints of a run, by environment steps.

    Returns:
      of each `steps`, `seconds` since it was written, `score` (the interquartile mean over seeds of the evaluation at
      which it was written, else None), `bytes`, and `problem`: the damage, or "".
    Raises:
      ShoalError: there is no such run.
    """
    stored = Checkpoints(RunDirectory.open(arguments.path("run", run)).path)
    return [
        {
            "steps": info.steps,
            "seconds": info.seconds,
            # JSON has no infinities: a record has them as words.
            "score": None if (score := info.record.get("iqm")) is None else float(score),
            "bytes": info.bytes,
            "problem": info.problem,
        }
        for info in map(stored.info, stored.steps())
    ]
