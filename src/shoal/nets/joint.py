"""A network that is shown all agents of a world at once: attention between them, a distribution and a value for each.

The agents are the axis before the last of its observations, [..., A, features]; all have the same parameters, and
their order means nothing, unless their observations tell it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.nets.attention import SetAttention
from shoal.nets.encoders import DEFAULT_LAYERS, Encoder, EncoderLayers
from shoal.nets.heads import head_for
from shoal.nets.mlp import MLP
from shoal.types import EnvSpec, PyTree
from shoal.types.agent_axis import PRESENT

Array = jax.Array


class JointActorCritic(nnx.Module):
    """A torso for each agent, attention between them, and heads of the policy and the value for each.

    Args:
      spec: of one agent; its observations have an entry that says who takes part.
      heads: of the attention; they divide the last of `sizes`.
    """

    def __init__(
        self,
        spec: EnvSpec,
        *,
        sizes: tuple[int, ...] = (64, 64),
        heads: int = 4,
        activation: str = "tanh",
        distribution: str = "auto",
        encoder: str = "flatten",
        encoder_layers: EncoderLayers = DEFAULT_LAYERS,
        key: Array,
    ):
        keys = jax.random.split(key, 5)
        style: dict[str, Any] = dict(activation=activation)
        self.encoder = Encoder(spec.observation_space, encoder, encoder_layers, key=keys[0], **style)
        self.torso = MLP(self.encoder.num_features, sizes, key=keys[1], **style)
        self.attention = SetAttention(sizes[-1], heads, key=keys[2])
        self.head = head_for(spec.action_space, distribution)
        width = 2 * sizes[-1]
        self.actor_mlp = MLP(width, sizes[-1:], self.head.num_inputs, out_scale=0.01, key=keys[3], **style)
        self.critic_mlp = MLP(width, sizes[-1:], 1, key=keys[4], **style)

    def features(self, observation: PyTree) -> Array:
        """Map observations with axes [..., A] to each agent's features and messages, [..., A, 2 width]."""
        own = self.torso(self.encoder(observation))
        present = observation[PRESENT][..., 0] > 0
        return jnp.concatenate([own, self.attention(own, present)], axis=-1)

    def policy_and_value(self, observation: PyTree, action_mask: Array | None = None) -> tuple[Any, Array]:
        """Map observations with axes [..., A] to a distribution and a value for each agent, [..., A]."""
        features = self.features(observation)
        return self.head(self.actor_mlp(features), action_mask), self.critic_mlp(features)[..., 0]

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> Any:
        """Map observations with axes [..., A] to a distribution for each agent."""
        return self.head(self.actor_mlp(self.features(observation)), action_mask)

    def value(self, observation: PyTree) -> Array:
        """Map observations with axes [..., A] to values [..., A]."""
        return self.critic_mlp(self.features(observation))[..., 0]
