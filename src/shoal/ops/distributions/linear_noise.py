"""A normal distribution whose noise is a linear function of numbers that can be held over steps."""

import dataclasses

import jax
import jax.numpy as jnp

from shoal.ops.distributions.continuous import Normal
from shoal.ops.distributions.restricted import Restricted

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearNoise:
    """A Normal as the sum of its mean and of weights times standard normal numbers E, float32 [..., n].

        x_j = loc_j + Σ_i weights_ij E_ij

    With an E for each sample it is the Normal of deviation `sqrt(Σ_i weights_ij²)`, whose methods it has: densities,
    entropy and divergence are those. One E for several steps (`with_noise`) correlates the samples of these steps, each
    of which is still distributed so.

    Source: Raffin et al. 2021, "Smooth Exploration for Robotic Reinforcement Learning", section 3.
    """

    marginal: Normal | Restricted  # [..., n]
    weights: Array  # 0 where there is no entry, [..., m, n]

    def with_noise(self, noise: Array) -> Array:
        """Return the sample of given numbers E, [..., m, n] -> [..., n]."""
        return self.marginal.loc + jnp.sum(self.weights * noise, axis=-2)

    def __getattr__(self, name: str) -> object:
        """Return a method or parameter of the Normal."""
        if name.startswith("__"):  # Python's own, such as those by which an object is copied
            raise AttributeError(name)
        return getattr(self.marginal, name)
