"""Names of users' own parts of Shoal, and the modules that register them.

A registered name stands for a class, or its `module:Name`, wherever that may be given. A process that does not register
a name itself, such as a command, finds it by the modules in the environment variable `SHOAL_REGISTER`, with commas
between, which are imported before the first name is looked up, and by the entry points of the group `shoal` of
installed packages, whose modules are imported before a name counts as unknown, or all are listed.
"""

import importlib.metadata
import os
from collections.abc import Callable, Collection
from typing import Any

from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import import_module, import_name

VARIABLE = "SHOAL_REGISTER"
GROUP = "shoal"  # of entry points

Target = str | Callable[..., Any]

_targets: dict[str, dict[str, Target]] = {}  # what names stand for, by the kind of part
_imported: set[str] = set()  # where modules were looked for


def add(
    kind: str, name: str, target: Target, *, replace: bool = False, own: Collection[str] = (), right: str
) -> None:
    """Register a name for a part.

    Args:
      kind: of part, such as "torso".
      target: a class, or its `module:Name`, which is imported when it is used.
      replace: whether another target of the name is replaced.
      own: Shoal's names of this kind.
      right: what a target is, in words.
    Raises:
      ShoalError: the name has a colon or a comma, or is Shoal's own or taken; or the target is of another type.
    """
    if not isinstance(target, str | type) and not callable(target):
        raise ShoalError(f"{kind} {name!r}: {target!r:.80} is neither {right}, nor 'module:Name' of one.")
    if not isinstance(name, str) or not name or set(name) & set(":,= ") or name.startswith("-"):
        raise ShoalError(
            f"{kind} {name!r}: a name is text without colon, comma, equals sign and space, such as 'my_{kind}'."
        )
    if name in own:
        raise ShoalError(
            f"the name {name!r} is that of a {kind} of Shoal; give another, such as 'my_{name}'."
        )
    names = _targets.setdefault(kind, {})
    if name in names and not replace:
        raise ShoalError(f"the {kind} {name!r} is registered already; give replace=True to replace it.")
    names[name] = target


def names_of(kind: str) -> list[str]:
    """List the registered names of a kind of part, sorted."""
    import_modules(known=False)
    return sorted(_targets.get(kind, {}))


def target_of(kind: str, name: str) -> Target | None:
    """Return what a name stands for; None where it is not registered."""
    for is_last in (False, True):
        import_modules(known=not is_last)
        if found := _targets.get(kind, {}).get(name):
            return found
    return None


def resolved(kind: str, given: Any, setting: str, own: Collection[str] = ()) -> Any:
    """Return what a registered name stands for; one of Shoal's own, `module:Name` and what is no text as they are.

    Args:
      setting: its name, for the sentence.
      own: Shoal's names.
    Raises:
      ShoalError: the name is unknown, and there are some.
    """
    if not isinstance(given, str) or ":" in given or given in own:
        return given
    target = target_of(kind, given)
    names = [*own, *names_of(kind)] if target is None else []
    if names:
        raise ShoalError(
            f"{setting}={given!r} is none of {', '.join(names)}, nor module:Name of your own{nearest(given, names)}."
        )
    return given if target is None else target


def portable(target: Target) -> str:
    """Return the `module:Name` of a target, by which another process finds it."""
    return target if isinstance(target, str) else import_name(target)


def import_modules(known: bool) -> None:
    """Import the modules that register names, each once: those of the variable, and the packages' too.

    Args:
      known: whether only those of the variable are imported, since the name is known perhaps.
    Raises:
      ShoalError: there is no such module.
      UserCodeError: it fails.
    """
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        _import_once(name, f"{VARIABLE}={name}")
    if not known and GROUP not in _imported:
        _imported.add(GROUP)  # before, since a module may look up names while it is imported
        for point in importlib.metadata.entry_points(group=GROUP):
            _import_once(point.module, f"the entry point {point.name} = {point.value}")


def _import_once(module: str, subject: str) -> None:
    if module not in _imported:
        _imported.add(module)
        before = {kind: dict(names) for kind, names in _targets.items()}
        try:
            import_module(module, subject)
        except BaseException:
            # The next look-up imports it again, corrected or not.
            _imported.discard(module)
            _targets.clear()
            _targets.update(before)
            raise
