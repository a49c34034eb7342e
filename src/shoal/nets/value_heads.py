"""Heads for values of states: a number, or a distribution over numbers.

Like the heads of policies they have the number of their inputs (`num_inputs`) and no parameters:
`shoal.nets.headed.Headed` puts a layer of this width before a head.
"""

import math
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.outputs import Value
from shoal.ops.distributions import DiscreteValued

Array = jax.Array


def expectation(value: Value) -> Array:
    """Return the number that a critic's output stands for, [...]: the mean of a distribution, or the number itself."""
    # Arrays have a method `mean` too, which would reduce them.
    is_number = hasattr(value, "dtype") or not hasattr(value, "mean")
    return cast(Array, value if is_number else value.mean())


class ScalarValueHead(nnx.Module):
    """A value, which is the only input."""

    num_inputs = 1

    def __call__(self, x: Array) -> Array:
        """Remove the last axis, [..., 1] -> [...]."""
        return x[..., 0]


class QuantileValueHead(nnx.Module):
    """Quantiles of a value, which are the inputs, at the fractions of `ops.distributional.quantile_fractions`.

    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", section 4; for values
    of continuous actions, Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous
    Distributional Quantile Critics".
    """

    def __init__(self, num_quantiles: int = 200):
        self.num_inputs = num_quantiles

    def __call__(self, x: Array) -> Array:
        """Return the input, [..., num_quantiles]; its mean is the value."""
        return x


class DiscreteValuedHead(nnx.Module):
    """Categorical distributions over the same atoms, one for each predicted number; the inputs are the logits.

    Args:
      shape: the shape of the numbers that are predicted together; () for one.
    Raises:
      ShoalError: fewer than two atoms, or atoms that do not ascend or are not finite.
    Attributes:
      atoms: the atoms as an array, [n], an argument of the losses of `shoal.ops.distributional`.
    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", section 4.
    """

    def __init__(self, values: Sequence[float] | np.ndarray, shape: Sequence[int] = ()):
        atoms = np.asarray(values, np.float32)
        if atoms.ndim != 1 or len(atoms) < 2 or not np.all(np.isfinite(atoms)) or np.any(np.diff(atoms) <= 0):
            ends = f" from {atoms[0]:g} to {atoms[-1]:g}" if atoms.size > 1 else ""
            raise ShoalError(
                f"the {atoms.size} values{ends} of a {type(self).__name__} must be two or more finite numbers, each "
                "larger than the one before."
            )
        # As numbers: an array would be a parameter, and be trained.
        self.values = tuple(atoms.tolist())
        self.shape = tuple(shape)
        self.num_inputs = math.prod(self.shape) * len(self.values)

    @property
    def atoms(self) -> Array:
        """Values that each number may have, [n]."""
        return jnp.asarray(self.values, jnp.float32)

    def __call__(self, x: Array) -> DiscreteValued:
        """Make a DiscreteValued with batch axes [..., *shape] from [..., num_inputs]; its `mean()` is the estimate.

        Its atoms have the shape of its logits, so that it can be sliced, stacked and mapped over.
        """
        logits = x.reshape(*x.shape[:-1], *self.shape, len(self.values))
        return DiscreteValued(logits, jnp.broadcast_to(self.atoms, logits.shape))


class CategoricalValueHead(DiscreteValuedHead):
    """A value as a categorical distribution over evenly spaced atoms from `low` to `high`.

    Raises:
      ShoalError: `low` is not below `high`, or there are fewer than two atoms.
    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", section 4;
    Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification for Scalable Deep
    RL", for values that are trained as classification.
    """

    def __init__(self, low: float, high: float, num_atoms: int = 51):
        super().__init__(np.linspace(low, high, num_atoms))
