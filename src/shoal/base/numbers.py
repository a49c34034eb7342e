"""Numbers as they are printed: with as many digits as the width of their interval justifies."""

import math
from collections.abc import Iterable, Sequence

DIGITS = 4  # significant ones of a number without an interval
MOST_DIGITS = 7  # significant ones that a float32 has
PLAIN = (1e-4, 1e6)  # magnitudes from and below which a number needs no exponent


def format_numbers(
    values: Iterable[float | None], interval: Sequence[float | None] | None = None, sign: str = ""
) -> list[str]:
    """Format numbers of one quantity, all to the same decimal place.

    The width of the interval has two significant digits, so that rounding moves an end by at most a twentieth of it.
    Without an interval, or one that is infinite or of one point, the largest number has four significant digits. Where
    the largest is below 1e-4 or at least 1e6, all have exponents.

    Args:
      values: None and NaN are "nan".
      interval: of one of them.
      sign: "+" writes the sign of positive numbers too.
    """
    numbers = [math.nan if x is None else float(x) for x in values]
    ends = [math.nan if x is None else float(x) for x in interval or ()]
    largest = max((abs(x) for x in [*numbers, *ends] if math.isfinite(x)), default=0.0)
    place, width = _exponent(largest) - DIGITS + 1, ends[1] - ends[0] if ends else 0.0
    if 0 < width < math.inf:
        place = max(_exponent(width) - 1, _exponent(largest) - MOST_DIGITS + 1)
    if PLAIN[0] <= largest < PLAIN[1]:
        return [f"{x:{sign}z.{max(0, -place)}f}" for x in numbers]
    return [f"{x:{sign}.{max(0, _exponent(x) - place)}e}" if x else "0" for x in numbers]


def format_number(value: float | None, interval: Sequence[float | None] | None = None, sign: str = "") -> str:
    """Format a number by its interval, as `format_numbers` does."""
    return format_numbers([value], interval, sign)[0]


def format_interval(interval: Sequence[float | None] | None, sign: str = "") -> str:
    """Format an interval, such as "[-149.6, -145.3]"; "" for none."""
    return "" if interval is None else f"[{', '.join(format_numbers(interval, interval, sign))}]"


def format_estimate(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """Format a number, and behind it its interval if it has one."""
    return "  ".join(filter(None, [format_number(value, interval), format_interval(interval)]))


def _exponent(value: float) -> int:
    """Return the decimal exponent of a number's first digit; 0 where it has none."""
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0


def format_duration(seconds: float) -> str:
    """Format 3,725 seconds as 1:02:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
