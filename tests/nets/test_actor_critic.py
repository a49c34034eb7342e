"""The actor-critic: its conventions, its two halves, and what makes it compile again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_modules import drawn_module
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config.struct import named_leaves
from shoal.nets.actor_critic import (
    Actor,
    ActorCritic,
    Network,
    acting_part,
    policy_and_value,
)
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.networks import NetworkConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete
from shoal.xla.costs import num_parameters

CARTPOLE = EnvSpec(Box(-5.0, 5.0, (4,)), Discrete(2))
PENDULUM = EnvSpec(Box(-8.0, 8.0, (3,)), Box(-2.0, 2.0, (1,)))
MIXED = EnvSpec(Dict({"a": Box(-1.0, 1.0, (2, 2)), "b": Discrete(3)}), MultiDiscrete((2, 3)))
SMALL = dict(hidden_sizes=(8, 8))

VARIANTS = {
    "cartpole": (CARTPOLE, {}),
    "cartpole shared": (CARTPOLE, dict(shared_torso=True)),
    "mixed, mlp_each": (MIXED, dict(encoder="mlp_each", encoder_features=(5,))),
    "mixed, shared, layer norm": (MIXED, dict(shared_torso=True, layer_norm=True)),
    "pendulum": (PENDULUM, {}),
    "pendulum, tanh-normal": (PENDULUM, dict(distribution="tanh_normal", state_dependent_std=True)),
    "pendulum, beta, relu": (PENDULUM, dict(distribution="beta", activation="relu")),
    "pendulum, gsde, shared": (PENDULUM, dict(distribution="gsde", shared_torso=True)),
}


@functools.cache
def construct(name):
    """Two networks of a variant."""
    spec, options = VARIANTS[name]
    config = NetworkConfig(**SMALL, **options)
    return [drawn_module(lambda key: ActorCritic(spec, config, key=key), seed) for seed in (0, 1)]


def observations(space, shape, key):
    keys = jax.random.split(key, int(np.prod(shape)))
    flat = jax.jit(jax.vmap(space.sample))(keys)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), flat)


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
def test_contract(name):
    """Both passes agree, leading axes are free, vmap over members works, structures are equal."""
    spec, _ = VARIANTS[name]
    network, other = construct(name)
    assert jax.tree.structure(network) == jax.tree.structure(other)
    assert isinstance(network, Network)
    observation = observations(spec.observation_space, (5, 3), jax.random.key(2))

    @jax.jit
    def everything(network, observation):
        distribution, value = network.policy_and_value(observation)
        action = distribution.mode()
        apart = network.policy(observation).log_prob(action), network.value(observation)
        acting = acting_part(network).policy(observation).log_prob(action)
        _, scanned = jax.lax.scan(lambda _, o: (None, network.value(o)), None, observation)
        members = jax.tree.map(lambda *leaves: jnp.stack(leaves), network, other)
        values = jax.vmap(lambda network: network.value(observation))(members)
        return (distribution.log_prob(action), value), apart, acting, scanned, values

    together, apart, acting, scanned, values = everything(network, observation)
    assert together[1].shape == (5, 3)
    np.testing.assert_allclose(together[0], apart[0], atol=1e-5)
    np.testing.assert_allclose(together[1], apart[1], atol=1e-5)
    np.testing.assert_allclose(acting, apart[0], atol=1e-5)
    np.testing.assert_allclose(scanned, apart[1], atol=1e-5)
    np.testing.assert_allclose(values[0], apart[1], atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.quick("pendulum, beta, relu")
@pytest.mark.rare()
def test_gradients_are_finite_at_extreme_observations(name):
    spec, _ = VARIANTS[name]
    network, _ = construct(name)
    observation = observations(spec.observation_space, (4,), jax.random.key(2))

    @jax.jit
    def gradient(network, observation):
        action = network.policy(observation).mode()
        action = action if action.dtype == jnp.int32 else 0.9 * jnp.sign(action)

        def loss(network):
            distribution, value = network.policy_and_value(observation)
            return jnp.mean(distribution.log_prob(action)) + jnp.mean(value**2)

        return jax.grad(loss)(network)

    def extreme(x):
        return x if jnp.issubdtype(x.dtype, jnp.integer) else jnp.sign(x) * 1e6

    for o in (observation, jax.tree.map(extreme, observation)):
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient(network, o)))


def test_defaults_are_cleanrls():
    network = ActorCritic(CARTPOLE, key=jax.random.key(0))
    scales = {"layers/0": 2**0.5, "layers/1": 2**0.5}
    for half, last in (("actor", 0.01), ("critic", 1.0)):
        leaves = named_leaves(getattr(network, half).mlp)
        for layer, scale in {**scales, "projection/0": last}.items():
            singular = np.linalg.svd(np.asarray(leaves[f"{layer}/kernel"], np.float64), compute_uv=False)
            np.testing.assert_allclose(singular, scale, rtol=1e-5)
            np.testing.assert_array_equal(leaves[f"{layer}/bias"], 0.0)
    shapes = [leaf.shape for name, leaf in named_leaves(network).items() if name.endswith("kernel")]
    assert shapes == [(64, 4), (64, 64), (2, 64), (64, 4), (64, 64), (1, 64)]
    # As PyTorch counts the parameters of CleanRL's Agent for CartPole.
    assert num_parameters(network) == 9155


@pytest.mark.full
@pytest.mark.usefixtures("own_kernels")
def test_a_fresh_policy_is_nearly_uniform_and_values_are_of_order_one():
    network = ActorCritic(CARTPOLE, key=jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (1000, 4))
    distribution, value = jax.jit(policy_and_value)(network, observation)
    assert np.all(distribution.entropy() > np.log(2) - 1e-3)
    assert 0.1 < np.asarray(value).std() < 2.0
    spread = ActorCritic(CARTPOLE, NetworkConfig(policy_scale=3.0), key=jax.random.key(0))
    distribution, _ = jax.jit(policy_and_value)(spread, observation)
    assert np.mean(distribution.entropy()) < 0.6


def test_halves_are_separate_and_a_shared_torso_is_the_actors():
    apart, shared = (
        ActorCritic(CARTPOLE, NetworkConfig(shared_torso=s), key=jax.random.key(0)) for s in (False, True)
    )
    assert {name.split("/")[0] for name in named_leaves(apart)} == {"actor", "critic"}
    assert num_parameters(shared.critic) == 64 + 1
    observation = jax.random.normal(jax.random.key(1), (8, 4))
    for network, reaches_actor in ((apart, False), (shared, True)):
        gradient = jax.jit(jax.grad(lambda network: jnp.sum(network.value(observation))))(network)
        touched = any(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient.actor))
        assert touched == reaches_actor


def test_scales_and_deviation_may_be_data_of_a_config():
    @jax.jit
    def construct(scale, std):
        config = NetworkConfig(**SMALL, policy_scale=scale, initial_std=std)
        return ActorCritic(PENDULUM, config, key=jax.random.key(0))

    network = construct(0.5, 0.3)
    kernel = np.asarray(network.actor.mlp.projection[0].kernel)
    np.testing.assert_allclose(np.linalg.norm(kernel), 0.5, rtol=1e-5)
    np.testing.assert_allclose(np.exp(network.actor.head.log_std) + 1e-3, 0.3, rtol=1e-5)


def test_a_network_without_the_optional_parts():
    class Halves:
        def policy(self, observation, action_mask=None):
            return ("distribution", action_mask)

        def value(self, observation):
            return observation.sum(-1)

    network = Halves()
    distribution, value = policy_and_value(network, jnp.ones((2, 3)), "mask")
    assert distribution == ("distribution", "mask")
    np.testing.assert_array_equal(value, [3.0, 3.0])
    assert acting_part(network) is network
    assert not isinstance(Actor(CARTPOLE, NetworkConfig(hidden_sizes=(4,)), key=jax.random.key(0)), Network)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.parametrize("scale", [0.0, 0.25])
def test_the_values_gradient_in_a_shared_torso_is_scaled(core, scale):
    """That of the critic's own layer is not, nor is the policy's."""
    of_network = {"shared_torso": True, "core": core, "hidden_sizes": (4,)}
    spec, key = CARTPOLE, jax.random.key(0)
    x = jax.random.normal(jax.random.key(1), (3, 2, 4))
    flag = jnp.zeros((3, 2), bool)
    inputs = NetworkInputs(x, first=() if core == "none" else flag)

    def slopes(scale):
        network = NetworkConfig(**of_network, critic_gradient_scale=scale).build(spec, key)
        start = sequences.Memories(()) if core == "none" else sequences.initial(network, (2,))

        def outputs(network, which):
            after = sequences.unroll(network, start, inputs)
            return jnp.sum(
                after.value if which == "value" else after.distribution.log_prob(jnp.zeros((3, 2), int))
            )

        return [nnx.state(jax.grad(outputs)(network, which)) for which in ("value", "policy")]

    (value, policy), (whole, same) = slopes(scale), slopes(1.0)
    jax.tree.map(np.testing.assert_array_equal, policy, same)
    jax.tree.map(np.testing.assert_array_equal, value["critic"], whole["critic"])
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, scale * y, rtol=1e-5, atol=1e-7),
        value["actor"],
        whole["actor"],
    )
    assert any(np.any(np.asarray(x)) for x in jax.tree.leaves(whole["actor"]))


def test_sizes_that_contradict_a_shared_torso_are_named():
    with pytest.raises(
        ShoalError, match=r"critic_hidden_sizes=\(32,\) must be None or hidden_sizes=\(64, 64\)"
    ):
        config = NetworkConfig(shared_torso=True, critic_hidden_sizes=(32,))
        ActorCritic(CARTPOLE, config, key=jax.random.key(0))


def test_support_of_a_categorical_critic_follows_from_its_number_of_atoms():
    def ends(**settings):
        values = NetworkConfig(value_head="categorical", **settings).own_head_of_value().values
        return values[0], values[-1], values[1] - values[0]

    assert ends(value_atoms=601) == (-300.0, 300.0, 1.0)
    assert ends(value_low=0.0, value_high=100.0) == (0.0, 100.0, 2.0)


def test_the_floor_of_a_deviation_is_a_setting():
    for kind, state_dependent in (("normal", False), ("tanh_normal", True), ("gsde", False)):
        config = NetworkConfig(
            **SMALL, distribution=kind, state_dependent_std=state_dependent, minimum_std=0.25, initial_std=0.5
        )
        actor = config.build(PENDULUM, jax.random.key(0)).actor
        narrow = jax.tree.map(lambda x: x - 50.0, actor.head)  # a free deviation falls to 0
        actor.head = narrow
        if state_dependent:
            actor.mlp.projection[0].bias += -50.0
        np.testing.assert_allclose(actor.policy(jnp.ones(3)).scale, 0.25, rtol=1e-5)
    with pytest.raises(ShoalError, match=r"initial_std=0.2 must be above minimum_std=0.3"):
        NetworkConfig(minimum_std=0.3, initial_std=0.2).validate()
