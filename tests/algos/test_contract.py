"""One contract for every algorithm, Shoal's own and a user's: what the runtime relies on, and no more."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import SMALL, Halves, assert_equal, populate, values

import shoal
from shoal.algos import catalogue
from shoal.config import struct
from shoal.config.settings import settings_of, with_settings
from shoal.engine.reduction_check import check_reduced
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Episodes, ProgramSettings
from shoal.envs.batch import Batch
from shoal.runs.plan.experiment import resolve
from shoal.types import Clock, Keys, Learner, Mean, spec_of

NUM_ENVS, NUM_STEPS = 8, 8
ENV = Halves(bonus=1.0)
CONTINUOUS = shoal.make("Pendulum-v1")  # for algorithms that take no other actions


def env_of(config):
    return CONTINUOUS if getattr(config, "name", "") in ("td3", "ddpg") else ENV


def spec_for(config):
    return spec_of(env_of(config))


def made(name):
    if name == "a user's":
        return BanditConfig()
    if name == "ppo with memory":
        config = with_settings(
            catalogue.config_class("ppo")(), core="gru", core_size=8, chunk_length=4, previous_action=True
        )
        return config.resolved()
    if name.endswith("with state"):
        config = with_settings(catalogue.config_class(name.split()[0])(), network="stateful_networks:Both")
        return resolve(config)
    config = with_settings(catalogue.config_class(name)(), hidden_sizes=(8,))
    if "learning_starts" in settings_of(config):  # with a replay: one rollout fills it enough
        config = with_settings(config, buffer_size=256, batch_size=16, learning_starts=16, train_frequency=16)
    return resolve(config)


@pytest.fixture(
    params=[*catalogue.algorithms(), "ppo with memory", "ppo with state", "pqn with state", "a user's"],
    scope="module",
)
def config(request):
    return made(request.param)


@pytest.fixture(scope="module")
def learn(config):
    """The compiled function from a config and a key to a learner before and after an update; counts its traces."""
    batch = Batch(env_of(config), num_envs=NUM_ENVS)

    def learn(config, key):
        learn.traces += 1
        algorithm = config.algorithm(spec_for(config))
        init_key, reset_key, roll_key, update_key = jax.random.split(key, 4)
        learner = algorithm.init(init_key, NUM_ENVS)
        state, timestep = batch.reset(reset_key)
        zeros = jnp.zeros(NUM_ENVS)
        memory = algorithm.memory((NUM_ENVS,))
        rollout_state = RolloutState(state, timestep, memory, Episodes(zeros, zeros), no_ended_episodes())
        rollout_state, trajectory = rollout(
            batch, algorithm, algorithm.policy(learner, Clock.zero()), rollout_state, roll_key, NUM_STEPS
        )
        clock = Clock.zero()._replace(progress=jnp.float32(0.25))
        new, metrics, *_ = algorithm.update(learner, trajectory, Keys.of_one_group(update_key), clock)
        return {"before": learner, "after": new, "metrics": metrics, "trajectory": trajectory}

    learn.traces = 0
    compiled = jax.jit(learn)
    compiled.counted = learn
    return compiled


@pytest.fixture(scope="module")
def learned(config, learn):
    return learn(struct.as_arrays(config), jax.random.key(0))


@pytest.mark.quick("ppo with memory", "a user's")
@pytest.mark.rare("rainbow")
def test_an_update_keeps_structure_shapes_and_types(learned):
    before, after = learned["before"], learned["after"]
    assert isinstance(before, Learner)
    assert isinstance(after, Learner)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert [jax.typeof(x) for x in jax.tree.leaves(before)] == [jax.typeof(x) for x in jax.tree.leaves(after)]
    assert not any(jax.typeof(x).weak_type for x in jax.tree.leaves(before))


@pytest.mark.quick("ppo with memory", "a user's")
def test_an_update_learns_something_finite(learned):
    before, after = values(learned["before"].shared), values(learned["after"].shared)
    assert any((before[name] != after[name]).any() for name in before)
    assert all(np.isfinite(x).all() for x in after.values())
    metrics = learned["metrics"]
    assert metrics
    for name, mean in metrics.items():
        assert isinstance(mean, Mean), name
        assert mean.total.shape == mean.weight.shape == ()
        assert mean.total.dtype == mean.weight.dtype == jnp.float32
        has_none = (
            name in ("clipped_low", "clipped_high") and mean.weight == 0
        )  # no bound would hold what is cut
        assert has_none or np.isfinite(float(mean.value)), name


@pytest.mark.quick("ppo with memory", "a user's")
def test_what_is_local_has_an_environment_axis(config, learned):
    for leaf in jax.tree.leaves((learned["after"].local, learned["trajectory"].memory)):
        assert leaf.shape[0] == NUM_ENVS
    algorithm = config.algorithm(spec_for(config))
    for leaf in jax.tree.leaves(algorithm.memory((3, 2))):
        assert leaf.shape[:2] == (3, 2)
    for leaf in jax.tree.leaves(learned["trajectory"].extras):
        assert leaf.shape[:2] == (NUM_STEPS, NUM_ENVS)


@pytest.mark.quick("ppo with memory", "a user's")
def test_what_is_shared_has_none(config):
    """Another number of environments changes the shape of nothing but `local`."""
    init = config.algorithm(spec_for(config)).init
    few, many = (jax.eval_shape(lambda key, n=n: init(key, n), jax.random.key(0)) for n in (2, 64))
    assert jax.tree.all(jax.tree.map(lambda x, y: x.shape == y.shape, few.shared, many.shared))
    assert {x.shape[0] for x in jax.tree.leaves(many.local)} <= {64}


@pytest.mark.quick("ppo with memory", "a user's")
def test_it_is_pure(config, learn, learned):
    assert_equal(learned, learn(struct.as_arrays(config), jax.random.key(0)))
    other = values(learn(struct.as_arrays(config), jax.random.key(1))["before"].shared)
    first = values(learned["before"].shared)
    assert any((first[name] != other[name]).any() for name in first)  # seeds begin apart


@pytest.mark.quick("a user's")
@pytest.mark.rare(
    "mappo",
    "reinforce",
    "ppo with memory",
    "qr_dqn",
    "ddpg",
    "td3",
    "c51",
    "ppo with state",
    "a2c",
    "pqn with state",
    "rainbow",
)
def test_numbers_are_data_and_a_stack_of_them_is_a_sweep(config, learn, learned):
    """One program for every value of every float; and mapped over values and keys, each member is its solo run."""
    data = {name: s.value for name, s in settings_of(config).items() if s.is_data and s.value is not None}
    changed = {name: value / 2 or 0.125 for name, value in data.items()}
    names = list(changed)
    changed |= {name: 0.05 for name, value in changed.items() if value == math.inf}
    configs = [struct.as_arrays(with_settings(config, **{name: value})) for name, value in changed.items()]
    keys = jax.random.split(jax.random.key(7), len(configs))
    alone = [values(learn(*pair)["after"]) for pair in zip(configs, keys, strict=True)]
    assert learn.counted.traces == 1
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *configs)
    swept = values(jax.jit(jax.vmap(lambda c, k: learn.counted(c, k)["after"]))(stacked, keys))
    learn.counted.traces = 1
    for k, member in enumerate(alone):
        for name, x in member.items():
            np.testing.assert_allclose(swept[name][k], x, rtol=1e-3, atol=2e-5, err_msg=f"{names[k]}: {name}")


def test_without_its_replay_it_is_as_if_nothing_had_been_collected(config, learned):
    """The replay is all of `local`; what was learned stays."""
    empty = config.algorithm(spec_for(config)).without_replay
    if empty is None:
        return
    emptied, before = empty(learned["after"]), learned["before"]
    assert_equal(emptied.local, before.local)
    assert_equal(emptied.shared.network, learned["after"].shared.network)
    assert emptied.shared.written == before.shared.written == 0


@pytest.mark.quick("ppo with memory", "a user's")
def test_acting_needs_the_policy_alone(config, learned):
    """Legal actions, the same ones for the same key, the same ones for any key if greedy."""
    algorithm = config.algorithm(spec_for(config))
    timestep = jax.tree.map(lambda x: x[0], learned["trajectory"].timesteps)
    act_by = algorithm.behaviour or algorithm.policy  # of action values the policy itself is greedy
    policy, memory = act_by(learned["after"], Clock.zero()), algorithm.memory((NUM_ENVS,))

    @jax.jit
    def act(policy, memory, keys):
        def one(key):
            return [
                algorithm.act(policy, memory, timestep, key, greedy=greedy)[:2] for greedy in (False, True)
            ]

        return jax.lax.map(one, keys)

    keys = jax.random.split(jax.random.key(0), 32)
    (new_memory, sampled), (_, greedy) = act(policy, memory, keys)
    assert jax.tree.structure(new_memory) == jax.tree.structure(memory)
    space = env_of(config).action_space
    assert sampled.shape == greedy.shape == (32, NUM_ENVS, *space.shape)
    assert sampled.dtype == space.dtype
    if env_of(config) is ENV:
        assert set(np.unique(sampled)) == {0, 1}
    else:  # uniform before the replay has enough
        assert space.low.min() <= sampled.min() < -1.0 < 1.0 < sampled.max() <= space.high.max()
    assert (greedy == greedy[0]).all()
    assert_equal(sampled, act(policy, memory, keys)[0][1])


@pytest.mark.quick("a user's")
@pytest.mark.rare("mappo", "reinforce")
def test_what_groups_of_environments_share_is_reduced(config):
    check_reduced(env_of(config), config, ProgramSettings(**SMALL | {"groups": 2}))


@pytest.mark.quick("a user's")
@pytest.mark.rare(
    "ppo",
    "mappo",
    "reinforce",
    "ppo with memory",
    "ddpg",
    "td3",
    "qr_dqn",
    "c51",
    "a2c",
    "dqn",
    "ppo with state",
    "pqn with state",
)
def test_it_trains_in_the_loop(config):
    population, compiled = populate(env_of(config), config, (0, 1))
    population, _ = compiled.train(population, jnp.int32(2))
    population, metrics = compiled.evaluate(population)
    assert population.updates.tolist() == [2, 2]
    assert all(np.isfinite(x).all() for x in metrics.values())


@pytest.mark.slow
def test_it_trains_from_the_api(config, tmp_path):
    run = shoal.train(
        "probe/continuous-action" if env_of(config) is CONTINUOUS else "probe/action",
        algorithm=config,
        **{"seeds": 2, "num_envs": 4, "num_steps": 8, "total_steps": 96, "num_evals": 1, "eval_episodes": 2},
        run_dir=tmp_path / "run",
        progress=False,
        devices=1,
    )
    assert run.summary["algorithm"] == catalogue.name_of(config)
    assert len(set(run.summary["parameters_sha256"])) == 2
    policy = shoal.load(run.path, "last", seed=1)
    _, action = policy(policy.initial_memory(), np.zeros(1))
    assert policy.environment.action_space.contains(action)
