"""Heads, actors and critics of a user's own, layers after a torso, and actors and critics that are apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shoal
from shoal.algos.dqn_config import DQNConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config.settings import flat, settings_of, with_settings
from shoal.config.struct import named_leaves, parameter, struct
from shoal.nets import torsos
from shoal.nets.actor_critic import acting_part
from shoal.nets.headed import PolicyAndValue
from shoal.nets.heads import head_for
from shoal.nets.memory import sequences
from shoal.nets.mlp import MLP
from shoal.nets.networks import NetworkConfig
from shoal.nets.q_networks import QNetworkConfig
from shoal.nets.value_heads import ScalarValueHead
from shoal.ops.distributions import Categorical, DiscreteValued
from shoal.types import EnvSpec, spec_of
from shoal.types.spaces import Box, Dict, Discrete

KEY = jax.random.key(0)
SPEC = EnvSpec(Box(-1.0, 1.0, (3,)), Discrete(4))
OBSERVATION = jax.random.normal(KEY, (5, 3))


class Tempered(nnx.Module):
    def __init__(self, space, *, key):
        self.num_inputs = space.n
        self.log_temperature = nnx.Param(jax.random.uniform(key))

    def __call__(self, x, action_mask=None):
        return Categorical(x / jnp.exp(self.log_temperature[...]))


class Exponential(nnx.Module):
    num_inputs = 1

    def __init__(self, space, *, key):
        pass

    def __call__(self, x):
        return jnp.sinh(x[..., 0])


@struct
class Bins:
    num_bins: int = parameter(7, low=2)
    reach: float = 10.0

    def build(self, space, key):
        return BinsHead(self.num_bins, self.reach)


class BinsHead(nnx.Module):
    def __init__(self, num_bins, reach):
        self.num_inputs, self.reach = num_bins, nnx.Param(jnp.asarray(reach, jnp.float32))

    def __call__(self, x):
        atoms = jax.lax.stop_gradient(self.reach[...]) * jnp.linspace(-1.0, 1.0, self.num_inputs)
        return DiscreteValued(x, jnp.broadcast_to(atoms, x.shape))


class Bounded(nnx.Module):
    def __init__(self, space, *, key):
        self.num_inputs = space.n

    def __call__(self, x):
        return jnp.tanh(x)


class Actor(nnx.Module):
    def __init__(self, spec, *, key):
        self.names = tuple(spec.observation_space) if isinstance(spec.observation_space, Dict) else ()
        self.torso = torsos.build(spec.observation_space, "mlp", key=key)
        self.head = head_for(spec.action_space)
        self.mlp = MLP(self.torso.num_features, (), self.head.num_inputs, key=key)

    def policy(self, observation, action_mask=None):
        return self.head(self.mlp(self.torso(observation)), action_mask)


class Critic(nnx.Module):
    def __init__(self, spec, *, key):
        self.torso = torsos.build(spec.observation_space, "mlp", key=key)
        self.mlp = MLP(self.torso.num_features, (), 1, key=key)

    def value(self, observation):
        return self.mlp(self.torso(observation))[..., 0]


class Averaging(nnx.Module):
    """A critic that remembers."""

    def __init__(self, spec, *, key):
        self.mlp = MLP(spec.observation_space.shape[0], (), 1, key=key)

    def initial(self, batch_shape):
        return jnp.zeros(batch_shape)

    def apply(self, memory, inputs, first):
        def step(mean, now):
            x, begins = now
            mean = 0.5 * jnp.where(begins, 0.0, mean) + x
            return mean, mean

        return jax.lax.scan(step, memory, (self.mlp(inputs.observation)[..., 0], first))


def name(kind):
    return f"{__name__}:{kind.__name__}"


def test_heads_are_chosen_by_name_given_themselves_or_with_settings_of_their_own():
    config = with_settings(
        PPOConfig(), policy_head=name(Tempered), value_head=name(Bins), num_bins=9, reach=3.0
    ).network
    assert {"num_bins", "reach"} <= settings_of(config).keys() and settings_of(config)["reach"].is_data
    assert flat(config)["policy_head"] == name(Tempered) and flat(config)["value_head"] == name(Bins)
    for part in (Tempered, name(Tempered)):
        network = NetworkConfig(policy_head=part, value_head=Bins(9, 3.0)).build(SPEC, KEY)
        assert network.critic.mlp.out_features == 9
        leaves = named_leaves(network)
        assert {"actor/head/log_temperature", "critic/head/reach"} <= {
            x.removesuffix("/value") for x in leaves
        }
        distribution, value = network.policy_and_value(OBSERVATION)
        assert distribution.logits.shape == (5, 4) and value.mean().shape == (5,)
    plain = NetworkConfig().build(SPEC, KEY).policy(OBSERVATION).logits
    temperature = jnp.exp(network.actor.head.log_temperature[...])
    np.testing.assert_allclose(distribution.logits * temperature, plain, rtol=1e-5)


def test_a_head_of_action_values_is_the_users_own():
    network = with_settings(DQNConfig(), q_head=name(Bounded), noisy=True).network.build(SPEC, KEY)
    assert np.abs(network.values(100 * OBSERVATION)).max() <= 1.0
    recurrent = QNetworkConfig(core="gru", core_size=4, q_head=Bounded).build(SPEC, KEY)
    assert recurrent.layers.mlp.out_features == 4


class NoCall(nnx.Module):
    def __init__(self, space, *, key):
        self.num_inputs = 4


class NoInputs(Bounded):
    def __init__(self, space, *, key):
        pass


class NoKey(Bounded):
    def __init__(self, space):
        pass


class Numbers(Tempered):
    def __call__(self, x, action_mask=None):
        return x


class NoEntropy(Tempered):
    def __call__(self, x, action_mask=None):
        return Few(x)


class Few:
    def __init__(self, x):
        self.x = x

    def sample(self, key):
        return jnp.argmax(self.x, -1)

    def mode(self):
        return self.sample(None)

    def log_prob(self, action):
        return self.x[..., 0]


@pytest.mark.parametrize(
    "config, said",
    [
        ({"policy_head": NoCall}, "policy_head NoCall cannot be called; it needs __call__(x, action_mask), which"),
        ({"policy_head": Bounded}, "Bounded cannot be called with (x, action_mask): too many positional arguments"),
        ({"policy_head": NoInputs}, "policy_head NoInputs has num_inputs=None; it must be a whole number"),
        ({"policy_head": NoKey}, "policy_head NoKey cannot be built as NoKey(space, key=key)"),
        ({"policy_head": Numbers}, "Numbers.__call__ ("),
        ({"policy_head": NoEntropy}, "without the method 'entropy'"),
        ({"policy_head": "nothing"}, "'nothing' is not module:Name"),
        ({"value_head": Bounded}, "returns values of float32[3, 2, 2]; it must return float32[3, 2], one for each"),
        ({"value_head": "scaler"}, "value_head='scaler' is none of scalar, categorical, nor module:Name of your own"),
        ({"value_head": Exponential, "norm_value": "popart"}, "is not the number that the layer gives"),
        ({"critic_network": Critic, "norm_value": "popart"}, "and critic_network="),
        ({"actor_network": Critic}, "actor_network Critic lacks the method 'policy'; it needs policy(observation)"),
        ({"critic_network": Critic, "core": "gru"}, "critic_network Critic lacks the method 'initial'"),
        ({"critic_network": Critic, "shared_torso": True}, "actor_network and critic_network must be None"),
        ({"critic_activation": "tan"}, "critic_activation='tan' is none of"),
        ({"head_sizes": (3,), "head_activation": "tan"}, "head_activation='tan' is none of"),
        ({"policy_head": Tempered, "distribution": "gsde"}, "in whose place policy_head puts another"),
        ({"actor_network": Actor, "distribution": "gsde"}, "in whose place actor_network puts another"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_part_is_one_sentence(config, said):
    with pytest.raises(ShoalError) as error:
        given = with_settings(PPOConfig(), **config).resolved()
        name = "Pendulum-v1" if "distribution" in config else "CartPole-v1"
        given.validate(spec_of(shoal.make(name)), 4, 128)
    assert said in str(error.value) and str(error.value).count("\n") == 0


@pytest.mark.parametrize(
    "head, values, said",
    [
        (NoCall, "expected", "q_head NoCall cannot be called; it needs __call__(x), which returns values of actions"),
        (Exponential, "expected", "it must return float32[3, 2, 2], one for each action"),
        (Bounded, "quantile", "it must return quantiles of each action, since values='quantile'"),
        (Bounded, "categorical", "distributions over atoms, as shoal.ops.distributions.DiscreteValued"),
    ],
)  # fmt: skip
def test_a_head_of_action_values_that_gives_others_is_one_sentence(head, values, said):
    config = with_settings(DQNConfig(), q_head=head, values=values)
    with pytest.raises(ShoalError) as error:
        config.validate(spec_of(shoal.make("CartPole-v1")), 4, 128)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            {"actor_network": Actor, "critic_network": Critic, "hidden_sizes": (3,)},
            "it needs actor_network=None or critic_network=None",
        ),
        (
            {"critic_network": Critic, "value_scale": 2.0},
            "value_scale=2.0 has no effect with critic_network=",
        ),
        ({"actor_network": Actor, "policy_scale": 2.0}, "policy_scale=2.0 has no effect with actor_network="),
        ({"shared_torso": True, "critic_activation": "relu"}, "it needs shared_torso=False"),
        ({"head_activation": "relu"}, "head_activation='relu' has no effect with head_sizes=()"),
        ({"algorithm": "dqn", "q_head": Bounded, "dueling": True}, "it needs q_head=None"),
    ],
)
def test_settings_of_what_is_replaced_have_no_effect(settings, said):
    with pytest.raises(ShoalError) as error:
        shoal.train("CartPole-v1", run_dir="", **settings)
    assert said in str(error.value)


def test_an_actor_and_a_critic_of_ones_own_are_shown_what_is_theirs_and_shoals_is_the_other():
    space = Dict({"eye": Box(-1.0, 1.0, (3,)), "state": Box(-1.0, 1.0, (2,))})
    spec = EnvSpec(space, Discrete(4), critic_only=("state",))
    observation = {"eye": OBSERVATION, "state": jnp.ones((5, 2))}
    own = NetworkConfig(actor_network=Actor).build(spec, KEY)
    assert own.actor.names == ("eye",) and acting_part(own) is own.actor
    both = NetworkConfig(actor_network=name(Actor), critic_network=name(Critic))
    network = both.build(spec, KEY)
    np.testing.assert_array_equal(
        network.policy(observation).logits, own.actor.policy({"eye": OBSERVATION}).logits
    )
    assert network.critic.torso.parts[1].path == ("state",) and network.value(observation).shape == (5,)
    plain, other = (NetworkConfig(critic_network=x).build(spec, KEY) for x in (None, Critic))
    np.testing.assert_array_equal(
        plain.policy(observation).logits, other.policy(observation).logits
    )  # the actor is the same


@pytest.mark.full
def test_a_critic_of_ones_own_remembers_beside_an_actor_with_a_core():
    config = NetworkConfig(core="gru", core_size=4, critic_network=Averaging)
    memories = sequences.initial(config.build(SPEC, KEY), (2,))
    assert memories.critic.shape == (2,)
    given = with_settings(
        PPOConfig(), core="gru", core_size=4, critic_network=Averaging, num_minibatches=1
    ).resolved()
    given.validate(spec_of(shoal.make("CartPole-v1")), 4, 8)
    run = shoal.train(
        "CartPole-v1", algorithm=given, num_envs=4, num_steps=8, total_steps=64, seeds=1, run_dir="",
        num_evals=1, eval_episodes=2,
    )  # fmt: skip
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.learner.shared))


def test_a_critic_has_an_activation_and_norms_of_its_own():
    config = NetworkConfig(activation="tanh", critic_activation="relu", critic_layer_norm=True)
    network, plain = config.build(SPEC, KEY), NetworkConfig().build(SPEC, KEY)
    assert (network.actor.mlp.activation, network.critic.mlp.activation) == ("tanh", "relu")
    assert len(network.actor.mlp.norms) == 0 and len(network.critic.mlp.norms) == 2
    np.testing.assert_array_equal(network.actor.mlp.layers[0].kernel, plain.actor.mlp.layers[0].kernel)
    recurrent = NetworkConfig(core="gru", core_size=4, head_sizes=(3,), critic_activation="relu").build(
        SPEC, KEY
    )
    assert {recurrent.critic.mlp.activation, recurrent.critic.torso[0].mlp.activation} == {"relu"}
    assert {recurrent.actor.mlp.activation, recurrent.actor.torso.mlp.activation} == {"tanh"}


@pytest.mark.parametrize("shared", [False, True])
def test_layers_follow_a_torso_without_memory_for_policy_and_value_each(shared):
    style = dict(head_sizes=(7, 6), head_activation="relu", head_layer_norm=True)
    config = NetworkConfig(hidden_sizes=(9,), shared_torso=shared, **style)
    network = config.build(SPEC, KEY)
    trunk = network.actor.encoder.modules[1]
    assert trunk.out_features == 9 and (trunk.activation, len(trunk.norms)) == ("tanh", 0)
    for part in (network.actor, network.critic):
        assert [layer.bias.shape for layer in part.mlp.layers] == [(7,), (6,)]
        assert part.mlp.in_features == 9 and (part.mlp.activation, len(part.mlp.norms)) == ("relu", 2)
    assert hasattr(network.critic, "encoder") is not shared
    distribution, value = network.policy_and_value(OBSERVATION)
    np.testing.assert_allclose(distribution.logits, network.policy(OBSERVATION).logits, rtol=1e-5)
    np.testing.assert_allclose(value, network.value(OBSERVATION), rtol=1e-5)
    if shared:  # the value's gradient reaches the torso, and none of the policy's layers
        gradient = jax.grad(lambda network: jnp.sum(network.value(OBSERVATION)))(network)
        assert np.any(gradient.actor.encoder.modules[1].layers[0].kernel != 0)
        assert not any(np.any(x != 0) for x in jax.tree.leaves(gradient.actor.mlp))
    noisy = QNetworkConfig(hidden_sizes=(9,), head_sizes=(7,), noisy=True).build(SPEC, KEY)
    assert noisy.encoder.num_features == 9 and noisy.values(OBSERVATION).shape == (5, 4)


def test_policy_and_value_make_separate_networks_with_torsos_of_their_own():
    torso_keys, heads = jax.random.split(KEY), (head_for(SPEC.action_space), ScalarValueHead())
    space, kinds = SPEC.observation_space, ("mlp", "flatten")
    own = [torsos.build(space, kind, key=key) for kind, key in zip(kinds, torso_keys, strict=True)]
    both = PolicyAndValue(0, *heads, torsos=own, policy_sizes=(8,), value_sizes=(9,), key=KEY)
    distribution, value = both(OBSERVATION)
    assert distribution.logits.shape == (5, 4) and value.shape == (5,)
    gradient = jax.grad(lambda both: jnp.sum(both(OBSERVATION)[1]))(both)
    assert not any(np.any(x != 0) for x in jax.tree.leaves(gradient.policy))
    assert all(np.any(x != 0) for x in jax.tree.leaves(gradient.value))
