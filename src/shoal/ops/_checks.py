"""Checks of the operations' arguments while tracing: shapes and dtypes, never values."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

Array = jax.Array


def same_shape(shape: str = "", **arrays: Array) -> tuple[int, ...]:
    """Return the shape of all named arrays; `shape`, such as "[T]", describes it and gives the number of axes.

    Raises:
      ValueError: they differ, or have another number of axes than `shape`.
    """
    shapes = {name: jnp.shape(array) for name, array in arrays.items()}
    first = next(iter(shapes.values()))
    axes = len(shape.strip("[]").split(",")) if shape else len(first)
    if any(found != first or len(found) != axes for found in shapes.values()):
        hint = "; map over further axes with jax.vmap" if shape else ""
        description = f" {shape}" if shape else ""
        raise ValueError(f"{_describe_shapes(shapes)} must all have the same shape{description}{hint}.")
    return first


def leading(shape: tuple[int, ...], axes: str, **arrays: Array) -> None:
    """Require that each named array has the axes `axes`, such as "[T, A]", and begins with the given shape.

    Raises:
      ValueError: one has another number of axes, or begins otherwise.
    """
    for name, array in arrays.items():
        found = jnp.shape(array)
        if len(found) != len(axes.split(",")) or found[: len(shape)] != shape:
            raise ValueError(f"{name} {list(found)} must have the axes {axes} and begin with {list(shape)}.")


def broadcastable(shape: tuple[int, ...], **arrays: Array | float) -> None:
    """Require that each named argument is a number or has the given shape."""
    for name, array in arrays.items():
        found = jnp.shape(array)
        if found not in ((), shape):
            raise ValueError(f"{name} {list(found)} must be a number or have the shape {list(shape)}.")


def floating(**arrays: Array) -> np.dtype:
    """Return the floating dtype of all named arrays.

    Raises:
      TypeError: one is not floating, or two differ.
    """
    _require_kind("floating", (jnp.floating,), arrays)
    dtypes = {name: jnp.result_type(array) for name, array in arrays.items()}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise TypeError(f"{listed} must all have the same dtype; cast with astype.")
    return np.dtype(next(iter(dtypes.values())))


def common_dtype(r_t: Array, **arrays: Array) -> np.dtype:
    """Return the floating dtype of the named arrays, and of the rewards, unless these are integers or booleans.

    Raises:
      TypeError: as `floating`.
    """
    rewards = {"r_t": r_t} if jnp.issubdtype(jnp.result_type(r_t), jnp.floating) else {}
    return floating(**rewards, **arrays)


def real(**arrays: Array | float) -> None:
    """Require floating numbers, integers or booleans, as rewards and weights are.

    Raises:
      TypeError: one is something else (complex numbers, keys).
    """
    _require_kind("floating, integer or boolean", (jnp.floating, jnp.integer, jnp.bool_), arrays)


def integer(**arrays: Array) -> None:
    """Require integers, as indices of actions are."""
    _require_kind("integer", (jnp.integer,), arrays)


def boolean(**arrays: Array) -> None:
    """Require booleans, as flags and masks are."""
    _require_kind("boolean", (jnp.bool_,), arrays)


def _require_kind(
    description: str, kinds: tuple[DTypeLike, ...], arrays: Mapping[str, Array | float]
) -> None:
    for name, array in arrays.items():
        dtype = jnp.result_type(array)
        if not any(jnp.issubdtype(dtype, kind) for kind in kinds):
            raise TypeError(f"{name} is {dtype}; it must be {description}.")


def _describe_shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
