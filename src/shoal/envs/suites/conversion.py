"""Conversion of other packages' spaces and states."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.types import Array, PyTree, State
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space


def subject_of(name: str, world: Any) -> str:
    """Return the beginning of a sentence about an object, which a name made if it is not empty."""
    return f"{name} made a {type(world).__name__}, which" if name else type(world).__name__


def require_interface(name: str, world: Any, *attributes: str) -> None:
    """Require that an object has the attributes of a convention, is no wrapper, and can be hashed.

    Args:
      name: the name that made it; empty for an object that is given.
    Raises:
      ShoalError: it is not so.
    """
    subject = subject_of(name, world)
    if getattr(world, "unwrapped", world) is not world:
        raise ShoalError(
            f"{subject} is a wrapper; give the environment without it, such as `world.unwrapped`: Shoal has its own "
            "time limit, batch and starts"
        )
    for attribute in attributes:
        if not hasattr(type(world), attribute) and not hasattr(world, attribute):
            needed = ", ".join(f"`{x}`" for x in attributes)
            raise ShoalError(f"{subject} has no `{attribute}`; it needs {needed}")
    try:
        hash(world)
    except TypeError as error:
        raise ShoalError(f"{subject} has no hash; a dataclass has one with eq=False") from error


def space_of(space: Any, element: PyTree = None) -> Space:
    """Convert a space of gymnax, JaxMARL or Gymnasium.

    Args:
      element: the shape of an element that the environment really makes; a space's own shape is not always it.
    Raises:
      ShoalError: there is no such space in Shoal.
    """
    parts = getattr(space, "spaces", space)
    if isinstance(parts, Mapping):
        return Dict({name: space_of(part, element and element[name]) for name, part in parts.items()})
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "num_categories"):
        return MultiDiscrete(np.asarray(space.num_categories))
    if not hasattr(space, "low"):
        raise ShoalError(f"a space of the class {type(space).__name__} has no equal in Shoal")
    shape = tuple(space.shape) if element is None else element.shape
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)
    low, high = np.asarray(space.low), np.asarray(space.high)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        # In float64, which has every 32-bit integer; a float32 would be rounded beyond the largest.
        low, high = (
            np.clip(bound.astype(np.float64), limits.min, limits.max).astype(dtype) for bound in (low, high)
        )
    return Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=dtype)


def of_types(types: PyTree, state: State) -> State:
    """Convert a state's leaves to the dtypes that they have after a step, since those of a reset may be others."""

    def convert(x: Any, leaf: Any) -> Array:
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return leaf if is_key else jax.lax.convert_element_type(leaf, x.dtype)

    return jax.tree.map(convert, types, state)
