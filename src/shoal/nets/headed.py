"""A head with a layer (or an MLP) before it, so that each head has its own scale of initial weights."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from shoal.nets.heads import GSDEHead
from shoal.nets.mlp import MLP
from shoal.nets.torso_config import TorsoConfig
from shoal.types import PyTree

Array = jax.Array


class Headed(nnx.Module):
    """A head on features, with a plain layer or an MLP before it.

    Args:
      head: any of `shoal.nets.heads`, `value_heads` or `q_heads`; it has the number of its inputs.
      scale: scale of the initial weights of the plain layer. If these are orthogonal and the layer has no more
        outputs than inputs, its outputs have the standard deviation `scale` for independent features of variance 1.
      out_initialiser: of that layer; None takes `initialiser`.
    Raises:
      ShoalError: a width below 1, an unknown activation or initialiser.
    """

    def __init__(
        self,
        head: Any,
        in_features: int,
        sizes: Sequence[int] = (),
        *,
        scale: float,
        activation: str = "tanh",
        layer_norm: bool = False,
        hidden_scale: float = math.sqrt(2),
        initialiser: str = "orthogonal",
        out_initialiser: str | None = None,
        key: Array,
    ):
        self.head = head
        self.mlp = MLP(
            in_features,
            sizes,
            head.num_inputs,
            activation=activation,
            layer_norm=layer_norm,
            scale=hidden_scale,
            out_scale=scale,
            initialiser=initialiser,
            out_initialiser=out_initialiser,
            key=key,
        )

    @property
    def in_features(self) -> int:
        """Length of the features."""
        return self.mlp.in_features

    def __call__(self, features: PyTree, *rest: Array | None) -> Any:
        """Compute the head's output on [..., in_features]; the head is also given `rest` (a mask of actions)."""
        return self.with_features(features, *rest)[0]

    def with_features(self, features: PyTree, *rest: Array | None) -> tuple[Any, Array]:
        """Compute the head's output and the last hidden layer, [..., mlp.num_features]."""
        x, hidden = self.mlp.with_features(features)
        # Its noise is a function of the layer before its own; all other heads take their inputs alone.
        is_gsde = isinstance(self.head, GSDEHead)
        return self.head(x, hidden, *rest) if is_gsde else self.head(x, *rest), hidden


class ConfiguredHead(Headed):
    """A head and the layers before it, in the style that the settings of a network give its hidden layers."""

    def __init__(
        self,
        head: object,
        in_features: int,
        sizes: Sequence[int],
        scale: float,
        config: TorsoConfig,
        *,
        key: Array,
    ):
        super().__init__(
            head,
            in_features,
            sizes,
            scale=scale,
            activation=config.activation,
            layer_norm=config.layer_norm,
            hidden_scale=config.hidden_scale,
            initialiser=config.initialiser,
            out_initialiser=config.head_initialiser,
            key=key,
        )


class PolicyAndValue(nnx.Module):
    """A policy and a value on the same features, each with its own head and scale.

    Args:
      policy_scale: scale of the initial weights of the policy's plain layer; small, so that all actions are
        about equally likely at the start.
    Raises:
      ShoalError: a width below 1, an unknown activation or initialiser.
    """

    def __init__(
        self,
        in_features: int,
        policy_head: object,
        value_head: object,
        *,
        policy_sizes: Sequence[int] = (),
        value_sizes: Sequence[int] = (),
        policy_scale: float = 0.01,
        value_scale: float = 1.0,
        activation: str = "tanh",
        layer_norm: bool = False,
        hidden_scale: float = math.sqrt(2),
        initialiser: str = "orthogonal",
        key: Array,
    ):
        policy_key, value_key = jax.random.split(key)
        style: dict[str, Any] = dict(
            activation=activation, layer_norm=layer_norm, hidden_scale=hidden_scale, initialiser=initialiser
        )
        self.in_features = in_features
        self.policy = Headed(
            policy_head, in_features, policy_sizes, scale=policy_scale, key=policy_key, **style
        )
        self.value = Headed(value_head, in_features, value_sizes, scale=value_scale, key=value_key, **style)

    def __call__(self, features: Array, action_mask: Array | None = None) -> tuple[Any, Any]:
        """Compute a distribution over actions and a value on [..., in_features], both with batch axes [...]."""
        return self.policy(features, action_mask), self.value(features)
