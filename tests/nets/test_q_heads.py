"""Heads of values and of actions' values, against NumPy and the losses that take them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp

from shoal.base.errors import ShoalError
from shoal.nets.composition import Branches, Chain
from shoal.nets.headed import Headed, PolicyAndValue
from shoal.nets.heads import CategoricalHead, DeterministicHead, GSDEHead
from shoal.nets.mlp import MLP
from shoal.nets.q_heads import ContinuousQ, DistributionalQHead, DuelingQHead, QHead, QuantileQHead, dueling
from shoal.nets.value_heads import (
    CategoricalValueHead,
    DiscreteValuedHead,
    QuantileValueHead,
    ScalarValueHead,
)
from shoal.ops.distributions import EpsilonGreedy

KEY = jax.random.key(0)


def test_plain_heads_give_what_comes_in():
    x = jax.random.normal(KEY, (2, 3, 4))
    np.testing.assert_array_equal(QHead(4)(x), x)
    np.testing.assert_array_equal(ScalarValueHead()(x[..., :1]), x[..., 0])
    np.testing.assert_array_equal(QuantileValueHead(4)(x), x)
    quantiles = QuantileQHead(2, 2)(x)
    assert quantiles.shape == (2, 3, 2, 2)
    np.testing.assert_array_equal(quantiles[..., 1, :], x[..., 2:])


def test_dueling_centres_the_advantages():
    """Q is a double loop in NumPy, its mean over the actions is V, and a constant added to A changes nothing."""
    x = np.asarray(jax.random.normal(KEY, (2, 3, 5)), np.float64)
    q = DuelingQHead(4)(jnp.asarray(x, jnp.float32))
    for index in np.ndindex(2, 3):
        value, *advantages = x[index]
        for action in range(4):
            expected = value + advantages[action] - sum(advantages) / 4
            np.testing.assert_allclose(q[index][action], expected, atol=1e-6)
    np.testing.assert_allclose(q.mean(axis=-1), x[..., 0], atol=1e-6)
    np.testing.assert_allclose((q - x[..., :1]).sum(axis=-1), 0.0, atol=2e-6)
    shifted = jnp.asarray(x, jnp.float32).at[..., 1:].add(3.0)
    np.testing.assert_allclose(DuelingQHead(4)(shifted), q, atol=1e-5)


def test_dueling_of_several_numbers_is_dueling_of_each():
    x = jax.random.normal(KEY, (3, (1 + 2) * 4))
    together = dueling(x, 2, 4)
    assert together.shape == (3, 2, 4)
    for i in range(4):
        np.testing.assert_allclose(together[..., i], DuelingQHead(2)(x[:, i::4]), atol=1e-6)
    np.testing.assert_array_equal(QuantileQHead(2, 4, dueling=True)(x), together)
    np.testing.assert_array_equal(DistributionalQHead(2, -1.0, 1.0, 4, dueling=True)(x).logits, together)


def test_dueling_streams_with_layers_of_their_own():
    keys = jax.random.split(KEY, 2)
    value, advantages = MLP(6, (5,), 1, key=keys[0]), MLP(6, (5,), 3, key=keys[1])
    network = Chain(Branches(value, advantages), DuelingQHead(3))
    x = jax.random.normal(KEY, (4, 6))
    a = advantages(x)
    np.testing.assert_allclose(network(x), value(x) + a - a.mean(axis=-1, keepdims=True), atol=1e-6)


def test_distributional_q_is_c51s():
    head = DistributionalQHead(2, -1.0, 3.0, 5)
    x = jax.random.normal(KEY, (3, head.num_inputs))
    distribution = head(x)
    np.testing.assert_allclose(head.atoms, [-1, 0, 1, 2, 3])
    logits = np.asarray(x).reshape(3, 2, 5)
    probabilities = sp.softmax(logits, axis=-1)
    np.testing.assert_allclose(jax.nn.softmax(distribution.logits).sum(axis=-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(jax.nn.softmax(distribution.logits), probabilities, atol=1e-6)
    np.testing.assert_allclose(distribution.mean(), probabilities @ np.array(head.atoms), atol=1e-5)
    np.testing.assert_array_equal(distribution.atoms, np.broadcast_to(head.atoms, (3, 2, 5)))
    greedy = EpsilonGreedy(distribution.mean(), 0.0)
    np.testing.assert_array_equal(greedy.mode(), (probabilities @ np.array(head.atoms)).argmax(axis=-1))


def test_categorical_value_and_any_atoms():
    x = jax.random.normal(KEY, (6, 3))
    value = CategoricalValueHead(-10.0, 10.0, 3)(x)
    expected = sp.softmax(np.asarray(x), axis=-1) @ np.array([-10.0, 0.0, 10.0])
    np.testing.assert_allclose(value.mean(), expected, atol=1e-5)
    assert value.mean().shape == (6,)
    head = DiscreteValuedHead((-5.0, 0.1, 0.2), (2,))
    several = head(jnp.concatenate([x, -x], axis=-1))
    atoms = np.array([-5.0, 0.1, 0.2])
    np.testing.assert_allclose(several.mean()[:, 0], sp.softmax(np.asarray(x), axis=-1) @ atoms, atol=1e-5)
    np.testing.assert_allclose(several.mean()[:, 1], sp.softmax(-np.asarray(x), axis=-1) @ atoms, atol=1e-5)
    assert CategoricalValueHead(-1.0, 1.0).num_inputs == 51


def test_continuous_q_sees_features_and_action():
    critic = ContinuousQ(3, 2, (8,), key=KEY)
    features, action = jax.random.normal(KEY, (5, 4, 3)), jax.random.normal(jax.random.key(1), (5, 4, 2))
    expected = critic.headed.mlp(jnp.concatenate([features, action], axis=-1))[..., 0]
    np.testing.assert_allclose(critic(features, action), expected, atol=1e-6)
    gradient = jax.grad(lambda action: critic(features, action).sum())(action)
    assert np.all(np.any(np.abs(gradient) > 1e-4, axis=-1))
    distributional = ContinuousQ(3, 2, (8,), head=CategoricalValueHead(-1.0, 1.0, 5), key=KEY)
    assert distributional(features, action).mean().shape == (5, 4)


def test_policy_and_value_have_scales_of_their_own():
    network = PolicyAndValue(
        8,
        CategoricalHead(3),
        ScalarValueHead(),
        policy_scale=0.02,
        value_scale=2.0,
        value_sizes=(6,),
        key=KEY,
    )
    for part, scale in ((network.policy, 0.02), (network.value, 2.0)):
        kernel = np.asarray(part.mlp.projection[0].kernel, np.float64)
        np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), scale, rtol=1e-5)
    features, mask = jax.random.normal(KEY, (5, 8)), jnp.array([True, False, True])
    policy, value = network(features, mask)
    assert value.shape == (5,)
    np.testing.assert_allclose(jnp.exp(policy.log_prob(jnp.full(5, 1))), 0.0, atol=1e-6)
    np.testing.assert_allclose(value, network.value(features), atol=1e-6)


def test_a_headed_gsde_takes_its_own_features():
    head = Headed(GSDEHead(2, 6), 4, (6,), scale=0.1, key=KEY)
    features = jax.random.normal(KEY, (5, 4))
    x, hidden = head.mlp.with_features(features)
    np.testing.assert_allclose(head(features).scale, head.head(x, hidden).scale, rtol=1e-6)


def test_deterministic_actions_lie_within_one_unless_free():
    x = jnp.array([-1e4, -0.5, 2.0])
    np.testing.assert_allclose(DeterministicHead(3)(x).mode(), np.tanh(x), rtol=1e-6)
    np.testing.assert_array_equal(DeterministicHead(3, bounded=False)(x).sample(KEY), x)


@pytest.mark.quick("<lambda>-x has shape \\\\(5, 2\\\\), which must end in \\\\(3,\\\\)")
@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: QHead(3)(jnp.zeros((5, 4))), r"x has shape \(5, 4\), which must end in \(3,\)"),
        (
            lambda: DistributionalQHead(2, 1.0, -1.0),
            r"the 51 values from 1 to -1 of a DistributionalQHead must",
        ),
        (
            lambda: CategoricalValueHead(-1.0, 1.0, 1),
            r"the 1 values of a CategoricalValueHead must be two or more",
        ),
        (lambda: DiscreteValuedHead((0.0, 0.0, 1.0)), r"the 3 values from 0 to 1 of .* each larger"),
        (lambda: DuelingQHead(2)(jnp.zeros((5, 2))), r"x has shape \(5, 2\), which must end in \(3,\)"),
        (
            lambda: ContinuousQ(3, 2, (4,), key=KEY)(jnp.zeros((5, 3)), jnp.zeros((5, 1))),
            r"x of shape \(5, 4\) must end in the MLP's in_features=5",
        ),
    ],
)
def test_bad_input_is_named(build, message):
    with pytest.raises(ShoalError, match=message):
        build()
