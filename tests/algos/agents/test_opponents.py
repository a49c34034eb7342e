"""Opponents of the past: who meets whom, what the pool holds, and that nothing is learned from who acts by it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_worlds import assert_equal, populate, values

import shoal
from shoal.algos.agents.independent import Sets, over_agents
from shoal.algos.agents.opponents import Opponents, against_past, offered, slot_of, stored
from shoal.algos.ppo import ppo
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_choices, with_settings
from shoal.engine.reduction_check import check_reduced
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Episodes, ProgramSettings, policy_of
from shoal.envs import Batch
from shoal.envs.team_probe import ROLES, TeamProbe
from shoal.types import (
    Algorithm,
    Clock,
    Keys,
    Learner,
    Mean,
    TimeStep,
    Trajectory,
    agent_axis,
    spec_of,
    transitions,
)

SETS = Sets(((0, 1), (2,)))
OPPONENTS = Opponents(SETS, share=0.5, size=3, every=2)
NUM_ENVS, NUM_STEPS = 8, 6
PAST = {"parameters": "role", "opponent": "past"}


def config_of(**settings):
    given = {"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 2, **settings}
    return with_settings(with_choices(PPOConfig(), given), **given).resolved()


def at(updates):
    return Clock.zero()._replace(updates=jnp.int32(updates))


def test_who_learns_in_which_world():
    assert OPPONENTS.worlds(8) == [range(4), range(4, 6), range(6, 8)]
    assert OPPONENTS._replace(share=1.0).worlds(3) == [range(0), range(1), range(1, 3)]
    expected = [[1, 1, 1]] * 4 + [[1, 1, 0]] * 2 + [[0, 0, 1]] * 2
    np.testing.assert_array_equal(OPPONENTS.learns(8), np.array(expected, bool))
    with pytest.raises(ShoalError, match=r"opponent_share=0.5 of num_envs=2 worlds .* num_envs=4 works"):
        OPPONENTS._replace(sets=Sets(((0,), (1,)))).worlds(2)


def counter(spec, size=1):
    """An algorithm for one agent whose policy is the number of its updates, and which adds up its weights."""

    def init(key, num_envs):
        policy = {"updates": jnp.int32(0), "key": key, "is_new": jnp.bool_(True)}
        return Learner({"policy": policy, "weight": jnp.zeros(())}, jnp.zeros(num_envs))

    def act(policy, memory, timestep, key, *, greedy=False):
        return memory, jnp.broadcast_to(policy["updates"], timestep.last.shape), ()

    def update(learner, trajectory, keys, clock):
        weight = jnp.sum(transitions(trajectory).weight)
        policy = learner.shared["policy"]
        policy = {
            **{"updates": policy["updates"] + 1, "is_new": jnp.bool_(False)},
            "key": jax.random.fold_in(policy["key"], 1),
        }
        shared = {"policy": policy, "weight": learner.shared["weight"] + weight}
        return Learner(shared, learner.local), {"weight": Mean(weight, jnp.ones(()))}

    return Algorithm(
        init, lambda _: (), lambda learner, clock: learner.shared["policy"], act, update, lambda x, _: x
    )


def counting(opponents=OPPONENTS):
    view = config_of().agents.view(spec_of(TeamProbe()))
    return against_past(over_agents(counter, view, SETS, learns=opponents.learns), opponents)


def exploring(spec, size=1):
    """The counter, whose actions are greater by 1,000 while transitions are collected."""
    algorithm = counter(spec)

    def behaviour(learner, clock):
        policy = algorithm.policy(learner, clock)
        return {**policy, "updates": policy["updates"] + 1000}

    return algorithm._replace(behaviour=behaviour)


def timesteps(*shape):
    zeros = jnp.zeros((*shape, 3))
    no_end = jnp.zeros(shape, bool)
    return TimeStep({"observation": jnp.zeros((*shape, 3, 2))}, zeros, zeros + 1, no_end, no_end)


@pytest.fixture(scope="module")
def history():
    """The counting algorithm, and its learner after each of nine updates."""
    algorithm = counting()
    actions, memory = jnp.zeros((NUM_STEPS, NUM_ENVS, 3)), algorithm.memory((NUM_ENVS,))
    trajectory = Trajectory(timesteps(NUM_STEPS + 1, NUM_ENVS), actions, ((), ()), memory)
    learners = [algorithm.init(jax.random.key(0), NUM_ENVS)]
    update = jax.jit(algorithm.update)
    for k in range(9):
        keys = Keys(jax.random.key(k), jax.random.key(100 + k))
        learners.append(update(learners[-1], trajectory, keys, at(k))[0])
    return algorithm, learners


@pytest.mark.full
def test_an_algorithm_that_explores_does_so_with_several_agents_and_beside_past_opponents():
    view = config_of().agents.view(spec_of(TeamProbe()))
    together = over_agents(exploring, view, SETS)
    mixed = against_past(over_agents(exploring, view, SETS, learns=OPPONENTS.learns), OPPONENTS)
    for algorithm, expected in ((together, 1000), (mixed, np.where(OPPONENTS.learns(NUM_ENVS), 1000, 0))):
        learner, memory = algorithm.init(jax.random.key(0), NUM_ENVS), algorithm.memory((NUM_ENVS,))
        rest = memory, timesteps(NUM_ENVS), jax.random.key(0)
        acted = algorithm.act(algorithm.behaviour(learner, Clock.zero()), *rest)[1]
        np.testing.assert_array_equal(acted, np.broadcast_to(expected, acted.shape))
        assert not algorithm.act(algorithm.policy(learner, Clock.zero()), *rest)[1].any()


def test_each_set_meets_the_latest_or_one_policy_of_the_past(history):
    """A policy's action is its number of updates; keys and flags are kept with it."""
    algorithm, learners = history
    memory, chosen = algorithm.memory((NUM_ENVS,)), set()

    @jax.jit
    def acted(learner, clock):
        behaviour = algorithm.behaviour(learner, clock)
        return behaviour, algorithm.act(behaviour, memory, timesteps(NUM_ENVS), jax.random.key(0))[1]

    for k, learner in enumerate(learners):
        behaviour, actions = acted(learner, at(k))
        past = [int(policy["updates"]) for policy in behaviour.past]
        learns = OPPONENTS.learns(NUM_ENVS)
        np.testing.assert_array_equal(actions, np.where(learns, k, np.array(past)[list(ROLES)]))
        assert all(x % 2 == 0 and x <= k for x in past)
        for number, (x, policy) in enumerate(zip(past, behaviour.past, strict=True)):
            assert_equal(policy, learners[x].shared.latest[number]["policy"])
        chosen.add(tuple(past))
    assert len({x for x, _ in chosen}) > 1
    assert any(x != y for x, y in chosen)  # drawn for each set by itself


