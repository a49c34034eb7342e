"""Parameters of other packages' classes as static values, which can be hashed."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError


def to_static(where: str, value: Any) -> Any:
    """Convert arrays, lists and dictionaries to tuples, so that a value can be hashed."""
    if isinstance(value, jax.core.Tracer):
        raise ShoalError(f"{where} is a traced value; it is a size or a rule, which is static")
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, Mapping):
        return tuple((key, to_static(where, part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(to_static(where, part) for part in value)
    try:
        hash(value)
    except TypeError as error:
        raise ShoalError(
            f"{where} is of type {type(value).__name__}, which has no hash; a number, a text or a list would be right"
        ) from error
    return value


def from_static(value: Any, default: Any) -> Any:
    """Convert a tuple back to the kind of the parameter's default."""
    if not isinstance(value, tuple):
        return value
    if isinstance(default, jax.Array):
        return jnp.asarray(value, default.dtype)
    if isinstance(default, np.ndarray):
        return np.asarray(value, default.dtype)
    return type(default)(value) if isinstance(default, dict | list) else value
