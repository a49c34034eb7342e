"""Settings that have no effect unless others have certain values, declared in a table of each config.

A config names them in a class attribute, which is read for the settings that a caller gave himself:

    needs: ClassVar[needs.Table] = {
        "dpo_alpha": (Needs("surrogate", ("dpo",)),),
        "core_size": (Needs("core", other_than=("none",), such_as="gru"),),
    }
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.base.errors import ShoalError


@dataclasses.dataclass(frozen=True)
class Needs:
    """A condition on another setting, without which a setting has no effect; one of `values`, `kinds` and `other_than`.

    Classes and functions count by their `module:Name`. A text of several names with commas between counts by each.
    Attributes:
      name: the other setting's name; `action_space`, `observation_space` or `num_agents`, the environment's; or
        `has_memory`, the declaration of a network of the caller's own.
      values: it must have one of these values.
      kinds: it must be an instance of one of these classes, by their names.
      other_than: it must have any value but these.
      such_as: with `other_than`, a value that is right; for the message.
      or_function: whether a function of the user's own, module:function, is right too: it may read any setting.
    """

    name: str
    values: tuple[Any, ...] = ()
    kinds: tuple[str, ...] = ()
    other_than: tuple[Any, ...] = ()
    such_as: Any = None
    or_function: bool = False

    def is_met(self, value: object) -> bool:
        """Report whether a value of the other setting is right."""
        if self.kinds:
            return type(value).__name__ in self.kinds
        value = f"{value.__module__}:{value.__qualname__}" if hasattr(value, "__qualname__") else value
        if self.or_function and ":" in str(value):
            return True
        names = value.split(",") if isinstance(value, str) else [value]
        return any(x in self.values for x in names) if self.values else value not in self.other_than

    def __str__(self) -> str:
        """Return a right setting in words, such as "surrogate='clip'"."""
        if self.kinds:
            return f"an {self.name} that is a {' or a '.join(self.kinds)}"
        if self.values:
            return " or ".join(f"{self.name}={value!r}" for value in self.values)
        return f"one, such as {self.name}={self.such_as!r}"


Conditions = tuple[Needs | tuple[Needs, ...], ...]
"""What one setting needs: all entries, of which a tuple is met by any of its parts."""
Table = Mapping[str, Conditions]
"""What each setting needs, by its name."""


def conditions(needs: Needs | Conditions) -> Conditions:
    """Return the conditions of a setting, of which one may be given alone."""
    return (needs,) if isinstance(needs, Needs) else needs


def check_needs(changed: Iterable[str], values: Mapping[str, object], table: Table) -> None:
    """Require that the settings that a caller gave have an effect.

    Args:
      changed: the names of the settings that the caller gave; others may be without effect.
      values: every setting by its name, the environment's spaces, and the declarations of the caller's own network.
    Raises:
      ShoalError: the first setting without effect; the sentence says what it needs.
    """
    for name in changed:
        if missing := _missing(name, values, table):
            actual = dict.fromkeys(f"{needs.name}={values[needs.name]!r}" for needs in missing)
            required = dict.fromkeys(str(needs) for needs in missing)
            raise ShoalError(
                f"{name}={values[name]!r} has no effect with {' and '.join(actual)}; it needs {' or '.join(required)}."
            )


def _missing(name: str, values: Mapping[str, object], table: Table) -> list[Needs]:
    """Return the conditions that a setting lacks, the alternatives of one entry; empty if it has an effect."""
    for entry in table.get(name, ()):
        alternatives = entry if isinstance(entry, tuple) else (entry,)
        # Others are another algorithm's, which has such a setting.
        missing = [_unmet(needs, values, table) for needs in alternatives if needs.name in values]
        if missing and all(missing):
            return [needs for part in missing for needs in part]
    return []


def _unmet(needs: Needs, values: Mapping[str, object], table: Table) -> list[Needs]:
    """Return the condition itself, or those of the setting that it names, if they are not met; empty if they are."""
    if not needs.is_met(values[needs.name]):
        return [needs]
    return _missing(needs.name, values, table)
