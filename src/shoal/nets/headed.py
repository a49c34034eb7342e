"""A head with a layer (or an MLP) before it, so that each head has its own scale of initial weights."""

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypedDict, Unpack

import jax
from flax import nnx

from shoal.nets.composition import Chain, Composable
from shoal.nets.heads import GSDEHead
from shoal.nets.mlp import MLP
from shoal.types import PyTree

Array = jax.Array


class Head(Composable, Protocol):
    """Any of `shoal.nets.heads`, `value_heads` or `q_heads`."""

    @property
    def num_inputs(self) -> int:
        """The number of its inputs."""
        ...


class PlainStyle(TypedDict, total=False):
    """How layers before a head are made and drawn, but for their scales."""

    activation: str
    layer_norm: bool
    layer_norm_bias: bool
    final_activation: bool
    initialiser: str
    out_initialiser: str | None


class HeadStyle(PlainStyle, total=False):
    """How layers before a head are made, but for the scale of the plain one."""

    hidden_scale: float


class Headed(nnx.Module):
    """A head on features, with a plain layer or an MLP before it.

    Args:
      scale: scale of the initial weights of the plain layer. If these are orthogonal and the layer has no more
        outputs than inputs, its outputs have the standard deviation `scale` for independent features of variance 1.
      hidden_scale: scale of the initial weights of the hidden layers.
      style: of the layers, as an `MLP` takes it.
    Raises:
      ShoalError: a width below 1, an unknown activation or initialiser.
    """

    def __init__(
        self,
        head: Head,
        in_features: int,
        sizes: Sequence[int] = (),
        *,
        scale: float,
        hidden_scale: float = math.sqrt(2),
        key: Array,
        **style: Unpack[PlainStyle],
    ):
        # A user's own may be a pytree of any class, which NNX would take for static.
        self.head = nnx.data(head)
        outputs = head.num_inputs
        self.mlp = MLP(in_features, sizes, outputs, scale=hidden_scale, out_scale=scale, key=key, **style)

    @property
    def in_features(self) -> int:
        """Length of the features."""
        return self.mlp.in_features

    def __call__(self, features: PyTree, *rest: Array | None) -> PyTree:
        """Compute the head's output on [..., in_features]; the head is also given `rest` (a mask of actions)."""
        return self.with_features(features, *rest)[0]

    def with_features(self, features: PyTree, *rest: Array | None) -> tuple[PyTree, Array]:
        """Compute the head's output and the last hidden layer, [..., mlp.num_features]."""
        x, hidden = self.mlp.with_features(features)
        # Its noise is a function of the layer before its own; all other heads take their inputs alone.
        is_gsde = isinstance(self.head, GSDEHead)
        return self.head(x, hidden, *rest) if is_gsde else self.head(x, *rest), hidden


class PolicyAndValue(nnx.Module):
    """A policy and a value on the same features, each with its own head and scale; or apart, each with its own torso.

    Args:
      in_features: the length of the features, which torsos replace.
      torsos: of the policy and of the value, with `num_features`, such as `torsos.build` makes; () for none.
      policy_scale: scale of the initial weights of the policy's plain layer; small, so that all actions are
        about equally likely at the start.
      style: of both, as a `Headed` takes it.
    Raises:
      ShoalError: a width below 1, an unknown activation or initialiser.
    """

    def __init__(
        self,
        in_features: int,
        policy_head: Head,
        value_head: Head,
        *,
        policy_sizes: Sequence[int] = (),
        value_sizes: Sequence[int] = (),
        policy_scale: float = 0.01,
        value_scale: float = 1.0,
        torsos: Sequence[Any] = (),
        key: Array,
        **style: Unpack[HeadStyle],
    ):
        policy_key, value_key = jax.random.split(key)
        self.in_features = in_features
        widths = [torso.num_features for torso in torsos] or [in_features] * 2
        policy = Headed(policy_head, widths[0], policy_sizes, scale=policy_scale, key=policy_key, **style)
        value = Headed(value_head, widths[1], value_sizes, scale=value_scale, key=value_key, **style)
        self.policy = Chain(torsos[0], policy) if torsos else policy
        self.value = Chain(torsos[1], value) if torsos else value

    def __call__(self, features: PyTree, action_mask: Array | None = None) -> tuple[PyTree, PyTree]:
        """Compute a distribution over actions and a value, both with batch axes [...], on [..., in_features].

        With torsos, on what these take.
        """
        return self.policy(features, action_mask), self.value(features)
