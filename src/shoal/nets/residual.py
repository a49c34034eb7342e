"""The residual torso of IMPALA for images."""

import math
from collections.abc import Sequence

import jax
from flax import nnx

from shoal.nets.activations import activation as activation_named
from shoal.nets.convolution import Conv, Padding, image_shape, max_pool, out_size, to_images
from shoal.nets.initialisers import kernels as initial_kernels
from shoal.nets.mlp import MLP

Array = jax.Array

PADDING: Padding = "same"  # of convolutions and of pooling
KERNEL, POOL, POOL_STRIDE = (3, 3), (3, 3), (2, 2)
CHANNELS, SIZES = (16, 32, 32), (256,)  # of the stacks, and of the layers after them


class ResidualCNN(nnx.Module):
    """Stacks of convolution, max-pooling and residual blocks, then an MLP.

        stack: x ← pool(conv(x)), then for each block x ← x + conv(f(conv(f(x))))
        output: MLP(f(x))

    All windows are 3 x 3 with padding, so that a convolution keeps the size and a stack halves it.

    Args:
      final_activation: whether the last layer has an activation; without it and without `sizes` f(x) is x.
    Raises:
      ShoalError: an `in_shape` that is none of an image, an unknown activation or initialiser.
    Source: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
    Actor-Learner Architectures", figure 3 (right).
    """

    def __init__(
        self,
        in_shape: Sequence[int],
        channels: Sequence[int] = CHANNELS,
        *,
        blocks: int = 2,
        channels_first: bool = False,
        sizes: Sequence[int] = SIZES,
        out_features: int | None = None,
        activation: str = "relu",
        scale: float = math.sqrt(2),
        out_scale: float = 1.0,
        initialiser: str = "orthogonal",
        final_activation: bool = True,
        key: Array,
    ):
        activation_named(activation)
        height, width, inputs = image_shape("ResidualCNN", in_shape, channels_first)
        shapes: list[tuple[int, ...]] = []
        for count in channels:
            shapes += [(count, *KERNEL, inputs)] + [(count, *KERNEL, count)] * (2 * blocks)
            height, width = map(out_size, (height, width), POOL, POOL_STRIDE, (PADDING, PADDING))
            inputs = count
        conv_key, mlp_key = jax.random.split(key)
        # Drawn together, since one loop for all compiles faster than one for each.
        initial = initial_kernels(conv_key, shapes, initialiser) if shapes else []
        self.in_shape = tuple(in_shape)
        self.channels_first = channels_first
        self.activation = activation
        self.activates_blocks = final_activation or bool(sizes)
        self.blocks = blocks
        self.convs = nnx.List([Conv(scale * kernel, padding=PADDING) for kernel in initial])
        self.mlp = MLP(
            height * width * inputs,
            sizes,
            out_features,
            activation=activation,
            scale=scale,
            out_scale=out_scale,
            initialiser=initialiser,
            final_activation=final_activation,
            key=mlp_key,
        )

    @property
    def out_features(self) -> int:
        """Length of the features of the MLP."""
        return self.mlp.out_features

    def __call__(self, x: Array) -> Array:
        """Compute features, [..., *in_shape] of any real dtype -> [..., out_features]."""
        x, batch_shape = to_images(x, self.in_shape, self.channels_first)
        activate = activation_named(self.activation)
        each = 1 + 2 * self.blocks
        for start in range(0, len(self.convs), each):
            narrow, *pairs = self.convs[start : start + each]
            x = max_pool(narrow(x), POOL, POOL_STRIDE, PADDING)
            for first, second in zip(pairs[::2], pairs[1::2], strict=True):
                x = x + second(activate(first(activate(x))))
        x = activate(x) if self.activates_blocks else x
        return self.mlp(x.reshape(*batch_shape, self.mlp.in_features))
