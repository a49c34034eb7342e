"""Errors of one sentence: the name, the value, what would be right, and the nearest value that works."""

import decimal
from collections.abc import Iterable
from difflib import SequenceMatcher

CLOSE = 0.65  # least similarity of a name and a suggestion
MAX_LISTED = 12  # largest number of names that a sentence lists


class ShoalError(ValueError):
    """Bad input from the user; the message is one sentence and complete without a traceback."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_with_full_stop(str(message)))


def _with_full_stop(message: str) -> str:
    """End a sentence with one mark; frames of a user's code that follow it are not changed."""
    if not message or "\n" in message:
        return message
    sentence = message.rstrip(".")
    return sentence if sentence.endswith("?") else f"{sentence}."


class SavingError(ShoalError):
    """A run was trained to its end, but a part of it could not be written."""

    def __init__(self, message: str, run: object):
        super().__init__(message)
        self.run = run


class ResumableError(ShoalError):
    """An outside failure, such as a full disk, ended a run, which can be resumed from its last checkpoint."""


class UserCodeError(ShoalError):
    """The user's own code failed; the message says where, and the error itself is its `__cause__`.

    Attributes:
      frames: the user's own frames as Python shows them, innermost last; none of Shoal or a library below it.
    """

    def __init__(self, message: str, frames: str = ""):
        super().__init__(message)
        self.frames = frames


def rounded_bound(bound: float, *, up: bool = False) -> str:
    """Format a bound in three digits, rounded to the side that is accepted, so that the printed value works."""
    context = decimal.Context(3, decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR)
    return f"{float(context.create_decimal_from_float(bound * (1 - 1e-6 if up else 1 + 1e-6))):g}"


def nearest(name: str, options: Iterable[str]) -> str:
    """Suggest the option that was probably meant: `"; did you mean 'x'?"`, or `""` if none is close.

    The question ends a sentence: put it last in a message.
    """
    scores = {option: _similarity(name, option) for option in options if isinstance(option, str)}
    best = max(scores, key=scores.__getitem__, default="")
    return f"; did you mean {best!r}?" if best and scores[best] >= CLOSE else ""


def alternatives(name: str, options: Iterable[str], listing: str, verb: str = "there are") -> str:
    """List the alternatives to an unknown name: all names where they are few, else the nearest three.

    Args:
      listing: the command that lists them all.
    """
    names = sorted(options)
    if len(names) <= MAX_LISTED:
        return f"{verb} {', '.join(names)}"
    first, second, third = sorted(names, key=lambda option: -_similarity(name, option))[:3]
    return f"the nearest are {first}, {second} and {third}; `{listing}` lists all {len(names)}"


def _similarity(name: str, option: str) -> float:
    """Return how alike two names are, at most 1, or above that for an option that holds all words of the name, or the
    name as at least a third of its letters. Case, and whether words are joined by `-` or `_`, do not matter.
    """
    name, option = (x.lower().replace("_", "-").lstrip("-") for x in (name, option))
    is_part = name in option and len(option) <= 3 * len(name)
    holds = len(name) >= 3 and (is_part or set(name.split("-")) <= set(option.split("-")))
    other_start = name[:1] != option[:1]  # a first letter is seldom mistyped
    return SequenceMatcher(None, name, option).ratio() + holds - 0.1 * other_start
