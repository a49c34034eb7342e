"""A network that is shown all agents of a world at once: attention between them, a distribution and a value for each.

The agents are the axis before the last of its observations, [..., A, features]; all have the same parameters, and
their order means nothing, unless their observations tell it.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.struct import parameter
from shoal.nets.activations import activation
from shoal.nets.actor_critic_config import DistributionName
from shoal.nets.attention import SetAttention
from shoal.nets.encoders.kinds import Flatten
from shoal.nets.headed import Head
from shoal.nets.heads import head_for
from shoal.nets.mlp import MLP
from shoal.nets.outputs import ActionDistribution
from shoal.nets.torso_config import MAX_LAYERS
from shoal.types import EnvSpec, PyTree
from shoal.types.agent_axis import PRESENT

Array = jax.Array


@struct.struct
class JointNetwork:
    """The settings of `JointActorCritic`: attention between the agents of a world."""

    sees_all_agents: ClassVar[bool] = True
    group: ClassVar[str] = "network"

    hidden_sizes: tuple[int, ...] = parameter((64, 64), low=1, high=LARGEST_INDEX, longest=MAX_LAYERS)
    """Gives the torso of each agent hidden layers of these widths."""
    attention_heads: int = parameter(4, low=1, high=LARGEST_INDEX)
    """Lets an agent attend to the others with this many heads, which divide the width of the last hidden layer."""
    activation: str = "tanh"
    """Applies this activation, by its name, after each hidden layer."""
    distribution: DistributionName = parameter("auto", group="actions")
    """Chooses the policy's distribution; auto uses what fits the action space: categorical, or normal for a Box."""

    def build(self, spec: EnvSpec, key: Array) -> "JointActorCritic":
        """Build a new network."""
        return JointActorCritic(spec, self, key=key)

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        activation(self.activation)
        if not self.hidden_sizes or self.hidden_sizes[-1] % self.attention_heads:
            raise ShoalError(
                f"attention_heads={self.attention_heads} do not divide the width of the last hidden layer, "
                f"hidden_sizes={self.hidden_sizes}."
            )


class JointActorCritic(nnx.Module):
    """A torso for each agent, attention between them, and heads of the policy and the value for each.

    Args:
      spec: of one agent; its observations have an entry that says who takes part.
      config: None for the defaults.
    """

    def __init__(self, spec: EnvSpec, config: JointNetwork | None = None, *, key: Array):
        config = config or JointNetwork()
        keys, sizes = jax.random.split(key, 5), config.hidden_sizes
        self.encoder = Flatten(spec.observation_space, key=keys[0])
        self.torso = MLP(self.encoder.num_features, sizes, activation=config.activation, key=keys[1])
        self.attention = SetAttention(sizes[-1], config.attention_heads, key=keys[2])
        self.head: Head = head_for(spec.action_space, config.distribution)
        # The policy's last layer is small, so that all actions are about equally likely at the start.
        width, last, outputs = 2 * sizes[-1], sizes[-1:], self.head.num_inputs
        self.actor_mlp = MLP(width, last, outputs, out_scale=0.01, activation=config.activation, key=keys[3])
        self.critic_mlp = MLP(width, last, 1, activation=config.activation, key=keys[4])

    def features(self, observation: PyTree) -> Array:
        """Map observations with axes [..., A] to each agent's features and messages, [..., A, 2 width]."""
        own = self.torso(self.encoder(observation))
        present = observation[PRESENT][..., 0] > 0
        return jnp.concatenate([own, self.attention(own, present)], axis=-1)

    def policy_and_value(
        self, observation: PyTree, action_mask: Array | None = None
    ) -> tuple[ActionDistribution, Array]:
        """Map observations with axes [..., A] to a distribution and a value for each agent, [..., A]."""
        features = self.features(observation)
        return self.head(self.actor_mlp(features), action_mask), self.critic_mlp(features)[..., 0]

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> ActionDistribution:
        """Map observations with axes [..., A] to a distribution for each agent."""
        return self.head(self.actor_mlp(self.features(observation)), action_mask)

    def value(self, observation: PyTree) -> Array:
        """Map observations with axes [..., A] to values [..., A]."""
        return self.critic_mlp(self.features(observation))[..., 0]
