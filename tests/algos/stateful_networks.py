"""Networks with dropout and batch normalisation: of an actor and a critic, of action values, and as a torso."""

import jax
from flax import nnx

from shoal.ops.distributions import Categorical
from shoal.types import spaces


class Layers(nnx.Module):
    """One hidden layer, normalised, with dropped units, or both."""

    def __init__(self, inputs, width, outputs, norm, rate, *, key):
        rngs = nnx.Rngs(key)
        # What a bias adds, normalisation takes off: its gradient would be rounding, which Adam makes large.
        self.hidden = nnx.Linear(inputs, width, use_bias=not norm, rngs=rngs)
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs) if norm else nnx.data(None)
        self.dropout = nnx.Dropout(rate, rngs=rngs) if rate else nnx.data(None)
        self.out = nnx.Linear(width, outputs, rngs=rngs)

    def __call__(self, x):
        x = self.hidden(x)
        x = jax.nn.tanh(x if self.norm is None else self.norm(x))
        return self.out(x if self.dropout is None else self.dropout(x))


class Actor(nnx.Module):
    def __init__(self, *arguments, key):
        self.layers = Layers(*arguments, key=key)

    def policy(self, observation, action_mask=None):
        return Categorical(self.layers(observation))


class Normalised(nnx.Module):
    """An actor-critic, and action values by the actor's layers."""

    width, norm, rate = 16, True, 0.0

    def __init__(self, spec, *, key):
        actor_key, critic_key = jax.random.split(key)
        inputs = spaces.zeros(spec.observation_space).size
        self.actor = Actor(inputs, self.width, spec.action_space.n, self.norm, self.rate, key=actor_key)
        self.critic = Layers(inputs, self.width, 1, self.norm, self.rate, key=critic_key)

    def policy(self, observation, action_mask=None):
        return self.actor.policy(observation, action_mask)

    def value(self, observation):
        return self.critic(observation)[..., 0]

    def values(self, observation):
        return self.actor.layers(observation)


class Dropped(Normalised):
    norm, rate = False, 0.25


class Both(Normalised):
    norm, rate = True, 0.25


class Wide(Normalised):
    width = 64


class WideDropped(Dropped):
    width, rate = 64, 0.1


class NoKeys(Normalised):
    """Its dropout is given no key."""

    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.critic.dropout = nnx.Dropout(0.5)


class HeldKeys(Both):
    """Holds what its layers draw their keys from, and gives it to one of them."""

    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.rngs, self.dropout = nnx.Rngs(key), nnx.Dropout(0.5)

    def value(self, observation):
        return super().value(self.dropout(observation, rngs=self.rngs))


class DrawsAlways(HeldKeys):
    """Draws in the mode eval too."""

    def value(self, observation):
        return super().value(observation) + self.rngs.normal(observation.shape[:-1])


class BatchAlways(Normalised):
    """Normalises by the batch in the mode eval too."""

    def value(self, observation):
        layers = self.critic
        return layers.out(layers.norm(layers.hidden(observation), use_running_average=False))[..., 0]


class Torso(nnx.Module):
    """A torso with both."""

    def __init__(self, space, *, key):
        self.layers = Layers(spaces.zeros(space).size, 16, 8, True, 0.25, key=key)
        self.num_features = 8

    def __call__(self, observation):
        return self.layers(observation)
