"""Values of settings: as their fields declare them, from texts, and as JSON."""

import os
import typing
from typing import Any

import numpy as np

from shoal.base.imports import import_name


def cast_to_declared(value: Any, declared: Any) -> Any:
    """Convert a number to the type that its field declares, where this loses nothing; other values stay.

    `1e5` becomes `100000` for an `int` (also within a tuple, beside None, or both), NumPy's numbers become Python's,
    and paths texts.
    """
    if isinstance(value, os.PathLike) and declared is str:
        return os.fspath(value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    kinds = typing.get_args(declared)
    if isinstance(value, tuple):
        for kind in (declared, *kinds):
            if typing.get_origin(kind) is tuple and typing.get_args(kind)[1:] == (...,):
                return tuple(cast_to_declared(part, typing.get_args(kind)[0]) for part in value)
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    if isinstance(value, float) and value.is_integer() and int in (declared, *kinds) and float not in kinds:
        return int(value)
    return value


def json_value(value: Any) -> Any:
    """Convert a setting's value to JSON; a class or a function to its import name."""
    if isinstance(value, tuple):
        return [json_value(part) for part in value]
    if callable(value):
        return import_name(value)
    return float(value) if hasattr(value, "dtype") else value
