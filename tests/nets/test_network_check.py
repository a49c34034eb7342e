"""Deliberately broken networks, each named in one sentence, as actor-critics and as networks of action values."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import shoal
from shoal.base.errors import ShoalError
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.joint import JointNetwork
from shoal.nets.mlp import MLP
from shoal.nets.network_check import check_network
from shoal.nets.noisy import NoisyMLP
from shoal.ops.distributions import Categorical, Normal
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

SPEC = EnvSpec(Box(-1.0, 1.0, (3,)), Discrete(2))


class Good(nnx.Module):
    """An actor-critic and a network of action values at once."""

    def __init__(self, spec, *, key):
        size = spec.observation_space.shape[0] if isinstance(spec.observation_space, Box) else 3
        actor_key, critic_key = jax.random.split(key)
        self.actor_mlp = MLP(size, (4,), 2, key=actor_key)
        self.critic_mlp = MLP(size, (4,), 1, key=critic_key)

    def policy(self, observation, action_mask=None):
        return Categorical(self.actor_mlp(observation))

    def value(self, observation):
        return self.critic_mlp(observation)[..., 0]

    def values(self, observation):
        return self.actor_mlp(observation)


class NoKey(Good):
    def __init__(self, spec):
        super().__init__(spec, key=jax.random.key(0))


class NoMethods(nnx.Module):
    def __init__(self, spec, *, key):
        self.mlp = MLP(3, (4,), 2, key=key)

    def policy(self, observation, action_mask=None):
        return Categorical(self.mlp(observation))


class NoPytree:
    def __init__(self, spec, *, key):
        self.good = Good(spec, key=key)
        self.policy, self.value, self.values = self.good.policy, self.good.value, self.good.values


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


class ExtraAxis(Good):
    def value(self, observation):
        return self.critic_mlp(observation)

    def values(self, observation):
        return self.actor_mlp(observation)[..., None]


class Halved(Good):
    """Outputs in half precision."""

    def value(self, observation):
        return super().value(observation).astype(jnp.bfloat16)

    def values(self, observation):
        return self.actor_mlp(observation).astype(jnp.bfloat16)


class Swapped(Good):
    """A distribution of actions where values are wanted."""

    def value(self, observation):
        return self.policy(observation)

    values = value


class Unsummed(Categorical):
    def log_prob(self, action):
        return super().log_prob(action)[..., None]


class UnsummedPolicy(Good):
    def policy(self, observation, action_mask=None):
        return Unsummed(self.actor_mlp(observation))


class NumbersAsPolicy(Good):
    def policy(self, observation, action_mask=None):
        return self.actor_mlp(observation)


class WrongAction(Good):
    def policy(self, observation, action_mask=None):
        return Normal(self.actor_mlp(observation), jnp.ones(()))


class MoreChoices(Good):
    """A choice more than there are actions, whose samples are integers all the same."""

    def policy(self, observation, action_mask=None):
        logits = self.actor_mlp(observation)
        return Categorical(jnp.concatenate([logits, logits[..., :1]], -1))


class KeyedLayer(nnx.Module):
    """A layer whose noise only a key of its call draws."""

    noisy = True

    def __init__(self, size, key):
        self.mlp = MLP(size, (4,), 2, key=key)

    def __call__(self, x, key=None):
        return self.mlp(x)


class Noisy(Good):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.actor_mlp = KeyedLayer(spec.observation_space.shape[0], key)


class NoisyByKey(Good):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.actor_mlp = NoisyMLP(3, (4,), 2, key=key)


class Remembers(Good):
    """The sum of an episode's observations; `of_action_values` says of which family it is."""

    has_memory, previous_action, previous_reward = True, False, False
    of_action_values = False

    def initial(self, batch_shape):
        return jnp.zeros((*batch_shape, self.actor_mlp.in_features))

    def cleared(self, memory, first):
        return jnp.where(first[:, None], 0.0, memory)

    def apply(self, memory, inputs, first):
        def step(memory, x):
            memory = self.cleared(memory, x[1]) + x[0]
            return memory, memory

        memory, sums = jax.lax.scan(step, memory, (inputs.observation, first))
        output = self.values(sums) if self.of_action_values else (self.policy(sums), self.value(sums))
        return memory, output


