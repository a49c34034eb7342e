"""Heads for values of actions: of each of n discrete actions, or of a continuous action.

Those for discrete actions have no parameters: `shoal.nets.headed.Headed` (or a `NoisyMLP`) puts a layer of width
`num_inputs` before a head. A mask of legal actions is given to the distribution that selects an action:
`EpsilonGreedy(values, epsilon, mask)`.
"""

from collections.abc import Sequence
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from shoal.nets.headed import Head, Headed, HeadStyle
from shoal.nets.inputs import leading_shape
from shoal.nets.value_heads import DiscreteValuedHead, ScalarValueHead
from shoal.ops.distributions import DiscreteValued
from shoal.types import PyTree

Array = jax.Array


def dueling(x: Array, n: int, length: int = 1) -> Array:
    """Compute values of actions from the value of the state and the advantages of the actions.

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    If a value has several atoms or quantiles, the formula applies to each of them.

    Args:
      x: V, then A of each action in order, [..., (1 + n) length].
      length: the number of atoms or quantiles of a value, or 1.
    Returns:
      Q, [..., n, length].
    Raises:
      ShoalError: x does not end in an axis of that length.
    Source: Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning", eq. 9; for
    atoms Hessel et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning".
    """
    streams = x.reshape(*leading_shape("x", x, ((1 + n) * length,)), 1 + n, length)
    value, advantages = streams[..., :1, :], streams[..., 1:, :]
    # Without the mean a constant could move between V and A, and neither would be determined.
    return value + advantages - jnp.mean(advantages, axis=-2, keepdims=True)


class QHead(nnx.Module):
    """A value for each of n actions, which are the inputs.

    Source: Mnih et al. 2015, "Human-Level Control through Deep Reinforcement Learning".
    """

    def __init__(self, n: int):
        self.n = self.num_inputs = n

    def __call__(self, x: Array) -> Array:
        """Return the input, which is Q, [..., n]."""
        leading_shape("x", x, (self.num_inputs,))
        return x


class DuelingQHead(nnx.Module):
    """A value for each of n actions, computed by `dueling`.

    With separate layers before the value and before the advantages (`Branches` of two MLPs of one and of n
    outputs) it is the network of the paper; with one layer for both it has the same form and costs less.

    Source: Wang et al. 2016, "Dueling Network Architectures for Deep Reinforcement Learning", eq. 9.
    """

    def __init__(self, n: int):
        self.n = n
        self.num_inputs = 1 + n

    def __call__(self, x: Array) -> Array:
        """Compute Q, [..., n], from V and n advantages, [..., 1 + n]."""
        return dueling(x, self.n)[..., 0]


class DistributionalQHead(DiscreteValuedHead):
    """A distribution over evenly spaced atoms from `low` to `high` for the return of each of n actions (C51).
    `dueling` makes the logits from those of the state and of the advantages, as in Rainbow.

    Raises:
      ShoalError: `low` not below `high`, fewer than two atoms.
    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", section 4;
    Hessel et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning", for dueling logits.
    """

    def __init__(self, n: int, low: float, high: float, num_atoms: int = 51, *, dueling: bool = False):
        super().__init__(np.linspace(low, high, num_atoms), (n,))
        self.dueling = dueling
        self.num_inputs = (n + dueling) * num_atoms

    def __call__(self, x: Array) -> DiscreteValued:
        """Make a DiscreteValued with batch axes [..., n] from [..., num_inputs]; its `mean()` is Q, [..., n]."""
        if self.dueling:
            x = dueling(x, self.shape[0], len(self.values)).reshape(*x.shape[:-1], -1)
        return super().__call__(x)


class QuantileQHead(nnx.Module):
    """Quantiles of the return of each of n actions, at the fractions of
    `ops.distributional.quantile_fractions`; Q is their mean.

    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", section 4.
    """

    def __init__(self, n: int, num_quantiles: int = 200, *, dueling: bool = False):
        self.n = n
        self.num_quantiles = num_quantiles
        self.dueling = dueling
        self.num_inputs = (n + dueling) * num_quantiles

    def __call__(self, x: Array) -> Array:
        """Compute quantiles, [..., n, num_quantiles], from [..., num_inputs]."""
        if self.dueling:
            return dueling(x, self.n, self.num_quantiles)
        return x.reshape(*x.shape[:-1], self.n, self.num_quantiles)


class ContinuousQ(nnx.Module):
    """The value of a continuous action: an MLP on features and action together, and a head for values.

    Args:
      head: a head for values; None is `ScalarValueHead()`, others make a distributional critic.
      style: of its layers, as a `Headed` takes it; the activation is "relu" by default.
    Raises:
      ShoalError: a width below 1, an unknown activation or initialiser; in a call, a shape that does not fit.
    Source: Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement Learning"; with the action at
    the first layer as in Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic
    Methods".
    """

    def __init__(
        self,
        in_features: int,
        action_size: int,
        sizes: Sequence[int] = (256, 256),
        *,
        head: Head | None = None,
        scale: float = 1.0,
        key: Array,
        **style: Unpack[HeadStyle],
    ):
        style.setdefault("activation", "relu")
        self.in_features = in_features
        self.headed = Headed(
            ScalarValueHead() if head is None else head,
            in_features + action_size,
            sizes,
            scale=scale,
            key=key,
            **style,
        )

    def __call__(self, features: Array, action: Array) -> PyTree:
        """Compute Q, [...], or the head's output, of features [..., in_features] and actions [..., action_size]."""
        return self.headed(jnp.concatenate([features, action], axis=-1))
