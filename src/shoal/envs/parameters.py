"""Validation of an environment's parameters: types, bounds, and arrays that are given as lists."""

import dataclasses
import math
import os
import sys
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import short_repr
from shoal.config.struct import Bounds
from shoal.config.traced import check_static
from shoal.config.values import has_type, options_of, refusal

ANY_NUMBER = Bounds(low=-math.inf, high=math.inf)  # every number but NaN
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)  # XLA flushes smaller numbers to 0


def check_parameters(env: object) -> None:
    """Require that each parameter of an environment, nested ones included, has its type and is within its bounds.

    A number whose field declares no bounds must be finite. Traced values are not read.

    Raises:
      ShoalError: for the first parameter that does not.
    """
    if not dataclasses.is_dataclass(env) or isinstance(env, type):
        return
    declared, bounds = declared_types(type(env)), struct.bounds_of(type(env))
    for field in dataclasses.fields(env):
        name = f"{type(env).__name__}: {field.name}"
        field_type = declared.get(field.name, Any)
        if struct.is_struct(env) and field.name not in struct.data_fields(env):
            check_static(name, getattr(env, field.name))
        check_value(
            name, getattr(env, field.name), field_type, bounds.get(field.name, _default_bounds(field_type))
        )


def declared_types(owner: object) -> dict[str, Any]:
    """Return the declared types of a class's fields or a function's parameters by name, where they can be resolved."""
    try:
        return typing.get_type_hints(owner)
    except Exception:  # an annotation for the type checker only; evaluating its text may raise any error
        return {}


def _default_bounds(declared: object) -> Bounds:
    """Return the bounds of a field that declares none: data must be finite, static tuples may hold infinities."""
    members = options_of(declared)
    is_static = any(typing.get_origin(member) is tuple or member is tuple for member in members)
    return ANY_NUMBER if is_static else Bounds()


