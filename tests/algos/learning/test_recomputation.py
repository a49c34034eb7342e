"""Advantages computed again: V-trace through the whole of PPO, for each layout of rows, network and normalisation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recomputed_rollouts import ENDS, NETWORKS, SPEC, N, T, acted, gradient_of_sum, made, noisy, plain_vtrace
from tiny_worlds import Halves, assert_equal, populate

from shoal.algos import ppo
from shoal.algos.acting import actions
from shoal.algos.learning import advantages, minibatches, optimisers, recomputation
from shoal.algos.learning.minibatches import Rows
from shoal.algos.policy_gradient import A2CConfig, ReinforceConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.nets.memory import sequences
from shoal.ops import statistics
from shoal.types import Clock, Keys

WEIGHT = ~ENDS[1][:-1]
MOVED = jax.random.key(9)


def of_all(rows):
    """An index that takes the rows in their order."""
    return jnp.arange(rows.weight.shape[0], dtype=jnp.uint32)


@jax.jit
def stale(config, key, unread=0.0):
    """Estimates of a network that has moved since it acted, and what a plain loop needs for the same."""
    learner, trajectory = acted(config, key, unread)
    rows, _, _, rollout = ppo.prepare(config, SPEC, (), learner, trajectory)
    network = noisy(learner.shared.network, MOVED)
    found = recomputation.estimate(config, (), rollout, None, network)
    whole = dataclasses.replace(config, chunk_length=0)
    _, distribution, value = sequences.unroll(network, rollout.memories, rollout.inputs)
    raw = recomputation.extend(rollout.transitions.raw_action)
    log_ratio = actions.log_prob(distribution, raw)[:-1] - rollout.transitions.log_prob
    same = recomputation.estimate(config, (), rollout, None, learner.shared.network)
    return {
        "found": found,
        "same": same,
        "whole": recomputation.estimate(whole, (), rollout, None, network),
        "rows": rows,
        "plain": (trajectory.timesteps.reward, value, log_ratio),
    }


@jax.jit
def rows_of(config, key):
    """The rows of a rollout, as `stale` has them."""
    learner, trajectory = acted(config, key)
    return ppo.prepare(config, SPEC, (), learner, trajectory)[0]


AS_A_BATCH = {"norm_adv": "batch", "recompute": "epoch", "clip_vloss": True}


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.rare("a scan at once", "one memory", "no memory")
def test_estimates_of_a_network_that_has_moved_are_those_of_a_plain_loop(name):
    """By V-trace with clips that act on some ratios and not on others; and the ratios make a difference."""
    config = made(**AS_A_BATCH, rho_clip=1.1, c_clip=0.9, **NETWORKS[name])
    found = stale(struct.as_arrays(config), jax.random.key(0))
    reward, value, log_ratio = found["plain"]
    advantage, target = plain_vtrace(config, reward, value, log_ratio)
    standardised = (advantage - advantage[WEIGHT].mean()) / advantage[WEIGHT].std()
    order = minibatches.to_rows(dataclasses.replace(config, chunk_length=0), (standardised, target, WEIGHT))
    for actual, expected in zip(found["whole"], order[:2], strict=True):
        np.testing.assert_allclose(actual[order[2]], expected[order[2]], rtol=1e-4, atol=1e-5)
    ratios = np.exp(log_ratio)[WEIGHT]
    assert (ratios < 0.9).any() and (ratios > 1.1).any()
    uncorrected, _ = plain_vtrace(config, reward, value, np.zeros((T, N)))
    assert np.abs(advantage - uncorrected).max() > 0.05


@pytest.mark.full
@pytest.mark.parametrize("chunk_length", [0, 2, 8])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.quick("no memory-0")
@pytest.mark.rare()
def test_with_the_parameters_that_acted_nothing_changes(name, chunk_length):
    """The rows' own advantages and targets, in the same order, chunk by chunk; and those of GAE."""
    settings = NETWORKS[name] | AS_A_BATCH
    if "core" in settings:
        settings |= {"chunk_length": chunk_length}
    config = made(**settings)
    estimates = stale(struct.as_arrays(config), jax.random.key(0))
    by_gae = rows_of(struct.as_arrays(dataclasses.replace(config, advantage="gae")), jax.random.key(0))
    for actual, field in zip(estimates["same"], ("advantage", "target"), strict=True):
        once = getattr(estimates["rows"], field)
        np.testing.assert_allclose(actual, once, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(once, getattr(by_gae, field), rtol=1e-6, atol=1e-6)


@jax.jit
def gradients(config, key, unread=0.0):
    """Gradient and metrics of a network that has moved: estimated within the loss, and beforehand for all rows."""
    learner, trajectory = acted(config, key, unread)
    streams, of_streams, *_ = ppo.prepare(config, SPEC, (), learner, trajectory)
    by_epoch = dataclasses.replace(config, recompute="epoch")
    steps, learner, _, rollout = ppo.prepare(by_epoch, SPEC, (), learner, trajectory)
    shared = learner.shared
    parts, merge = optimisers.split_parameters(
        config.optimization, noisy(shared.network, MOVED), is_split=config.is_split
    )
    within = gradient_of_sum(config, of_streams.shared, merge, streams, parts)
    advantage, target = recomputation.estimate(by_epoch, (), rollout, shared.value, merge(parts))
    if config.norm_adv == "minibatch":
        advantage = statistics.standardise(advantage, steps.weight)
    rows = steps._replace(advantage=advantage, target=target)
    before = gradient_of_sum(by_epoch, shared, merge, rows, parts)
    return within, before


@pytest.mark.parametrize(
    "settings",
    [
        {"norm_adv": "none"},
        {"norm_value": "popart", "clip_vloss": True},
        {"norm_value": "running", "surrogate": "penalty"},
    ],
    ids=["plain", "popart", "running"],
)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.full
@pytest.mark.quick("a shared torso-popart")
@pytest.mark.rare()
def test_the_loss_of_whole_streams_has_the_gradient_of_its_estimates(name, settings):
    """Targets and advantages are constants in it; cut episodes are bootstrapped from their own last observation."""
    config = made(recompute="minibatch", **settings, **NETWORKS[name])
    within, before = gradients(struct.as_arrays(config), jax.random.key(0))
    for x, y in zip(jax.tree.leaves(within), jax.tree.leaves(before), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4)


@jax.jit
def updated(config, key, unread=0.0):
    learner, trajectory = acted(config, key, unread)
    keys = Keys.of_one_group(jax.random.key(1))
    new, metrics, _ = config.algorithm(SPEC).update(learner, trajectory, keys, Clock.zero())
    return new.shared, metrics


def after_update(config, unread=0.0):
    return updated(struct.as_arrays(config), jax.random.key(0), unread)


def difference(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(float(jnp.abs(x - y).max()) for x, y in pairs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"core": "gru", "chunk_length": 4, "burn_in": 2, "norm_adv": "batch"},
        {"norm_value": "running", "norm_reward": True},
    ],
    ids=["plain", "chunks", "running"],
)
@pytest.mark.slow
def test_one_epoch_is_the_update_without_recomputation(settings):
    """With several minibatches; and V-trace's is GAE's, where no parameter has changed before."""
    config = made(update_epochs=1, num_minibatches=2, recompute="epoch", **settings)
    once = after_update(dataclasses.replace(config, recompute="never"))
    assert_equal(after_update(config), once)
    gae = after_update(dataclasses.replace(config, recompute="never", advantage="gae"))
    assert difference(once, gae) < 1e-5
    twice = dataclasses.replace(config, update_epochs=2, critic_update_epochs=2)
    never = dataclasses.replace(twice, recompute="never")
    assert difference(after_update(twice), after_update(never)) > 1e-5


