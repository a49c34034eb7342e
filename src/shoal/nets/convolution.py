"""Convolutions and pooling of images [batch, height, width, channels], and their shapes."""

import functools
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.inputs import leading_shape
from shoal.xla import backend
from shoal.xla.barriers import materialise
from shoal.xla.plain import uses_plain_form

Array = jax.Array
Padding = Literal["valid", "same"]
Image = tuple[int, int, int]  # height, width, channels
Windows = Sequence[int | Sequence[int]]  # a side, or height and width, of each convolution's window or step
Layer = tuple[tuple[int, int, int, int], tuple[int, int], Image]  # kernel, strides, image after it


# Size of an image's patches, up to which their products are faster than the gradient of `lax.conv` on a CPU (measured).
MAX_PATCH_NUMBERS = 16_384


def convolve(x: Array, kernel: Array, strides: tuple[int, int] = (1, 1), padding: Padding = "valid") -> Array:
    """Compute the cross-correlation of images with a kernel, as the convolution layers of all libraries do.

        y[b, i, j, o] = Σ_{m, n, c} kernel[o, m, n, c] x[b, i s_h + m, j s_w + n, c]

    On a CPU `lax.conv` is the fastest way to compute this, but not to compute its gradient for small images:
    when a gradient is taken, matrix products over the patches of the image are used. On an accelerator, and for
    large images, `lax.conv` is used for both. Values and gradients equal those of `convolve_plain` within float32's
    rounding.

    Gain: the gradient of a `GridCNN` on 7 x 7 x 3 numbers took 2.78 ms instead of 4.53, on 5 x 5 cells 2.00 instead
    of 2.70.

    Args:
      x: [batch, height, width, channels].
      kernel: [out, kernel height, kernel width, channels].
      padding: "valid" for none; "same" for zeros around x such that the result has size ⌈size / stride⌉. If
        their number is odd, there is one more below and on the right.
    Returns:
      [batch, height', width', out].
    """
    if uses_plain_form("convolve"):
        return convolve_plain(x, kernel, strides, padding)
    if padding == "same":
        x = _pad_same(x, kernel.shape[1:3], strides, 0.0)
    axes = zip(x.shape[1:3], kernel.shape[1:3], strides, strict=True)
    num_windows = math.prod(out_size(size, window, stride, "valid") for size, window, stride in axes)
    if num_windows * math.prod(kernel.shape[1:]) <= MAX_PATCH_NUMBERS and backend.is_cpu():
        return _convolve_by_patches(x, kernel, strides)
    return _convolve(x, kernel, strides)


