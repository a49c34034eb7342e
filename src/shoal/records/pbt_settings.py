"""Settings that change while a run trains: tuned ones, which members exchange, or a schedule."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# The scales on which the values of a setting are equally spaced.
LINEAR, LOG, ONE_MINUS_LOG = ("linear", "log", "one-minus-log")


def magnitude(scale: str, value: Any) -> Any:
    """Return what has a uniform logarithm on a scale of logarithms: 1-x on "one-minus-log", else x; its own inverse."""
    return 1.0 - value if scale == ONE_MINUS_LOG else value


class Tuned(NamedTuple):
    """A number of the algorithm's config that population-based training changes.

    Attributes:
      scale: on which values are uniform: "linear", "log", or "one-minus-log".
      start: the bounds of the members' first values.
    """

    name: str
    scale: str
    low: float
    high: float
    start: tuple[float, float]

    def to_json(self) -> dict[str, object]:
        """Return what `Tuned(**...)` reads back, with a list for the tuple."""
        return self._asdict() | {"start": list(self.start)}


class ScheduleStep(NamedTuple):
    """A point of a schedule.

    Attributes:
      updates: after which the settings hold.
    """

    updates: int
    settings: Mapping[str, float]


class Evolution(NamedTuple):
    """The changes of a run's settings: at most one of the two is not empty.

    Attributes:
      tuned: the settings of population-based training.
      schedule: settings that all members have from some update on, ascending, the first after no update.
    """

    tuned: tuple[Tuned, ...] = ()
    schedule: tuple[ScheduleStep, ...] = ()

    def __bool__(self) -> bool:
        """Whether any setting changes."""
        return bool(self.tuned or self.schedule)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the settings that change."""
        return tuple(x.name for x in self.tuned) or tuple(self.schedule[0].settings if self.schedule else ())

    @property
    def examples(self) -> list[dict[str, float]]:
        """Values of all settings, the least first: a check that all of these pass, all values to come will pass."""
        if self.schedule:
            return [dict(step.settings) for step in self.schedule]
        lowest, highest = ({x.name: getattr(x, bound) for x in self.tuned} for bound in ("low", "high"))
        return [lowest, highest] if self.tuned else []

    def to_json(self) -> dict[str, object]:
        """Return the content of `evolution` in `config.json`, empty if nothing changes."""
        tuned = [x.to_json() for x in self.tuned]
        schedule = [{"updates": x.updates, "settings": dict(x.settings)} for x in self.schedule]
        return {name: x for name, x in (("tuned", tuned), ("schedule", schedule)) if x}


NONE = Evolution()  # no setting changes


def from_json(saved: Mapping[str, Any]) -> Evolution:
    """Read what `Evolution.to_json` returns."""
    tuned: Sequence[Mapping[str, Any]] = saved.get("tuned", ())
    return Evolution(
        tuple(Tuned(**{**x, "start": tuple(x["start"])}) for x in tuned),
        tuple(ScheduleStep(x["updates"], x["settings"]) for x in saved.get("schedule", ())),
    )
