"""Craftax's achievements, which say what an agent can do."""

import importlib
from typing import Any

import jax.numpy as jnp

from shoal.types import Array, State


def has_achievements(world: Any) -> bool:
    """Report whether an object is one of Craftax's."""
    return type(world).__module__.startswith("craftax.")


def achievements(world: Any, state: State) -> dict[str, Array]:
    """Return of each achievement whether it was reached in the episode, 0 or 1, by its name.

    Craftax's own `info` has 100 for those that were reached, and only where its `done` is true, which it is not where
    Shoal's time limit cuts an episode.
    """
    package = ".".join(type(world).__module__.split(".")[:2])
    names = importlib.import_module(f"{package}.constants").Achievement
    reached = state.achievements.astype(jnp.float32)  # type: ignore[attr-defined]
    return {f"achievements/{name.name.lower()}": reached[name.value] for name in names}
