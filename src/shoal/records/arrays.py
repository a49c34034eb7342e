"""Conversion of leaves to NumPy arrays that can be saved; typed PRNG keys are saved as words."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError

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


def is_key(leaf: Any) -> bool:
    """Report whether a leaf (or its shape) is a typed PRNG key or an array of them; imports no JAX."""
    return not isinstance(getattr(leaf, "dtype", np.dtype(np.float32)), np.dtype)


def to_numpy(leaf: Any) -> tuple[np.ndarray, str | None]:
    """Convert a leaf to a NumPy array: a key to its words, with the name of its implementation.

    Returns:
      the array [...] and None, or the words [..., words of a key] and the name, such as "threefry2x32".
    """
    if not is_key(leaf):
        return np.asarray(leaf), None
    import jax  # noqa: PLC0415 (a directory is read without it)

    return np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf))


def copy_of_keys(keys: Any) -> Any:
    """Copy typed keys: `jax.device_get` leaves them where they are, in a buffer that the next update may reuse."""
    words, implementation = to_numpy(keys)
    return from_numpy(np.array(words), implementation)


def from_numpy(array: np.ndarray, implementation: str | None) -> Any:
    """Convert the result of `to_numpy` back."""
    if implementation is None:
        return array
    import jax  # noqa: PLC0415

    return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=implementation)


def check_storable(leaves: Mapping[str, Any]) -> None:
    """Require that named leaves can be written and read again.

    Raises:
      ShoalError: a dtype that the format cannot hold; the sentence names the leaf.
    """
    for name, leaf in leaves.items():
        if not is_key(leaf) and leaf.dtype.name not in STORABLE:
            raise ShoalError(
                f"{name!r} cannot be saved: its dtype is {leaf.dtype.name}; use one such as float32 or int32."
            )
