"""Frozen dataclasses as pytrees: what is declared a number is data, everything else is static.

Environments and configs are both made so. A field whose declared type is `float` or `Array`
(or another struct, or `Any` holding one) is a leaf that can be traced, stacked and mapped over;
a field of any other type (int, bool, str, tuple, None) is part of the tree's structure, so that
changing it compiles anew.
"""

import dataclasses
import typing
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")

_DATA = "__shoal_data_fields__"


def static(default: Any = dataclasses.MISSING) -> Any:
    """Declares a field of a struct static although its type would make it data."""
    return dataclasses.field(default=default, metadata={"static": True})


def _is_data(field: dataclasses.Field, declared: Any) -> bool:
    if field.metadata.get("static", False):
        return False
    if declared in (float, jax.Array, Any) or hasattr(declared, _DATA):
        return True
    if typing.get_origin(declared) in (typing.Union, __import__("types").UnionType):
        raise TypeError(
            f"field {field.name!r} is declared {declared}: an optional number would change the tree's "
            "structure; use a static switch beside a float, or declare it with trees.static()"
        )
    # A Protocol such as Environment: a field that holds another struct.
    return getattr(declared, "_is_protocol", False)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def struct(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass that is a pytree (see the module's docstring for which fields)."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    data = [field.name for field in fields if _is_data(field, hints[field.name])]
    meta = [field.name for field in fields if field.name not in data]
    setattr(cls, _DATA, tuple(data))
    return jax.tree_util.register_dataclass(cls, data, meta)


def data_fields(tree: Any) -> tuple[str, ...]:
    """The names of a struct's (or struct class's) data fields."""
    return getattr(tree, _DATA)


def as_arrays(tree: T) -> T:
    """Casts every number of a struct to a float32 array, by the declared type of its field.

    This is the boundary between what a user writes (`gamma=1`) and what is traced: after it no leaf
    is a Python scalar, so that none is weakly typed and `1` and `1.0` compile to the same program.
    Arrays keep their dtype, float64 excepted.
    """

    def cast(leaf: Any) -> jax.Array:
        if isinstance(leaf, bool | int | float | np.floating | np.integer):
            return jnp.asarray(leaf, jnp.float32)
        return jnp.asarray(leaf)

    return jax.tree.map(cast, tree)


def path_name(path: tuple) -> str:
    """A readable name for a leaf's path, such as `network/actor/layers/0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by the name of their path, in the order of the tree."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def with_named_leaves(tree: T, leaves: dict[str, Any]) -> T:
    """A pytree of the structure of `tree` whose leaves are looked up by name.

    Raises:
      KeyError: `leaves` lacks a name that the tree has.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[path_name(path)], tree)


def where(condition: jax.Array, on_true: T, on_false: T) -> T:
    """Selects between two equal pytrees; `condition` [...] is broadcast over each leaf's trailing axes."""

    def select(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y = jnp.asarray(x), jnp.asarray(y)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim)), x, y)
        mask = condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim))
        return jnp.where(mask, x, y)

    return jax.tree.map(select, on_true, on_false)