@pytest.mark.parametrize("name", ["no memory", "two memories"])
@pytest.mark.slow
def test_one_gradient_step_is_the_same_however_often_estimates_are_computed(name):
    config = made(update_epochs=1, learning_rate=0.01, recompute="minibatch", **NETWORKS[name])
    once = dataclasses.replace(config, recompute="never")
    assert difference(after_update(config)[0].network, after_update(once)[0].network) < 1e-4
    twice = dataclasses.replace(config, update_epochs=2, critic_update_epochs=2)
    never = dataclasses.replace(twice, recompute="never")
    assert difference(after_update(twice)[0].network, after_update(never)[0].network) > 1e-3


@pytest.mark.parametrize("recompute", ["epoch", "minibatch"])
@pytest.mark.parametrize(
    "settings", [{}, {"surrogate": "penalty"}, *({"core": x} for x in ("gru", "mingru"))]
)
@pytest.mark.full
@pytest.mark.quick("settings1-minibatch", "settings0-epoch")
@pytest.mark.rare()
def test_what_is_not_read_may_hold_anything(settings, recompute):
    """Terminal observations, and the rewards of steps that are no transition."""
    config = made(recompute=recompute, num_minibatches=2, norm_value="popart", **settings)
    known, broken = after_update(config), after_update(config, float("nan"))
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), known))
    assert_equal(known, broken)


