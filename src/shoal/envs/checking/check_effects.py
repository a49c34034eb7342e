"""Checks for side effects of reset and step: values changed in place, fields changed, traced values that leak."""

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.config.struct import data_fields, is_struct, named_leaves
from shoal.envs.checking.check_findings import Finding, leaked
from shoal.envs.checking.check_traces import Traces, is_inexact, sample_action


def check_in_place(env: Any, traces: Traces, key: jax.Array) -> Iterator[Finding]:
    """Check that a step does not change the state and the action that it is given."""
    state, start = traces.start
    changed: list[str] = []

    def call(state: Any, key: jax.Array, mask: Any) -> None:
        action = sample_action(env, key, mask)
        inputs = {"state": state, "action": action}
        before = {name: named_leaves(tree) for name, tree in inputs.items()}
        env.step(state, action, key)
        for name, tree in inputs.items():
            leaves = named_leaves(tree)
            paths = [*before[name], *(path for path in leaves if path not in before[name])]
            for path in paths:
                if leaves.get(path) is not before[name].get(path):
                    changed.append(f"`{path}` of the {name}" if path else f"the {name}")

    jax.eval_shape(call, state, key, start.action_mask)
    for what in dict.fromkeys(changed):
        yield Finding(
            "in-place",
            f"step changes {what} that it is given, in place, so that the earlier one changes too; "
            "a new container would be right, such as `{**state, name: value}`",
        )


class Snapshot(NamedTuple):
    """The values that are compared before and after the environment is traced."""

    fields: dict[str, Any]
    traced: list[Any]  # the values themselves, so that no other object gets the id of one


def take_snapshot(env: Any) -> Snapshot:
    """Record the environment's fields and the traced values that exist, before it is traced."""
    return Snapshot(_fields(env), _traced_values())


def check_side_effects(env: Any, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that tracing reset and step changed no field of the environment and leaked no traced value."""
    gc.collect()
    known = {id(value) for value in snapshot.traced}
    left = {id(value) for value in _traced_values() if id(value) not in known}
    if left:
        names = list(dict.fromkeys(_find_holders(env, left)))
        where = names[0] if names else "a place outside of the state, such as a global, a closure or a cache"
        yield leaked("reset or step", where)
        return
    after = _fields(env)
    for name, value in snapshot.fields.items():
        if name not in after or not _is_equal(value, after[name]):
            yield Finding(
                "hidden-state",
                f"reset or step changes the field `{name}` of the environment itself; everything that later "
                "steps need belongs in the state that a step returns",
            )


def _fields(env: Any) -> dict[str, Any]:
    """Return copies of the environment's declared fields: data as structure and leaves, static values one by one."""
    names = getattr(env, "__dataclass_fields__", {})
    data = data_fields(env) if is_struct(env) else ()
    fields = {}
    for name in names:
        value = getattr(env, name, None)
        leaves, structure = jax.tree.flatten(value) if name in data else ([value], None)
        fields[name] = (structure, [_copy_leaf(leaf) for leaf in leaves])
    return fields


def _copy_leaf(leaf: Any) -> tuple[Any, str]:
    """Return a leaf with the text that shows whether it is changed in place; a NumPy array as a copy."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy(), ""
    return leaf, "" if isinstance(leaf, jax.Array) else repr(leaf)


def _is_equal(one: Any, other: Any) -> bool:
    """Report whether a field is as it was: equal in structure, and each leaf equal or the same object unchanged."""
    (structure, leaves), (other_structure, others) = one, other
    return structure == other_structure and all(map(_is_leaf_equal, leaves, others))


def _is_leaf_equal(one: tuple[Any, str], other: tuple[Any, str]) -> bool:
    (x, text), (y, other_text) = one, other
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and np.array_equal(x, y, equal_nan=is_inexact(x))
    return text == other_text if x is y else not isinstance(x, jax.Array) and bool(x == y)


def _traced_values() -> list[Any]:
    """Return every traced value that exists, selected by type alone: other tests could run the objects' own code."""
    return [value for value in gc.get_objects() if issubclass(type(value), jax.core.Tracer)]


def _find_holders(env: Any, left: set[int]) -> Iterator[str]:
    """Yield the names of leaked values: attributes of the environment and its classes, and module globals."""
    places: list[tuple[str, Mapping[str, Any]]] = [("the attribute", getattr(env, "__dict__", {}))]
    classes = [cls for cls in type(env).__mro__ if cls is not object]
    places += [("the class attribute", vars(cls)) for cls in classes]
    modules = dict.fromkeys(cls.__module__ for cls in classes)
    places += [("the global", vars(sys.modules[name])) for name in modules if name in sys.modules]
    for what, names in places:
        for name, value in list(names.items()):
            if _contains(value, left):
                yield f"{what} `{name}`"


def _contains(value: Any, left: set[int]) -> bool:
    try:
        return any(id(leaf) in left for leaf in jax.tree.leaves(value))
    except Exception:  # a container of the user's that cannot be flattened
        return False
