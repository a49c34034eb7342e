"""Spaces: what an observation or an action may be. Hashable values, so they can be static.

Each space knows the shape and dtype of one element, draws one (`sample`), and says whether
a value lies in it (`contains`). A sample takes the environment's action mask where there is one.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers 0 to n-1, as int32 scalars. A mask is boolean, [n]."""

    n: int

    shape = ()
    dtype = np.dtype(np.int32)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """One element drawn uniformly, among the legal ones where a mask is given."""
        if mask is None:
            return jax.random.randint(key, (), 0, self.n, dtype=jnp.int32)
        return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf)).astype(jnp.int32)

    def contains(self, x: Any) -> jax.Array:
        """Whether x is an integer scalar of the space."""
        x = jnp.asarray(x)
        if x.shape != () or not jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(False)
        return (x >= 0) & (x < self.n)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several integers at once, as int32 [k]: the i-th is 0 to nvec[i]-1.

    A mask is boolean, [sum(nvec)]: the masks of the parts, one after the other.
    """

    nvec: tuple[int, ...]

    dtype = np.dtype(np.int32)

    def __init__(self, nvec: Any):
        object.__setattr__(self, "nvec", tuple(int(n) for n in nvec))

    @property
    def shape(self) -> tuple[int, ...]:
        """One axis with as many entries as the space has parts."""
        return (len(self.nvec),)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """One element, each part drawn uniformly among its (legal) values."""
        keys = jax.random.split(key, len(self.nvec))
        ends = np.cumsum(self.nvec)
        parts = [
            None if mask is None else mask[end - n : end] for n, end in zip(self.nvec, ends, strict=True)
        ]
        draws = [Discrete(n).sample(k, part) for n, k, part in zip(self.nvec, keys, parts, strict=True)]
        return jnp.stack(draws)

    def contains(self, x: Any) -> jax.Array:
        """Whether x is an integer vector of the space."""
        x = jnp.asarray(x)
        if x.shape != self.shape or not jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(False)
        return jnp.all((x >= 0) & (x < jnp.asarray(self.nvec)))


@dataclasses.dataclass(frozen=True, eq=False)
class Box:
    """Arrays between two bounds, each a number or an array of the space's shape.

    Infinite bounds are allowed: a sample is then normal (no bound) or exponential (one bound),
    as in Gymnasium. Integer dtypes make images and grids; both bounds are inclusive.
    """

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...] | None = None, dtype: Any = np.float32):
        if shape is None:
            shape = np.broadcast_shapes(np.shape(low), np.shape(high))
        dtype = np.dtype(dtype)
        bounds = [np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high)]
        object.__setattr__(self, "low", bounds[0])
        object.__setattr__(self, "high", bounds[1])
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))
        object.__setattr__(self, "dtype", dtype)

    def _identity(self) -> tuple:
        return (self.shape, self.dtype, self.low.tobytes(), self.high.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        def short(bound: np.ndarray) -> str:
            if bound.size and np.all(bound == bound.flat[0]):
                return f"{bound.flat[0]:g}"
            return str(bound.tolist())

        return f"Box({short(self.low)}, {short(self.high)}, {self.shape}, {self.dtype})"

    @property
    def bounded(self) -> bool:
        """Whether every bound is finite."""
        if np.issubdtype(self.dtype, np.integer):
            return True
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """One element: uniform where bounded, exponential or normal where not. Masks do not apply."""
        if np.issubdtype(self.dtype, np.integer):
            high = self.high.astype(np.int64) + 1  # randint's upper bound is exclusive
            draw = jax.random.randint(key, self.shape, self.low.astype(np.int32), high.astype(np.int32))
            return draw.astype(self.dtype)
        uniform_key, normal_key = jax.random.split(key)
        low_finite, high_finite = np.isfinite(self.low), np.isfinite(self.high)
        low = np.where(low_finite, self.low, 0.0).astype(self.dtype)
        high = np.where(high_finite, self.high, 1.0).astype(self.dtype)
        draw = jax.random.uniform(uniform_key, self.shape, self.dtype)
        draw = jnp.clip(low + draw * (high - low), low, high)
        if self.bounded:
            return draw
        normal = jax.random.normal(normal_key, self.shape, self.dtype)
        exponential = jax.random.exponential(normal_key, self.shape, self.dtype)
        draw = jnp.where(low_finite & ~high_finite, low + exponential, draw)
        draw = jnp.where(~low_finite & high_finite, high - exponential, draw)
        return jnp.where(~low_finite & ~high_finite, normal, draw)

    def contains(self, x: Any) -> jax.Array:
        """Whether x has the shape and lies within the bounds (NaN does not)."""
        x = jnp.asarray(x)
        if x.shape != self.shape:
            return jnp.asarray(False)
        return jnp.all((x >= self.low) & (x <= self.high))


@dataclasses.dataclass(frozen=True, eq=False)
class Dict(Mapping):
    """Named spaces; an element is a dictionary with one element of each."""

    spaces: Mapping[str, "Space"]

    def __init__(self, spaces: Mapping[str, "Space"]):
        object.__setattr__(self, "spaces", dict(sorted(spaces.items())))

    def __getitem__(self, name: str) -> "Space":
        return self.spaces[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spaces)

    def __len__(self) -> int:
        return len(self.spaces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dict) and self.spaces == other.spaces

    def __hash__(self) -> int:
        return hash(tuple(self.spaces.items()))

    def sample(self, key: jax.Array, mask: Any = None) -> dict[str, Any]:
        """A dictionary with one sample of each space; `mask` may hold masks by the same names."""
        keys = jax.random.split(key, len(self.spaces))
        masks = mask or {}
        return {
            name: space.sample(k, masks.get(name))
            for k, (name, space) in zip(keys, self.spaces.items(), strict=True)
        }

    def contains(self, x: Any) -> jax.Array:
        """Whether x is a dictionary of the same names whose values lie in their spaces."""
        if not isinstance(x, Mapping) or set(x) != set(self.spaces):
            return jnp.asarray(False)
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.spaces.items()]))


Space = Discrete | MultiDiscrete | Box | Dict


def zeros(space: Space) -> Any:
    """The zero element: what stands for an action or observation where there is none."""
    if isinstance(space, Dict):
        return {name: zeros(part) for name, part in space.items()}
    return jnp.zeros(space.shape, space.dtype)
