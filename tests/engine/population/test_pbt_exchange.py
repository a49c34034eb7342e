"""Exchanges between members: whom they copy, how settings change, and what a member takes over."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves, populate, values

from shoal.engine.population import pbt_exchange as exchanges
from shoal.engine.run import Stream, stream_key
from shoal.records.pbt_settings import LINEAR, LOG, ONE_MINUS_LOG, Tuned

RATE = Tuned("rate", LOG, 1e-5, 1e-2, (1e-4, 1e-3))
DISCOUNT = Tuned("discount", ONE_MINUS_LOG, 0.9, 0.999, (0.9, 0.999))
WEIGHT = Tuned("weight", LINEAR, -1.0, 3.0, (0.0, 1.0))
TUNED = (RATE, DISCOUNT, WEIGHT)
STEPS = (Tuned("step_size", LOG, 0.01, 5.0, (0.1, 1.0)), Tuned("baseline_rate", LINEAR, 0.1, 0.9, (0.1, 0.9)))
LEAVES = {"step_size": ("step_size",), "baseline_rate": ("baseline_rate",)}


select_parents = jax.jit(exchanges.select_parents)
uniform_draws = jax.jit(exchanges.uniform_draws, static_argnums=2)


def parents_in_numpy(scores, places, ties):
    """Truncation selection by sorting pairs of score and number."""
    members = len(scores)
    known = [score if math.isfinite(score) else -math.inf for score in scores]
    order = sorted(range(members), key=lambda k: (-known[k], ties[k]))
    count = members // 5
    among = min(count, max(sum(score > -math.inf for score in known), 1))
    parents = list(range(members))
    for k in range(members):
        chosen = order[int(places[k] * among)]
        loses = k in order[members - count :] or known[k] == -math.inf
        if loses and known[chosen] > -math.inf:
            parents[k] = chosen
    return parents


def value_in_numpy(tuned, value, draws):
    low, high = tuned.low, tuned.high
    redraw, which, place = (float(x) for x in draws)
    if redraw < 0.25:
        if tuned.scale == LOG:
            return math.exp(math.log(low) + place * (math.log(high) - math.log(low)))
        if tuned.scale == ONE_MINUS_LOG:
            return 1 - math.exp(math.log(1 - low) + place * (math.log(1 - high) - math.log(1 - low)))
        return low + place * (high - low)
    factor = 0.8 if which < 0.5 else 1.25
    changed = 1 - (1 - value) / factor if tuned.scale == ONE_MINUS_LOG else value * factor
    return min(max(changed, low), high)


@pytest.mark.parametrize("members", [5, 16, 33])
def test_the_worst_fifth_copies_the_best_fifth(members):
    rng = np.random.default_rng(members)
    for case in range(20):
        scores = rng.integers(0, 6, members).astype(np.float32)  # many ties
        scores[rng.random(members) < (0.0, 0.1, 0.2, 0.9)[case % 4]] = rng.choice([np.nan, np.inf, -np.inf])
        places, ties = rng.random((2, members), np.float32)
        parents = select_parents(*map(jnp.asarray, (scores, places, ties))).tolist()
        assert parents == parents_in_numpy(scores.tolist(), places.tolist(), ties.tolist())


def test_of_equal_members_each_may_be_one_that_copies():
    """With one order of equal ones the same three would copy each time, and a seldom reward would be sought by them."""
    keys = jax.random.split(jax.random.key(0), 16)
    copied = set()
    for number in range(1, 40):
        draws = uniform_draws(keys, number, 1)
        parents = np.asarray(select_parents(jnp.zeros(16), draws[:, 0], draws[:, -1]))
        copies = np.flatnonzero(parents != np.arange(16))
        assert len(copies) == 3
        copied |= set(copies.tolist())
    assert copied == set(range(16))


def test_nobody_copies_where_all_have_failed():
    scores = jnp.full(10, jnp.nan)
    assert select_parents(scores, jnp.zeros(10), jnp.zeros(10)).tolist() == list(range(10))


@pytest.mark.parametrize("tuned", TUNED, ids=lambda x: x.scale)
def test_exploring_is_a_factor_or_a_new_draw_within_the_bounds(tuned):
    rng = np.random.default_rng(0)
    draws = rng.random((3, 200), np.float32)
    before = rng.uniform(tuned.low, tuned.high, 200).astype(np.float32)
    after = np.asarray(jax.jit(lambda *a: exchanges.explore(tuned, *a))(before, draws))
    expected = [value_in_numpy(tuned, float(x), u) for x, u in zip(before, draws.T, strict=True)]
    np.testing.assert_allclose(after, expected, rtol=1e-5)
    assert (after >= np.float32(tuned.low)).all()
    assert (after <= np.float32(tuned.high)).all()
    assert 0.15 < (draws[0] < exchanges.REDRAW).mean() < 0.35


def test_draws_are_streams_of_the_members_counted_by_exchange():
    keys = jnp.stack([jax.random.key(seed) for seed in range(5)])
    first, second = (np.asarray(uniform_draws(keys, number, 2)) for number in (1, 2))
    assert first.shape == (5, 8)
    assert len(np.unique(np.concatenate([first, second]))) == 80
    np.testing.assert_array_equal(uniform_draws(keys[2:], 1, 2), first[2:])
    alone = jax.random.uniform(stream_key(jax.random.key(3), Stream.EXCHANGE, 1), (8,))
    np.testing.assert_array_equal(first[3], alone)


@pytest.fixture(scope="module")
def population():
    """Ten members after four updates, the last of which failed in its third."""
    run, programs = populate(Halves(bonus=1.0), BanditConfig(), seeds=tuple(range(10)), devices=2)
    run, _ = programs.train(run, jnp.int32(4), jnp.bool_(True))
    run, _ = programs.evaluate(run)
    failed = jnp.where(jnp.arange(10) == 9, 3, run.fault)
    updates = jnp.where(jnp.arange(10) == 9, 2, run.updates)
    return jax.device_get((run, failed, updates))


def exchange(population, number=1):
    run, fault, updates = population
    run = dataclasses.replace(run, fault=fault, updates=updates)
    scores = jnp.asarray([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 99.0])
    exchange = jax.jit(lambda run: exchanges.exchange(run, scores, number, STEPS, LEAVES))
    return jax.device_get(exchange(run))


def test_a_copy_has_everything_of_its_parent_but_key_and_best(population):
    after, exchanged = exchange(population)
    parents = exchanged.parent.tolist()
    # The failed member is the worst, whatever its score; then that of the two with score 1 that drew the higher number.
    ties = np.asarray(uniform_draws(population[0].key, 1, 2))[:, -1]
    worst = 1 if ties[1] > ties[3] else 3
    assert [k for k, parent in enumerate(parents) if parent != k] == [worst, 9]
    assert {parents[worst], parents[9]} <= {5, 7}
    before, now = values(population[0]), values(after)
    before |= {"fault": population[1], "updates": population[2]}
    assert before.keys() == now.keys()
    for name, leaf in now.items():
        part = name.split("/")[0]
        if part == "config":
            continue
        expected = before[name] if part in exchanges.NOT_COPIED else before[name][parents]
        np.testing.assert_array_equal(leaf, expected, err_msg=name)
    assert now["fault"].tolist() == [-1] * 10
    assert now["updates"].tolist() == [4] * 10


def test_settings_follow_their_parent_and_change_only_where_one_was_copied(population):
    after, exchanged = exchange(population)
    draws = np.asarray(uniform_draws(population[0].key, 1, 2))
    for index, setting in enumerate(STEPS):
        before, now = exchanged.before[setting.name], getattr(after.config, setting.name)
        np.testing.assert_array_equal(now, exchanged.after[setting.name])
        for k, parent in enumerate(exchanged.parent.tolist()):
            if parent == k:
                assert now[k] == before[k]
                continue
            expected = value_in_numpy(setting, float(before[parent]), draws[k, 1 + 3 * index : 4 + 3 * index])
            np.testing.assert_allclose(now[k], expected, rtol=1e-5)


def test_exchange_0_draws_first_settings_for_all(population):
    after, exchanged = exchange(population, number=0)
    assert exchanged.parent.tolist() == list(range(10))
    assert len(set(after.config.step_size.tolist())) == 10
    assert all(0.1 <= x <= 1.0 for x in after.config.step_size.tolist())
    np.testing.assert_array_equal(after.learner.shared.actions, population[0].learner.shared.actions)
