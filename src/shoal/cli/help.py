"""The help page of a command: its flags by subject, from the fields of dataclasses and the strings below them."""

import dataclasses
import math
import shutil
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from shoal.config import settings
from shoal.config.arguments import LARGEST_INDEX

MOST_USED = "most used"  # the group that a short page shows in full
LONG_PAGE_FLAGS = 30  # number of flags from which a page is short unless all are requested
TEXT_COLUMN = 28  # columns of a flag and its kind of value
WIDTHS = (60, 100)


class Flag(NamedTuple):
    """A flag as a page shows it."""

    words: str  # such as "--seeds INT"
    text: str  # what happens when it is set, and its default


def help_page(command: str, description: str, config: object, *, full: bool) -> str:
    """Describe a command and its flags.

    Args:
      full: whether every flag is explained; else a long page explains the most used ones and names the others.
    """
    width = min(max(shutil.get_terminal_size((WIDTHS[1], 24)).columns, WIDTHS[0]), WIDTHS[1])
    groups = flag_groups(config)
    is_short = not full and MOST_USED in groups and sum(map(len, groups.values())) > LONG_PAGE_FLAGS
    lines = [f"usage: {command} [OPTIONS]", "", textwrap.fill(description, width)]
    if not any(groups.values()):
        lines += ["", "This command has no options."]
    for title, flags in groups.items():
        if flags and (title == MOST_USED or not is_short):
            lines += ["", f"{title}:" if len(groups) > 1 else "options:"]
            lines += [line for flag in flags for line in _explain(flag, width)]
    if is_short:
        program = command.partition(" [")[0]
        lines += ["", f"further options, which `{program} --help-all` explains:"]
        lines += [
            line
            for title, flags in groups.items()
            if title != MOST_USED
            for line in _list_names(title, flags, width)
        ]
    return "\n".join([*lines, ""])


def flag_groups(config: object) -> dict[str, list[Flag]]:
    """Return the flags of a dataclass, and of those within it, by the titles of their groups.

    A class sorts its fields by an attribute `groups`, from titles to names; those that it leaves out have the title
    `options`, or within another dataclass the name of the field that holds them. The most used come first.
    """
    found: dict[str, list[Flag]] = {MOST_USED: []}
    for title, flag in _flags(config, "options", ""):
        found.setdefault(title, []).append(flag)
    return {title: flags for title, flags in found.items() if flags or len(found) == 1}


def _flags(config: object, title: str, owner: str) -> Iterator[tuple[str, Flag]]:
    """Return the flags of a dataclass with their groups' titles; those of a part have its field as owner."""
    titles = {name: group for group, names in settings.groups_of(config).items() for name in names}
    order = {name: place for place, name in enumerate(titles)}
    found = settings.settings_of(config)
    parts = {} if owner else _parts(config)
    # The flags of a part stand under the title of the part, and not a second time here.
    own = found.keys() - {name for part in parts.values() for name in settings.settings_of(part)}
    # Fields keep the order of leaves; a page has that of the groups.
    for name in sorted(filter(own.__contains__, found), key=lambda x: order.get(x, len(order))):
        group, setting = titles.get(name, title), found[name]
        # Two parts may have groups of one name, which the part's title tells apart.
        is_known_group = group in (MOST_USED, title) or not owner
        is_repeated = name in getattr(config, "repeated", ())
        words = f"{flag_of(name)} STR" if is_repeated else _flag_text(name, setting)
        flag = Flag(words, _help_text(setting))
        yield group if is_known_group else f"{owner}: {group}", flag
    for name, part in parts.items():
        yield from _flags(part, name, name)


def _parts(config: Any) -> dict[str, Any]:
    """Return the dataclasses that are fields of a dataclass, by the fields' names."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if settings.is_nested(value)}


def flag_of(name: str) -> str:
    """Return the flag of a field: `--num-envs` of num_envs, and `--from` of from_, which cannot be a name in Python."""
    return flags_of([name])[name]


def flags_of(names: Iterable[str]) -> dict[str, str]:
    """Return the flags of several fields."""
    return {name: f"--{name.rstrip('_').replace('_', '-')}" for name in names}


def _flag_text(name: str, setting: settings.Setting) -> str:
    flag = flag_of(name)
    if setting.field.functions is not None:
        names = f"{{{','.join(setting.field.functions)}}}" if setting.field.functions else "NAME"
        return f"{flag} {names} or module:function"
    return f"{flag}, --no{flag[1:]}" if setting.declared is bool else f"{flag} {_type_name(setting.declared)}"


def _type_name(declared: object) -> str:
    """Return the kind of value of a flag, such as INT or {a,b}."""
    options = typing.get_args(declared)
    if typing.get_origin(declared) is typing.Literal:
        return f"{{{','.join(map(str, options))}}}"
    if typing.get_origin(declared) is tuple:
        return f"[{_type_name(options[0])} ...]"
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return "|".join("None" if option is type(None) else _type_name(option) for option in options)
    return getattr(declared, "__name__", str(declared)).upper()


def _help_text(setting: settings.Setting) -> str:
    """Return the help of a setting: its text, its bounds and its default."""
    text, value = setting.text, setting.value
    bounds = setting.field.bounds and dataclasses.replace(
        setting.field.bounds, high=_shown(setting.field.bounds.high)
    )
    if bounds and bounds.has_finite():
        text = f"{text} {str(bounds).capitalize()}."
    if value in ("", ()):  # a default that is left out; the text explains it
        return text
    default = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{text} (default: {default})"


def _shown(high: float | None) -> float | None:
    """Return an upper bound; None for that of all whole numbers or seeds, which is not worth reading."""
    return None if high is not None and LARGEST_INDEX // 10 <= high < math.inf else high


def _explain(flag: Flag, width: int) -> list[str]:
    lines = textwrap.wrap(flag.text, width - TEXT_COLUMN) or [""]
    if len(flag.words) > TEXT_COLUMN - 4:
        is_short = len(flag.words) + 2 <= width
        words = flag.words if is_short else flag.words.replace(",", ", ")  # to break there
        words = textwrap.fill(
            words, width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )
        return [*words.splitlines(), *(" " * TEXT_COLUMN + line for line in lines)]
    first, *rest = lines
    return [f"  {flag.words:<{TEXT_COLUMN - 2}}{first}", *(" " * TEXT_COLUMN + line for line in rest)]


def _list_names(title: str, flags: list[Flag], width: int) -> list[str]:
    words = "  ".join(flag.words.partition(" ")[0].rstrip(",") for flag in flags)
    return textwrap.wrap(f"{title}:  {words}", width, initial_indent="  ", subsequent_indent="    ",
                         break_on_hyphens=False)  # fmt: skip
