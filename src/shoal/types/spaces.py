"""Spaces: the sets of observations and actions. Hashable values, so they can be static.

Each space knows the shape and dtype of one element, draws one (`sample`), and says whether a value lies in it
(`contains`). A sample uses the environment's action mask where there is one.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.config.arguments import short_repr


def _as_array(x: object) -> jax.Array | None:
    """Convert x to an array, or to None if it is something else (a dictionary, a ragged list, text, None)."""
    if isinstance(x, str):
        return None
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError, OverflowError):
        return None


def _as_numpy(x: object) -> np.ndarray | None:
    """Convert x to an array, or to None if it is ragged."""
    try:
        return np.asarray(x)
    except ValueError:
        return None


def _is_length(n: object) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and bool(n >= 0)


def _are_integers(x: jax.Array, shape: tuple[int, ...]) -> bool:
    return x.shape == shape and jnp.issubdtype(x.dtype, jnp.integer)


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers 0 to n-1, as int32 scalars. A mask is boolean, [n]."""

    n: int

    shape = ()
    dtype = np.dtype(np.int32)

    def __init__(self, n: Any):
        """Take the number of values.

        Raises:
          ValueError: it is not a whole number.
        """
        number = _as_numpy(n)
        if number is None or number.ndim or not _are_whole(number):
            right = "a whole number, such as Discrete(3), would be right"
            raise ValueError(f"Discrete({short_repr(n)}) has no number of values; {right}.")
        object.__setattr__(self, "n", int(n))

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element uniformly, among the legal ones where a mask is given."""
        if mask is None:
            return jax.random.randint(key, (), 0, self.n, dtype=jnp.int32)
        return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf)).astype(jnp.int32)

    def contains(self, x: object) -> jax.Array:
        """Report whether x is an integer scalar of the space."""
        array = _as_array(x)
        if array is None or not _are_integers(array, ()):
            return jnp.asarray(False)
        return (array >= 0) & (array < self.n)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several integers at once, as int32 [k]: the i-th is 0 to nvec[i]-1.

    A mask is boolean, [sum(nvec)]: the masks of the parts, one after the other.
    """

    nvec: tuple[int, ...]

    dtype = np.dtype(np.int32)

    def __init__(self, nvec: object):
        """Take the numbers of values.

        Raises:
          ValueError: they are not whole numbers in one row.
        """
        numbers = _as_numpy(nvec)
        if numbers is None or numbers.ndim != 1 or not _are_whole(numbers):
            right = "one row of whole numbers, such as MultiDiscrete((2, 3)), would be right"
            raise ValueError(f"MultiDiscrete({short_repr(nvec)}) has no numbers of values; {right}.")
        object.__setattr__(self, "nvec", tuple(int(n) for n in numbers))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape [k] of an element."""
        return (len(self.nvec),)

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element, each part uniformly among its (legal) values."""
        keys = jax.random.split(key, len(self.nvec))
        ends = np.cumsum(self.nvec)
        parts = [
            None if mask is None else mask[end - n : end] for n, end in zip(self.nvec, ends, strict=True)
        ]
        draws = [Discrete(n).sample(k, part) for n, k, part in zip(self.nvec, keys, parts, strict=True)]
        return jnp.stack(draws)

    def contains(self, x: object) -> jax.Array:
        """Report whether x is an integer vector of the space."""
        array = _as_array(x)
        if array is None or not _are_integers(array, self.shape):
            return jnp.asarray(False)
        return jnp.all((array >= 0) & (array < jnp.asarray(self.nvec)))


