"""The batch: next-step auto-reset, keys that do not depend on how many environments there are."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_of_each import one_of_each

from shoal.base.errors import ShoalError
from shoal.envs import Batch, environment, make, restart, transition
from shoal.types import TimeStep
from shoal.types.spaces import Box, Discrete


class DiceState(NamedTuple):
    start: jax.Array
    steps: jax.Array
    key: jax.Array


@environment
class Dice:
    """Throws a die each step: 1 terminates, 2 truncates; action 0 is legal on even steps only."""

    observation_space = Box(0.0, 1.0, (3,))
    action_space = Discrete(3)
    info_summaries = {"thrown": "sum"}  # noqa: RUF012

    def _look(self, state, thrown):
        observation = jnp.stack([state.start, state.steps.astype(jnp.float32), jnp.float32(thrown)])
        mask = jnp.stack([state.steps % 2 == 0, jnp.asarray(True), jnp.asarray(True)])
        return {"observation": observation, "action_mask": mask, "info": {"thrown": jnp.int32(thrown)}}

    def reset(self, key):
        state = DiceState(jax.random.uniform(key), jnp.zeros((), jnp.int32), jax.random.fold_in(key, 7))
        return state, restart(**self._look(state, 0))

    def step(self, state, action, key):
        thrown = jax.random.randint(key, (), 1, 7)
        state = DiceState(state.start, state.steps + 1, state.key)
        ends = {"terminated": thrown == 1, "truncated": thrown == 2}
        return state, transition(reward=thrown + 10.0 * action, **self._look(state, thrown), **ends)


@functools.partial(jax.jit, static_argnums=(0, 2))
def rollout(batch, key, steps, first_index=0):
    """States [T, N] before each step, actions [T, N], time-steps [T+1, N]."""

    def body(carry, key):
        state, timestep = carry
        action = batch.sample_actions(timestep, key, first_index)
        after = batch.step(state, action, jax.random.fold_in(key, 1), first_index)
        return after, (state.env, action, after[1])

    start = batch.reset(key, first_index)
    _, (states, actions, timesteps) = jax.lax.scan(body, start, jax.random.split(key, steps))
    joined = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start[1], timesteps)
    return states, actions, joined


STEPS = 40  # sizes are few and shared by the tests, since compiling takes most of their time
ONE, SOME, MANY = 1, 8, 300  # smaller, as large as, and not a multiple of a group of restarts
POOL = 16


def run(batch, seed=0, steps=STEPS):
    return jax.tree.map(np.asarray, rollout(batch, jax.random.key(seed), steps)[1:])


@pytest.mark.full
@pytest.mark.parametrize("num_envs", [ONE, SOME, MANY])
@pytest.mark.parametrize("policy", ["fresh", "pool"])
def test_rollout_equals_a_loop_over_single_environments(num_envs, policy):
    batch = Batch(Dice(), num_envs, policy, POOL)
    key, steps = jax.random.key(4), STEPS
    _, actions, timesteps = rollout(batch, key, steps)
    env = Dice()
    step_keys = [jax.random.fold_in(k, 1) for k in jax.random.split(key, steps)]
    pool = batch.reset(key)[0].pool
    reset, step, fold_in = jax.jit(env.reset), jax.jit(env.step), jax.jit(jax.random.fold_in)

    def start(key):
        if policy == "fresh":
            return reset(key)
        return jax.tree.map(lambda x: x[jax.random.randint(key, (), 0, POOL)], pool)

    actions, timesteps = jax.tree.map(np.asarray, (actions, timesteps))
    for i in sorted({0, num_envs - 1}):
        state, timestep = start(fold_in(key, i))
        for t in range(steps):
            before = timestep
            own_key = fold_in(step_keys[t], i)
            state, timestep = start(own_key) if before.last else step(state, actions[t, i], own_key)
            expected = TimeStep(*jax.tree.map(np.asarray, timestep))
            if timestep.terminated:
                expected = expected._replace(action_mask=np.ones(3, bool))
            got = jax.tree.map(lambda x, t=t, i=i: x[t + 1, i], timesteps)
            jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.full
def test_the_rule_at_ends():
    _, steps = run(Batch(Dice(), MANY))
    assert steps.terminated.any()
    assert steps.truncated.any()
    np.testing.assert_array_equal(steps.first[1:], steps.last[:-1])
    assert steps.first[0].all()
    assert not (steps.first & steps.last).any()
    assert np.all(steps.reward[steps.first] == 0)
    assert np.all(steps.discount[steps.first] == 1)
    assert np.all(steps.info["thrown"][steps.first] == 0)
    np.testing.assert_array_equal(steps.discount, np.where(steps.info["thrown"] == 1, 0, 1))
    over = steps.last & (steps.discount == 0)
    assert np.all(steps.action_mask[over])
    odd = steps.observation[..., 1] % 2 == 1
    np.testing.assert_array_equal(steps.action_mask[..., 0], ~odd | over)


@pytest.mark.full
def test_fresh_starts_never_repeat_and_pool_starts_are_of_the_pool():
    _, steps = run(Batch(Dice(), MANY))
    starts = steps.observation[steps.first][:, 0]
    assert len(np.unique(starts)) == len(starts) > 3000
    batch = Batch(Dice(), MANY, "pool", POOL)
    _, steps = run(batch)
    counts = np.unique(steps.observation[steps.first][:, 0], return_counts=True)[1]
    pool = jax.jit(batch.reset)(jax.random.key(0))[0].pool[0].start
    np.testing.assert_array_equal(np.unique(steps.observation[steps.first][:, 0]), np.sort(pool))
    assert counts.min() > 0.8 * counts.mean()


def test_an_environment_does_not_depend_on_how_many_there_are():
    many, few = run(Batch(Dice(), MANY)), run(Batch(Dice(), SOME))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[:, :SOME], y), many, few)


@pytest.mark.full
def test_a_part_of_a_batch_draws_what_the_whole_would():
    whole, half = run(Batch(Dice(), SOME, "pool", POOL)), Batch(Dice(), SOME // 2, "pool", POOL)
    parts = [rollout(half, jax.random.key(0), STEPS, jnp.int32(i))[1:] for i in (0, SOME // 2)]
    joined = jax.tree.map(lambda *x: np.concatenate(x, 1), *parts)
    jax.tree.map(np.testing.assert_array_equal, whole, joined)


def test_both_ways_to_restart_agree(monkeypatch):
    """The loop over ended environments and the select over all, which other devices use."""
    looped = run(Batch(Dice(), MANY))
    monkeypatch.setattr(Batch, "_restart_in_groups", Batch._restart_all)
    traced_anew = jax.jit(lambda key: rollout.__wrapped__(Batch(Dice(), MANY), key, STEPS)[1:])
    jax.tree.map(np.testing.assert_array_equal, looped, traced_anew(jax.random.key(0)))


@pytest.mark.full
def test_a_population_of_batches_under_vmap_equals_each_alone():
    batch, keys = Batch(Dice(), SOME), jax.random.split(jax.random.key(0), 3)
    together = jax.vmap(lambda key: rollout(batch, key, STEPS)[1:])(keys)
    for k, key in enumerate(keys):
        alone = rollout(batch, key, STEPS)[1:]
        jax.tree.map(lambda x, y, k=k: np.testing.assert_array_equal(x[k], y), together, alone)


@pytest.mark.full
def test_split_over_devices_it_equals_the_whole():
    mesh = jax.make_mesh((2,), ("env",), axis_types=(jax.sharding.AxisType.Auto,))

    def part(key):
        return rollout(Batch(Dice(), SOME // 2), key, STEPS, SOME // 2 * jax.lax.axis_index("env"))[1:]

    over_envs = jax.sharding.PartitionSpec(None, "env")
    specs = {"mesh": mesh, "in_specs": jax.sharding.PartitionSpec(), "out_specs": over_envs}
    split = jax.jit(jax.shard_map(part, check_vma=False, **specs))(jax.random.key(0))
    whole = run(Batch(Dice(), SOME))
    jax.tree.map(np.testing.assert_array_equal, split, whole)


def test_actions_are_legal_uniform_and_different():
    actions, steps = run(Batch(Dice(), MANY))
    assert np.take_along_axis(steps.action_mask[:-1], actions[..., None], -1).all()
    free = steps.action_mask[:-1].all(-1)
    np.testing.assert_allclose(np.bincount(actions[free]) / free.sum(), 1 / 3, atol=0.02)
    np.testing.assert_allclose(np.bincount(actions[~free]) / (~free).sum(), [0, 0.5, 0.5], atol=0.02)
    assert len(np.unique(actions, axis=1).T) == MANY


@pytest.mark.parametrize("name", one_of_each())
@pytest.mark.quick(*(name for name in one_of_each() if "particles/" not in name or "/Navigator" in name))
@pytest.mark.rare(*(name for name in one_of_each() if "particles/Multi" in name or "Swarm" in name))
def test_every_environment_scans_with_stable_types(name):
    batch = Batch(make(name), 3)
    state, timestep = jax.eval_shape(batch.reset, jax.random.key(0))
    action = jax.eval_shape(batch.sample_actions, timestep, jax.random.key(0))
    after = jax.eval_shape(batch.step, state, action, jax.random.key(0))
    assert after == (state, timestep)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(after))


def test_a_new_parameter_does_not_compile_anew():
    compiled = []

    @jax.jit
    def start(batch, key):
        compiled.append(1)
        return batch.reset(key)[1].observation

    for gravity in (9.0, 10.0):
        start(Batch(make("CartPole-v1", gravity=gravity), 2), jax.random.key(0))
    assert len(compiled) == 1


@environment
class Untidy:
    """An environment whose step and reset do not return the same things."""

    fault: str

    observation_space = Box(0.0, 1.0, ())
    action_space = Discrete(2)

    def reset(self, key):
        return 0.0, restart(0.0, info={"a": jnp.int32(0)})

    def step(self, state, action, key):
        if self.fault == "key":
            return state, transition(0.0, 1.0, info={"a": jnp.int32(0), "b": jnp.int32(0)})
        if self.fault == "dtype":
            return state, transition(0.0, 1.0, info={"a": jnp.float32(0)})
        if self.fault == "shape":
            return state, transition(jnp.zeros(2), 1.0, info={"a": jnp.int32(0)})
        return state, transition(0.0, 1.0, terminated=True, info={"a": jnp.int32(1)})


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("key", "'timestep/info/b' as int32[], which after reset is missing; it must return the same"),
        ("dtype", "'timestep/info/a' as float32[], which after reset is int32[]; it must return the same"),
        ("shape", "'timestep/observation' as float32[2], which after reset is float32[]; it must return"),
    ],
)
def test_what_reset_and_step_do_not_agree_on_is_named(fault, sentence):
    with pytest.raises(ShoalError) as raised:
        rollout(Batch(Untidy(fault), 2), jax.random.key(0), 3)
    assert str(raised.value).startswith("Untidy.step (tests/envs/test_batch.py, line ")
    assert sentence in str(raised.value)


def test_python_numbers_in_an_environment_do_not_make_weak_types():
    _, steps = run(Batch(Untidy("none"), 2), steps=5)
    np.testing.assert_array_equal(steps.last[:, 0], [False, True] * 3)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"reset_policy": None}, "reset_policy=None is not one of fresh, pool, optimistic, first."),
        (
            {"reset_policy": "pol"},
            "reset_policy='pol' is not one of fresh, pool, optimistic, first; did you mean 'pool'?",
        ),
    ],
)
def test_an_unknown_reset_policy_is_named(fields, sentence):
    with pytest.raises(ShoalError) as raised:
        Batch(**({"env": Dice(), "num_envs": 2} | fields)).reset(jax.random.key(0))
    assert str(raised.value) == sentence


def starts_of(steps):
    """The start of each episode, by environment."""
    return [
        steps.observation[:, i][steps.first[:, i]][:, 0].tolist() for i in range(steps.observation.shape[1])
    ]


@pytest.mark.full
@pytest.mark.parametrize("num_envs", [ONE, SOME, MANY])
def test_optimistic_starts_are_shared_only_where_more_episodes_end_than_starts_are_computed(num_envs):
    batch = Batch(Dice(), num_envs, "optimistic", reset_ratio=4)
    _, steps = run(batch)
    count = max(num_envs // 4, 1)
    for t in range(1, STEPS + 1):
        begun = steps.observation[t][steps.first[t]][:, 0]
        assert len(np.unique(begun)) == min(len(begun), count)
    later = steps.observation[1:][steps.first[1:]][:, 0]
    if num_envs > ONE:
        assert len(np.unique(later)) > 0.5 * min(len(later), STEPS * count)
    fresh = run(Batch(Dice(), num_envs))[1]
    np.testing.assert_array_equal(steps.observation[0], fresh.observation[0])


@pytest.mark.full
def test_first_repeats_the_first_start_of_each_environment_and_nothing_else():
    _, steps = run(Batch(Dice(), SOME, "first"))
    starts = starts_of(steps)
    assert all(len(set(own)) == 1 and len(own) > 3 for own in starts)
    assert len({own[0] for own in starts}) == SOME
    assert (
        len(np.unique(steps.info["thrown"][1:])) == 7
    )  # a step's randomness is new: 0 where an episode begins


@pytest.mark.quick("first")
@pytest.mark.parametrize("policy", ["pool", "optimistic", "first"])
def test_a_start_that_is_used_again_has_random_keys_of_its_own(policy):
    """So that two episodes from one start draw different commands, pushes and fruits."""
    batch = Batch(Dice(), SOME, policy, pool_size=2, reset_ratio=SOME)
    states, _, steps = rollout(batch, jax.random.key(0), STEPS)
    is_first = np.asarray(steps.first[:-1])
    starts = np.asarray(states.start)[is_first]
    keys = np.asarray(jax.random.key_data(states.key))[is_first]
    assert len(np.unique(starts)) < 0.6 * len(starts)
    assert len(np.unique(keys, axis=0)) == len(keys)


@pytest.mark.quick("0-0")
@pytest.mark.parametrize(("refresh", "replaced"), [(0, 0), (3, 3), (POOL, POOL), (POOL + 5, POOL)])
def test_refresh_replaces_some_starts_of_the_pool(refresh, replaced):
    batch = Batch(Dice(), SOME, "pool", POOL, refresh)
    state, _ = batch.reset(jax.random.key(0))
    before, places = np.asarray(state.pool[0].start), set()
    for i in range(40):
        after = np.asarray(batch.refresh(state, jax.random.key(i)).pool[0].start)
        assert (after != before).sum() == replaced
        assert len(np.unique(after)) == POOL
        places |= set(np.flatnonzero(after != before))
    assert len(places) == (POOL if replaced else 0)
    assert jax.tree.leaves(batch.refresh(state, jax.random.key(1)).env)[0] is jax.tree.leaves(state.env)[0]


@pytest.mark.full
@pytest.mark.parametrize("members", [0, 3])
def test_costly_starts_are_computed_only_in_a_step_after_an_end(members, monkeypatch):
    """As accelerators compute them, of which this is the branch: it is in the program, and changes no number."""
    expected = run(Batch(Dice(), SOME))
    monkeypatch.setattr(Batch, "_restart_in_groups", Batch._restart_all)
    monkeypatch.setattr("shoal.xla.sparse_updates.COSTLY_OPERATIONS", 1)

    def play(key):
        return rollout.__wrapped__(Batch(Dice(), SOME), key, STEPS)[1:]

    keys = jax.random.split(jax.random.key(0), members) if members else jax.random.key(0)
    play_all = jax.jit(jax.vmap(play) if members else play)
    assert "conditional(" in play_all.lower(keys).compile().as_text()
    got = play_all(keys)
    if not members:
        jax.tree.map(np.testing.assert_array_equal, expected, got)
    for k in range(members):
        alone = jax.tree.map(np.asarray, jax.jit(play)(keys[k]))
        jax.tree.map(lambda x, y, k=k: np.testing.assert_array_equal(x[k], y), got, alone)
