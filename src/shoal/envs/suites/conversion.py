"""Conversion of other packages' spaces and states."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.types import Array, PyTree, State
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space


def subject_of(name: str, world: object) -> str:
    """Return the beginning of a sentence about an object, which a name made if it is not empty."""
    return f"{name} made a {type(world).__name__}, which" if name else type(world).__name__


class Converted(NamedTuple):
    """A space of another package as one of Shoal's, and the form of the package's own elements; hashable."""

    space: Space
    shape: tuple[int, ...] = ()  # of a package's element of whole numbers, as are the next two
    dtype: Any = None
    start: tuple[int, ...] | int = 0  # the least number of each part, which is 0 in Shoal
    parts: tuple["Converted", ...] = ()  # of a Dict, in the order of its names

    def to_package(self, element: PyTree) -> PyTree:
        """Convert an element of Shoal's space to the package's."""
        if isinstance(self.space, Dict):
            return {k: x.to_package(element[k]) for k, x in zip(self.space, self.parts, strict=True)}
        if isinstance(self.space, Box):
            return element
        return (
            (jnp.asarray(element) + np.asarray(self.start, np.int32)).reshape(self.shape).astype(self.dtype)
        )

    def to_shoal(self, element: PyTree) -> PyTree:
        """Convert an element of the package's space to Shoal's."""
        if isinstance(self.space, Dict):
            return {k: x.to_shoal(element[k]) for k, x in zip(self.space, self.parts, strict=True)}
        if isinstance(self.space, Box):
            return jnp.asarray(element, self.space.dtype)
        numbers = jnp.ravel(jnp.asarray(element, jnp.int32)) - np.asarray(self.start, np.int32)
        return numbers.reshape(self.space.shape)


def converted(space: Any, element: PyTree = None) -> Converted:
    """Convert a space of gymnax, JaxMARL, Gymnasium or dm_env, which are told apart by their attributes.

    A part that is one of n values is Discrete, several are MultiDiscrete; bits, Gymnasium's MultiBinary, are so in an
    action and a Box in an observation.

    Args:
      element: of an observation the shape that the environment really makes; a space's own is not always it.
    Raises:
      ShoalError: there is no such space in Shoal.
    """
    inner = getattr(space, "spaces", space)
    if isinstance(inner, Mapping):
        parts = {k: converted(part, element and element[k]) for k, part in sorted(inner.items())}
        return Converted(Dict({k: x.space for k, x in parts.items()}), parts=tuple(parts.values()))
    shape, dtype = getattr(space, "shape", ()), getattr(space, "dtype", np.int32)
    is_bits = hasattr(space, "n") and shape != ()
    if is_bits and element is not None:
        return Converted(Box(0, 1, element.shape, dtype))
    names = ("n", "nvec", "num_categories", "num_values")
    counts = (
        np.full(shape, 2) if is_bits else next((getattr(space, x) for x in names if hasattr(space, x)), None)
    )
    if counts is not None:
        counts, start = np.asarray(counts), getattr(space, "start", 0)
        starts = tuple(np.ravel(np.broadcast_to(start, counts.shape)).tolist())
        kind = jax.dtypes.canonicalize_dtype(dtype)
        if counts.size == 1:
            return Converted(Discrete(counts.item()), counts.shape, kind, starts[0])
        return Converted(MultiDiscrete(counts.ravel()), counts.shape, kind, starts)
    if getattr(space, "shape", None) is None:
        raise ShoalError(
            f"a space of the class {type(space).__name__} has no equal in Shoal, which has Discrete, MultiDiscrete, "
            "Box and Dict"
        )
    return Converted(_box(space, shape if element is None else element.shape))


def _box(space: Any, shape: tuple[int, ...]) -> Box:
    """Convert a space of arrays, those of dm_env too, which may have no bounds."""
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)
    low, high = (
        np.asarray(getattr(space, name, getattr(space, other, none)))
        for name, other, none in (("low", "minimum", -np.inf), ("high", "maximum", np.inf))
    )
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        # In float64, which has every 32-bit integer; a float32 would be rounded beyond the largest.
        low, high = (
            np.clip(bound.astype(np.float64), limits.min, limits.max).astype(dtype) for bound in (low, high)
        )
    return Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), dtype=dtype)


def of_types(types: PyTree, state: State) -> State:
    """Convert a state's leaves to the dtypes that they have after a step, since those of a reset may be others."""
    return jax.tree.map(lambda x, leaf: jax.lax.convert_element_type(leaf, x.dtype), types, state)


def unbounded(shapes: Mapping[str, Array]) -> Space:
    """Return the space of float32 arrays of these shapes: a dictionary, or a Box where one array has no name."""
    boxes = {name: Box(-np.inf, np.inf, x.shape) for name, x in shapes.items()}
    return boxes[""] if tuple(boxes) == ("",) else Dict(boxes)


def in_float32(arrays: Mapping[str, Array]) -> PyTree:
    """Return the element of `unbounded` that has these arrays."""
    entries = {name: jnp.asarray(x, jnp.float32) for name, x in arrays.items()}
    return entries[""] if tuple(entries) == ("",) else entries