@dataclasses.dataclass(frozen=True, eq=False)
class Box:
    """Arrays between two bounds, each a number or an array of the space's shape.

    Infinite bounds are allowed: a sample is then normal (no bound) or exponential (one bound),
    as in Gymnasium. Integer dtypes make images and grids; both bounds are inclusive. A 64-bit dtype
    becomes the 32-bit one of its kind, as everywhere in JAX.
    """

    low: np.ndarray
    high: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...] | None = None, dtype: Any = np.float32):
        """Take the bounds, which are broadcast to the shape.

        Raises:
          ValueError: a bound is another number in the dtype, such as 0.5 in int32, or has another shape; or the
            numbers of the dtype are complex.
        """
        if shape is None:
            shape = np.broadcast_shapes(np.shape(low), np.shape(high))
        elif not isinstance(shape, tuple | list) or not all(_is_length(n) for n in shape):
            raise ValueError(
                f"Box: shape={short_repr(shape)} is not a shape; give a tuple of whole numbers, such as (3,)."
            )
        try:
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        except TypeError:
            dtype = str(dtype)
        if not isinstance(dtype, np.dtype) or dtype.kind not in "biufV":
            raise ValueError(f"Box: dtype={dtype} is none of real numbers; float32 or int32 would be right.")
        object.__setattr__(self, "low", _bound("low", low, shape, dtype))
        object.__setattr__(self, "high", _bound("high", high, shape, dtype))
        object.__setattr__(self, "shape", tuple(int(n) for n in shape))
        object.__setattr__(self, "dtype", dtype)

    @functools.cached_property  # a static value is hashed at every call of a compiled function
    def _identity(self) -> tuple[Any, ...]:
        return (self.shape, self.dtype, self.low.tobytes(), self.high.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        def short(bound: np.ndarray) -> str:
            if bound.size == 0 or np.any(bound != bound.flat[0]):
                return str(bound.tolist()) if bound.size <= 16 else f"[{bound.min():g} to {bound.max():g}]"
            return f"{float(bound.flat[0]):g}"

        return f"Box({short(self.low)}, {short(self.high)}, {self.shape}, {self.dtype})"

    @property
    def bounded(self) -> bool:
        """Whether every bound is finite."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    @property
    def can_be_scaled(self) -> bool:
        """Whether the distance between the bounds is finite in float32, so that [-1, 1] can be mapped onto it."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.all(np.isfinite(np.float32(self.high) - np.float32(self.low))))

    def sample(self, key: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Draw one element: uniform where bounded, exponential or normal where not. Masks do not apply."""
        return self._sample_float(key) if self._is_float else self._sample_integer(key)

    @property
    def _is_float(self) -> bool:
        return jnp.issubdtype(self.dtype, jnp.floating)

    def _sample_integer(self, key: jax.Array) -> jax.Array:
        """Draw uniform offsets from `low` modulo 2^32, so that no range of a 32-bit integer overflows."""
        low = self.low.astype(np.int64)
        count = self.high.astype(np.int64) - low + 1
        bits_key, offset_key = jax.random.split(key)
        bits = jax.random.bits(bits_key, self.shape, jnp.uint32)
        limit = np.minimum(count, 2**32 - 1).astype(np.uint32)
        offset = jax.random.randint(offset_key, self.shape, np.uint32(0), limit, jnp.uint32)
        offset = jnp.where(count == 2**32, bits, offset)
        return (jnp.asarray((low % 2**32).astype(np.uint32)) + offset).astype(self.dtype)

    def _sample_float(self, key: jax.Array) -> jax.Array:
        uniform_key, tail_key = jax.random.split(key)
        low_finite, high_finite = np.isfinite(self.low), np.isfinite(self.high)
        low = np.where(low_finite, self.low, 0.0).astype(self.dtype)
        high = np.where(high_finite, self.high, 1.0).astype(self.dtype)
        fraction = jax.random.uniform(uniform_key, self.shape, self.dtype)
        # Not low + fraction * (high - low): the difference of two finite bounds may be infinite.
        draw = jnp.clip((1 - fraction) * low + fraction * high, low, high)
        if self.bounded:
            return draw
        normal = jax.random.normal(tail_key, self.shape, self.dtype)
        exponential = jax.random.exponential(tail_key, self.shape, self.dtype)
        draw = jnp.where(low_finite & ~high_finite, low + exponential, draw)
        draw = jnp.where(~low_finite & high_finite, high - exponential, draw)
        return jnp.where(~low_finite & ~high_finite, normal, draw)

    def contains(self, x: object) -> jax.Array:
        """Report whether x has the shape and lies within the bounds (NaN does not).

        A space of integers has only integers, one of booleans only booleans; one of floats accepts integers
        too.
        """
        array = _as_array(x)
        if array is None or array.shape != self.shape:
            return jnp.asarray(False)
        kind = jnp.bool_ if self.dtype == bool else jnp.integer
        takes_floats = self._is_float and jnp.issubdtype(array.dtype, jnp.floating)
        if not (takes_floats or jnp.issubdtype(array.dtype, kind)):
            return jnp.asarray(False)
        return jnp.all((array >= self.low) & (array <= self.high))


def _bound(name: str, bound: Any, shape: Any, dtype: np.dtype) -> np.ndarray:
    """Convert a bound to a read-only array of the space's shape, not shared with the caller's."""
    given, is_float = _as_numpy(bound), jnp.issubdtype(dtype, jnp.floating)
    if given is None or not _can_broadcast(given.shape, shape):
        raise ValueError(
            f"Box: {name}={short_repr(bound)} does not fit shape={tuple(shape)}; a number, or an array of that shape, "
            "would be right."
        )
    has_numbers = given.dtype.kind in "biuf" or given.dtype == dtype
    with np.errstate(over="ignore", invalid="ignore"):
        array = given.astype(dtype) if has_numbers else np.zeros(given.shape, dtype)
    # A float may be rounded, but a number may not become infinite.
    is_same = np.isfinite(array) == np.isfinite(given) if has_numbers and is_float else array == given
    if not has_numbers or not np.all(is_same):
        hint = (
            "-inf or inf says that there is no bound" if is_float else "give whole numbers within its range"
        )
        raise ValueError(
            f"Box: {name}={short_repr(bound)} cannot be a bound in {np.dtype(dtype).name}; {hint}."
        )
    array = np.array(np.broadcast_to(array, shape))
    if is_float:
        array += 0  # -0.0 becomes 0.0: equal bounds have equal bytes
    array.flags.writeable = False
    return array


def _can_broadcast(shape: tuple[int, ...], target: Sequence[int]) -> bool:
    """Report whether an array of a shape can be repeated to a target shape."""
    fits = (n in (1, m) for n, m in zip(reversed(shape), reversed(target), strict=False))
    return len(shape) <= len(target) and all(fits)


def _are_whole(numbers: np.ndarray) -> bool:
    """Report whether an array holds whole numbers only; those of an empty one do."""
    if numbers.size == 0:
        return True
    return numbers.dtype.kind in "iuf" and bool(np.all(np.isfinite(numbers) & (numbers == np.floor(numbers))))


@dataclasses.dataclass(frozen=True, eq=False)
class Dict(Mapping[str, Any]):
    """Named spaces; an element is a dictionary with one element of each."""

    spaces: Mapping[str, "Space"]

    def __init__(self, spaces: Mapping[str, "Space"]):
        """Take the spaces, which are sorted by name.

        Raises:
          ValueError: there is no mapping, or a name is no text.
        """
        if not isinstance(spaces, Mapping):
            raise ValueError(f"Dict: {short_repr(spaces)} is not a mapping; give spaces by their names.")
        if others := [name for name in spaces if not isinstance(name, str)]:
            raise ValueError(
                f"Dict: {short_repr(others[0])} names a space; text, such as 'position', would be right."
            )
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
        """Draw a dictionary with one sample of each space; `mask` may hold masks by the same names."""
        keys = jax.random.split(key, len(self.spaces))
        masks = mask or {}
        return {
            name: space.sample(k, masks.get(name))
            for k, (name, space) in zip(keys, self.spaces.items(), strict=True)
        }

    def contains(self, x: object) -> jax.Array:
        """Report whether x is a dictionary of the same names whose values lie in their spaces."""
        if not isinstance(x, Mapping) or set(x) != set(self.spaces):
            return jnp.asarray(False)
        inside = [space.contains(x[name]) for name, space in self.spaces.items()]
        return jnp.all(jnp.asarray(inside, bool))


Space = Discrete | MultiDiscrete | Box | Dict


def zeros(space: Space) -> Any:
    """Return the zero element, which replaces an action or observation where there is none."""
    if isinstance(space, Dict):
        return {name: zeros(part) for name, part in space.items()}
    return jnp.zeros(space.shape, space.dtype)
