"""Convolutions and pooling of images [batch, height, width, channels], and their shapes."""

import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.errors import ShoalError
from shoal.nets.inputs import leading_shape

Array = jax.Array
Padding = Literal["valid", "same"]
Image = tuple[int, int, int]  # height, width, channels


def convolve(x: Array, kernel: Array, strides: tuple[int, int] = (1, 1), padding: Padding = "valid") -> Array:
    """Cross-correlation of images with a kernel, as every library's convolution layer has it.

        y[b, i, j, o] = Σ_{m, n, c} kernel[o, m, n, c] x[b, i s_h + m, j s_w + n, c]

    Args:
      x: [batch, height, width, channels].
      kernel: [out, kernel height, kernel width, channels].
      strides: s_h and s_w.
      padding: "valid" for none; "same" for zeros around x such that the result is of size ⌈size / stride⌉,
        one more of them below and on the right where they are odd in number.

    Returns:
      [batch, height', width', out].
    """
    return jax.lax.conv_general_dilated(
        x, kernel, strides, padding.upper(), dimension_numbers=("NHWC", "OHWI", "NHWC")
    )


class Conv(nnx.Module):
    """`convolve` with a kernel and a bias of its own; the bias begins at zero."""

    def __init__(self, kernel: Array, *, strides: tuple[int, int] = (1, 1), padding: Padding = "valid"):
        self.strides = strides
        self.padding = padding
        self.kernel = nnx.data(kernel)  # [out, kernel height, kernel width, in]
        self.bias = nnx.data(jnp.zeros(kernel.shape[0], jnp.float32))

    def __call__(self, x: Array) -> Array:
        """[batch, height, width, in] -> [batch, height', width', out]."""
        return convolve(x, self.kernel, self.strides, self.padding) + self.bias


class ChannelNorm(nnx.Module):
    """Normalises the channels at each place of each image, then scales and shifts them.

    Source: Ba et al. 2016, "Layer Normalization".
    """

    def __init__(self, channels: int):
        self.scale = nnx.data(jnp.ones(channels, jnp.float32))
        self.bias = nnx.data(jnp.zeros(channels, jnp.float32))

    def __call__(self, x: Array) -> Array:
        """[..., channels] -> [..., channels]."""
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return self.scale * centred * jax.lax.rsqrt(variance + 1e-6) + self.bias


def max_pool(
    x: Array, window: tuple[int, int], strides: tuple[int, int], padding: Padding = "valid"
) -> Array:
    """The largest number in each window, for each channel: [batch, height, width, channels] -> the same axes."""
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, *window, 1), (1, *strides, 1), padding.upper())


def out_size(size: int, window: int, stride: int, padding: Padding) -> int:
    """How many windows fit along an axis: 0 or less if it is shorter than one and not padded."""
    return math.ceil(size / stride) if padding == "same" else (size - window) // stride + 1


def image_shape(owner: str, in_shape: Sequence[int], channels_first: bool) -> Image:
    """Height, width and channels of an input of that shape.

    Raises:
      ShoalError: it has not three axes, or an empty one.
    """
    axes = "(channels, height, width)" if channels_first else "(height, width, channels)"
    if len(in_shape) != 3 or min(in_shape) < 1:
        raise ShoalError(f"in_shape={tuple(in_shape)} of a {owner} must be {axes}, each at least 1.")
    first, second, third = in_shape
    return (second, third, first) if channels_first else (first, second, third)


def images(x: Array, in_shape: tuple[int, ...], channels_first: bool) -> tuple[Array, tuple[int, ...]]:
    """[..., *in_shape] of any real dtype -> float32 [batch, height, width, channels], and the leading axes.

    Raises:
      ShoalError: x does not end in that shape.
    """
    x = jnp.asarray(x)
    batch_shape = leading_shape("x", x, in_shape)
    x = x.astype(jnp.float32).reshape(math.prod(batch_shape), *in_shape)
    return (x.transpose(0, 2, 3, 1) if channels_first else x), batch_shape


def pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """A number for both directions, or one for each.

    Raises:
      ShoalError: it is neither, or below 1.
    """
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(not isinstance(each, int) or each < 1 for each in both):
        raise ShoalError(f"{name}={value} must be an integer of at least 1, or a pair of them.")
    return both