def test_the_latest_policy_is_evaluated_and_saved(history):
    algorithm, learners = history
    policy, memory = algorithm.policy(learners[7], at(7)), algorithm.memory((NUM_ENVS,))
    assert [int(x["updates"]) for x in policy] == [7, 7]
    _, actions, _ = algorithm.act(policy, memory, timesteps(NUM_ENVS), jax.random.key(0), greedy=True)
    assert (np.asarray(actions) == 7).all()


def test_the_pool_begins_with_the_first_policies(history):
    learners = history[1]
    for k, expected in enumerate([[0, 0, 0], [0, 0, 0], [0, 2, 0], [0, 2, 0], [0, 2, 4]]):
        for policies in learners[k].shared.pool:
            np.testing.assert_array_equal(policies["updates"], expected)


def test_only_those_who_act_by_the_latest_policy_are_learned_from(history):
    """The weights of nine updates: two agents in six worlds, and one in six."""
    weights = [float(part["weight"]) for part in history[1][-1].shared.latest]
    assert weights == [9 * NUM_STEPS * 6 * 2, 9 * NUM_STEPS * 6]


def test_the_pool_is_a_uniform_sample_of_the_past():
    size, every, updates, trials = 4, 3, 60, 6000

    def pool_after(key):
        def body(pool, k):
            count = offered(k, every)
            slot = jnp.where(k % every == 0, slot_of(jax.random.fold_in(key, k), count, size), size)
            return stored(pool, k // every, slot), ()

        return jax.lax.scan(body, jnp.zeros(size, jnp.int32), jnp.arange(1, updates + 1))[0]

    pools = np.asarray(jax.jit(jax.vmap(pool_after))(jax.random.split(jax.random.key(3), trials)))
    assert all(len(set(pool)) == size for pool in pools)  # nothing twice
    count = updates // every + 1
    share = np.bincount(pools.ravel(), minlength=count) / trials
    assert len(share) == count
    expected = size / count
    np.testing.assert_allclose(share, expected, atol=5 * np.sqrt(expected * (1 - expected) / trials))
    # Pairs are as likely as they should be.
    together = np.mean([{0, count - 1} <= set(pool) for pool in pools])
    assert together == pytest.approx(size * (size - 1) / (count * (count - 1)), abs=0.01)


def trajectory_of(algorithm, learner, env):
    batch = Batch(env, NUM_ENVS)
    state, timestep = batch.reset(jax.random.key(1))
    episodes = Episodes(jnp.zeros((NUM_ENVS, 3)), jnp.zeros(NUM_ENVS))
    start = RolloutState(state, timestep, algorithm.memory((NUM_ENVS,)), episodes, no_ended_episodes(3))
    behaviour = algorithm.behaviour(learner, Clock.zero())
    return rollout(batch, algorithm, behaviour, start, jax.random.key(2), NUM_STEPS)[1]


def with_nan(tree, is_filled, axis):
    """Replace numbers by NaN; the mask has the axes of worlds and agents, of which the first is given."""

    def fill(x):
        if not jnp.issubdtype(x.dtype, jnp.floating) or x.ndim < axis + 2:
            return x
        mask = is_filled.reshape(*[1] * axis, *is_filled.shape, *[1] * (x.ndim - axis - 2))
        return jnp.where(mask, jnp.nan, x)

    return jax.tree.map(fill, tree)


VARIANTS = {
    "normalised": {"norm_obs": True, "norm_reward": True, "norm_adv": "batch", "norm_value": "running"},
    "recurrent": {
        **{"core": "gru", "core_size": 4, "previous_reward": True, "num_minibatches": 1},
        **{"norm_obs": True, "norm_reward": True},
    },
    "state": {"critic_input": "state_and_own", "surrogate": "penalty", "norm_adv": "none"},
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.slow
def test_nothing_is_learned_from_those_who_act_by_a_policy_of_the_past(name):
    env = TeamProbe()
    config = config_of(**PAST, **VARIANTS[name])
    algorithm = config.algorithm(spec_of(env))
    learner = algorithm.init(jax.random.key(0), NUM_ENVS)
    trajectory = jax.jit(lambda learner: trajectory_of(algorithm, learner, env))(learner)
    others = ~jnp.asarray(Opponents(SETS, 0.5, 8, 10).learns(NUM_ENVS))
    observation = trajectory.timesteps.observation
    own = {"observation": with_nan(observation["observation"], others, 1)}
    timesteps = with_nan(trajectory.timesteps._replace(observation=()), others, 1)
    timesteps = timesteps._replace(observation={**observation, **own})
    extras = tuple(
        extras._replace(log_prob=with_nan(extras.log_prob, others[:, list(agents)], 1))
        for extras, agents in zip(trajectory.extras, SETS.members, strict=True)
    )
    memory = trajectory.memory
    if jax.tree.leaves(memory):
        filled = zip(memory.sets, SETS.members, strict=True)
        sets = tuple(with_nan(part, others[:, list(agents)], 0) for part, agents in filled)
        memory = memory._replace(sets=sets)
    spoilt = Trajectory(timesteps, trajectory.actions, extras, memory)
    assert sum(int(jnp.isnan(x).sum()) for x in jax.tree.leaves(spoilt) if x.dtype == jnp.float32)
    update = jax.jit(algorithm.update)
    results = [update(learner, x, Keys.of_one_group(jax.random.key(9)), at(0)) for x in (trajectory, spoilt)]
    assert_equal(results[0][0].shared, results[1][0].shared)
    assert_equal(results[0][1], results[1][1])
    before, after = values(learner.shared.latest), values(results[1][0].shared.latest)
    changed = {name.split("/")[0] for name in before if (before[name] != after[name]).any()}
    assert changed == {"0", "1"}


def test_what_is_learned_differs_from_learning_against_the_latest():
    learners = []
    for opponent in ("latest", "past"):
        algorithm = config_of(parameters="role", opponent=opponent).algorithm(spec_of(TeamProbe()))
        learners.append(algorithm.init(jax.random.key(0), NUM_ENVS))
    assert_equal(learners[0].shared, learners[1].shared.latest)


def test_the_latest_is_the_program_without_opponents():
    spec, config = spec_of(TeamProbe()), config_of(parameters="role")
    others = with_settings(config, opponent_share=0.9, opponent_pool=3, opponent_every=1)
    inner, view = config.with_critic_defaults(), config.agents.view(spec)
    plain = over_agents(lambda of_agent, _: ppo(inner, of_agent), view, config.agents.sets(spec))
    algorithms = [config.algorithm(spec), others.algorithm(spec), plain]
    learner = plain.init(jax.random.key(0), NUM_ENVS)
    policy, memory = plain.policy(learner, Clock.zero()), plain.memory((NUM_ENVS,))
    timestep = timesteps(NUM_ENVS)._replace(action_mask=jnp.ones((NUM_ENVS, 3, 3), bool))
    texts = {
        str(jax.make_jaxpr(algorithm.act)(policy, memory, timestep, jax.random.key(0)))
        + str(jax.make_jaxpr(algorithm.behaviour)(learner, Clock.zero()))
        for algorithm in algorithms
    }
    assert len(texts) == 1


SIZES = {"num_envs": 8, "num_steps": 4, "total_updates": 4}


@pytest.mark.slow
def test_groups_of_worlds_share_one_pool_and_parts_of_a_run_are_the_whole():
    env, config = TeamProbe(), config_of(**PAST, opponent_pool=2, opponent_every=1, opponent_share=1.0)
    check_reduced(env, config, ProgramSettings(num_envs=8, num_steps=4, groups=2))
    results = []
    for parts in ((4,), (3, 1)):
        run, compiled = populate(env, config, groups=2, **SIZES)
        for count in parts:
            run, _ = compiled.train(run, jnp.int32(count))
        results.append(run)
    whole, in_parts = results
    assert_equal(whole.learner, in_parts.learner)
    assert int(whole.fault[0]) == -1
    member = jax.tree.map(lambda x: x[0], whole)
    latest = policy_of(member)
    assert jax.tree.structure(latest) == jax.tree.structure(member.best.policy)
    assert len(latest) == 2
    pool = values(member.learner.shared.pool)
    assert all(len(x) == 2 for x in pool.values())
    assert any((x[0] != x[1]).any() for x in pool.values())


def test_another_run_is_taken_over_with_a_pool_and_without():
    """The pool begins anew, with what was taken over."""
    spec = spec_of(TeamProbe())
    algorithms = {x: config_of(parameters="role", opponent=x).algorithm(spec) for x in ("latest", "past")}
    for there in algorithms.values():
        saved = values(there.init(jax.random.key(1), NUM_ENVS).shared)
        for name, here in algorithms.items():
            learner = here.inherit(here.init(jax.random.key(0), NUM_ENVS), saved)
            own = learner.shared if name == "latest" else learner.shared.latest
            expected = algorithms["latest"].init(jax.random.key(1), NUM_ENVS).shared
            assert_equal([x.network for x in own], [x.network for x in expected])
            if name == "past":
                policies = here.policy(learner, Clock.zero())
                first = jax.tree.map(lambda x: x[0], learner.shared.pool)
                assert_equal(first, policies)


@struct.struct
class CountingConfig:
    """The settings of the counting algorithm, of which there are none."""

    def algorithm(self, spec, axis=()):
        return counting()


@pytest.mark.slow
def test_a_run_that_is_resumed_is_the_uninterrupted_one(tmp_path):
    """The pool is a part of its checkpoints, with keys and flags."""
    settings = {
        **{"algorithm": CountingConfig(), "seeds": 1, "num_envs": 4, "num_steps": 2, "num_evals": 1},
        **{"eval_episodes": 2, "devices": 1, "progress": False},
    }
    whole = shoal.train("probe/team", total_steps=80, run_dir=tmp_path / "whole", **settings)
    shoal.train("probe/team", total_steps=40, run_dir=tmp_path / "half", checkpoint_every=8, **settings)
    resumed = shoal.resume(tmp_path / "half", total_steps=80, progress=False)
    assert int(whole.learner.shared.latest[0]["policy"]["updates"][0]) == 10
    assert_equal(resumed.learner.shared, whole.learner.shared)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"opponent": "past"}, "with parameters='shared' all have the same; parameters='role' works"),
        ({**PAST, "num_envs": 2}, r"opponent_share=0.5 of num_envs=2 worlds .* num_envs=4 works"),
        (
            {"parameters": "role", "opponent_every": 3},
            "opponent_every=3 has no effect with opponent='latest'",
        ),
        ({**PAST, "opponent_share": 0.0}, "opponent_share=0 is out of bounds"),
    ],
)
def test_what_cannot_work_is_refused(settings, sentence, tmp_path):
    sizes = {"num_envs": 4, "num_steps": 4, "total_steps": 64, "run_dir": tmp_path / "run", "progress": False}
    with pytest.raises(ShoalError, match=sentence):
        shoal.train("probe/team", **{**sizes, **settings})


