"""Populations: each member is its solo run, wherever it lies and however its environments are grouped."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves, assert_equal, populate, values

from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.engine.population import member_layout as populations
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import ENV_AXIS, Episodes, ProgramSettings
from shoal.envs.batch import Batch
from shoal.types import Clock, Keys, Learner, spec_of
from shoal.xla import packing

CONFIG = with_settings(
    PPOConfig(), hidden_sizes=(8,), update_epochs=2, num_minibatches=2, norm_obs=True, norm_reward=True
).resolved()
UPDATES = 3


def trained(seeds, **layout):
    """The seeds' runs after a few updates, evaluated once."""
    population, compiled = populate(envs.make("CartPole-v1"), CONFIG, seeds, **layout)
    population, metrics = compiled.train(population, jnp.int32(UPDATES))
    population, _ = compiled.evaluate(population)
    return values(population), jax.device_get(metrics)


@pytest.fixture(scope="module")
def solo():
    """Each seed trained alone."""
    return {seed: trained((seed,)) for seed in (3, 4)}


def assert_close(first, second):
    """Two trees are equal up to rounding, which a few updates have amplified."""
    first, second = values(first), values(second)
    assert first.keys() == second.keys()
    for name, x in first.items():
        np.testing.assert_allclose(second[name], x, rtol=1e-4, atol=1e-5, err_msg=name)


def members(population, seeds):
    return {seed: jax.tree.map(lambda x, k=k: x[k : k + 1], population) for k, seed in enumerate(seeds)}


@pytest.mark.full
def test_a_mapped_member_is_its_solo_run_bit_for_bit(solo):
    seeds = (3, 4)
    for seed, member in members(trained(seeds, mapped_by="map"), seeds).items():
        assert_equal(solo[seed], member)


@pytest.mark.slow
def test_a_member_on_a_device_of_its_own_is_its_solo_run_within_rounding(solo):
    """XLA compiles a program of two devices otherwise than one of one; how many members share a device is
    no matter."""
    two, four = (
        members(trained(seeds, devices=2, mapped_by="map"), seeds) for seeds in ((3, 4), (3, 5, 4, 6))
    )
    for seed in solo:
        assert_equal(two[seed], four[seed])
        assert_close(solo[seed], two[seed])


@pytest.mark.full
def test_a_vmapped_member_is_its_solo_run_within_rounding(solo):
    """Batched matrix products add in another order. Training amplifies that, so the time is short."""
    seeds = (3, 4)
    for seed, member in members(trained(seeds, mapped_by="vmap"), seeds).items():
        assert_close(solo[seed], member)


@pytest.mark.slow
def test_groups_on_one_device_are_groups_on_two():
    """Two groups of environments under vmap on one device, and under shard_map on two devices."""
    one, two = (trained((3,), groups=2, devices=devices) for devices in (1, 2))
    assert_close(one, two)
    starts = one[0]["timestep/observation"][0]
    assert len(np.unique(starts[:, 0])) == 4  # each group has environments of its own