@jax.jit
def updated_by_hand(config, key):
    """The network after an update of one minibatch in each epoch, by a plain loop."""
    learner, trajectory = acted(config, key)
    rows, prepared, _, rollout = ppo.prepare(config, SPEC, (), learner, trajectory)
    shared = prepared.shared
    parts, merge = optimisers.split_parameters(config.optimization, shared.network, is_split=config.is_split)
    optimizer = optimisers.build(config.optimization, parts, 1.0)
    state = ppo.GradientState(parts, shared.optimizer, jnp.asarray(False))
    for epoch in range(config.update_epochs):
        if epoch > 0:
            advantage, target = recomputation.estimate(config, (), rollout, shared.value, merge(state.parts))
            rows = rows._replace(advantage=advantage, target=target)
        batches = minibatches.with_statistics(config, (), rows, of_all(rows)[None], jnp.int32(epoch))
        step = functools.partial(ppo.gradient_step, config, (), shared, optimizer, merge, rows)
        state, _ = jax.lax.scan(step, state, batches)
    return merge(state.parts)


@pytest.mark.slow
def test_advantages_are_estimated_before_each_epoch_but_the_first_and_normalised_then():
    config = made(recompute="epoch", update_epochs=2, optimizer="sgd", optimizer_args=(), learning_rate=0.3)
    network = after_update(config)[0].network
    by_hand = updated_by_hand(struct.as_arrays(config), jax.random.key(0))
    assert difference(network, by_hand) < 1e-5
    never = dataclasses.replace(config, recompute="never")
    assert difference(network, after_update(never)[0].network) > 1e-3


@pytest.mark.slow
def test_a_minibatch_of_streams_is_standardised_as_a_whole():
    config = struct.as_arrays(made(recompute="minibatch", **NETWORKS["no memory"]))
    learner, trajectory = jax.jit(acted)(config, jax.random.key(0))
    rows, *_ = ppo.prepare(config, SPEC, (), learner, trajectory)
    assert rows.weight.shape == (N, T + 1) and (rows.weight[:, -1] == 0).all()
    output = jax.random.normal(jax.random.key(1), rows.weight.shape)
    advantage = np.asarray(
        recomputation.with_estimates(config, (), None, rows, jnp.zeros_like(output), output).advantage
    )
    advantage = advantage[np.asarray(rows.weight) > 0]
    np.testing.assert_allclose([advantage.mean(), advantage.std()], [0.0, 1.0], atol=1e-5)


GROUPED = {
    "epochs": {"recompute": "epoch", "norm_value": "popart", "norm_adv": "batch", "num_minibatches": 2},
    "streams": {"recompute": "minibatch", "norm_value": "running", "num_minibatches": 2},
    "chunks": {"recompute": "epoch", "core": "gru", "chunk_length": 4, "num_minibatches": 2},
}


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.slow
def test_groups_on_one_device_and_on_two_come_to_the_same(name):
    found = []
    for devices in (1, 2):
        population, programs = populate(Halves(), made(**GROUPED[name]), devices=devices, groups=2)
        population, metrics = programs.train(population, jnp.int32(3))
        found.append(jax.device_get((population.learner.shared, metrics)))
    for x, y in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.isfinite(x).all()
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


