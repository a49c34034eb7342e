"""Domain randomisation by the packages' own functions: an episode keeps only the numbers that they change."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax

from shoal.types import Array, PyTree

# Of a model and keys; returns the models, and which axes of their leaves are of the keys.
Randomiser = Callable[[PyTree, Array], tuple[PyTree, PyTree]]
MODELS = ("_mjx_model", "sys")  # the attribute that holds the physics, in Playground and in Brax


def changed_leaves(randomiser: Randomiser, world: object, key: Array) -> tuple[Array, ...]:
    """Draw the physics of one episode, and return the leaves that differ between episodes."""
    models, _ = randomiser(_model(world), key[None])
    leaves = dict(_paths(models))
    return tuple(leaves[path][0] for path in _changed_paths(randomiser, world))


def with_leaves(world: object, randomiser: Randomiser | None, leaves: tuple[Array, ...]) -> Any:
    """Return an object whose model has these leaves; the object itself without a randomiser."""
    if randomiser is None:
        return world
    model = _model(world)
    replaced = dict(zip(_changed_paths(randomiser, world), leaves, strict=True))
    values = [replaced.get(path, leaf) for path, leaf in _paths(model)]
    changed = copy.copy(world)
    setattr(changed, _attribute(world), jax.tree.unflatten(jax.tree.structure(model), values))
    return changed


@functools.cache
def _changed_paths(randomiser: Randomiser, world: object) -> tuple[str, ...]:
    """Return the paths of the leaves to which the randomiser gives an axis."""
    with jax.ensure_compile_time_eval():
        key = jax.random.key(0)
        _, in_axes = randomiser(_model(world), key[None])
    return tuple(path for path, axis in _paths(in_axes) if axis is not None)


def _paths(tree: PyTree) -> list[tuple[str, Array]]:
    return [
        (jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def _attribute(world: object) -> str:
    return next(name for name in MODELS if hasattr(world, name))


def _model(world: object) -> PyTree:
    return getattr(world, _attribute(world))
