"""Deliberately broken networks, each named in one sentence."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.mlp import MLP
from shoal.nets.network_check import check_network
from shoal.nets.noisy import NoisyMLP
from shoal.ops.distributions import Categorical, Normal
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

SPEC = EnvSpec(Box(-1.0, 1.0, (3,)), Discrete(2))


class Good(nnx.Module):
    def __init__(self, spec, *, key):
        actor_key, critic_key = jax.random.split(key)
        self.actor_mlp = MLP(3, (4,), 2, key=actor_key)
        self.critic_mlp = MLP(3, (4,), 1, key=critic_key)

    def policy(self, observation, action_mask=None):
        return Categorical(self.actor_mlp(observation))

    def value(self, observation):
        return self.critic_mlp(observation)[..., 0]


class NoKey(Good):
    def __init__(self, spec):
        super().__init__(spec, key=jax.random.key(0))


class NoValue(nnx.Module):
    def __init__(self, spec, *, key):
        self.mlp = MLP(3, (4,), 2, key=key)

    def policy(self, observation, action_mask=None):
        return Categorical(self.mlp(observation))


class NoPytree:
    def __init__(self, spec, *, key):
        self.good = Good(spec, key=key)

    def policy(self, observation, action_mask=None):
        return self.good.policy(observation)

    def value(self, observation):
        return self.good.value(observation)


class WithLambda(Good):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.activation = lambda x: x


class WithKey(Good):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.key = nnx.Param(key)


class BareArray(Good):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.offset = jax.random.normal(key, (1,))

    def value(self, observation):
        return super().value(observation) + self.offset[0]


class ValueWithAxis(Good):
    def value(self, observation):
        return self.critic_mlp(observation)


class WrongAction(Good):
    def policy(self, observation, action_mask=None):
        return Normal(self.actor_mlp(observation), jnp.ones(()))


class KeyedLayer(nnx.Module):
    """A layer whose noise only a key of its call draws."""

    noisy = True

    def __init__(self, key):
        self.mlp = NoisyMLP(3, (4,), 2, key=key).mean

    def __call__(self, x, key=None):
        return self.mlp(x)


class Noisy(Good):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.actor_mlp = KeyedLayer(key)


class NoisyByKey(Good):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.actor_mlp = NoisyMLP(3, (4,), 2, key=key)


@pytest.mark.parametrize(
    "broken, message",
    [
        (NoKey, r"NoKey cannot be built as NoKey\(spec, key=key\)"),
        (NoValue, r"NoValue lacks the method 'value'"),
        (NoPytree, r"NoPytree is a pytree without arrays"),
        (WithLambda, r"WithLambda has another tree structure at each construction"),
        (WithKey, r"WithKey holds a leaf of key"),
        (BareArray, r"BareArray loses 'offset' .* nnx.Param"),
        (ValueWithAxis, r"ValueWithAxis gives values of shape \(3, 2, 1\) .* must be \(3, 2\)"),
        (
            Noisy,
            r"Noisy has noisy layers \(a KeyedLayer in 'actor_mlp'\) without a method sample\(key\), which returns",
        ),
        (WrongAction, r"WrongAction has a policy whose samples are of shape .* must be \(3, 2\)"),
    ],
)
def test_broken_networks_are_named(broken, message):
    with pytest.raises(ShoalError, match=message):
        check_network(broken, SPEC)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        EnvSpec(Dict({"a": Discrete(3), "b": Box(0.0, 1.0, (2, 2))}), MultiDiscrete((2, 3))),
        EnvSpec(Discrete(3), Box(-1.0, 1.0, (2, 2))),
    ],
)
def test_sound_networks_pass(spec):
    check_network(ActorCritic, spec)

    if spec is SPEC:
        check_network(Good, spec)
        check_network(NoisyByKey, spec)