REFUSED = [
    ({"advantage": "vtrace_rewards"}, "advantage='vtrace_rewards' has no effect with recompute='never'"),
    ({"advantage": "vtrace"}, "advantage='vtrace' has no effect with recompute='never'"),
    (
        {"advantage": "vtrace", "recompute": "epoch", "surrogate": "policy_gradient"},
        "advantage='vtrace' leaves the ratio of an action to the surrogate",
    ),
    ({"recompute": "epoch", "update_epochs": 1}, "recompute='epoch' has no effect with update_epochs=1"),
    (
        {"recompute": "minibatch", "update_epochs": 1, "num_minibatches": 1},
        "recompute='minibatch' has no effect with update_epochs=1 and num_minibatches=1",
    ),
    (
        {"recompute": "minibatch", "num_minibatches": 16, "update_epochs": 1},
        "num_minibatches=16 does not divide the number of environments, which recompute='minibatch' does not cut, "
        "num_envs=8; 8 does.",
    ),
    ({"recompute": "minibatch", "norm_adv": "batch"}, "norm_adv='batch' needs the advantages of a whole rollout"),
    ({"recompute": "minibatch", "gradient_chunk": 64}, "gradient_chunk=64 cuts a minibatch"),
    ({"recompute": "minibatch", "core": "gru", "chunk_length": 4}, "chunk_length=4 cuts the rollout of 16 steps"),
    ({"norm_value": "popart", "network": "shoal.nets.q_heads:ContinuousQ"}, "norm_value='popart' rescales"),
    (
        {"norm_value": "running", "value_loss": "categorical_td"},
        "norm_value='running' normalises targets, and value_loss='categorical_td' has rewards and",
    ),
]  # fmt: skip


@pytest.mark.parametrize("settings, message", REFUSED)
def test_bad_settings_are_one_sentence(settings, message):
    with pytest.raises(ShoalError) as error:
        with_settings(PPOConfig(), **settings).resolved().validate(SPEC, 8, 16)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", [A2CConfig(), ReinforceConfig()])
@pytest.mark.parametrize("recompute", ["epoch", "minibatch"])
def test_one_pass_of_the_policy_gradient_has_nothing_to_recompute(config, recompute):
    with pytest.raises(ShoalError, match=f"recompute='{recompute}' has no effect with update_epochs=1"):
        dataclasses.replace(config, recompute=recompute).resolved().validate(SPEC, 8, 16)


def test_what_fits_is_accepted():
    for settings in (
        {"advantage": "vtrace", "recompute": "epoch", "rho_clip": 1.0, "c_clip": 2.0},
        {"advantage": "vtrace", "recompute": "minibatch", "surrogate": "vtrace_policy_gradient"},
        {"advantage": "vtrace_rewards", "recompute": "epoch", "surrogate": "policy_gradient"},
        {"recompute": "minibatch", "num_minibatches": 8, "norm_adv": "none", "norm_value": "popart"},
        {
            "recompute": "minibatch",
            "core": "gru",
            "chunk_length": 16,
            "norm_reward": True,
            "norm_value": "running",
        },
        {"recompute": "epoch", "update_epochs": 1, "critic_update_epochs": 4},
    ):
        config = with_settings(PPOConfig(), **settings).resolved()
        config.validate(SPEC, 8, 16)
        assert (config.gradient_chunk == 0) == (config.recompute == "minibatch")


@pytest.mark.parametrize("name", ["gae", "vtrace"])
def test_streams_may_stand_along_several_axes(name):
    """As those of worlds and of the agents in each."""
    config = made(advantage=name)
    reward, value, log_ratio = np.random.default_rng(0).normal(size=(3, T + 1, 2, 3)).astype(np.float32)
    last = ENDS[1][1:, :6].reshape(T, 2, 3)
    ones = np.ones(last.shape, np.float32)
    inputs = Rows(reward=reward[1:], discount=np.float32(0.9) * ones, last=last, weight=ones)
    given = inputs, value, log_ratio[1:]
    estimate = jax.jit(functools.partial(advantages.ESTIMATORS[name], config))
    found = estimate(*given)
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(len(x), 6), given)
    for x, y in zip(found, estimate(*flat), strict=True):
        np.testing.assert_array_equal(x.reshape(T, 6), y)
