"""Names within the limits of a tool, which would refuse a whole run for one of them."""

import os
import re
from collections.abc import Mapping

MOST_SHOWN = 3  # changed names in a note
NONE = r"(?!)"  # a regular expression that matches nothing


class FittedNames:
    """Names that a tool takes: parts that it refuses become "_", long names lose their middle, and all stay distinct.

    Names that differ in capitals alone are not distinct, since some tools and file systems do not tell them apart.

    Args:
      refused: a regular expression of the parts.
      most: bytes of a name.
      known: what an earlier process of the same run has changed.
    Attributes:
      changed: the names that were changed, with what they became.
    """

    def __init__(self, refused: str = NONE, most: int = 1000, known: Mapping[str, str] | None = None):
        self._refused, self._most = refused, most
        self.changed = dict(known or {})
        self._names = dict(self.changed)
        self.untold: list[str] = []  # the changes that `take_note` has not told

    def __call__(self, name: str) -> str:
        """Return what the tool takes."""
        if name not in self._names:
            used = {x.casefold() for x in self._names.values()}
            fitted, number = self._fit(name, ""), 1
            while fitted.casefold() in used:
                number += 1
                fitted = self._fit(name, f"_{number}")
            self._names[name] = fitted
            if fitted != name:
                self.changed[name] = fitted
                self.untold.append(f"{name!r} is called {fitted!r}")
        return self._names[name]

    def _fit(self, name: str, end: str) -> str:
        return re.sub(self._refused, "_", shorten_middle(name, self._most - len(end))) + end


def take_note(*names: FittedNames) -> str | None:
    """Return a sentence about what was changed since the last call; None where nothing was."""
    changes = [change for x in names for change in x.untold]
    for x in names:
        x.untold = []
    more = f" (and {len(changes) - MOST_SHOWN} more)" if changes[MOST_SHOWN:] else ""
    return f"{', '.join(changes[:MOST_SHOWN])} there{more}" if changes else None


def shorten_middle(text: str, most: int) -> str:
    """Replace the middle of a text of more bytes than `most` by two dots."""
    data, half = os.fsencode(text), (most - 2) // 2
    if len(data) <= most:
        return text
    return f"{data[:half].decode(errors='ignore')}..{data[-half:].decode(errors='ignore')}"
