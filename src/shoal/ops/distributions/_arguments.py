"""Checks of the distributions' parameters and arguments while tracing."""

import jax
import jax.numpy as jnp

from shoal.ops._checks import floating, integer, real

Array = jax.Array
Shape = tuple[int, ...]


def parameter(**named: Array) -> Array:
    """Return one parameter, widened to float32 if it is narrower; TypeError if it is not floating."""
    (array,) = named.values()
    return jnp.asarray(array, jnp.promote_types(floating(**named), jnp.float32))


def broadcast_shape(**shapes: Shape) -> Shape:
    """Return the shape that the named shapes broadcast to; ValueError if they do not."""
    try:
        return jnp.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = " and ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{listed} do not broadcast to one shape.") from None


def common_shape(**shapes: Shape) -> Shape:
    """Return the shape that the named shapes of vectors broadcast to; ValueError unless their last axes are equal."""
    same_last_axis(**shapes)
    return broadcast_shape(**shapes)


def as_integers(x: Array, batch: Shape) -> Array:
    """Return the argument of a discrete log-probability: integers whose axes broadcast with the batch."""
    integer(x=x)
    broadcast_shape(x=jnp.shape(x), batch=batch)
    return jnp.asarray(x)


def as_vectors(x: Array, shape: Shape) -> Array:
    """Return the argument of a log-density, widened: its last axis is that of `shape`, the others broadcast."""
    real(x=x)
    common_shape(x=jnp.shape(x), distribution=shape)
    return widen(x)


def widen(x: Array | float) -> Array:
    """Convert real numbers to floating ones of 32 bits or more."""
    return jnp.asarray(x, jnp.promote_types(jnp.result_type(x), jnp.float32))


def same_last_axis(**shapes: Shape) -> None:
    """Require that the last axes of the named shapes are equally long; ValueError if not, or if one has none."""
    if len({shape[-1:] for shape in shapes.values()}) > 1 or any(not shape for shape in shapes.values()):
        listed = " and ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{listed} must end in axes of the same length.")