def test_critics_are_shown_who_acts_by_a_policy_of_the_past():
    """Only what is learned leaves them out: the observations of all agents are as they were."""
    spec = spec_of(TeamProbe())
    config = config_of(**PAST, critic_input="everybody")
    view, seen = config.agents.view(spec), []

    def spy(of_agent, size):
        algorithm = counter(of_agent)

        def update(learner, trajectory, keys, clock):
            seen.append(trajectory.timesteps)
            return algorithm.update(learner, trajectory, keys, clock)

        return algorithm._replace(memory=jnp.zeros, update=update)

    algorithm = over_agents(spy, view, SETS, learns=OPPONENTS.learns)
    all_steps = timesteps(NUM_STEPS + 1, NUM_ENVS)
    all_steps = all_steps._replace(observation={"observation": jnp.ones((NUM_STEPS + 1, NUM_ENVS, 3, 2))})
    all_steps = all_steps._replace(last=all_steps.last.at[-1].set(True))  # cut, so that the others bootstrap
    actions, memory = jnp.zeros((NUM_STEPS, NUM_ENVS, 3)), algorithm.memory((NUM_ENVS,))
    trajectory = Trajectory(all_steps, actions, ((), ()), memory)

    @jax.jit
    def shown(trajectory):
        keys = Keys.of_one_group(jax.random.key(0))
        algorithm.update(algorithm.init(jax.random.key(0), NUM_ENVS), trajectory, keys, at(0))
        return tuple(seen)

    for timestep, agents in zip(shown(trajectory), SETS.members, strict=True):
        learns = OPPONENTS.learns(NUM_ENVS)[:, list(agents)].ravel()
        everybody = np.asarray(timestep.observation["everybody"])
        assert (everybody[:, learns] == 1).all()
        assert (everybody[:, ~learns] == 0).all()
        np.testing.assert_array_equal(timestep.last[:-1], np.broadcast_to(~learns, timestep.last[:-1].shape))
        np.testing.assert_array_equal(timestep.first[0], ~learns)  # what they remember is cleared
    assert agent_axis.alive_of(all_steps).all()
    assert struct.named_leaves(all_steps.observation).keys() == {"observation"}
