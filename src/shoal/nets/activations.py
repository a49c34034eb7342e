"""Activation functions by name, for configs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError, nearest


def identity(x: jax.Array) -> jax.Array:
    """Return x: no activation."""
    return x


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "celu": jax.nn.celu,
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_silu": jax.nn.hard_silu,
    "hard_tanh": jax.nn.hard_tanh,
    "identity": identity,
    "leaky_relu": jax.nn.leaky_relu,
    "log_sigmoid": jax.nn.log_sigmoid,
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "squareplus": jax.nn.squareplus,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return the elementwise activation of a name, one of `ACTIVATIONS`.

    Raises:
      ShoalError: no activation has that name.
    """
    if name not in ACTIVATIONS:
        raise ShoalError(
            f"activation={name!r} is none of {', '.join(ACTIVATIONS)}{nearest(str(name), ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]
