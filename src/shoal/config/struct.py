"""Frozen dataclasses as pytrees: fields that are declared as numbers are data, all others are static.

Environments and configs are both made in this way. A field whose declared type is `float` or `Array` (also
with a jaxtyping shape), another struct, a NamedTuple, a Protocol such as Environment, or `Any` is data:
leaves that can be traced, stacked and mapped over. A field of any other type (int, bool, str, tuple, None) is
part of the tree's structure, so that changing it compiles again.
"""

import dataclasses
import functools
import inspect
import itertools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config.arguments import short_repr

T = TypeVar("T")

Function = TypeVar("Function", bound=Callable[..., Any])

_DATA = "__shoal_data_fields__"


def once_per_class(function: Function) -> Function:
    """Compute a function of a class once for each class, and remember the result, which must not be changed."""
    return cast(Function, functools.cache(function))


hints_of = once_per_class(typing.get_type_hints)


def static(default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a struct as static although its type would make it data."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The numbers that a field may hold; NaN is never one of them.

    Infinity is allowed only where it is a bound itself: `high=math.inf` admits it, `high=None` does not.
    """

    low: float | None = None  # at least this
    high: float | None = None  # at most this
    above: float | None = None  # greater than this
    below: float | None = None  # less than this
    longest: int | None = None  # a tuple has at most this many numbers

    def contains(self, value: Any) -> bool:
        """Report whether a number, or each number of an array, lies within the bounds."""
        is_int = isinstance(value, int)  # compared exactly: not every one is a float
        x = value if is_int else np.asarray(value, np.float64)
        inside = np.asarray(True) if is_int else np.isfinite(x)
        inside |= (x == math.inf) & (self.high == math.inf)
        inside |= (x == -math.inf) & (self.low == -math.inf)
        inside &= self.low is None or x >= self.low
        inside &= self.high is None or x <= self.high
        inside &= self.above is None or x > self.above
        inside &= self.below is None or x < self.below
        return bool(np.all(inside))

    def has_finite(self) -> bool:
        """Whether one of the bounds is a number that is not infinite."""
        bounds = (self.low, self.high, self.above, self.below)
        return any(bound is not None and math.isfinite(bound) for bound in bounds)

    def __str__(self) -> str:
        """Return the bounds in words, such as "greater than 0 and at most 1"."""
        finite = self.low != -math.inf and self.high != math.inf
        words = [
            f"{words} {bound if isinstance(bound, int) else f'{bound:g}'}"
            for words, bound in (
                ("at least", self.low),
                ("greater than", self.above),
                ("at most", self.high),
                ("less than", self.below),
            )
            if bound is not None and math.isfinite(bound)
        ]
        return " and ".join(words) or ("finite" if finite else "a number")


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    longest: int | None = None,
    static: bool = False,
    initial: bool = False,
    in_reward: bool = False,
) -> Any:
    """Declare a field of a struct with the bounds of its value.

    It is not among the field specifiers of `struct`, so that type checkers read its default by position too.

    A field declared `float | None` is data too: None means the value of another setting, by which a config's
    `resolved()` replaces it before the config is stacked or traced.

    Args:
      low, high, above, below: bounds, the latter two exclusive. `-math.inf` and `math.inf` allow infinity, None any
        finite number.
      longest: a tuple may have at most this many numbers.
      static: whether the field is part of the tree's structure although its type would make it data.
      initial: whether the value is read where a run starts and never again, so that a resumed run cannot change it.
      in_reward: whether the value is a part of an environment's rewards, so that returns of environments that differ in
        it cannot be compared.
    """
    metadata = {"bounds": Bounds(low, high, above, below, longest), "static": static, "initial": initial}
    metadata |= {"in_reward": True} if in_reward else {}
    if isinstance(default, np.ndarray):
        # A dataclass refuses it as a default, since it could be written to.
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@once_per_class
def metadata_of(cls: Any) -> dict[str, dict[str, Any]]:
    """Return what a dataclass's fields declare besides their types, by name; a new default keeps a base class's."""
    metadata: dict[str, dict[str, Any]] = {}
    for base in reversed(cls.__mro__):
        for field in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
            metadata[field.name] = metadata.get(field.name, {}) | dict(field.metadata)
    return metadata


@once_per_class
def bounds_of(cls: Any) -> dict[str, Bounds]:
    """Return the bounds that a dataclass's fields declare, by name."""
    return {name: data["bounds"] for name, data in metadata_of(cls).items() if "bounds" in data}


def is_traced(*values: Any) -> bool:
    """Report whether one of some values is traced, so that it cannot be read."""
    return any(map(isinstance, values, itertools.repeat(jax.core.Tracer)))


def _traced_part(name: str, value: Any) -> str:
    """Return the name of the first traced number in a value, such as `environment.gravity`; "" if there is none."""
    if is_traced(value):
        return name
    as_dataclass = getattr(value, "__dataclass_params__", None)
    # A listener may be a dataclass that holds itself, but hardly a frozen one.
    if as_dataclass and as_dataclass.frozen and not isinstance(value, type):
        parts = {f".{field.name}": getattr(value, field.name, None) for field in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        parts = {f"[{key!r}]": x for key, x in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"[{index}]": x for index, x in enumerate(value)}
    else:
        return name if is_traced(*jax.tree.leaves(value)) else ""
    return next(filter(None, (_traced_part(name + part, x) for part, x in parts.items())), "")


def check_static(name: str, value: Any, reason: str = "") -> None:
    """Require that a value which is a part of a tree's structure, or holds such values, is not traced.

    A compiled function that received it would compare it with those of every later call, which fails.

    Args:
      reason: why the value cannot be traced, where it is another one, and what would be right.
    """
    if part := _traced_part(name, value):
        shapes = "it shapes the program, compiled anew for each value; give numbers of Python, one by one"
        raise ShoalError(
            f"{part} is traced, as within jax.vmap or jax.jit, and cannot be: {reason or shapes}."
        )


def on_host(function: Function) -> Function:
    """Make a public function that reads numbers on the host refuse traced ones, and report errors of user code."""
    reporting, names = reports_user_code(function), tuple(inspect.signature(function).parameters)
    reason = (
        f"shoal.{function.__name__} writes files, or reads its results on the host; what may be mapped and compiled is "
        "the function that shoal.make_train returns, and an environment's own reset and step"
    )

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
            check_static(name, value, reason)
        try:
            return reporting(*args, **kwargs)
        except Exception as error:
            if isinstance(error, ShoalError) or not is_traced(jnp.zeros(())):
                raise
            raise ShoalError(f"the call is within jax.jit, and cannot be: {reason}.") from error

    return cast(Function, wrapper)


def check_bounds(name: str, value: Any, bounds: Bounds) -> None:
    """Require that a number, or each number of an array, lies within bounds; traced values are not read."""
    if is_traced(value):
        return
    if bounds.longest is not None and isinstance(value, tuple) and len(value) > bounds.longest:
        raise ShoalError(
            f"{name} has {len(value)} numbers, which are too many: it may have at most {bounds.longest}."
        )
    if bounds.contains(value):
        return
    if isinstance(value, int) and abs(value) < 10**17:
        value_text = str(value)
    elif isinstance(value, int | float):
        value_text = f"{value:g}" if abs(value) < 1e300 else short_repr(value)
    else:
        value_text = str(value if isinstance(value, tuple) else np.asarray(value).tolist())
    subject = "" if np.ndim(value) == 0 else "each number of it "
    is_open = bounds.has_finite() and bounds.high is None and bounds.below is None  # such as "greater than 0"
    words = "finite and " if is_open and np.any(np.asarray(value) == math.inf) else ""
    raise ShoalError(f"{name}={value_text} is out of bounds: {subject or 'it '}must be {words}{bounds}.")


def _is_data(field: dataclasses.Field[Any], declared: Any) -> bool:
    if field.metadata.get("static", False):
        return False
    if declared == float | None and "bounds" in field.metadata:  # None is replaced before the struct is data
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


def _is_data_type(declared: Any) -> bool:
    if declared in (float, jax.Array, Any) or is_struct(declared):
        return True
    if getattr(declared, "array_type", None) is jax.Array:  # jaxtyping's Float[Array, "n"]
        return True
    if isinstance(declared, type) and issubclass(declared, tuple) and hasattr(declared, "_fields"):
        return True
    # A Protocol such as Environment: a field that holds another struct.
    return getattr(declared, "_is_protocol", False)


def is_struct(tree: Any) -> bool:
    """Report whether a value (or a class) is a struct."""
    return hasattr(tree, _DATA)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def struct(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that is a pytree (see the module's docstring for the data fields).

    It is registered as a node of its own kind and not by `jax.tree_util.register_dataclass`, whose structures
    compare equal for two classes with the same field names: a compiled function could then run the program
    that was traced for the other class. A class that is a struct already stays as it is.
    """
    if _DATA in vars(cls):
        return cls
    cls = dataclasses.dataclass(frozen=True)(cls)
    hints = typing.get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    data = [field.name for field in fields if _is_data(field, hints[field.name])]
    meta = [field.name for field in fields if field.name not in data]
    setattr(cls, _DATA, tuple(data))
    _register(cls, data, meta)
    return cls


def _register(cls: type, data: list[str], meta: list[str]) -> None:
    keys = [jax.tree_util.GetAttrKey(name) for name in data]

    def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(tree, name) for name in data], tuple([getattr(tree, name) for name in meta])

    def flatten_with_keys(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        children, static_values = flatten(tree)
        return list(zip(keys, children, strict=True)), static_values

    def unflatten(static_values: tuple[Any, ...], children: Any) -> Any:
        tree: Any = object.__new__(cls)  # not __init__: children may be anything, such as a tree of None
        for name, value in zip([*data, *meta], [*children, *static_values], strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def data_fields(tree: Any) -> tuple[str, ...]:
    """Return the names of a struct's (or struct class's) data fields."""
    return cast(tuple[str, ...], getattr(tree, _DATA))


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


def _as_array(leaf: Any) -> jax.Array:
    if isinstance(leaf, int | float | np.floating | np.integer) and not isinstance(leaf, bool):
        return jnp.asarray(leaf, jnp.float32)
    array = jnp.asarray(leaf)
    return jnp.asarray(array, array.dtype)  # naming the dtype makes it a strong one


def path_name(path: tuple[Any, ...]) -> str:
    """Return a readable name for a leaf's path, such as `network/actor/layers/0/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> dict[str, Any]:
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
