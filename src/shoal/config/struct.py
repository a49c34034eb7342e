"""Frozen dataclasses as pytrees: fields that are declared as numbers are data, all others are static.

Environments and configs are both made in this way. A field whose declared type is `float` or `Array` (also
with a jaxtyping shape), another struct, a NamedTuple, a Protocol such as Environment, or `Any` is data:
leaves that can be traced, stacked and mapped over. A field of any other type (int, bool, str, tuple, None) is
part of the tree's structure, so that changing it compiles again.
"""

import dataclasses
import operator
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.fields import (
    DATA_FIELDS,
    Bounds,
    bounds_of,
    check_bounds,
    data_fields,
    is_struct,
    is_traced,
    metadata_of,
    once_per_class,
    parameter,
    static,
)

# What fields declare has a module without JAX; it is a part of how structs are written.
__all__ = [
    "Bounds",
    "bounds_of",
    "check_bounds",
    "data_fields",
    "is_struct",
    "is_traced",
    "parameter",
    "static",
]

T = TypeVar("T")

hints_of = once_per_class(typing.get_type_hints)


def _is_data(field: dataclasses.Field[object], declared: object, metadata: Mapping[str, object]) -> bool:
    if metadata.get("static", False):
        return False
    if "choice" in metadata:  # a struct, or None
        return True
    if declared == float | None and "is_parameter" in metadata:  # None is replaced before the struct is data
        return True
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        kinds = {_is_data_type(option) for option in typing.get_args(declared)}
        if len(kinds) == 1:
            return kinds.pop()
        raise TypeError(
            f"field {field.name!r} is declared {declared}, so that its value would change the tree's "
            "structure; use a static switch beside a float, or declare it with struct.static() or, where None is "
            "another setting's value, with struct.parameter()"
        )
    return _is_data_type(declared)


