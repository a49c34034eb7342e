"""Every surrogate and every loss of the critic keeps the contract of its family."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recomputed_rollouts import ENDS, SPEC, acted, made

from shoal.algos import ppo
from shoal.algos.learning import critic_losses, surrogates
from shoal.algos.learning.critic_losses import LOSSES
from shoal.algos.learning.minibatches import Rows
from shoal.algos.learning.surrogates import SURROGATES
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.nets.memory import sequences
from shoal.nets.value_heads import CategoricalValueHead, expectation
from shoal.ops import distributional, value_losses
from shoal.ops.distributions import Categorical

SHAPE = (5, 4)
RNG = np.random.default_rng(0)


def drawn(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


@pytest.mark.quick("penalty")
@pytest.mark.parametrize("name", SURROGATES)
def test_every_surrogate_keeps_the_contract(name):
    """One loss for each row, whose slope pushes towards good actions, is finite at extreme ratios too."""
    config = with_settings(PPOConfig(), surrogate=name)
    surrogate = surrogates.chosen(config)
    pair = Categorical(drawn(*SHAPE, 3)), Categorical(drawn(*SHAPE, 3))

    def loss(log_ratio, advantage):
        return surrogate(config, log_ratio, advantage, pair, jnp.asarray(0.5))

    rows = loss(drawn(*SHAPE), drawn(*SHAPE))
    assert rows.shape == SHAPE and rows.dtype == jnp.float32
    slope = jax.jit(jax.grad(lambda x, a: jnp.sum(loss(x, a))))
    same = pair[0], pair[0]
    at_one = jax.grad(lambda x, a: jnp.sum(surrogate(config, x, a, same, jnp.asarray(0.5))))
    advantage = drawn(*SHAPE)
    np.testing.assert_allclose(at_one(jnp.zeros(SHAPE), advantage), -advantage, rtol=1e-6)
    extreme = jnp.broadcast_to(jnp.asarray([-200.0, -1.0, 1.0, 200.0]), SHAPE)
    assert np.isfinite(slope(extreme, drawn(*SHAPE))).all()
    assert surrogates.has_penalty(config) == (name == "penalty")


HEAD = CategoricalValueHead(-2.0, 2.0, 9)


def output_of(name, shape=SHAPE):
    return drawn(*shape) if name in ("squared", "huber") else HEAD(2 * drawn(*shape, HEAD.num_inputs))


def config_of(name, **settings):
    return with_settings(PPOConfig(), value_loss=name, **settings)


def value_loss(name, output, target, **settings):
    """A loss of transitions has the target for its reward, and nothing follows."""
    if name in critic_losses.OF_TRANSITIONS:
        following = jnp.zeros((*target.shape, HEAD.num_inputs))
        target = Rows(
            reward=target, discount=jnp.zeros_like(target), weight=jnp.ones_like(target), following=following
        )
    shape = jnp.shape(target if isinstance(target, jax.Array) else target.reward)
    return critic_losses.value_loss(config_of(name, **settings), output, jnp.zeros(shape), target)


@pytest.mark.quick("huber")
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_critic_keeps_the_contract(name):
    """One loss for each row, of that row alone; a finite slope, also for targets far away; none for the target."""
    output, target = output_of(name), 3 * drawn(*SHAPE)
    rows = value_loss(name, output, target)
    assert rows.shape == SHAPE and rows.dtype == jnp.float32
    alone = jax.tree.map(lambda x: x[1, 2], output)
    np.testing.assert_allclose(value_loss(name, alone, target[1, 2]), rows[1, 2], rtol=1e-6)

    def total(output, target):
        return jnp.sum(value_loss(name, output, target))

    for far in (target, jnp.full(SHAPE, 1e6), jnp.full(SHAPE, -1e6)):
        slope, of_target = jax.grad(total, argnums=(0, 1))(output, far)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(slope))
        np.testing.assert_array_equal(of_target, 0.0)


@pytest.mark.parametrize("name", LOSSES)
def test_descending_a_loss_of_the_critic_leads_to_the_target(name):
    target = jnp.asarray([-1.3, 0.0, 0.6, 1.25])
    shape = (4,) if name in ("squared", "huber") else (4, HEAD.num_inputs)

    def output_of_parameters(x):
        return x if len(shape) == 1 else HEAD(x)

    def total(x):
        return jnp.sum(value_loss(name, output_of_parameters(x), target))

    descend = jax.jit(lambda x: jax.lax.fori_loop(0, 2000, lambda _, x: x - 0.5 * jax.grad(total)(x), x))
    x = descend(jnp.zeros(shape))
    np.testing.assert_allclose(expectation(output_of_parameters(x)), target, atol=0.02)


def test_losses_by_name_are_those_of_ops_with_the_settings():
    number, spread, target = output_of("squared"), output_of("two_hot"), drawn(*SHAPE)
    np.testing.assert_array_equal(
        value_loss("huber", number, target, huber_delta=0.3), value_losses.huber(number, target, 0.3)
    )
    for name in ("squared", "huber"):
        loss = getattr(value_losses, name)
        clipped = value_losses.clipped_value(number, jnp.zeros(SHAPE), target, 0.1, loss)
        expected = np.maximum(loss(number, target), loss(jnp.clip(number, -0.1, 0.1), target))
        np.testing.assert_allclose(clipped, expected, rtol=1e-6)
        given = value_loss(name, number, target, clip_vloss=True, vf_clip_coef=0.1)
        np.testing.assert_array_equal(given, clipped)
    wide = value_loss("hl_gauss", spread, target, hl_gauss_sigma=2.0)  # distances of atoms, 0.5 here
    expected = distributional.hl_gauss(spread.atoms, spread.logits, target, 1.0)
    np.testing.assert_allclose(wide, expected, rtol=1e-6)


def test_the_categorical_td_loss_of_a_last_reward_is_two_hot():
    output, reward = output_of("two_hot"), drawn(*SHAPE)
    of_transitions, of_numbers = (value_loss(name, output, reward) for name in ("categorical_td", "two_hot"))
    np.testing.assert_allclose(of_transitions, of_numbers, rtol=1e-5)


def projected(atoms, probabilities, onto):
    """Each mass to the two atoms that it lies between."""
    masses = np.zeros(len(onto))
    for z, mass in zip(np.clip(atoms, onto[0], onto[-1]), probabilities, strict=True):
        right = min(np.searchsorted(onto, z, side="right"), len(onto) - 1)
        share = (z - onto[right - 1]) / (onto[right] - onto[right - 1])
        masses[right - 1] += mass * (1 - share)
        masses[right] += mass * share
    return masses


@pytest.mark.parametrize("settings", [{}, {"core": "gru"}, {"recompute": "minibatch", "advantage": "vtrace"}])
def test_ppos_categorical_td_loss_is_that_of_a_loop_over_the_rollout(settings):
    """Of each transition, with the next step's distribution by the parameters that acted; of no other row."""
    ends = {"value_head": "categorical", "value_low": -3.0, "value_high": 3.0, "value_atoms": 7}
    settings = {"advantage": "gae", "value_loss": "categorical_td"} | settings
    config = struct.as_arrays(made(**ends, **settings))
    learner, trajectory = acted(config, jax.random.key(1), unread=np.nan)
    rows, after, _, rollout = ppo.prepare(config, SPEC, (), learner, trajectory)
    shared = after.shared
    network = shared.network
    _, _, output = sequences.unroll(network, rollout.memories, rollout.inputs)
    log_p = np.asarray(jax.nn.log_softmax(output.logits), np.float64)
    _, last, discount = ENDS
    atoms, total, count = np.linspace(-3.0, 3.0, 7), 0.0, 0
    for t, n in np.argwhere(~last[:-1]):
        gamma = float(config.gamma) * discount[t + 1, n]
        following = np.exp(log_p[t + 1, n]) if gamma else np.eye(7)[0]
        target = projected(float(trajectory.timesteps.reward[t + 1, n]) + gamma * atoms, following, atoms)
        total, count = total - target @ log_p[t, n], count + 1
    _, parts = ppo.loss(config, (), shared, jnp.asarray(True), network, rows)
    np.testing.assert_allclose(jnp.sum(parts.value_loss) / count, total / count, rtol=1e-4)


def test_a_loss_that_does_not_fit_the_critic_is_refused():
    number, spread, target = output_of("squared"), output_of("two_hot"), drawn(*SHAPE)
    for name, output, settings, said in (
        ("squared", spread, {}, "value_loss='squared' is of a number, and this critic gives a distribution"),
        (
            "two_hot",
            number,
            {},
            "value_loss='two_hot' is of a distribution over atoms, and this critic gives",
        ),
        ("categorical_td", number, {}, "value_loss='categorical_td' is of a distribution over atoms"),
        ("hl_gauss", spread, {"clip_vloss": True}, "clip_vloss=True clips a number"),
    ):
        with pytest.raises(ShoalError, match=said):
            value_loss(name, output, target, **settings)