@pytest.mark.slow
def test_groups_are_shared_out_whatever_the_algorithm():
    """The bandit's `local` is each environment's own; everything shared is the same on each device."""
    runs = []
    for devices in (1, 2):
        population, compiled = populate(Halves(), BanditConfig(), (0, 1), groups=2, devices=devices)
        population, _ = compiled.train(population, jnp.int32(4))
        assert population.learner.local.shape == (2, 4)
        runs.append(values(population))
    for name, x in runs[0].items():
        np.testing.assert_allclose(runs[1][name], x, rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_a_state_with_an_empty_array_has_groups_too():
    population, compiled = populate(envs.make("particles/Navigator-v0"), CONFIG, (0,), groups=2)
    assert any(x.size == 0 for x in jax.tree.leaves(population.state))
    population, _ = compiled.train(population, jnp.int32(1))
    assert population.updates == 1


NORMALISED = {"norm_adv": "batch", "norm_obs": True, "norm_reward": True}
REMEMBERING = {
    "core": "lstm",
    "core_size": 8,
    "chunk_length": 4,
    "previous_action": True,
    "norm_reward": True,
}


@pytest.mark.parametrize("settings", [{}, NORMALISED, REMEMBERING])
@pytest.mark.full
@pytest.mark.rare("settings0", "settings2")
def test_the_number_of_groups_does_not_change_the_mathematics(settings, monkeypatch):
    """One trajectory, whole or split over two groups; with one minibatch there is no shuffle to differ."""
    if settings is REMEMBERING:  # its larger arrays are summed each by itself
        monkeypatch.setattr(packing, "MIN_UNPACKED_SIZE", 64)
    env, num_envs = envs.make("CartPole-v1", max_episode_steps=6), 8
    config = with_settings(
        PPOConfig(), hidden_sizes=(8,), num_minibatches=1, update_epochs=3, **settings
    ).resolved()
    algorithm = config.algorithm(spec_of(env))
    batch = Batch(env, num_envs=num_envs)

    @jax.jit
    def experience(key):
        state, timestep = batch.reset(key)
        learner, zeros = algorithm.init(key, num_envs), jnp.zeros(num_envs)
        memory = algorithm.memory((num_envs,))
        rollout_state = RolloutState(state, timestep, memory, Episodes(zeros, zeros), no_ended_episodes())
        return learner, rollout(
            batch, algorithm, algorithm.policy(learner, Clock.zero()), rollout_state, key, 16
        )[1]

    def split(x, axis):
        return jnp.moveaxis(x.reshape(*x.shape[:axis], 2, -1, *x.shape[axis + 1 :]), axis, 0)

    @jax.jit
    def both(learner, trajectory, key):
        whole, metrics, *_ = algorithm.update(learner, trajectory, Keys.of_one_group(key), Clock.zero())
        group = config.algorithm(spec_of(env), (ENV_AXIS,))
        parts = trajectory._replace(memory=jax.tree.map(lambda x: split(x, 0), trajectory.memory))
        parts = jax.tree.map(lambda x: split(x, 1), trajectory._replace(memory=()))._replace(
            memory=parts.memory
        )
        grouped, grouped_metrics = jax.vmap(
            lambda local, part: group.update(
                Learner(learner.shared, local), part, Keys.of_one_group(key), Clock.zero()
            )[:2],
            axis_name=ENV_AXIS,
        )(jax.tree.map(lambda x: split(x, 0), learner.local), parts)
        return (whole, metrics), (grouped, grouped_metrics)

    learner, trajectory = experience(jax.random.key(0))
    assert bool(trajectory.timesteps.last[:-1].any())
    (whole, metrics), (grouped, grouped_metrics) = both(learner, trajectory, jax.random.key(1))
    before = values(learner.shared)
    for name, x in values(whole.shared).items():
        for k in range(2):  # each group holds the same
            np.testing.assert_allclose(values(grouped.shared)[name][k], x, rtol=1e-4, atol=2e-6, err_msg=name)
        assert "network" not in name or (x != before[name]).any()
    for x, y in zip(jax.tree.leaves(grouped.local), jax.tree.leaves(whole.local), strict=True):
        np.testing.assert_allclose(x.reshape(y.shape), y, rtol=1e-5, atol=1e-6)
    for name, mean in metrics.items():
        np.testing.assert_allclose(
            grouped_metrics[name].value[0], mean.value, rtol=1e-3, atol=1e-5, err_msg=name
        )


@pytest.mark.full
def test_members_may_differ_in_hyper_parameters_and_worlds():
    """A sweep is a population whose numbers differ: each member is the run of its own numbers."""
    env = Halves(bonus=jnp.array([1.0, 0.0]))
    config = BanditConfig(step_size=jnp.array([0.5, 0.1]))
    population, compiled = populate(Halves(), BanditConfig(), (0, 0))
    population = dataclasses.replace(
        population,
        environment=dataclasses.replace(population.environment, bonus=env.bonus),
        config=dataclasses.replace(population.config, step_size=config.step_size),
    )
    swept = values(compiled.train(population, jnp.int32(4))[0])
    for k, (bonus, step_size) in enumerate([(1.0, 0.5), (0.0, 0.1)]):
        alone, compiled = populate(Halves(bonus=bonus), BanditConfig(step_size=step_size), (0,))
        alone = values(compiled.train(alone, jnp.int32(4))[0])
        assert_equal(alone, {name: x[k : k + 1] for name, x in swept.items()})


@pytest.mark.parametrize(
    "devices,seeds,groups,shape",
    [
        (1, 10, 1, (1, 1)),
        (2, 10, 1, (2, 1)),
        (2, 3, 1, (1, 1)),  # three members do not share out over two devices
        (2, 1, 2, (1, 2)),
        (1, 4, 2, (1, 1)),  # fewer devices than groups: the groups of a member stay on one
        (2, 4, 2, (1, 2)),
    ],
)
def test_a_layout_takes_as_many_devices_as_divide_the_work(devices, seeds, groups, shape):
    layout = populations.lay_out(jax.devices()[:devices], seeds, groups)
    assert tuple(layout.mesh.shape.values()) == shape
    assert layout.devices == shape[0] * shape[1]
    assert layout.mapped_by == "map"  # on the CPU
    assert populations.lay_out(jax.devices()[:devices], seeds, groups, "vmap").mapped_by == "vmap"


@pytest.mark.full
def test_one_member_is_picked_out():
    population, _ = populate(Halves(), BanditConfig(), (0, 1))
    second = populations.take_member(population, 1)
    assert_equal(second.key, jax.random.key(1))
    assert second.learner.local.shape == (4,)
    assert isinstance(second.settings, ProgramSettings)
