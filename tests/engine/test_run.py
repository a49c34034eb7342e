"""The Run: what a start consists of, disjoint streams of randomness, and what belongs to whom."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves, assert_equal, populate, values

from shoal.config import struct
from shoal.engine.run import (
    ENV_AXIS,
    ProgramSettings,
    Stream,
    batch_of,
    group_key,
    placement,
    start,
    stream_key,
)


@pytest.fixture(scope="module")
def run():
    settings = ProgramSettings(num_envs=16, num_steps=4)
    arguments = struct.as_arrays(Halves()), struct.as_arrays(BanditConfig())
    return jax.jit(start, static_argnums=4)(jax.random.key(3), *arguments, 5, settings)


def test_no_two_uses_of_a_key_are_the_same():
    key = jax.random.key(0)
    uses = [stream_key(key, stream, counter) for stream in Stream for counter in range(20)]
    data = np.stack([jax.random.key_data(use) for use in [*uses, key]])
    assert len(np.unique(data, axis=0)) == len(uses) + 1
    assert_equal(stream_key(key, Stream.UPDATE, 3), stream_key(key, Stream.UPDATE, jnp.int32(3)))


def test_a_groups_key_is_its_own():
    key = jax.random.key(0)
    one, two = (ProgramSettings(num_envs=4, num_steps=1, groups=groups) for groups in (1, 2))
    assert_equal(group_key(key, one), key)
    keys = jax.vmap(lambda _: group_key(key, two), axis_name=ENV_AXIS)(jnp.arange(2))
    first, second = jax.random.key_data(keys)
    assert (first != second).any()
    assert one.axis == ()
    assert two.axis == (ENV_AXIS,)


def test_a_start_is_a_first_step_in_each_environment(run):
    assert run.timestep.first.all()
    assert not run.timestep.last.any()
    assert run.state.last.shape == (16,)
    assert run.learner.local.shape == (16,)
    assert run.memory.shape == (16,)
    assert run.episodes.returned.tolist() == run.episodes.length.tolist() == [0] * 16
    assert int(run.updates) == 0
    assert float(run.best.score) == -np.inf
    assert_equal(run.best.policy, run.learner.shared.actions)
    assert_equal(run.key, jax.random.key(3))
    assert len(np.unique(run.state.env.ends_after)) == 2  # each has a start of its own


def test_a_run_is_one_pytree_of_strong_types(run):
    leaves, structure = jax.tree.flatten(run)
    assert not any(jax.typeof(x).weak_type for x in leaves)
    again = jax.tree.unflatten(structure, leaves)
    assert again.settings == run.settings
    assert_equal(again, run)
    assert dataclasses.replace(run, settings=run.settings._replace(num_steps=5)).settings.num_steps == 5
    assert len(values(run)) == len(leaves)  # every leaf has a name of its own


def test_the_batch_is_one_groups_share():
    settings = ProgramSettings(num_envs=12, num_steps=1, groups=3, reset_policy="pool", pool_size=7)
    batch = batch_of(Halves(), settings)
    assert (batch.num_envs, batch.reset_policy, batch.pool_size) == (4, "pool", 2)


@pytest.mark.full
def test_a_pool_of_starts_serves_all_episodes():
    """Two starts, drawn again and again: the ends of all episodes are those of the two."""
    population, compiled = populate(
        Halves(), BanditConfig(), (0,), reset_policy="pool", pool_size=2, num_envs=8, num_steps=32
    )
    pool = np.asarray(population.state.pool[0].ends_after)
    assert pool.shape == (1, 2)
    for _ in range(3):
        population, _ = compiled.train(population, jnp.int32(1))
        assert set(np.asarray(population.state.env.ends_after).flat) <= set(pool.flat)
        np.testing.assert_array_equal(population.state.pool[0].ends_after, pool)


def test_placement_says_what_belongs_to_a_group(run):
    marks = placement(run.settings, "local", "shared")
    local = {field.name for field in dataclasses.fields(marks) if getattr(marks, field.name) == "local"}
    assert local == {"state", "timestep", "memory", "episodes"}
    assert tuple(marks.learner) == ("shared", "local")
    assert marks.settings == run.settings
