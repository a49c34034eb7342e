"""The network of xminigrid's own baselines, in Flax Linen, by its published settings.

Embeddings of tiles and colours, three convolutions, embeddings of the direction and of the previous action, the
previous reward, a GRU whose input is projected step by step, and two heads with a hidden layer each.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.initializers import glorot_normal, orthogonal, zeros
from xminigrid.core.constants import NUM_COLORS, NUM_TILES

EMBEDDING, CHANNELS, CORE, HEAD = 16, (16, 32, 64), 256, 256


class Inputs(NamedTuple):
    """What the network is shown, [B, T, ...]."""

    view: jax.Array  # tiles and colours, uint8 [7, 7, 2]
    direction: jax.Array  # one-hot, [4]
    action: jax.Array  # the previous one
    reward: jax.Array  # the previous one


class GRU(nn.Module):
    """A gated recurrent unit over T steps: [T, I] and [H] -> [T, H] and [H]."""

    size: int

    @nn.compact
    def __call__(self, x: jax.Array, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Outputs at each step, and the last of them."""
        rows = 3 * self.size
        kernel = self.param("kernel", glorot_normal(in_axis=1, out_axis=0), (rows, x.shape[-1]))
        recurrent = self.param("recurrent", orthogonal(column_axis=0), (rows, self.size))
        bias = self.param("bias", zeros, (rows,))
        candidate_bias = self.param("candidate_bias", zeros, (self.size,))

        def step(hidden: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            reset_x, update_x, new_x = jnp.split(kernel @ x + bias, 3)
            reset_h, update_h, new_h = jnp.split(recurrent @ hidden, 3)
            reset, update = nn.sigmoid(reset_x + reset_h), nn.sigmoid(update_x + update_h)
            new = nn.tanh(new_x + reset * (new_h + candidate_bias))
            hidden = (1.0 - update) * new + update * hidden
            return hidden, hidden

        last, every = jax.lax.scan(step, hidden, x)
        return every, last


class ActorCritic(nn.Module):
    """Logits [B, T, actions], values [B, T] and the memory after the last step [B, H]."""

    num_actions: int

    @nn.compact
    def __call__(self, inputs: Inputs, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Runs over T steps of B environments."""
        cells = inputs.view.astype(jnp.int32)
        tiles, colours = nn.Embed(NUM_TILES, EMBEDDING), nn.Embed(NUM_COLORS, EMBEDDING)
        x = jnp.concatenate([tiles(cells[..., 0]), colours(cells[..., 1])], axis=-1)
        for channels in CHANNELS:
            conv = nn.Conv(channels, (2, 2), padding="VALID", kernel_init=orthogonal(math.sqrt(2)))
            x = nn.relu(conv(x))
        seen = [x.reshape(*x.shape[:2], -1), nn.Dense(EMBEDDING)(inputs.direction)]
        seen += [nn.Embed(self.num_actions, EMBEDDING)(inputs.action), inputs.reward[..., None]]
        batched = nn.vmap(GRU, variable_axes={"params": None}, split_rngs={"params": False})
        features, hidden = batched(CORE)(jnp.concatenate(seen, axis=-1), hidden)

        def head(outputs: int, scale: float) -> jax.Array:
            inside = nn.tanh(nn.Dense(HEAD, kernel_init=orthogonal(2))(features))
            return nn.Dense(outputs, kernel_init=orthogonal(scale))(inside)

        return head(self.num_actions, 0.01), head(1, 1.0)[..., 0], hidden
