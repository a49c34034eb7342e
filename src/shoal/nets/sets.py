"""An encoder of sets: one vector from rows in any order and of varying number."""

from collections.abc import Sequence
from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.nets.attention import SetAttention
from shoal.nets.mlp import MLP, LayerStyle

Array = jax.Array


class SetTorso(nnx.Module):
    """One MLP for each row, then the mean and the maximum over the rows that count.

    The result is the same for every order of the rows, and rows that do not count leave no trace in it. Without any
    row that counts it is 0.

    Args:
      heads: of a layer of attention between the rows before they are pooled; 0 for none. They divide the last of
        `sizes`.
    Attributes:
      num_features: length of the vector, twice the last of `sizes`; four times with attention.
    Source: Zaheer et al. 2017, "Deep Sets".
    """

    def __init__(
        self,
        in_features: int,
        sizes: Sequence[int],
        heads: int = 0,
        *,
        key: Array,
        **style: Unpack[LayerStyle],
    ):
        mlp_key, attention_key = jax.random.split(key)
        self.mlp = MLP(in_features, sizes, key=mlp_key, **style)
        self.attention = nnx.List([SetAttention(sizes[-1], heads, key=attention_key)] if heads else [])
        self.num_features = (4 if heads else 2) * sizes[-1]

    def __call__(self, rows: Array, counts: Array | None = None) -> Array:
        """Map rows [..., K, F] and which of them count [..., K] (None for all) to [..., num_features]."""
        counts = jnp.ones(rows.shape[:-1], bool) if counts is None else counts
        # A row that does not count may hold NaN, which times 0 is NaN.
        features = self.mlp(jnp.where(counts[..., None], rows, 0.0))
        for attention in self.attention:
            features = jnp.concatenate([features, attention(features, counts)], axis=-1)
        number = jnp.sum(counts, axis=-1, dtype=features.dtype)[..., None]
        mean = jnp.sum(jnp.where(counts[..., None], features, 0.0), axis=-2) / jnp.maximum(number, 1.0)
        # The greatest of no row is -inf, which the last line takes out.
        maximum = jnp.max(jnp.where(counts[..., None], features, -jnp.inf), axis=-2)
        return jnp.concatenate([mean, jnp.where(number > 0, maximum, 0.0)], axis=-1)
