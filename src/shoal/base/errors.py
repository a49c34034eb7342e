"""Errors of one sentence: the name, the value, what would be right, and the nearest value that works."""

from collections.abc import Iterable
from typing import Any

MAX_EDITS = 4  # largest number of edits between a name and a suggestion
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

    def __init__(self, message: str, run: Any):
        super().__init__(message)
        self.run = run


class ResumableError(ShoalError):
    """A run was ended by a failure around it, such as a full disk, and can be resumed from its last checkpoint."""


class UserCodeError(ShoalError):
    """The user's own code failed; the message says where, and the error itself is its `__cause__`.

    Attributes:
      frames: the user's own frames as Python shows them, innermost last; none of Shoal or a library below it.
    """

    def __init__(self, message: str, frames: str = ""):
        super().__init__(message)
        self.frames = frames


def nearest(name: str, options: Iterable[str]) -> str:
    """Suggest the option that was probably meant: `"; did you mean 'x'?"`, or `""` if none is close.

    An option is close if it differs from `name` in at most one edit for every three letters (an edit inserts,
    removes or replaces a letter, or exchanges two neighbours); or if it holds all words of `name`, or `name` itself
    as at least a third of its letters, and `name` has three letters or more. Case, and whether words are joined by
    `-` or `_`, do not matter.

    The question ends a sentence: put it last in a message.
    """
    wanted = _normalise(name)
    distances = [
        (_name_distance(wanted, _normalise(option)), option) for option in options if isinstance(option, str)
    ]
    close = [(distance, option) for distance, option in distances if distance is not None]
    return f"; did you mean {min(close, key=lambda pair: pair[0])[1]!r}?" if close else ""


def alternatives(name: str, options: Iterable[str], listing: str, verb: str = "there are") -> str:
    """Say what there is instead of an unknown name: all names where they are few, else the nearest three.

    Args:
      listing: the command that lists them all.
    """
    names, wanted = sorted(options), _normalise(name)
    if len(names) <= MAX_LISTED:
        return f"{verb} {', '.join(names)}"
    edits = {x: _edit_distance(wanted, _normalise(x)) / max(len(wanted), len(x)) for x in names}
    first, second, third = sorted(names, key=edits.__getitem__)[:3]
    return f"the nearest are {first}, {second} and {third}; `{listing}` lists all {len(names)}"


def _normalise(name: str) -> str:
    return name.lower().replace("_", "-").lstrip("-")


def _name_distance(name: str, option: str) -> float | None:
    """Return the distance of an option from a name in edits; None if it is not close."""
    longer = max(len(name), len(option))
    max_edits = min(MAX_EDITS, longer // 3)
    if abs(len(name) - len(option)) <= max_edits and (edits := _edit_distance(name, option)) <= max_edits:
        return edits
    is_contained = name in option and len(option) <= 3 * len(name)
    if len(name) >= 3 and (is_contained or set(name.split("-")) <= set(option.split("-"))):
        return max_edits + (len(option) - len(name)) / longer  # behind what was only mistyped
    return None


def _edit_distance(first: str, second: str) -> int:
    """Count the edits that turn one string into another (the optimal string alignment distance)."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, x in enumerate(first, 1):
        before, previous, row = row, before, [i]
        for j, y in enumerate(second, 1):
            edits = min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == second[j - 2] and first[i - 2] == y:
                edits = min(edits, previous[j - 2] + 1)
            row.append(edits)
    return row[-1]
