"""Training as Run -> Run: the same each time, in any chunks, undisturbed by evaluation, compiled once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_worlds import Compilations, assert_equal, populate, values

from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings

CONFIG = with_settings(
    PPOConfig(), hidden_sizes=(8,), update_epochs=2, num_minibatches=2, norm_obs=True
).resolved()


def begin(seed=0, config=CONFIG, **parameters):
    return populate(envs.make("CartPole-v1", **parameters), config, (seed,))


@pytest.fixture(scope="module")
def four_updates():
    """A run after four updates made at once, and its metrics."""
    population, compiled = begin()
    population, metrics = compiled.train(population, jnp.int32(4))
    return values(population), jax.device_get(metrics)


@pytest.mark.full
def test_the_same_seed_gives_the_same_bits(four_updates):
    population, compiled = begin()
    again, metrics = compiled.train(population, jnp.int32(4))
    assert_equal(four_updates, (values(again), jax.device_get(metrics)))
    population, _ = begin(seed=1)
    other = values(compiled.train(population, jnp.int32(4))[0])
    first, _ = four_updates
    kernels = [name for name in first if name.startswith("learner/shared/network") and "kernel" in name]
    assert kernels
    assert all((first[name] != other[name]).any() for name in kernels)


def test_training_moves_everything_that_it_should(four_updates):
    population, _ = begin()
    before, (after, _) = values(population), four_updates
    assert after["updates"].tolist() == [4]
    still = {name for name in before if (before[name] == after[name]).all()}
    assert {"key", "best/score", "best/updates"} <= still
    assert not [name for name in before if name.startswith("learner/shared/network") and name in still]
    assert not [name for name in before if name.startswith("state/env/env/") and name in still]


@pytest.mark.full
def test_chunks_of_updates_are_the_same_as_all_at_once(four_updates):
    """The run and its metrics, bit for bit, and an interval that begins has sums of its own."""
    population, compiled = begin()
    population, first = compiled.train(population, jnp.int32(1))
    first = jax.device_get(first)
    population, all_four = compiled.train(population, jnp.int32(3), False)
    together, metrics = four_updates
    assert_equal(together, values(population))
    assert_equal(metrics, all_four)
    _, rest = compiled.train(population, jnp.int32(1))
    assert first["episodes"].weight == rest["episodes"].weight == 1


@pytest.mark.full
def test_evaluation_does_not_disturb_training(four_updates):
    population, compiled = begin()
    for begins_interval in (True, False):
        population, _ = compiled.evaluate(population)
        population, _ = compiled.train(population, jnp.int32(2), begins_interval)
        population, metrics = compiled.evaluate(population)
    together, _ = four_updates
    mine = values(population)
    same = [name for name in mine if not name.startswith(("best/", "evaluated/"))]
    assert_equal({name: together[name] for name in same}, {name: mine[name] for name in same})
    assert mine["best/score"][0] >= np.asarray(metrics["score"])[0] > -np.inf


def test_numbers_are_data():
    """Another number of updates, hyper-parameter or gravity is no other program, and nothing changes its type."""
    population, compiled = begin()
    avals = [jax.typeof(x) for x in jax.tree.leaves(population)]
    assert not [name for name, x in values(population).items() if x.dtype in (np.float64, np.int64)]
    population, _ = compiled.train(population, jnp.int32(1))
    assert [jax.typeof(x) for x in jax.tree.leaves(population)] == avals
    assert not any(aval.weak_type for aval in avals)
    others = [
        begin(config=with_settings(CONFIG, learning_rate=1, gamma=0.5))[0],
        begin(gravity=5)[0],
        begin(seed=7)[0],
    ]
    counts = [jnp.int32(1), jnp.int32(2), jnp.int32(3)]
    with Compilations() as compilations:
        population, _ = compiled.train(population, counts[1])
        for other, count in zip(others, counts, strict=True):
            compiled.train(other, count)
    assert compilations.count == 0
    with Compilations() as compilations:
        jax.jit(lambda x: x * 3)(counts[0])
    assert compilations.count == 1  # the count itself works


def test_a_changed_number_changes_the_result(four_updates):
    together, _ = four_updates
    for population, compiled in (begin(gravity=5), begin(config=dataclasses.replace(CONFIG, gamma=0.5))):
        other = values(compiled.train(population, jnp.int32(4))[0])
        network = [name for name in other if name.startswith("learner/shared/network")]
        assert any((together[name] != other[name]).any() for name in network)


def test_the_population_given_in_is_donated():
    population, compiled = begin()
    given = population
    population, _ = compiled.train(population, jnp.int32(1))
    kept = [name for name, x in jax.tree_util.tree_leaves_with_path(given) if not x.is_deleted()]
    assert not kept
    given = population
    compiled.evaluate(population)
    assert all(x.is_deleted() for x in jax.tree.leaves(given.learner))
