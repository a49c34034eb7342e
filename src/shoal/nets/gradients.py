"""Gradient scaling."""

import jax

from shoal.types import PyTree

Array = jax.Array


def scale_gradient(tree: PyTree, scale: Array | float) -> PyTree:
    """The same arrays, whose gradient is multiplied by `scale` on its way back.

    With 0.5, two heads upon one torso pull at it as hard as one does; with 0 it is `stop_gradient`, and a
    negative one reverses the gradient. Unlike `optax.scale_gradient` it takes a traced scale (a config's
    float, an annealed one), and derivatives forwards too.

    Args:
      tree: floating arrays of any shapes.
      scale: a number; it gets no gradient itself.
    """
    return jax.tree.map(lambda leaf: _scale_gradient(leaf, scale), tree)


@jax.custom_jvp
def _scale_gradient(x: Array, scale: Array | float) -> Array:
    return x


@_scale_gradient.defjvp
def _scale_gradient_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    x, scale = primals
    return x, (scale * tangents[0]).astype(x.dtype)
