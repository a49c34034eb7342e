"""Multi-layer perceptrons that compute on `[features, batch]` internally.

Few rows, such as the observations of few environments, are computed row by row instead.

Parameters are plain arrays, marked by `nnx.data`: NNX would not recognise a bare array that is assigned
while tracing, and an `nnx.Param` adds a level to each path and work to each flattening.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypedDict

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.activations import activation as activation_named
from shoal.nets.initialisers import kernels as initial_kernels
from shoal.xla.barriers import materialise
from shoal.xla.plain import uses_plain_form
from shoal.xla.products import affine_of_few_rows, product

Array = jax.Array


class LayerStyle(TypedDict, total=False):
    """The activation of hidden layers, whether each is normalised before it, and how their weights are drawn."""

    activation: str
    layer_norm: bool
    layer_norm_bias: bool
    final_activation: bool
    scale: float
    initialiser: str


class Dense(nnx.Module):
    """`kernel @ x + bias` on feature-major x, [in, batch] -> [out, batch]; the bias may be None, for 0."""

    def __init__(self, kernel: Array, *, has_bias: bool = True):
        self.kernel = nnx.data(kernel)  # [out, in]
        self.bias = nnx.data(jnp.zeros(kernel.shape[0], jnp.float32)) if has_bias else None

    def __call__(self, x: Array) -> Array:
        """Compute the layer, [in, batch] -> [out, batch]."""
        y = product(self.kernel, x)
        return y if self.bias is None else y + self.bias[:, None]

    def row_major(self, x: Array) -> Array:
        """Compute the layer for rows, [batch, in] -> [batch, out]: for few, or in the plain form for any number."""
        bias = jnp.zeros(len(self.kernel)) if self.bias is None else self.bias
        return affine_of_few_rows(self.kernel, bias, x)


# Rows up to which `row_major` is faster on a CPU: for outputs alone, and where they are differentiated.
MAX_ROW_MAJOR_ROWS = 32
MAX_GRADIENT_ROWS = 16


class LayerNorm(nnx.Module):
    """Normalisation of the features of each element of a feature-major batch, with learned scale and bias.

    Source: Ba et al. 2016, "Layer Normalization".
    """

    def __init__(self, num_features: int):
        self.scale = nnx.data(jnp.ones(num_features, jnp.float32))
        self.bias = nnx.data(jnp.zeros(num_features, jnp.float32))

    def __call__(self, x: Array) -> Array:
        """Normalise [features, batch] -> [features, batch]."""
        centred = x - jnp.mean(x, axis=0)
        variance = jnp.mean(centred**2, axis=0)
        return self.scale[:, None] * centred * jax.lax.rsqrt(variance + 1e-6) + self.bias[:, None]

    def row_major(self, x: Array) -> Array:
        """Normalise [batch, features] -> [batch, features]."""
        return self(x.T).T


class MLP(nnx.Module):
    """Dense layers with an activation after each, and a plain last one if `out_features` is given.

    Without `out_features` it is a torso; with it, a torso and the projection for a head in one. Internally
    the batch is the last axis, which is faster on a CPU, most of all for the gradient of the weights: value
    and gradient of a 4-64-64-2 network take 1.1 to 1.3 times less than with `x @ kernel` at 2,048 and
    8,192 rows. Inputs and outputs have the features last, as everywhere.

    Args:
      layer_norm: normalise each hidden layer before its activation.
      layer_norm_bias: whether layers that are normalised have a bias besides the normalisation's.
      final_activation: whether the last hidden layer has an activation.
      out_bias: whether the plain last layer has a bias.
      out_initialiser: of the plain last layer; None takes `initialiser`.
    Raises:
      ShoalError: a width below 1, or an unknown activation or initialiser.
    Attributes:
      num_features: width of the last hidden layer (of the input, if `sizes` is empty).
    """

    def __init__(
        self,
        in_features: int,
        sizes: Sequence[int],
        out_features: int | None = None,
        *,
        activation: str = "tanh",
        layer_norm: bool = False,
        layer_norm_bias: bool = True,
        final_activation: bool = True,
        out_bias: bool = True,
        scale: float = math.sqrt(2),
        out_scale: float = 1.0,
        initialiser: str = "orthogonal",
        out_initialiser: str | None = None,
        key: Array,
    ):
        activation_named(activation)  # an unknown name is an error here, not in the first call
        widths = (in_features, *sizes, *(() if out_features is None else (out_features,)))
        if any(not isinstance(width, int) or width < 1 for width in widths):
            raise ShoalError(
                f"in_features={in_features}, sizes={tuple(sizes)}, out_features={out_features} of an MLP "
                "must be integers of at least 1."
            )
        shapes = list(zip(widths[1:], widths[:-1], strict=True))
        kernels = initial_kernels(key, shapes, initialiser) if shapes else []
        if out_features is not None and out_initialiser not in (None, initialiser):
            # By another key: the hidden layers keep the weights that they have without it.
            out_key = jax.random.fold_in(key, 1)
            kernels[len(sizes) :] = initial_kernels(out_key, shapes[len(sizes) :], str(out_initialiser))
        self.activation = activation
        self.in_features = in_features
        self.num_features = widths[len(sizes)]
        self.out_features = widths[-1]
        self.num_activated = len(sizes) - (not final_activation)
        has_bias = layer_norm_bias or not layer_norm
        hidden = kernels[: len(sizes)]
        self.layers = nnx.List([Dense(scale * kernel, has_bias=has_bias) for kernel in hidden])
        self.norms = nnx.List([LayerNorm(size) for size in sizes] if layer_norm else [])
        self.projection = nnx.List(
            [Dense(out_scale * kernel, has_bias=out_bias) for kernel in kernels[len(sizes) :]]
        )

    def __call__(self, x: Array) -> Array:
        """Compute the output, [..., in_features] -> [..., out_features]."""
        return self.with_features(x)[0]

    def with_features(self, x: Array) -> tuple[Array, Array]:
        """Compute the output and the last hidden layer, [..., in_features] -> [..., out], [..., num_features]."""
        if x.shape[-1:] != (self.in_features,):
            raise ShoalError(
                f"x of shape {x.shape} must end in the MLP's in_features={self.in_features}, "
                f"as ({', '.join(['...', str(self.in_features)])})."
            )
        batch_shape = x.shape[:-1]
        rows = x.reshape(math.prod(batch_shape), self.in_features)
        if uses_plain_form("feature_major"):
            compute = MLP._by_rows
        elif 1 < len(rows) <= MAX_ROW_MAJOR_ROWS:  # a single row is usually one of many under `vmap`
            compute = MLP._by_rows if len(rows) <= MAX_GRADIENT_ROWS else _by_rows_unless_differentiated
        else:
            compute = MLP._by_features
        out, features = compute(self, rows)
        return out.reshape(*batch_shape, self.out_features), features.reshape(*batch_shape, self.num_features)

    def _by_rows(self, rows: Array) -> tuple[Array, Array]:
        return self._layers(rows, Dense.row_major, LayerNorm.row_major)

    def _by_features(self, rows: Array) -> tuple[Array, Array]:
        out, features = self._layers(rows.T, Dense.__call__, LayerNorm.__call__)
        return _batch_major(out), _batch_major(features)

    def _layers(self, x: Array, dense: Callable, norm: Callable) -> tuple[Array, Array]:
        """Compute the output and the last hidden layer, with the axes in the order of `dense` and `norm`."""
        activate = activation_named(self.activation, -1 if dense is Dense.row_major else 0)
        for index, layer in enumerate(self.layers):
            x = dense(layer, x)
            if self.norms:
                x = norm(self.norms[index], x)
            x = activate(x) if index < self.num_activated else x
        out = x
        for project in self.projection:
            out = dense(project, x)
        return out, x


@jax.custom_vjp  # and no custom_jvp: a product has no forward-mode derivative that `vmap`, of an ensemble, could map
def _by_rows_unless_differentiated(mlp: MLP, rows: Array) -> tuple[Array, Array]:
    """Compute an MLP by rows, [batch, in] -> [batch, out], [batch, num_features]; its derivatives by features."""
    return MLP._by_rows(mlp, rows)


def _pull_back(pullback: Callable, gradient: tuple[Array, Array]) -> tuple[MLP, Array]:
    return pullback(gradient)


_by_rows_unless_differentiated.defvjp(functools.partial(jax.vjp, MLP._by_features), _pull_back)


def _batch_major(x: Array) -> Array:
    """Transpose [features, batch] to [batch, features].

    The array is materialised first. Otherwise XLA merges the transposition into the matrix products on both sides,
    which are then computed in their slow row-major form, and nearly all of the gain is lost.
    """
    return materialise(x).T
