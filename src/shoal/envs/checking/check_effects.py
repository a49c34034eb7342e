"""Checks for side effects of reset and step: values changed in place, fields changed, traced values that leak."""

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np

from shoal.config.struct import named_leaves
from shoal.envs.checking.check_findings import Finding, leaked
from shoal.envs.checking.check_traces import Traces
from shoal.types import Array, Environment, PyTree, State


def check_in_place(env: Environment, traces: Traces, key: Array) -> Iterator[Finding]:
    """Check that a step does not change the state and the action that it is given."""
    changed: list[str] = []

    def call(state: State, action: PyTree, key: Array) -> None:
        given = {"state": state, "action": action}
        before = named_leaves(given)
        env.step(state, action, key)
        after = named_leaves(given)
        changed.extend(path for path in before | after if after.get(path) is not before.get(path))

    jax.eval_shape(call, traces.start[0], traces.action, key)
    for path in changed:
        whole, _, leaf = path.partition("/")
        yield Finding(
            "in-place",
            f"step changes {f'`{leaf}` of ' if leaf else ''}the {whole} that it is given, in place, so that the "
            "earlier one changes too; a new container would be right, such as `{**state, name: value}`",
        )


class Snapshot(NamedTuple):
    """The values that are compared before and after the environment is traced."""

    fields: dict[str, tuple[list[object], jax.tree_util.PyTreeDef]]
    traced: list[object]  # the values themselves, so that no other object gets the id of one


def take_snapshot(env: Environment) -> Snapshot:
    """Record the environment's fields and the traced values that exist, before it is traced."""
    return Snapshot(_fields(env), _traced_values())


def check_side_effects(env: Environment, snapshot: Snapshot) -> Iterator[Finding]:
    """Check that tracing reset and step changed no field of the environment and leaked no traced value."""
    gc.collect()  # what nothing refers to any more is not kept
    # By identity: comparing traced values would trace the comparison.
    known = {id(value) for value in snapshot.traced}
    left = {id(value) for value in _traced_values()} - known
    if left:
        elsewhere = "a place outside of the state, such as a global, a closure or a cache"
        yield leaked("reset or step", next(_find_holders(env, left), elsewhere))
        return
    after = _fields(env)
    for name, (leaves, structure) in snapshot.fields.items():
        others, other_structure = after[name]
        is_same = structure == other_structure and all(map(_is_equal, leaves, others))
        if not is_same:
            yield Finding(
                "hidden-state",
                f"reset or step changes the field `{name}` of the environment itself; everything that later "
                "steps need belongs in the state that a step returns",
            )


def _fields(env: Environment) -> dict[str, tuple[list[object], jax.tree_util.PyTreeDef]]:
    """Return the environment's declared fields, containers as what they hold now: they may be changed in place."""
    names = getattr(env, "__dataclass_fields__", {})
    return {name: jax.tree.flatten(getattr(env, name, None)) for name in names}


def _is_equal(one: object, other: object) -> bool:
    return one is other or bool(np.all(one == other))


def _traced_values() -> list[object]:
    """Return every traced value that exists, selected by type alone: other tests could run the objects' own code."""
    return [value for value in gc.get_objects() if issubclass(type(value), jax.core.Tracer)]


def _find_holders(env: Environment, left: set[int]) -> Iterator[str]:
    """Yield the names of leaked values: attributes of the environment and its classes, and module globals."""
    places: list[tuple[str, Mapping[str, object]]] = [("the attribute", getattr(env, "__dict__", {}))]
    classes = [cls for cls in type(env).__mro__ if cls is not object]
    places += [("the class attribute", vars(cls)) for cls in classes]
    modules = dict.fromkeys(cls.__module__ for cls in classes)
    places += [("the global", vars(sys.modules[name])) for name in modules if name in sys.modules]
    for what, names in places:
        for name, value in list(names.items()):
            if _contains(value, left):
                yield f"{what} `{name}`"


def _contains(value: object, left: set[int]) -> bool:
    try:
        return any(id(leaf) in left for leaf in jax.tree.leaves(value))
    except Exception:  # a container of the user's that cannot be flattened
        return False
