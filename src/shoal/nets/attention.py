"""Attention between the rows of a set: the agents of a world, or the bodies in it."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.nets.mlp import MLP

Array = jax.Array


class SetAttention(nnx.Module):
    """Messages between the rows of a set: one layer of attention with several heads, which divide `width`
    (Vaswani et al. 2017).
    """

    def __init__(self, width: int, heads: int, *, key: Array):
        in_key, out_key = jax.random.split(key)
        self.heads = heads
        self.projection = MLP(width, (), 3 * width, key=in_key)
        self.output = MLP(width, (), width, key=out_key)

    def __call__(self, features: Array, present: Array) -> Array:
        """Map features [..., K, width], and which rows count [..., K], to each row's messages, [..., K, width]."""
        split = self.projection(features).reshape(*features.shape[:-1], self.heads, 3, -1)
        query, key, value = (split[..., k, :] for k in range(3))
        logits = jnp.einsum("...ihd,...jhd->...hij", query, key) / math.sqrt(query.shape[-1])
        # Not -inf: where no row counts, the softmax would be NaN.
        logits = jnp.where(present[..., None, None, :], logits, jnp.finfo(logits.dtype).min)
        messages = jnp.einsum("...hij,...jhd->...ihd", jax.nn.softmax(logits, axis=-1), value)
        return self.output(messages.reshape(features.shape))
