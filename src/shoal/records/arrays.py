"""Conversion of leaves to NumPy arrays that can be saved; typed PRNG keys are saved as words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np

from shoal.base.errors import ShoalError

if TYPE_CHECKING:
    from jax import Array  # a directory is read without JAX

# The dtypes that can be saved, and their names in a file; of numbers of 8 bits that NumPy does not know only the bytes.
SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "complex64": "C64",
}
FLOAT8 = frozenset(
    f"float8_{kind}"
    for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
)
STORABLE = FLOAT8.union(SAFETENSORS_DTYPES)


class Leaf(Protocol):
    """An array of numbers or of typed keys, of NumPy or of JAX, or its shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, of keys that of the array of keys."""

    @property
    def dtype(self) -> np.dtype:  # type: ignore[type-arg]
        """The dtype, of keys one of JAX's own."""


def is_key(leaf: object) -> TypeGuard["Array"]:
    """Report whether a leaf (or its shape) is a typed PRNG key or an array of them; imports no JAX."""
    return not isinstance(getattr(leaf, "dtype", np.dtype(np.float32)), np.dtype)


def to_numpy(leaf: object) -> tuple[np.ndarray, str | None]:
    """Convert a leaf to a NumPy array: a key to its words, with the name of its implementation.

    Returns:
      the array [...] and None, or the words [..., words of a key] and the name, such as "threefry2x32".
    """
    if is_key(leaf):
        import jax  # noqa: PLC0415 (a directory is read without it)

        return np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf))
    return np.asarray(leaf), None


def copy_of_keys(keys: "Array") -> "np.ndarray | Array":
    """Copy typed keys: `jax.device_get` leaves them where they are, in a buffer that the next update may reuse."""
    words, implementation = to_numpy(keys)
    return from_numpy(np.array(words), implementation)


def from_numpy(array: np.ndarray, implementation: str | None) -> "np.ndarray | Array":
    """Convert the result of `to_numpy` back."""
    if implementation is None:
        return array
    import jax  # noqa: PLC0415

    keys: Array = jax.random.wrap_key_data(jax.numpy.asarray(array), impl=implementation)
    return keys


def check_storable(leaves: Mapping[str, Leaf]) -> None:
    """Require that named leaves can be written and read again.

    Raises:
      ShoalError: a dtype that the format cannot hold; the sentence names the leaf.
    """
    for name, leaf in leaves.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ShoalError(f"{name!r} cannot be saved under that name: it is not valid Unicode.") from None
        if not is_key(leaf) and leaf.dtype.name not in STORABLE:
            raise ShoalError(
                f"{name!r} cannot be saved: its dtype is {leaf.dtype.name}; use one such as float32 or int32."
            )