class IgnoresFirst(Remembers):
    def cleared(self, memory, first):
        return memory


class HalvedMemory(Halved, Remembers):
    pass


class SwappedMemory(Swapped, Remembers):
    pass


class NoMemoryDeclared(Remembers):
    has_memory = False


BROKEN = {  # what is said of either family
    NoKey: r"cannot be built as NoKey\(spec, key=key\)",
    NoMethods: r"lacks the method 'values?'; it needs",
    NoPytree: r"is a pytree without arrays",
    WithLambda: r"has another tree structure at each construction",
    WithKey: r"holds a leaf of key",
    BareArray: r"loses 'offset' .* nnx.Param",
    Noisy: r"has noisy layers \(a KeyedLayer in 'actor_mlp'\) without a method sample\(key\), which returns",
    ExtraAxis: r"returns values of float32\[3, 2(, 2)?, 1\]; it must return float32\[3, 2(, 2)?\], one for each",
    Halved: r"returns values of bfloat16\[3, 2(, 2)?\]; it must return float32",
    Swapped: r"returns values of a Categorical; it must return float32",
    IgnoresFirst: r"returns other results after other steps; .* cleared where an episode begins",
    HalvedMemory: r"returns values of bfloat16\[6, 2(, 2)?\]; it must return float32",
    SwappedMemory: r"returns values of a Categorical; it must return float32",
    NoMemoryDeclared: r"has sequence modules \(apply\), and does not declare a memory: write has_memory = True",
}
OF_POLICIES = {
    UnsummedPolicy: r"returns log-probabilities of float32\[3, 2, 1\]; it must return float32\[3, 2\]",
    NumbersAsPolicy: r"returns float32\[3, 2, 2\] without the method 'sample'; it must return a distribution",
    WrongAction: r"returns a distribution of actions of float32\[3, 2, 2\]; it must return int32\[3, 2\]",
    MoreChoices: r"returns a distribution over 3 choices; it must return one over 2, as Discrete\(n=2\) has",
}
CASES = [(x, kind) for x in BROKEN for kind in (False, True)] + [(x, False) for x in OF_POLICIES]


def of_family(network, of_action_values):
    """The class as one of a family, by the same name."""
    return type(network.__name__, (network,), {"of_action_values": of_action_values})


@pytest.mark.quick("WithLambda-True")
@pytest.mark.parametrize(("broken", "of_action_values"), CASES)
def test_broken_networks_are_named(broken, of_action_values):
    sentence = (BROKEN | OF_POLICIES)[broken]
    method = r"\w+\.(values?|policy|apply) \(tests/nets/test_network_check\.py, line \d+\)"
    with pytest.raises(ShoalError, match=f"^(network {broken.__name__}|{method}) {sentence}"):
        check_network(of_family(broken, of_action_values), SPEC, of_action_values=of_action_values)


@pytest.mark.quick("Noisy-pqn")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "pqn"])
@pytest.mark.parametrize("broken", [Halved, Noisy, IgnoresFirst])
def test_each_algorithm_refuses_them_before_it_makes_anything(algorithm, broken, tmp_path):
    network = of_family(broken, algorithm != "ppo")
    with pytest.raises(ShoalError, match=BROKEN[broken]):
        shoal.train("CartPole-v1", algorithm=algorithm, network=network, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.quick("spec2")
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
        for sound in (Good, NoisyByKey, Remembers):
            for kind in (False, True):
                check_network(of_family(sound, kind), spec, of_action_values=kind)


@pytest.mark.parametrize("agents_as", ["attention", "flat"])
def test_a_network_of_all_agents_needs_several(agents_as):
    with pytest.raises(ShoalError, match="the environment has a single one"):
        check_network(JointNetwork(agents_as=agents_as).build, SPEC)
