"""Noisy networks: a multi-layer perceptron with random weights, for exploration."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.nets.mlp import MLP
from shoal.types import PyTree

Array = jax.Array


class NoisyMLP(nnx.Module):
    """An MLP with a learned mean and a learned deviation of each weight, and factorised noise.

        w = μ + σ ⊙ f(ε_out) f(ε_in)ᵀ,   b = μ_b + σ_b ⊙ f(ε_out),   f(x) = sgn(x) √|x|

    with independent standard normal ε for each layer. The key of the noise is an argument, and nothing is
    stored: the same key gives the same weights, `sample` returns the MLP with these weights (to act with
    one draw for many steps), and without a key the weights are their means. One key is one draw for the
    whole batch; map over keys for an independent draw for each element.

    Initially μ is uniform in ±1/√p for a layer of p inputs, its bias included, and σ is `sigma / √p`.

    Args:
      layer_norm: normalise each hidden layer before its activation; its parameters are not noisy.
      final_activation: whether the last hidden layer has an activation.
      sigma: scale of the initial deviations, 0 or more.
    Raises:
      ShoalError: a width below 1, or an unknown activation.
    Attributes:
      mean: an `MLP` of the means.
      deviations: the deviations of each layer in order, the plain last one included.
    Source: Fortunato et al. 2018, "Noisy Networks for Exploration", section 3 (b) and 3.2.
    """

    noisy = True  # its call takes a key for the noise

    def __init__(
        self,
        in_features: int,
        sizes: Sequence[int],
        out_features: int | None = None,
        *,
        activation: str = "relu",
        layer_norm: bool = False,
        final_activation: bool = True,
        sigma: float = 0.5,
        scale: float = 1.0,
        out_scale: float = 1.0,
        key: Array,
    ):
        kernel_key, bias_key = jax.random.split(key)
        uniform_std = 1.0 / math.sqrt(3.0)  # a uniform number in ±1/√p has the variance 1/(3p)
        mean = MLP(
            in_features,
            sizes,
            out_features,
            activation=activation,
            layer_norm=layer_norm,
            final_activation=final_activation,
            scale=scale * uniform_std,
            out_scale=out_scale * uniform_std,
            initialiser="lecun_uniform",
            key=kernel_key,
        )
        layers = [*mean.layers, *mean.projection]
        # A layer's bias is drawn as its kernel is, and both have deviations of one size.
        scales = [scale] * len(mean.layers) + [out_scale] * len(mean.projection)
        deviations = []
        for layer, scale_, k in zip(layers, scales, jax.random.split(bias_key, len(layers)), strict=True):
            outputs, inputs = layer.kernel.shape
            limit = scale_ * (1.0 / math.sqrt(inputs))
            layer.bias = nnx.data(limit * jax.random.uniform(k, (outputs,), minval=-1.0, maxval=1.0))
            deviations.append(jax.tree.map(lambda leaf, s=sigma * limit: jnp.full_like(leaf, s), layer))
        self.mean = mean
        self.deviations = nnx.List(deviations)
        self.in_features = mean.in_features
        self.num_features = mean.num_features
        self.out_features = mean.out_features

    def __call__(self, x: Array, key: Array | None = None) -> Array:
        """Compute [..., in_features] -> [..., out_features], with the key's weights, or their means if it is None."""
        return (self.mean if key is None else self.sample(key))(x)

    def sample(self, key: Array) -> MLP:
        """Return a plain MLP with the weights of one draw of the noise."""
        mlp = jax.tree.map(lambda leaf: leaf, self.mean)  # a copy, whose arrays are replaced
        layers = [*mlp.layers, *mlp.projection]
        keys = jax.random.split(key, len(layers))
        for layer, deviation, k in zip(layers, self.deviations, keys, strict=True):
            noise = factorised_noise(k, deviation.kernel.shape)
            layer.kernel = nnx.data(layer.kernel + deviation.kernel * (noise[0][:, None] * noise[1]))
            layer.bias = nnx.data(layer.bias + deviation.bias * noise[0])
        return mlp


def with_noise(network: PyTree, key: Array) -> PyTree:
    """Return a network with plain layers in the place of noisy ones, of one draw of the noise; others stay.

    A noisy layer is a module that `is_noisy` and has a method `sample(key)`, such as `NoisyMLP`.
    """
    leaves, structure = jax.tree.flatten(network, is_leaf=_samples_noise)
    noisy = [index for index, leaf in enumerate(leaves) if _samples_noise(leaf)]
    for index, own_key in zip(noisy, jax.random.split(key, len(noisy)) if noisy else (), strict=True):
        leaves[index] = leaves[index].sample(own_key)
    return jax.tree.unflatten(structure, leaves)


def has_noise(network: PyTree) -> bool:
    """Report whether a network, of arrays or of their shapes, has noisy layers."""
    return any(map(_samples_noise, jax.tree.leaves(network, is_leaf=_samples_noise)))


def _samples_noise(module: object) -> bool:
    return getattr(module, "noisy", False) is True and hasattr(module, "sample")


def factorised_noise(key: Array, shape: tuple[int, int]) -> tuple[Array, Array]:
    """Draw f(ε) = `sgn(ε) √|ε|` for the outputs, [out], and the inputs, [in], of a layer; ε is standard normal.

    Each has mean 0 and variance E|ε| = √(2/π); the outer product of both is the noise of the weights.

    Source: Fortunato et al. 2018, "Noisy Networks for Exploration", eq. 10 and 11.
    """
    normal = jax.random.normal(key, (sum(shape),))
    noise = jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))
    return noise[: shape[0]], noise[shape[0] :]
