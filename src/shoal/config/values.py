"""Values of declared types: read from texts, compared with their types, and as JSON.

The command line, files, searches and environments read their values here, and refuse them in the same words. Imports no
JAX.
"""

import ast
import contextlib
import functools
import math
import numbers
import os
import re
import types
import typing
from types import MappingProxyType
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import import_name, is_found_by_name
from shoal.config.arguments import short_repr

# The values that a plain type takes, and its words in a message.
KINDS: dict[Any, tuple[type | types.UnionType, str]] = {
    float: (numbers.Real, "a number"),
    int: (numbers.Integral, "a whole number"),
    bool: (bool | np.bool_, "True or False"),
    str: (str, "a text"),
    types.NoneType: (types.NoneType, "None"),
}
_TUPLES: dict[Any, tuple[str, tuple[object, ...]]] = {
    int: ("whole numbers", (64, 64)),
    str: ("texts", ("eps=1e-5",)),
}
_NAME_OF_LOCAL = re.compile(r"[\w.]+:\S*\.<locals>\.\S*")  # as of settings whose class is made in a function
_SIZES = re.compile(r"\d+(x\d+)*")  # 64x64, which a command line takes without quotes


@functools.cache
def options_of(declared: object) -> tuple[Any, ...]:
    """Return the members of a declared type, such as int and None of `int | None`."""
    is_union = typing.get_origin(declared) in (typing.Union, types.UnionType)
    return typing.get_args(declared) if is_union else (declared,)


@functools.cache
def words_of(declared: object) -> tuple[str, ...]:
    """Return the words of a declared type, such as "never" of `int | Literal["never"]`."""
    words: tuple[str, ...] = ()
    for option in options_of(declared):
        words += typing.get_args(option) if typing.get_origin(option) is typing.Literal else ()
    return words


@functools.cache
def element_of(declared: object) -> Any:
    """Return the type of the parts of a tuple of any length, None beside it or not; None for any other type."""
    for option in options_of(declared):
        if typing.get_origin(option) is tuple and typing.get_args(option)[1:] == (...,):
            return typing.get_args(option)[0]
    return None


def from_text(text: str, declared: object = Any) -> Any:
    """Read a value of a declared type from its text; what is no such value stays a text.

    Numbers may be written as people write large ones, 1e6 and 500_000, and sizes as 64x64.

    Args:
      declared: `Any` reads a number, true, false, none, a list or tuple of these, or else the text itself.
    """
    options = options_of(declared)
    # `none` is a word of some settings, and no value of others.
    if text in words_of(declared) or (str in options and text.lower() != "none"):
        return text
    for kind in (float,) if float in options else (int, float) if int in options else ():
        with contextlib.suppress(ValueError):
            return cast_to_declared(kind(text), declared)
    if element_of(declared) is int and _SIZES.fullmatch(text):
        return tuple(map(int, text.split("x")))
    value = _literal(text)
    return value if value is not None or {Any, types.NoneType} & set(options) else text


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(_LiteralNames().visit(ast.parse(text.strip(), mode="eval")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


class _LiteralNames(ast.NodeTransformer):
    """Replaces the words that Python's literals lack by their values; case does not matter."""

    VALUES = MappingProxyType(
        {"true": True, "false": False, "none": None, "nan": math.nan, "inf": math.inf, "infinity": math.inf}
    )

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the value of a word; any other name stays, which makes the whole a text."""
        word = node.id.lower()
        return ast.copy_location(ast.Constant(self.VALUES[word]), node) if word in self.VALUES else node


def cast_to_declared(value: object, declared: object) -> Any:
    """Convert a number to the type that its field declares, where this loses nothing; other values stay.

    `1e5` becomes `100000` for an `int` (also within a tuple, beside None, or both), NumPy's numbers become Python's,
    and paths texts.
    """
    options = options_of(declared)
    if isinstance(value, os.PathLike) and str in options:
        return os.fspath(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, tuple) and (element := element_of(declared)):
        return tuple(cast_to_declared(part, element) for part in value)
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, float) and value.is_integer() and int in options and float not in options:
        return int(value)
    return value


def has_type(value: object, declared: object) -> bool:
    """Report whether a value is of a declared type; of one that is not known here every value is."""
    for option in options_of(declared):  # one call alone, since each setting is asked several times in a run
        if option in KINDS:
            is_right = isinstance(value, KINDS[option][0]) and (option is bool or not isinstance(value, bool))
        elif typing.get_origin(option) is typing.Literal:
            is_right = value in typing.get_args(option)
        elif element := element_of(option):
            is_right = isinstance(value, tuple) and all(has_type(part, element) for part in value)
        else:
            is_right = True
        if is_right:
            return True
    return False


def refusal(value: object, declared: object, example: object = None) -> str:
    """Say what a value of another type than the declared one is not, such as "is not a whole number."

    Args:
      example: a value that is right; None for none.
    """
    words = words_of(declared)
    kinds: list[str] = []
    for option in options_of(declared):
        if element := element_of(option):
            parts, usual = _TUPLES.get(element, ("values", ()))
            kinds, example = [*kinds, f"a tuple of {parts}"], usual if example is None else example
        elif option is not types.NoneType and typing.get_origin(option) is not typing.Literal:
            # Any value is of a type that is not known here, but for arrays (`envs.parameters`).
            kinds.append(KINDS[option][1] if option in KINDS else "an array")
    if not kinds:
        return f"is none of {', '.join(words)}{nearest(str(value), words)}."
    such_as = "" if example is None else f"; give one such as {short_repr(example)}"
    return f"is not {' or '.join([*kinds, *map(repr, words)])}{such_as}."


def json_value(value: Any) -> Any:
    """Convert a setting's value to JSON; a class or a function to its import name.

    Raises:
      ShoalError: no name finds it when the run is loaded.
    """
    if isinstance(value, tuple):
        return [json_value(part) for part in value]
    is_local = isinstance(value, str) and _NAME_OF_LOCAL.fullmatch(value)
    if is_local or callable(value):
        name = value if is_local else import_name(value)
        if "<" in name or not is_found_by_name(value):
            raise ShoalError(
                f"{name!r} cannot be imported by that name when the run is loaded; give what stands at the top of a "
                "module, or its own name as 'module:Name'."
            )
        return name
    return float(value) if hasattr(value, "dtype") else value
