"""What flows backwards: scaled, where a torso serves several heads, or computed once for all that read it."""

from typing import Any

import jax
import jax.numpy as jnp

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


def compute_gradient_once(tree: PyTree, always_true: Array) -> PyTree:
    """The same arrays, whose gradient a CPU computes once, and not again in every operation that reads it.

    XLA fuses the last operations of a loss's gradient into whatever reads them: into each of the 64 rows of the
    layer below, for one. Its barriers are gone by the time it fuses; a conditional stays. On accelerators, which
    would wait for its condition, nothing is done. There is no forward-mode derivative.

    Args:
      tree: arrays, and leaves of other kinds, which are left as they are.
      always_true: a boolean that is True, but not known to be while compiling; where it is False the gradient is 0.
    """
    if jax.default_backend() != "cpu":
        return tree
    leaves, structure = jax.tree.flatten(tree)
    floating = [i for i, leaf in enumerate(leaves) if _is_floating(leaf)]
    for i, leaf in zip(
        floating, _compute_gradient_once([leaves[i] for i in floating], always_true), strict=True
    ):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)


@jax.custom_vjp
def _compute_gradient_once(arrays: list[Array], always_true: Array) -> list[Array]:
    return arrays


def _compute_gradient_once_forward(arrays: list[Array], always_true: Array) -> tuple[list[Array], Array]:
    return arrays, always_true


def _compute_gradient_once_backward(always_true: Array, gradient: list[Array]) -> tuple[list[Array], None]:
    return jax.lax.cond(always_true, lambda g: g, lambda g: jax.tree.map(jnp.zeros_like, g), gradient), None


_compute_gradient_once.defvjp(_compute_gradient_once_forward, _compute_gradient_once_backward)
