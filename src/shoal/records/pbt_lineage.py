"""The lineage of a population whose members copy each other: who descends from whom, and with which settings."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.records.metrics_file import by_updates
from shoal.records.pbt_settings import ScheduleStep


class Exchange(NamedTuple):
    """An exchange between members, or a change of their settings; entries of lists are of the members, in order.

    Attributes:
      updates: after which it was.
      parents: the index of the member that each one continues; its own if it copied none.
      settings: from then on, by name.
    """

    updates: int
    parents: list[int]
    settings: dict[str, list[float]]


class Ancestor(NamedTuple):
    """A member of a line of descent, from an update on until the next one's.

    Attributes:
      updates: from which on the line ran through it.
    """

    updates: int
    member: int
    settings: dict[str, float]


def exchanges_of(rows: Sequence[Mapping[str, Any]]) -> list[Exchange]:
    """Return the exchanges in the rows of `metrics.jsonl`, in order."""
    return [
        Exchange(
            updates,
            [[row["seed"] for row in group].index(row["parent"]) for row in group],
            {name: [row["settings"][name] for row in group] for name in group[0]["settings"]},
        )
        for updates, group in by_updates(rows, "exchange")
    ]


def ancestors(exchanges: Sequence[Exchange], member: int, updates: int) -> list[Ancestor]:
    """Follow a member back to the start of the run from a number of updates, before an exchange there.

    Returns:
      the line of descent, the oldest first: one entry for each exchange before.
    """
    line = []
    for exchange in reversed(exchanges):
        if exchange.updates < updates:
            own = {name: values[member] for name, values in exchange.settings.items()}
            line.append(Ancestor(exchange.updates, member, own))
            member = exchange.parents[member]
    return line[::-1]


def schedule_of(line: Sequence[Ancestor]) -> tuple[ScheduleStep, ...]:
    """Return the settings of a line of descent as a schedule, without the points at which nothing changes."""
    steps: list[ScheduleStep] = []
    for ancestor in line:
        if not steps or steps[-1].settings != ancestor.settings:
            steps.append(ScheduleStep(ancestor.updates, ancestor.settings))
    return tuple(steps)
