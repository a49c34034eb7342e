"""The help page of a command: its flags by subject, from the fields of dataclasses and the strings below them."""

import ast
import dataclasses
import inspect
import itertools
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

MOST_USED = "most used"  # the group that a short page shows in full
LONG_PAGE_FLAGS = 30  # flags from which on a page is short unless all of it is asked for
TEXT_COLUMN = 28  # columns of a flag and its kind of value
WIDTHS = (60, 100)


class Flag(NamedTuple):
    """A flag as a page shows it."""

    words: str  # such as "--seeds INT"
    text: str  # what happens when it is set, and its default


def help_page(command: str, description: str, settings: Any, *, full: bool) -> str:
    """Describe a command and its flags.

    Args:
      command: as it is called, such as "shoal eval RUN".
      description: what it does.
      settings: the dataclass whose fields are the flags, with the defaults that are shown.
      full: whether every flag is explained; else a long page explains the most used ones and names the others.
    """
    width = min(max(shutil.get_terminal_size((WIDTHS[1], 24)).columns, WIDTHS[0]), WIDTHS[1])
    groups = flag_groups(settings)
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


def flag_groups(settings: Any) -> dict[str, list[Flag]]:
    """The flags of a dataclass, and of those within it, by the titles of their groups.

    A class sorts its fields by an attribute `groups`, from titles to names; those that it leaves out have the title
    `options`, or within another dataclass the name of the field that holds them. The most used come first.
    """
    found: dict[str, list[Flag]] = {MOST_USED: []}
    for title, flag in _flags(settings, "options", ""):
        found.setdefault(title, []).append(flag)
    return {title: flags for title, flags in found.items() if flags or len(found) == 1}


def _flags(settings: Any, title: str, owner: str) -> Iterator[tuple[str, Flag]]:
    groups = getattr(settings, "groups", {})
    titles = {name: group for group, names in groups.items() for name in names}
    order = {name: place for place, name in enumerate(titles)}
    texts, declared = field_texts(type(settings)), typing.get_type_hints(type(settings))
    for field in sorted(dataclasses.fields(settings), key=lambda x: order.get(x.name, len(order))):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flags(value, field.name, field.name)
        else:
            group = titles.get(field.name, title)
            is_known_group = group in (MOST_USED, title) or not owner
            flag = Flag(
                _flag_text(field.name, declared[field.name]), _help_text(texts.get(field.name, ""), value)
            )
            yield group if is_known_group else f"{owner}: {group}", flag


def field_texts(cls: type) -> dict[str, str]:
    """The string below each field of a class, and of those that it is made from, as one line."""
    texts: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError):  # made while the program runs: it has no source
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
                texts[ast.unparse(field.target)] = " ".join(str(text.value).split())
    return texts


def _flag_text(name: str, declared: Any) -> str:
    flag = f"--{name.rstrip('_').replace('_', '-')}"
    return f"{flag}, --no{flag[1:]}" if declared is bool else f"{flag} {_type_name(declared)}"


def _type_name(declared: Any) -> str:
    """Return the kind of value of a flag, such as INT or {a,b}."""
    options = typing.get_args(declared)
    if typing.get_origin(declared) is typing.Literal:
        return f"{{{','.join(map(str, options))}}}"
    if typing.get_origin(declared) is tuple:
        return f"[{_type_name(options[0])} ...]"
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return "|".join("None" if option is type(None) else _type_name(option) for option in options)
    return getattr(declared, "__name__", str(declared)).upper()


def _help_text(text: str, value: Any) -> str:
    if value in ("", ()):  # what is left out; the text says what that means
        return text
    default = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{text} (default: {default})"


def _explain(flag: Flag, width: int) -> list[str]:
    lines = textwrap.wrap(flag.text, width - TEXT_COLUMN) or [""]
    if len(flag.words) > TEXT_COLUMN - 4:
        return [f"  {flag.words}", *(" " * TEXT_COLUMN + line for line in lines)]
    first, *rest = lines
    return [f"  {flag.words:<{TEXT_COLUMN - 2}}{first}", *(" " * TEXT_COLUMN + line for line in rest)]


def _list_names(title: str, flags: list[Flag], width: int) -> list[str]:
    words = "  ".join(flag.words.partition(" ")[0].rstrip(",") for flag in flags)
    return textwrap.wrap(f"{title}:  {words}", width, initial_indent="  ", subsequent_indent="    ",
                         break_on_hyphens=False)  # fmt: skip
