"""Networks that are shown all agents of a world at once, and give a distribution and a value for each.

The agents are the axis before the last of their observations, [..., A, features]. With attention between them all have
the same parameters, and their order means nothing, unless their observations tell it; as one vector of all observations
they are told apart by their order.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs
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
    """The settings of a network of all agents of a world: `JointActorCritic` or `FlatActorCritic`."""

    sees_all_agents: ClassVar[bool] = True
    group: ClassVar[str] = "network"

    hidden_sizes: tuple[int, ...] = parameter((64, 64), low=1, high=LARGEST_INDEX, longest=MAX_LAYERS)
    """Gives the torso of each agent (attention), or actor and critic each (flat), hidden layers of these widths."""
    agents_as: Literal["attention", "flat"] = "attention"
    """Lets each agent attend to the others, by parameters that all share (attention), or makes one vector of the
    observations of all, from which one policy draws all their actions (flat)."""
    attention_heads: int = parameter(4, low=1, high=LARGEST_INDEX, needs=Needs("agents_as", ("attention",)))
    """Lets an agent attend to the others with this many heads, which divide the width of the last hidden layer."""
    activation: str = "tanh"
    """Applies this activation, by its name, after each hidden layer."""
    distribution: DistributionName = parameter("auto", group="actions")
    """Chooses the policy's distribution; auto uses what fits the action space: categorical, or normal for a Box."""

    @property
    def fits_any_number(self) -> bool:
        """Whether the network acts in worlds of other numbers of agents too."""
        return self.agents_as == "attention"

    def build(self, spec: EnvSpec, key: Array) -> "JointActorCritic | FlatActorCritic":
        """Build a new network.

        Raises:
          ShoalError: the observations are not those of several agents.
        """
        if PRESENT not in getattr(spec.observation_space, "keys", tuple)():
            raise ShoalError(
                "JointActorCritic is shown all agents of a world, and the environment has a single one; choose "
                "another network."
            )
        return (JointActorCritic if self.agents_as == "attention" else FlatActorCritic)(spec, self, key=key)

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        activation(self.activation)
        if self.agents_as == "attention" and (
            not self.hidden_sizes or self.hidden_sizes[-1] % self.attention_heads
        ):
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


class FlatActorCritic(nnx.Module):
    """An actor and a critic apart, each an MLP of the observations of all agents, with outputs of its own for each.

    Args:
      spec: of one agent, with the number of agents; its observations have an entry that says who takes part.
    """

    def __init__(self, spec: EnvSpec, config: JointNetwork, *, key: Array):
        actor_key, critic_key = jax.random.split(key)
        num_agents, sizes = spec.num_agents, config.hidden_sizes
        self.encoder = Flatten(spec.observation_space, key=key)
        self.head: Head = head_for(spec.action_space, config.distribution)
        width, outputs = num_agents * self.encoder.num_features, num_agents * self.head.num_inputs
        self.actor_mlp = MLP(
            width, sizes, outputs, out_scale=0.01, activation=config.activation, key=actor_key
        )
        self.critic = MLP(width, sizes, num_agents, activation=config.activation, key=critic_key)

    def _outputs(self, mlp: MLP, observation: PyTree) -> Array:
        """Map observations with axes [..., A] to what an MLP of all of them gives for each, [..., A, outputs / A]."""
        encoded = jnp.where(observation[PRESENT] > 0, self.encoder(observation), 0.0)
        axes = encoded.shape[:-1]
        return mlp(encoded.reshape(*axes[:-1], mlp.in_features)).reshape(*axes, -1)

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> ActionDistribution:
        """Map observations with axes [..., A] to a distribution for each agent."""
        return self.head(self._outputs(self.actor_mlp, observation), action_mask)

    def value(self, observation: PyTree) -> Array:
        """Map observations with axes [..., A] to values [..., A]."""
        return self._outputs(self.critic, observation)[..., 0]
