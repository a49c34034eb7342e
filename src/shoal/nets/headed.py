"""A layer (or an MLP) and the head upon it, so that each head has initial weights of a scale of its own."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from shoal.nets.heads import GSDEHead
from shoal.nets.mlp import MLP

Array = jax.Array


class Headed(nnx.Module):
    """From features to what a head makes of them, by one plain layer or an MLP of its own.

    Args:
      head: any of `shoal.nets.heads`, `value_heads` or `q_heads`; it says how many numbers it needs.
      in_features: length of the features.
      sizes: activated layers before the plain one; may be empty.
      scale: of the initial weights of the plain layer. Where it is orthogonal and has no more outputs than
        inputs, it makes numbers of the standard deviation `scale` of independent features of variance 1.
      activation: of the activated layers, a name in `shoal.nets.activations.ACTIVATIONS`.
      layer_norm: normalise these.
      hidden_scale: of their initial weights.
      initialiser: of all weights; a name in `shoal.nets.initialisers.INITIALISERS`.
      key: a JAX key.

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
            key=key,
        )

    @property
    def in_features(self) -> int:
        """Length of the features."""
        return self.mlp.in_features

    def __call__(self, features: Array, *rest: Any) -> Any:
        """[..., in_features] -> what the head makes of it, which is given `rest` too (a mask of actions)."""
        x, hidden = self.mlp.with_features(features)
        if isinstance(self.head, GSDEHead):
            return self.head(x, hidden, *rest)
        return self.head(x, *rest)


class PolicyAndValue(nnx.Module):
    """A policy and a value upon the same features, each with a head and a scale of its own.

    Args:
      in_features: length of the features.
      policy_head: one of `shoal.nets.heads`.
      value_head: one of `shoal.nets.value_heads`.
      policy_sizes: activated layers of the policy's own; may be empty.
      value_sizes: the same of the value's.
      policy_scale: of the initial weights of the policy's plain layer; small, so that all actions begin
        about equally likely.
      value_scale: the same of the value's.
      activation, layer_norm, hidden_scale, initialiser, key: see `Headed`.

    Raises:
      ShoalError: a width below 1, an unknown activation or initialiser.
    """

    def __init__(
        self,
        in_features: int,
        policy_head: Any,
        value_head: Any,
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
        """[..., in_features] -> a distribution over actions and a value, both with batch axes [...]."""
        return self.policy(features, action_mask), self.value(features)
