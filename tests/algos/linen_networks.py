"""Modules of flax.linen as people write them: a torso, a network, an actor, a critic and values of actions."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen

from shoal.ops.distributions import Normal


class Torso(linen.Module):
    """Tanh layers; it flattens what lies behind its only batch axis."""

    features: Sequence[int] = (8,)

    @linen.compact
    def __call__(self, x):
        x = x.reshape((x.shape[0], -1))
        for size in self.features:
            x = jnp.tanh(linen.Dense(size)(x))
        return x


class OfAll(Torso):
    """Of all entries of what it is shown, such as a critic's observations and state."""

    @linen.compact
    def __call__(self, x):
        leaves = jax.tree.leaves(x)
        return super().__call__(jnp.concatenate([y.reshape(y.shape[0], -1) for y in leaves], axis=-1))


class ActorCritic(linen.Module):
    """Logits and a value, as PureJaxRL's network."""

    action_dim: int

    @linen.compact
    def __call__(self, x):
        hidden = Torso()(x)
        return linen.Dense(self.action_dim)(hidden), jnp.squeeze(linen.Dense(1)(hidden), -1)


class Gaussian(linen.Module):
    """A distribution whose deviation has no batch axis."""

    size: int

    @linen.compact
    def __call__(self, x):
        deviation = jnp.exp(self.param("log_std", linen.initializers.zeros, (self.size,)))
        return Normal(linen.Dense(self.size)(x), deviation), linen.Dense(1)(x)[..., 0]


class Actor(linen.Module):
    """Logits of two actions, which are its values too."""

    @linen.compact
    def __call__(self, x):
        return linen.Dense(2)(Torso()(x))


class Critic(linen.Module):
    """A value."""

    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(Torso()(x))[..., 0]


def network(spec):
    """Make a network for a spec."""
    return ActorCritic(spec.action_space.n)


def gaussian(spec):
    """Make a network for actions of a Box."""
    return Gaussian(spec.action_space.shape[0])


def listed(space):
    """Make a torso whose field is a list, which has no hash."""
    return Torso([8, 4])
