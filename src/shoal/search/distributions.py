"""Distributions of one setting, between the unit interval and its values.

As text, in flags and files:

    uniform:LOW:HIGH          real numbers, all equally likely
    log:LOW:HIGH              real numbers > 0 whose logarithm is uniform
    one-minus-log:LOW:HIGH    real numbers < 1 for which the logarithm of 1-x is uniform; for discounts
    int:LOW:HIGH              whole numbers from LOW to HIGH, both included
    choice:A:B:...            one of the values

A draw u of the unit interval is mapped by the inverse of the cumulative distribution, so that points that cover the
unit cube evenly (Sobol) cover the space evenly.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from shoal.base.errors import ShoalError, nearest
from shoal.config import arguments
from shoal.config.values import from_text
from shoal.records.pbt_settings import LINEAR, LOG, ONE_MINUS_LOG, magnitude

DIGITS = 6  # significant digits of a drawn number, so that it can be read and typed


@dataclasses.dataclass(frozen=True)
class SettingDistribution(abc.ABC):
    """A distribution of the values of one setting.

    Attributes:
      scale: the axis on which the values are equally spaced: "linear", "log", "one-minus-log" or "choice".
    """

    scale: ClassVar[str]

    @abc.abstractmethod
    def from_unit(self, u: float) -> Any:
        """Map a number of [0, 1) to a value: the inverse of the cumulative distribution."""

    @abc.abstractmethod
    def to_unit(self, value: Any) -> float:
        """Map a value to its place in [0, 1], on the scale of the distribution."""

    @abc.abstractmethod
    def to_json(self) -> Any:
        """Return what `read_distribution` reads back: a text, or a list of choices."""


@dataclasses.dataclass(frozen=True)
class Between(SettingDistribution):
    """A distribution of numbers between two bounds."""

    low: float
    high: float
    name: ClassVar[str]

    def to_json(self) -> str:
        """Return the text that `read_distribution` reads."""
        return f"{self.name}:{self.low!r}:{self.high!r}"

    def to_unit(self, value: Any) -> float:
        """Map a value to [0, 1]."""
        return (value - self.low) / (self.high - self.low)

    def check(self, setting: str) -> None:
        """Require that the bounds make a distribution.

        Raises:
          ShoalError: they are the wrong way round, equal, not finite, or not in the domain of the scale.
        """
        text = f"{setting}={self.to_json()}"
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ShoalError(f"{text} has a bound that is not finite; both must be numbers.")
        if self.low > self.high:
            right = type(self)(self.high, self.low).to_json()
            raise ShoalError(f"{text} has its bounds the wrong way round; give {right}.")
        if self.low == self.high:
            raise ShoalError(f"{text} has equal bounds; to fix a setting, give it as {setting}={self.low!r}.")

    # Rounding may leave the bounds.
    def _clip(self, value: float) -> float:
        return min(max(value, self.low), self.high)


class UniformRange(Between):
    """Real numbers, all equally likely."""

    name: ClassVar[str] = "uniform"
    scale: ClassVar[str] = LINEAR

    def from_unit(self, u: float) -> float:
        """Map a number of [0, 1) to a value."""
        width = self.high - self.low
        # By the width: six digits of the value alone would leave nothing of 1e6 to 1e6 + 1.
        return self._clip(_rounded(self.low + u * width, width))


class _Logarithmic(Between):
    """Numbers of which the logarithm of a magnitude is uniform."""

    remedy: ClassVar[str]  # what is wrong with a bound that has no logarithm, and what would be right

    def from_unit(self, u: float) -> float:
        """Map a number of [0, 1) to a value."""
        first, last = self._magnitudes
        size = first * (last / first) ** u
        return self._clip(_rounded(magnitude(self.scale, size), min(size, self.high - self.low)))

    def to_unit(self, value: float) -> float:
        """Map a value to [0, 1]."""
        first, last = self._magnitudes
        return math.log(magnitude(self.scale, value) / first) / math.log(last / first)

    @property
    def _magnitudes(self) -> tuple[float, float]:
        return magnitude(self.scale, self.low), magnitude(self.scale, self.high)

    def check(self, setting: str) -> None:
        """Require that both bounds have a logarithm, besides what every distribution requires."""
        super().check(setting)
        for bound in (self.low, self.high):
            if magnitude(self.scale, bound) <= 0:
                remedy = self.remedy.format(bound=bound, low=self.low, high=self.high)
                raise ShoalError(f"{setting}={self.to_json()} has the bound {bound:g}, {remedy}.")


class Log(_Logarithmic):
    """Positive numbers whose logarithm is uniform."""

    name: ClassVar[str] = "log"
    scale: ClassVar[str] = LOG
    remedy: ClassVar[str] = "which has no logarithm; give one above 0, or uniform:{low!r}:{high!r}"


class OneMinusLog(_Logarithmic):
    """Numbers below 1 for which the logarithm of 1-x is uniform: 0.9, 0.99 and 0.999 are equally spaced."""

    name: ClassVar[str] = "one-minus-log"
    scale: ClassVar[str] = ONE_MINUS_LOG
    remedy: ClassVar[str] = "and 1-{bound:g} has no logarithm; give one below 1, such as 0.999"


class Int(Between):
    """Whole numbers between two bounds, both included, all equally likely."""

    low: int
    high: int
    name: ClassVar[str] = "int"
    scale: ClassVar[str] = LINEAR

    def from_unit(self, u: float) -> int:
        """Map a number of [0, 1) to a value."""
        return min(self.low + math.floor(u * (self.high - self.low + 1)), self.high)


@dataclasses.dataclass(frozen=True)
class Choice(SettingDistribution):
    """One of several values, all equally likely.

    Attributes:
      values: different from each other.
    """

    values: tuple[Any, ...]
    scale: ClassVar[str] = "choice"

    def from_unit(self, u: float) -> Any:
        """Map a number of [0, 1) to a value."""
        return self.values[min(math.floor(u * len(self.values)), len(self.values) - 1)]

    def to_unit(self, value: Any) -> float:
        """Map a value to [0, 1]: the values are equally spaced, in their natural order."""
        ordered = natural_order(self.values)
        return ordered.index(value) / max(len(ordered) - 1, 1)

    def to_json(self) -> list[Any]:
        """Return the list of values."""
        return to_json(self.values)


RANGES: dict[str, type[Between]] = {kind.name: kind for kind in (UniformRange, Log, OneMinusLog, Int)}
NAMES = (*RANGES, "choice")


def read_distribution(setting: str, given: object) -> SettingDistribution:
    """Read a distribution from its text, such as `log:1e-5:1e-2`, or from a list of choices.

    The choices of a text stay texts, since only the setting's type tells whether `none` is a text or no value.

    Raises:
      ShoalError: it is none of these, there is no such distribution, or its bounds are wrong.
    """
    if isinstance(given, SettingDistribution):
        distribution = given
    elif isinstance(given, list | tuple):
        return Choice(read_values(setting, given))
    elif isinstance(given, str):
        distribution = _read_text(setting, given)
    else:
        raise ShoalError(
            f"{setting}={arguments.short_repr(given)} is not a distribution; give one such as 'uniform:0:1', or a list "
            "of choices."
        )
    if isinstance(distribution, Between):
        distribution.check(setting)
    return distribution


def _read_text(setting: str, text: str) -> SettingDistribution:
    kind, *words = text.split(":")
    if kind not in NAMES:
        raise ShoalError(
            f"{setting}={text} names no distribution; there are {', '.join(NAMES)}{nearest(kind, NAMES)}."
        )
    if kind == "choice":
        return Choice(read_values(setting, [word for word in words if word]))
    example = "int:1:8" if kind == "int" else f"{kind}:0.1:0.9"
    if len(words) != 2:
        raise ShoalError(f"{setting}={text} does not have two bounds; give one such as {example}.")
    bounds = [from_text(word, float) for word in words]
    for word, bound in zip(words, bounds, strict=True):
        if not isinstance(bound, float):
            raise ShoalError(
                f"{setting}={text} has the bound {word!r}, which is not a number; give one such as {example}."
            )
    if kind == "int":
        bounds = [arguments.whole_number(f"{setting}: the bound", bound) for bound in bounds]
    return RANGES[kind](*bounds)


def read_values(setting: str, values: Sequence[object]) -> tuple[Any, ...]:
    """Read the values of a grid or a choice: those of lists become tuples, and NumPy's numbers become Python's.

    Raises:
      ShoalError: there are none, or one is there twice.
    """
    read = tuple(map(_value_from_json, values))
    if not read:
        raise ShoalError(f"{setting} has no values; give one or more, such as {setting}=0.1,0.2.")
    for index, value in enumerate(read):
        if any(is_same(value, other) for other in read[:index]):
            raise ShoalError(f"{setting} has the value {arguments.short_repr(value)} twice; give it once.")
    return read


def is_same(first: object, second: object) -> bool:
    """Report whether two values of a setting are the same; True is not 1, and NaN is NaN."""
    # Python takes True for 1 and tells NaN from itself; both would make two settings of one, or one of two.
    if isinstance(first, bool) != isinstance(second, bool):
        return False
    return first == second or (
        isinstance(first, float) and isinstance(second, float) and repr(first) == repr(second)
    )


def natural_order(values: Sequence[object]) -> list[Any]:
    """Return values in the order of an axis: numbers ascending, anything else as it is given."""
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values) if are_numbers else list(values)


def _value_from_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_value_from_json, value))
    if isinstance(value, dict) and set(value) == {"float"}:
        return float(value["float"])
    return value.item() if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0 else value


def to_json(value: object) -> Any:
    """Convert a value, or a tuple of them, to what strict JSON can hold, which has no infinities; see `read_values`."""
    if isinstance(value, tuple):
        return [to_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _rounded(value: float, size: float) -> float:
    """Round to some significant digits of a size, to which differences between draws compare."""
    return round(float(value), DIGITS - 1 - math.floor(math.log10(size)))
