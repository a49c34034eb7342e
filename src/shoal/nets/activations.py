"""Activation functions by name, for configs."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError, nearest


def identity(x: jax.Array) -> jax.Array:
    """Return x: no activation."""
    return x


ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
    "celu": jax.nn.celu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_silu": jax.nn.hard_silu,
    "hard_tanh": jax.nn.hard_tanh,
    "identity": identity,
    "leaky_relu": jax.nn.leaky_relu,
    "log_sigmoid": jax.nn.log_sigmoid,
    "log_softmax": jax.nn.log_softmax,
    "mish": jax.nn.mish,
    "none": identity,
    "normalise": jax.nn.standardize,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "softmax": jax.nn.softmax,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "squareplus": jax.nn.squareplus,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}

OF_ALL_FEATURES = (
    "log_softmax",
    "normalise",
    "softmax",
)  # of the features together; all others are elementwise


def activation(name: str, axis: int = -1) -> Callable[[jax.Array], jax.Array]:
    """Return the activation of a name, one of `ACTIVATIONS`.

    Args:
      axis: of the features. "softmax" and "log_softmax" are over all of them, and "normalise" brings them to mean 0
        and variance 1 (with 1e-5 added to the variance).
    Raises:
      ShoalError: no activation has that name.
    """
    if name not in ACTIVATIONS:
        raise ShoalError(
            f"activation={name!r} is none of {', '.join(ACTIVATIONS)}{nearest(str(name), ACTIVATIONS)}."
        )
    function = ACTIVATIONS[name]
    return functools.partial(function, axis=axis) if name in OF_ALL_FEATURES else function
