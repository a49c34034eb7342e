"""One-sentence errors: the name, the value, what would be right, the nearest thing that works."""

import difflib
from collections.abc import Iterable
from typing import Any


class ShoalError(ValueError):
    """Bad input from the user; the message is one sentence and complete without a traceback."""


class SavingError(ShoalError):
    """A run that was trained to its end, and of which not everything could be written.

    Attributes:
      run: the `TrainedRun`: its summary, its learner and its evaluations.
    """

    def __init__(self, message: str, run: Any):
        super().__init__(message)
        self.run = run


def nearest(name: str, options: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the option closest to `name`, or `""` if none is close."""
    lowered = {option.lower(): option for option in options}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""