def _is_data_type(declared: object) -> bool:
    if declared in (float, jax.Array, Any) or is_struct(declared):
        return True
    if getattr(declared, "array_type", None) is jax.Array:  # jaxtyping's Float[Array, "n"]
        return True
    if isinstance(declared, type) and issubclass(declared, tuple) and hasattr(declared, "_fields"):
        return True
    # A Protocol such as Environment: a field that holds another struct.
    return getattr(declared, "_is_protocol", False)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def struct(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that is a pytree (see the module's docstring for the data fields).

    It is registered as a node of its own kind and not by `jax.tree_util.register_dataclass`, whose structures
    compare equal for two classes with the same field names: a compiled function could then run the program
    that was traced for the other class. A class that is a struct already stays as it is.
    """
    if DATA_FIELDS in vars(cls):
        return cls
    cls = dataclasses.dataclass(frozen=True)(cls)
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    data = [
        field.name for field in fields if _is_data(field, hints[field.name], metadata_of(cls)[field.name])
    ]
    meta = [field.name for field in fields if field.name not in data]
    setattr(cls, DATA_FIELDS, tuple(data))
    _register(cls, data, meta)
    return cls


def _register(cls: type, data: list[str], meta: list[str]) -> None:
    keys = [jax.tree_util.GetAttrKey(name) for name in data]

    # JAX flattens trees very often. Of two names or more an `attrgetter` makes a tuple, so that two are added to all.
    children_of = operator.attrgetter(*data, "__class__", "__class__")
    static_of = operator.attrgetter(*meta, "__class__", "__class__")

    def flatten(tree: object) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return children_of(tree)[:-2], static_of(tree)[:-2]

    def flatten_with_keys(tree: object) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, static_values = flatten(tree)
        return list(zip(keys, children, strict=True)), static_values

    def unflatten(static_values: tuple[Any, ...], children: Any) -> Any:
        tree: Any = object.__new__(cls)  # not __init__: children may be anything, such as a tree of None
        for name, value in zip([*data, *meta], [*children, *static_values], strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def as_arrays(tree: T) -> T:
    """Cast fields that are declared `float` to float32 arrays, and every other leaf to an array.

    This is the boundary between a user's values (`gamma=1`) and traced ones: after it no leaf is a Python
    scalar and none is weakly typed, so that `1`, `1.0` and `np.float64(1)` compile to the same program. A
    leaf that is not a struct's float is cast too if it is a number (a Python bool makes a boolean array);
    arrays keep their dtype, except 64-bit ones.
    """

    def as_array(node: Any) -> Any:
        if not is_struct(node):
            return _as_array(node)
        hints = hints_of(type(node))
        values = {name: getattr(node, name) for name in data_fields(node)}
        arrays = {
            name: jnp.asarray(value, jnp.float32)
            if hints[name] in (float, float | None) and value is not None
            else as_arrays(value)
            for name, value in values.items()
        }
        return dataclasses.replace(node, **arrays)

    return cast(T, jax.tree.map(as_array, tree, is_leaf=is_struct))


def _as_array(leaf: object) -> jax.Array:
    if isinstance(leaf, int | float | np.floating | np.integer) and not isinstance(leaf, bool):
        return jnp.asarray(leaf, jnp.float32)
    array = jnp.asarray(leaf)
    return jnp.asarray(array, array.dtype)  # naming the dtype makes it a strong one


def path_name(path: tuple[object, ...]) -> str:
    """Return a readable name for a leaf's path, such as `network/actor/layers/0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: object) -> dict[str, Any]:
    """Return the leaves of a pytree by the name of their path, in the order of the tree.

    Raises:
      ShoalError: two leaves have the same name, as those of `{"a/b": x, "a": {"b": y}}`.
    """
    leaves: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = path_name(path)
        if name in leaves:
            raise ShoalError(f"two leaves of the tree have the name {name!r}; rename one of them.")
        leaves[name] = leaf
    return leaves


def with_named_leaves(tree: T, leaves: dict[str, Any]) -> T:
    """Make a pytree of the structure of `tree` from leaves by name.

    Raises:
      KeyError: `leaves` lacks a name that the tree has.
    """
    return cast(T, jax.tree_util.tree_map_with_path(lambda path, _: leaves[path_name(path)], tree))


_SAME = "; train with the same spaces, network and normalisation"


def with_saved_parts(tree: T, saved: Mapping[str, Any], parts: Sequence[str]) -> T:
    """Replace some parts of a tree by saved leaves of the same names.

    Args:
      parts: the prefixes, up to the first slash, of the names of the leaves to replace. The tree and `saved` must
        have the same leaves in these parts; all other leaves stay as they are in the tree.
    Raises:
      ShoalError: the first leaf that is missing on one side, or has another shape or dtype.
    """

    def is_replaced(name: str) -> bool:
        return name.split("/", maxsplit=1)[0] in parts

    leaves = named_leaves(tree)
    for name in [*filter(is_replaced, leaves), *filter(is_replaced, saved)]:
        if name not in saved:
            raise ShoalError(f"{name!r} is learned here, but nothing of that name was saved there{_SAME}.")
        if name not in leaves:
            raise ShoalError(f"{name!r} was saved there, but nothing of that name is learned here{_SAME}.")
        current, stored = leaves[name], saved[name]
        if (current.shape, current.dtype) != (stored.shape, stored.dtype):
            raise ShoalError(
                f"{name!r} is {stored.dtype}{list(stored.shape)} there and "
                f"{current.dtype}{list(current.shape)} here{_SAME}."
            )
    return with_named_leaves(
        tree, {name: saved[name] if is_replaced(name) else x for name, x in leaves.items()}
    )


def where(condition: jax.Array, on_true: T, on_false: T) -> T:
    """Select between two equal pytrees; `condition` [...] is broadcast over each leaf's trailing axes."""

    condition = jnp.asarray(condition)

    def select(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y = jnp.asarray(x), jnp.asarray(y)
        return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim)), x, y)

    return cast(T, jax.tree.map(select, on_true, on_false))