def check_value(name: str, value: object, declared: object, bounds: Bounds, default: object = None) -> None:
    """Require that the value of a parameter has the declared type, and that each number in it lies within bounds.

    Raises:
      ShoalError: the value has another type, or a number lies outside the bounds.
    """
    if not any(_is_of_type(value, option) for option in options_of(declared)):
        raise ShoalError(f"{name}={short_repr(value)} {refusal(value, declared, default)}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=struct.is_struct):
        if struct.is_struct(leaf):
            check_parameters(leaf)
        elif _is_number(leaf):
            check_numbers(f"{name}{jax.tree_util.keystr(path)}", leaf, bounds)


def _is_of_type(value: object, option: object) -> bool:
    """Report whether a value may be given for a parameter of a type; arrays (traced too) count as numbers."""
    if _is_array_type(option):
        return value is not None and not isinstance(value, str | bytes)
    return (option is float and _is_number(value)) or has_type(value, option)


def check_numbers(name: str, value: object, bounds: Bounds) -> None:
    """Require that a number, or each number of an array, lies within bounds, as it is and as float32.

    Raises:
      ShoalError: a number does not, or is too large or too small for float32.
    """
    if isinstance(value, jax.core.Tracer):
        return
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        value = math.inf if value > 0 else -math.inf
    struct.check_bounds(name, value, bounds)
    numbers = np.asarray(value, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        as_float32 = np.asarray(numbers, np.float32)
    is_overflow = np.isfinite(numbers) & ~np.isfinite(as_float32)
    is_underflow = (numbers != 0) & (np.abs(as_float32) < SMALLEST_NORMAL)
    if np.any(is_overflow) or (np.any(is_underflow) and not bounds.contains(0.0)):
        wrong = numbers[is_overflow | is_underflow].ravel()[0]
        wrong_as_float32 = as_float32[is_overflow].ravel()[0] if np.any(is_overflow) else 0.0
        raise ShoalError(
            f"{name}={wrong:g} is out of bounds: in float32, in which everything is computed, it is "
            f"{wrong_as_float32:g}, and it must be {bounds if bounds.has_finite() else 'finite'}."
        )


def convert_to_declared(name: str, value: object, declared: object, default: object = None) -> Any:
    """Convert a list (or tuple) of numbers to the declared type, an array, a NamedTuple of arrays, or a tuple; and a
    path to a text.

    Any other value is returned unchanged. The array has the declared dtype if the type names one, as
    `Float[Array, "n"]` does, else that of the default, else float32, int32 or bool.

    Raises:
      ShoalError: the parameter is an array, and the list cannot be converted to its dtype.
    """
    members = options_of(declared)
    if isinstance(value, os.PathLike) and str in members:
        return os.fspath(value)
    if not isinstance(value, list | tuple):
        return value
    if array_type := next((member for member in members if _is_array_type(member)), None):
        return _to_array(name, value, array_type, default)
    tuple_type = next((x for x in members if isinstance(x, type) and hasattr(x, "_fields")), None)
    if tuple_type is not None:
        return value if isinstance(value, tuple_type) else _to_named_tuple(name, value, tuple_type, default)
    if any(member is tuple or typing.get_origin(member) is tuple for member in members):
        return _to_tuple(value)
    return value


def _to_named_tuple(name: str, value: list | tuple, tuple_type: Any, default: Any) -> Any:
    """Convert lists to a NamedTuple of arrays; return the value unchanged if it is not such a list."""
    defaults = default if isinstance(default, tuple_type) else [None] * len(tuple_type._fields)
    if len(value) != len(tuple_type._fields):
        return value
    declared = declared_types(tuple_type)
    try:
        parts = [
            convert_to_declared(name, x, declared.get(part, Any), example)
            for part, x, example in zip(tuple_type._fields, value, defaults, strict=True)
        ]
    except ShoalError:
        return value  # the constructor may accept it, and has the better error if not
    return tuple_type(*parts)


def _to_tuple(value: object) -> Any:
    return tuple(map(_to_tuple, value)) if isinstance(value, list | tuple) else value


def _to_array(name: str, value: list | tuple, declared: object, default: object) -> np.ndarray:
    """Convert nested lists of numbers to a NumPy array, since this may not start a device."""
    allowed = _allowed_dtypes(declared)
    try:
        given = np.asarray(value) if len(value) else np.asarray(value, np.float32)
        natural_dtype = jax.dtypes.canonicalize_dtype(given.dtype)
        dtype = getattr(
            default, "dtype", allowed[0] if allowed and natural_dtype.name not in allowed else natural_dtype
        )
        with np.errstate(invalid="ignore"):  # the error for values that do not fit is raised below
            array = given.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ShoalError(f"{name}={value!r} is not an array of numbers ({error})") from error
    is_changed = array != given if array.dtype.kind in "iu" or given.dtype.kind not in "iuf" else np.False_
    if given.dtype.kind not in "biuf" or np.any(is_changed):
        raise ShoalError(f"{name}={value!r} is not an array of {array.dtype.name}")
    return array


def _allowed_dtypes(declared: object) -> tuple[str, ...]:
    """Return the dtypes that jaxtyping's `Float[Array, "n"]` and similar types allow, common ones first."""
    allowed = getattr(declared, "dtypes", ())
    if not isinstance(allowed, tuple | list):  # of a type that allows every dtype
        return ()
    common = [name for name in ("float32", "int32", "bool", "uint8", "uint32") if name in allowed]
    return tuple(dict.fromkeys([*common, *allowed]))


def _is_array_type(declared: object) -> bool:
    return getattr(declared, "array_type", declared) in (jax.Array, np.ndarray)


def _is_number(leaf: object) -> bool:
    """Report whether a leaf is a number or an array of numbers; booleans, texts and random keys are not."""
    if isinstance(leaf, int | float):
        return not isinstance(leaf, bool)
    if not isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return False
    return jnp.issubdtype(leaf.dtype, np.floating) or jnp.issubdtype(leaf.dtype, np.integer)
