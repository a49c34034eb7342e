"""Craftax's achievements, which say what an agent can do."""

import importlib

import jax.numpy as jnp

from shoal.types import Array, State


def package_of(world: object) -> str:
    """Return which of Craftax's packages has an object's class, or one that it inherits from; empty for none."""
    names = [".".join(cls.__module__.split(".")[:2]) for cls in type(world).__mro__]
    return next((name for name in names if name in ("craftax.craftax", "craftax.craftax_classic")), "")


def achievements(world: object, state: State) -> dict[str, Array]:
    """Return of each achievement whether it was reached in the episode, 0 or 1, by its name.

    Craftax's own `info` has 100 for those that were reached, and only where its `done` is true, which it is not where
    Shoal's time limit cuts an episode.
    """
    names = importlib.import_module(f"{package_of(world)}.constants").Achievement
    reached = state.achievements.astype(jnp.float32)  # type: ignore[attr-defined]
    return {f"achievements/{name.name.lower()}": reached[name.value] for name in names}
