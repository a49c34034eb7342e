"""One-sentence errors: the name, the value, what would be right, the nearest thing that works."""

import difflib
from collections.abc import Iterable


class ShoalError(ValueError):
    """Bad input from the user; the message is one sentence and complete without a traceback."""


class UserCodeError(ShoalError):
    """Code of the user's own failed; the message says whose and where, and the error itself is its `__cause__`.

    Attributes:
      frames: the user's own frames as Python shows them, innermost last; none of Shoal or a library below it.
    """

    def __init__(self, message: str, frames: str = ""):
        super().__init__(message)
        self.frames = frames


def nearest(name: str, options: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the option closest to `name`, or `""` if none is close."""
    lowered = {option.lower(): option for option in options}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""