def convolve_plain(
    x: Array, kernel: Array, strides: tuple[int, int] = (1, 1), padding: Padding = "valid"
) -> Array:
    """Call `lax.conv_general_dilated`: the plain form of `convolve`."""
    return jax.lax.conv_general_dilated(
        x, kernel.transpose(1, 2, 3, 0), strides, padding.upper(), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _convolve(x: Array, kernel: Array, strides: tuple[int, int]) -> Array:
    # The CPU's fast routines need a kernel with this layout in memory. Otherwise XLA uses the transposed view inside a
    # loop, by a routine that is ten times slower.
    kernel = materialise(kernel.transpose(1, 2, 3, 0))
    return jax.lax.conv_general_dilated(
        x, kernel, strides, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


_convolve_by_patches = jax.custom_jvp(_convolve, nondiff_argnums=(2,))


@_convolve_by_patches.defjvp
def _convolve_jvp(strides: tuple[int, int], primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    x, kernel = primals
    x_patches = patches(x, kernel.shape[1:3], strides)
    tangent_patches = patches(tangents[0], kernel.shape[1:3], strides)
    columns, tangent_columns = (k.reshape(len(kernel), -1).T for k in (kernel, tangents[1]))
    return x_patches @ columns, x_patches @ tangent_columns + tangent_patches @ columns


def patches(x: Array, window: tuple[int, ...], strides: tuple[int, int]) -> Array:
    """Gather the entries of each window, [batch, height', width', places of the window x channels]."""
    rows = [_window_entries(x, 1, start, window[0], strides[0]) for start in range(window[0])]
    parts = [
        _window_entries(row, 2, start, window[1], strides[1]) for row in rows for start in range(window[1])
    ]
    return materialise(jnp.concatenate(parts, axis=-1))  # else XLA computes it again in each product


def _window_entries(x: Array, axis: int, start: int, window: int, stride: int) -> Array:
    """Return the entry at the place `start` of each window along an axis."""
    count = out_size(x.shape[axis], window, stride, "valid")
    return jax.lax.slice_in_dim(x, start, start + stride * (count - 1) + 1, stride, axis)


def _pad_same(x: Array, window: tuple[int, ...], strides: tuple[int, int], value: float) -> Array:
    low_and_high = jax.lax.padtype_to_pads(x.shape[1:3], window, strides, "SAME")
    return jnp.pad(x, [(0, 0), *low_and_high, (0, 0)], constant_values=value)


class Conv(nnx.Module):
    """`convolve` with a learned kernel and a learned bias, which is initially zero, or without a bias (None)."""

    def __init__(
        self,
        kernel: Array,
        *,
        strides: tuple[int, int] = (1, 1),
        padding: Padding = "valid",
        has_bias: bool = True,
    ):
        self.strides = strides
        self.padding = padding
        self.kernel = nnx.data(kernel)  # [out, kernel height, kernel width, in]
        self.bias = nnx.data(jnp.zeros(kernel.shape[0], jnp.float32)) if has_bias else None

    def __call__(self, x: Array) -> Array:
        """Convolve images, [batch, height, width, in] -> [batch, height', width', out]."""
        return self.with_bias(convolve(x, self.kernel, self.strides, self.padding))

    def with_bias(self, x: Array) -> Array:
        """Add the bias, if there is one, to [..., out]."""
        return x if self.bias is None else x + self.bias


class ChannelNorm(nnx.Module):
    """Normalisation of the channels at each place of each image, with learned scale and bias.

    Source: Ba et al. 2016, "Layer Normalization".
    """

    def __init__(self, channels: int):
        self.scale = nnx.data(jnp.ones(channels, jnp.float32))
        self.bias = nnx.data(jnp.zeros(channels, jnp.float32))

    def __call__(self, x: Array) -> Array:
        """Normalise [..., channels] -> [..., channels]."""
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
        return self.scale * centred * jax.lax.rsqrt(variance + 1e-6) + self.bias


def max_pool(
    x: Array, window: tuple[int, int], strides: tuple[int, int], padding: Padding = "valid"
) -> Array:
    """Compute the maximum of each window and channel: [batch, height, width, channels] -> the same axes.

    Slices are compared, first over the rows of a window, then over its columns. Values are bit-equal to
    `max_pool_plain`, and so are gradients where the maximum is unique. Several equal maxima share the gradient; the
    plain form gives it to the first.

    Gain: 3 x 3 with stride 2 on 32 images of 64 x 64 x 16 took 12 ms instead of 155 with its gradient.
    """
    if uses_plain_form("max_pool"):
        return max_pool_plain(x, window, strides, padding)
    if padding == "same":
        x = _pad_same(x, window, strides, -jnp.inf)
    for axis, size, stride in zip((1, 2), window, strides, strict=True):
        x = functools.reduce(
            jnp.maximum, [_window_entries(x, axis, start, size, stride) for start in range(size)]
        )
    return x


def max_pool_plain(
    x: Array, window: tuple[int, int], strides: tuple[int, int], padding: Padding = "valid"
) -> Array:
    """Call `lax.reduce_window`: the plain form of `max_pool`."""
    return nnx.max_pool(x, window, strides, padding.upper())


def out_size(size: int, window: int, stride: int, padding: Padding) -> int:
    """Return the number of windows along an axis; 0 or less if an unpadded axis is shorter than a window."""
    return math.ceil(size / stride) if padding == "same" else (size - window) // stride + 1


def image_shape(owner: str, in_shape: Sequence[int], channels_first: bool) -> Image:
    """Return height, width and channels of an input of this shape.

    Raises:
      ShoalError: the shape does not have three axes, or an axis is empty.
    """
    axes = "(channels, height, width)" if channels_first else "(height, width, channels)"
    if len(in_shape) != 3 or min(in_shape) < 1:
        raise ShoalError(f"in_shape={tuple(in_shape)} of a {owner} must be {axes}, each at least 1.")
    first, second, third = in_shape
    return (second, third, first) if channels_first else (first, second, third)


def to_images(x: Array, in_shape: tuple[int, ...], channels_first: bool) -> tuple[Array, tuple[int, ...]]:
    """Convert [..., *in_shape] to float32 [batch, height, width, channels]; return also the leading axes.

    Raises:
      ShoalError: the last axes of x are not `in_shape`.
    """
    x = jnp.asarray(x)
    batch_shape = leading_shape("x", x, in_shape)
    x = x.astype(jnp.float32).reshape(math.prod(batch_shape), *in_shape)
    return (x.transpose(0, 2, 3, 1) if channels_first else x), batch_shape


def as_pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Return a pair: a number for both directions, or the two numbers that are given.

    Raises:
      ShoalError: the value is neither an integer nor a pair, or a number is below 1.
    """
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(not isinstance(each, int) or each < 1 for each in both):
        raise ShoalError(f"{name}={value} must be an integer of at least 1, or a pair of them.")
    return both


def conv_layers(
    image: Sequence[int],
    channels: Sequence[int],
    kernels: Windows,
    strides: Windows,
    padding: Padding,
    *,
    of: str,
    prefix: str = "",
    hint: str = "",
) -> list[Layer]:
    """Compute the shape of each convolution's kernel, its strides, and the image that it makes.

    Args:
      of: whose convolutions they are, for the sentences, in which `prefix` begins the names of these arguments, and
        `hint` says where numbers come from that are not given.
    Raises:
      ShoalError: lists of different lengths, numbers below 1, a kernel larger than what reaches it.
    """
    # By JAX's name, "SAME", it would be taken for "valid".
    if padding not in ("valid", "same"):
        raise ShoalError(f"{prefix}padding={padding!r} of {of} must be 'valid' or 'same'.")
    if not len(channels) == len(kernels) == len(strides):
        raise ShoalError(
            f"{prefix}channels={tuple(channels)}, {prefix}kernels={tuple(kernels)} and {prefix}strides="
            f"{tuple(strides)} of {of} must have equally many numbers, one for each convolution{hint}."
        )
    layers: list[Layer] = []
    for index, (outputs, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        window, step = (
            as_pair(f"{prefix}kernels[{index}]", kernel),
            as_pair(f"{prefix}strides[{index}]", stride),
        )
        height, width = map(out_size, image[:2], window, step, (padding, padding))
        if min(height, width) < 1:
            raise ShoalError(
                f"{prefix}kernels={tuple(kernels)} with {prefix}strides={tuple(strides)} has a window of {window[0]} x "
                f"{window[1]}, which is larger than the {image[0]} x {image[1]} image that reaches convolution "
                f"{index + 1} of {of}; smaller kernels or strides, fewer of them, or {prefix}padding='same' would do."
            )
        layers.append(((outputs, *window, image[2]), step, (height, width, outputs)))
        image = (height, width, outputs)
    return layers
