"""State of each environment that is as large as a replay: no program of a population selects or copies it whole."""

import dataclasses
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig, bandit
from tiny_worlds import SMALL, Halves, populate, values

from shoal.config import struct
from shoal.engine.nonfinite import NOWHERE, STOPPED
from shoal.engine.population import member_layout, pbt_exchange
from shoal.engine.population.compaction import Dealer
from shoal.records.pbt_settings import Tuned
from shoal.types import Learner

MEMBERS, NUM_ENVS, ROWS = 6, SMALL["num_envs"], 2**17
REPLAY = NUM_ENVS * ROWS * 4  # bytes of one member
STEP_SIZE = Tuned("step_size", "linear", 0.1, 1.0, (0.1, 1.0))


@struct.struct
class ReplayConfig(BanditConfig):
    """The bandit, which writes the rewards of a rollout into a replay [N, ROWS] and learns from two of its rows."""

    def algorithm(self, spec, axis=()):
        own = bandit(self, spec, axis)

        def init(key, num_envs):
            learner = own.init(key, num_envs)
            of_each = (
                learner.local,
                jax.random.split(key, num_envs),
                -0.0 * jnp.ones((num_envs, 2), jnp.bfloat16),
            )
            return Learner(
                (learner.shared, jnp.int32(0)),
                (*of_each, jnp.ones(num_envs, bool), jnp.zeros((num_envs, ROWS))),
            )

        def update(learner, trajectory, keys, clock):
            (shared, written), (local, *others, replay) = learner
            new, metrics = own.update(Learner(shared, local), trajectory, keys, clock)
            rewards = trajectory.timesteps.reward.T
            replay = replay.at[:, (written + jnp.arange(rewards.shape[1])) % ROWS].set(
                rewards, unique_indices=True
            )
            drawn = replay[0, jax.random.randint(keys.local, (2,), 0, ROWS)]
            shared = new.shared._replace(baseline=new.shared.baseline + 0.1 * drawn.mean())
            return Learner((shared, written + rewards.shape[1]), (new.local, *others, replay)), metrics

        def policy(learner, clock):
            return own.policy(Learner(learner.shared[0], ()), clock)

        return own._replace(init=init, update=update, policy=policy, inherit=None)


def population_of(mapped_by="map", devices=1):
    return populate(Halves(), ReplayConfig(), range(MEMBERS), mapped_by=mapped_by, devices=devices)


def temporary_bytes(program, *arguments):
    return program.lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.full
@pytest.mark.parametrize("mapped_by, replays", [("vmap", 0.1), ("map", 1.1)])
@pytest.mark.rare("map-1.1")
def test_training_and_evaluation_make_no_second_replay_of_each_member(mapped_by, replays):
    population, programs = population_of(mapped_by)
    assert temporary_bytes(programs.train, population, jnp.int32(1), jnp.bool_(True)) < replays * REPLAY
    assert temporary_bytes(programs.evaluate, population) < 0.1 * REPLAY


@pytest.mark.slow
@pytest.mark.parametrize("devices, replays", [(1, 1.1), (2, 3.3)])
def test_an_exchange_copies_the_replay_of_a_parent_alone(devices, replays):
    population, programs = population_of("vmap", devices)
    population, _ = programs.train(population, jnp.int32(2), True)
    scores = jnp.arange(MEMBERS, dtype=jnp.float32)
    leaves = {"step_size": ["step_size"]}
    before, (plain, exchanged) = (
        values(population),
        pbt_exchange.exchange(population, scores, 1, [STEP_SIZE], leaves),
    )
    assert exchanged.parent.tolist() == [5, 1, 2, 3, 4, 5]
    expected = values(plain)
    np.testing.assert_array_equal(expected["learner/local/4"], before["learner/local/4"][exchanged.parent])
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), population)
    layout = member_layout.lay_out(jax.devices()[:devices], MEMBERS, 1, "vmap")
    program = pbt_exchange.compile_exchange(shapes, layout, [STEP_SIZE], leaves)
    assert program.memory_analysis().temp_size_in_bytes < replays * REPLAY
    after, _ = program(
        population, jax.device_put(scores, jax.sharding.NamedSharding(layout.mesh, jax.P())), np.int32(1)
    )
    for name, leaf in values(after).items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


@pytest.mark.full
def test_a_frozen_member_keeps_all_but_its_replay_while_the_others_train():
    results = []
    for fault in (-1, 1):
        population, programs = population_of("vmap")
        faults = jnp.where(jnp.arange(MEMBERS) == 2, fault, -1)
        population = dataclasses.replace(population, fault=faults)
        before = values(population)
        results.append(values(programs.train(population, jnp.int32(3), True)[0]))
    trained, frozen = results
    others = [0, 1, 3, 4, 5]
    assert frozen["fault"].tolist() == [-1, -1, 1, -1, -1, -1] and frozen["updates"].tolist() == [
        3,
        3,
        0,
        3,
        3,
        3,
    ]
    for name, leaf in frozen.items():
        if name != "learner/local/4":
            np.testing.assert_array_equal(leaf[2], before[name][2], err_msg=name)
        np.testing.assert_array_equal(leaf[others], trained[name][others], err_msg=name)


def stopped(population, members):
    return dataclasses.replace(
        population, fault=jnp.where(jnp.isin(jnp.arange(MEMBERS), jnp.array(members)), STOPPED, NOWHERE)
    )


def dealer_of(population, programs, mapped_by, devices):
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), population)
    layout = member_layout.lay_out(jax.devices()[:devices], MEMBERS, 1, mapped_by)
    return Dealer(programs.train, shapes, layout, factor=2)


@pytest.mark.slow
def test_members_that_were_packed_are_put_back_without_a_second_population():
    population, programs = population_of("vmap")
    put = dealer_of(population, programs, "vmap", 1)._programs[3].result().put.memory_analysis()
    assert put.alias_size_in_bytes > 6 * REPLAY and put.temp_size_in_bytes < 0.1 * REPLAY


@pytest.mark.full
@pytest.mark.parametrize(("members", "moves"), [([1, 4], False), ([0, 1], True)])
@pytest.mark.rare("members0-False")
def test_members_move_only_where_devices_have_unequal_work(members, moves):
    population, programs = population_of("map", 2)
    expected = values(programs.train(stopped(population, members), jnp.int32(2), True)[0])
    population, taken = population_of("map", 2)[0], []
    dealer = dealer_of(population, programs, "map", 2)
    compiled, dealer._programs[MEMBERS] = dealer._programs[MEMBERS].result(), Future()
    taking = compiled._replace(take=lambda *x: taken.append(x) or compiled.take(*x))
    dealer._programs[MEMBERS].set_result(taking)
    after = values(dealer.train(stopped(population, members), jnp.int32(2), True))
    assert bool(taken) == moves
    for name, leaf in after.items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)
