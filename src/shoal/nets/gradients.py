"""Gradient scaling."""

import jax

from shoal.types import PyTree

Array = jax.Array


def scale_gradient(tree: PyTree, scale: Array | float) -> PyTree:
    """Multiply the gradient of arrays by `scale`, into which none flows, and leave their values unchanged.

    With a scale of 0.5, the gradients of two heads on one torso have together the weight of one; with 0 this is
    `stop_gradient`, and a negative scale reverses the gradient. Unlike `optax.scale_gradient` it takes a traced
    scale (a config's float, an annealed one), and has forward-mode derivatives too.
    """
    return jax.tree.map(lambda leaf: _scale_gradient(leaf, scale), tree)


@jax.custom_jvp
def _scale_gradient(x: Array, scale: Array | float) -> Array:
    return x


@_scale_gradient.defjvp
def _scale_gradient_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    x, scale = primals
    # A float32 scale would widen the tangent of a narrower x, which JAX refuses.
    return x, (scale * tangents[0]).astype(x.dtype)
