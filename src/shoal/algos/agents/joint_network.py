"""The settings of a network that is shown all agents of a world at once."""

from typing import ClassVar, Literal

from shoal import trees
from shoal.arguments import LARGEST_INDEX
from shoal.errors import ShoalError
from shoal.nets.activations import activation
from shoal.nets.joint import JointActorCritic
from shoal.trees import parameter
from shoal.types import Array, EnvSpec


@trees.struct
class JointNetwork:
    """The settings of `shoal.nets.joint.JointActorCritic`: attention between the agents of a world."""

    sees_all_agents: ClassVar[bool] = True
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "network": ("hidden_sizes", "attention_heads", "activation"),
        "actions": ("distribution",),
    }

    hidden_sizes: tuple[int, ...] = parameter((64, 64), low=1, high=LARGEST_INDEX, longest=64)
    """Gives the torso of each agent hidden layers of these widths."""
    attention_heads: int = parameter(4, low=1, high=LARGEST_INDEX)
    """Lets an agent attend to the others by this many heads, which divide the width of the last hidden layer."""
    activation: str = "tanh"
    """Applies this activation, by its name, after each hidden layer."""
    distribution: Literal["auto", "categorical", "normal", "tanh_normal", "beta"] = "auto"
    """Chooses the policy's distribution; auto takes what fits the action space: categorical, or normal for a Box."""

    def build(self, spec: EnvSpec, key: Array) -> JointActorCritic:
        """A new network."""
        return JointActorCritic(
            spec,
            sizes=self.hidden_sizes,
            heads=self.attention_heads,
            activation=self.activation,
            distribution=self.distribution,
            key=key,
        )

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
