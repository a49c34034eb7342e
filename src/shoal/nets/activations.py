"""Activation functions by name, for configs."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError, nearest


def identity(x: jax.Array) -> jax.Array:
    """Return x: no activation."""
    return x


# JAX's names that are Shoal's too.
_OF_JAX = (
    "celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid log_softmax mish relu relu6 selu sigmoid "
    "silu softmax softplus squareplus swish tanh"
)
ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
    "identity": identity,
    "none": identity,
    "normalise": jax.nn.standardize,
    "sin": jnp.sin,
    "softsign": jax.nn.soft_sign,
    **{name: getattr(jax.nn, name) for name in _OF_JAX.split()},
}

# Of the features together; all others are elementwise.
OF_ALL_FEATURES = ("log_softmax", "normalise", "softmax")


def activation(name: str, axis: int = -1, setting: str = "activation") -> Callable[[jax.Array], jax.Array]:
    """Return the activation of a name, one of `ACTIVATIONS`.

    Args:
      axis: of the features. "softmax" and "log_softmax" are over all of them, and "normalise" brings them to mean 0
        and variance 1 (with 1e-5 added to the variance).
      setting: the one that names it, for the sentence.
    Raises:
      ShoalError: no activation has that name.
    """
    if name not in ACTIVATIONS:
        raise ShoalError(
            f"{setting}={name!r} is none of {', '.join(sorted(ACTIVATIONS))}{nearest(str(name), ACTIVATIONS)}."
        )
    function = ACTIVATIONS[name]
    return functools.partial(function, axis=axis) if name in OF_ALL_FEATURES else function
