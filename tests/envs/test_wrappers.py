"""Wrappers against plain Python run beside them, and in every combination."""

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from one_of_each import one_of_each
from random_play import played

from shoal.base.errors import ShoalError
from shoal.envs import (
    Batch,
    Flatten,
    FrameStack,
    RewardScale,
    StepCount,
    TimeLimit,
    environment,
    make,
    restart,
    transition,
)
from shoal.envs.wrappers import flatten, flattened_space, stacked_space
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete


@environment
class Counter:
    """Counts its steps; terminates with probability `ending` on each."""

    ending: float = 0.0

    observation_space = Box(0.0, jnp.inf, (2,))
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.float32(0), restart(jnp.zeros(2))

    def step(self, state, action, key):
        state = state + 1
        ended = jax.random.bernoulli(key, self.ending)
        return state, transition(jnp.stack([state, -state]), state, terminated=ended)


@environment
class Pair:
    """Two agents that see dictionaries."""

    observation_space = Dict({"near": Discrete(3), "far": Box(-1.0, 1.0, (2,))})
    action_space = Discrete(2)
    num_agents = 2

    def _look(self, state):
        return {"near": jnp.stack([state % 3, (state + 1) % 3]), "far": jnp.full((2, 2), state / 100.0)}

    def reset(self, key):
        state = jnp.int32(0)
        both = jnp.zeros(2, jnp.float32)
        return state, restart(self._look(state))._replace(reward=both, discount=both + 1)

    def step(self, state, action, key):
        state = state + 1
        timestep = transition(self._look(state), action.astype(jnp.float32))
        return state, timestep._replace(discount=jnp.ones(2))


@functools.partial(jax.jit, static_argnums=2)
def episode(env, key, steps):
    """The time-steps of `steps` steps, whatever ends, and the actions."""

    def body(state, key):
        action_key, step_key = jax.random.split(key)
        keys = jax.random.split(action_key, env.num_agents)
        action = jax.vmap(env.action_space.sample)(keys)
        state, timestep = env.step(state, action[0] if env.num_agents == 1 else action, step_key)
        return state, timestep

    state, first = env.reset(key)
    _, rest = jax.lax.scan(body, state, jax.random.split(key, steps))
    return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), first, rest)


@environment
class PairWithGlobalState(Pair):
    """Two agents, and a vector of their whole world, which has no axis of agents."""

    observation_space = Dict({"near": Discrete(3), "global_state": Box(0.0, 100.0, (4,))})

    def _look(self, state):
        return {"near": Pair._look(self, state)["near"], "global_state": jnp.full(4, 1.0) * state}


@hypothesis.given(
    limit=st.sampled_from([1, 2, 9, 30]),
    ending=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_time_limit(limit, ending, seed):
    def run(env):
        return jax.tree.map(np.asarray, episode(env, jax.random.key(seed), 30))

    plain, limited = run(Counter(jnp.float32(ending))), run(TimeLimit(Counter(jnp.float32(ending)), limit))
    np.testing.assert_array_equal(limited.observation, plain.observation)
    np.testing.assert_array_equal(limited.discount, plain.discount)  # a cut has discount 1, an end keeps 0
    np.testing.assert_array_equal(limited.last, plain.last | (np.arange(31) >= limit))
    np.testing.assert_array_equal(limited.terminated, plain.terminated)
    assert limited.truncated[limit] != plain.terminated[limit]


@pytest.mark.parametrize("between", [lambda env: env, lambda env: RewardScale(FrameStack(env, 2), 0.5)])
@pytest.mark.parametrize(("inside", "outside"), [(5, 9), (9, 5)])
def test_of_two_time_limits_the_smaller_one_is_declared_and_kept(between, inside, outside):
    env = TimeLimit(between(TimeLimit(Counter(jnp.float32(0.0)), inside)), outside)
    assert env.max_steps == 5
    last = np.asarray(episode(env, jax.random.key(0), 9).last)
    assert np.flatnonzero(last)[0] == env.max_steps
    assert TimeLimit(make("CartPole-v1"), 1000) == make("CartPole-v1")


def test_step_count_shows_the_number_of_steps_of_each_episode():
    env = StepCount(TimeLimit(Counter(), 4), scale=0.25)
    _, _, timesteps = played(env, 3, 12)
    shown = timesteps.observation
    np.testing.assert_array_equal(shown["step_count"][:, 0], np.arange(13) % 5 / 4)
    np.testing.assert_array_equal(shown["observation"][..., 0], 4 * shown["step_count"])
    assert env.observation_space["observation"] == Counter.observation_space
    assert jax.vmap(jax.vmap(env.observation_space["step_count"].contains))(shown["step_count"]).all()


@pytest.mark.parametrize("inner", [Pair, PairWithGlobalState])
def test_step_count_is_an_entry_that_each_agent_is_shown(inner):
    env = StepCount(inner())
    shown = episode(env, jax.random.key(0), 3).observation
    assert (
        shown.keys() == env.observation_space.spaces.keys() == {*inner.observation_space.spaces, "step_count"}
    )
    np.testing.assert_array_equal(shown["step_count"], np.repeat(np.arange(4.0)[:, None], 2, 1))
    assert shown["step_count"].dtype == np.float32


def test_frame_stack_shows_the_last_observations_oldest_first():
    stacked = np.asarray(episode(FrameStack(Counter(), 3), jax.random.key(0), 6).observation)
    expected = [[max(t - 2, 0), max(t - 1, 0), t] for t in range(7)]
    np.testing.assert_array_equal(stacked[..., 0], expected)
    np.testing.assert_array_equal(stacked[..., 1], -np.asarray(expected))


def test_frame_stack_starts_anew_with_each_episode():
    batch = Batch(FrameStack(TimeLimit(make("CartPole-v1", max_episode_steps=None), 4), 3), 5)
    state, timestep = jax.jit(batch.reset)(jax.random.key(0))
    step = jax.jit(lambda state, timestep, key: batch.step(state, batch.sample_actions(timestep, key), key))
    starts = 0
    for t in range(12):
        state, timestep = step(state, timestep, jax.random.key(t))
        frames = np.asarray(timestep.observation)[np.asarray(timestep.first)]
        np.testing.assert_array_equal(frames, np.repeat(frames[:, -1:], 3, 1))
        starts += len(frames)
    assert starts == 10


def test_frame_stack_knows_that_a_global_state_has_no_agents_axis():
    env = FrameStack(PairWithGlobalState(), 3)
    stacked = episode(env, jax.random.key(0), 5).observation
    assert stacked["near"].shape == (6, 2, 3)
    assert stacked["global_state"].shape == (6, *env.observation_space["global_state"].shape) == (6, 3, 4)
    expected = np.maximum(np.arange(6)[:, None] - np.arange(2, -1, -1), 0)
    np.testing.assert_array_equal(stacked["global_state"][..., 0], expected)


def test_frame_stack_and_flatten_keep_the_agents_axis():
    plain = episode(Pair(), jax.random.key(0), 5).observation
    stacked = episode(FrameStack(Pair(), 2), jax.random.key(0), 5).observation
    assert stacked["near"].shape == (6, 2, 2)
    assert stacked["far"].shape == (6, 2, 2, 2)
    np.testing.assert_array_equal(stacked["near"][1:, :, 0], plain["near"][:-1])
    np.testing.assert_array_equal(stacked["near"][1:, :, 1], plain["near"][1:])
    env = Flatten(FrameStack(Pair(), 2))
    flat = episode(env, jax.random.key(0), 5).observation
    assert flat.shape == (6, 2, *env.observation_space.shape) == (6, 2, 10)
    near = np.eye(3)[np.asarray(stacked["near"])].reshape(6, 2, 6)
    np.testing.assert_array_equal(flat, np.concatenate([stacked["far"].reshape(6, 2, 4), near], -1))


def test_reward_scale_leaves_the_first_step_alone_and_is_data():
    @jax.jit
    @jax.vmap
    def rewards(scale):
        return episode(RewardScale(Counter(), scale, 0.5), jax.random.key(0), 3).reward

    np.testing.assert_allclose(rewards(jnp.asarray([1.0, -2.0])), [[0, 1.5, 2.5, 3.5], [0, -1.5, -3.5, -5.5]])


simple_spaces = st.one_of(
    st.builds(Discrete, st.integers(1, 5)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.builds(
        lambda low, width, shape, dtype: Box(low, low + width, shape, dtype),
        st.integers(-5, 5),
        st.integers(0, 5),
        st.lists(st.integers(1, 3), max_size=3).map(tuple),
        st.sampled_from([np.float32, np.int32]),
    ),
)
all_spaces = st.recursive(
    simple_spaces,
    lambda inner: st.builds(Dict, st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3)),
    max_leaves=4,
)


def reference_flat(space, element):
    """The same vector by plain NumPy."""
    if isinstance(space, Dict):
        return np.concatenate([reference_flat(space[name], element[name]) for name in sorted(space)])
    if isinstance(space, Box):
        return np.asarray(element, np.float32).ravel()
    sizes = [space.n] if isinstance(space, Discrete) else space.nvec
    return np.concatenate([np.eye(n)[x] for n, x in zip(sizes, np.ravel(element), strict=True)])


@pytest.mark.full
@hypothesis.given(space=all_spaces, seed=st.integers(0, 99))
@hypothesis.settings(max_examples=25, deadline=None)
def test_flattened_elements_lie_in_the_flattened_space(space, seed):
    element = space.sample(jax.random.key(seed))
    flat = flatten(space, element)
    assert flat.dtype == jnp.float32
    assert flattened_space(space).contains(flat)
    np.testing.assert_array_equal(flat, reference_flat(space, element))


@pytest.mark.full
@hypothesis.given(space=all_spaces, count=st.integers(1, 3))
@hypothesis.settings(max_examples=25, deadline=None)
def test_stacked_elements_lie_in_the_stacked_space(space, count):
    try:
        stacked = stacked_space(space, count)
    except ShoalError as error:
        assert "MultiDiscrete" in str(error)
        return
    elements = [space.sample(jax.random.key(i)) for i in range(count)]
    assert stacked.contains(jax.tree.map(lambda *x: jnp.stack(x), *elements))


WRAPPERS = {
    "TimeLimit": lambda env: TimeLimit(env, 3),
    "FrameStack": lambda env: FrameStack(env, 2),
    "Flatten": Flatten,
    "RewardScale": lambda env: RewardScale(env, 0.1),
    "StepCount": lambda env: Flatten(StepCount(env)),
    "all": lambda env: RewardScale(Flatten(FrameStack(TimeLimit(env, 3), 2)), 0.1),
}


# The probe's observations have an entry for critics only, which no vector may hide.
WRAPPED = [name for name in one_of_each() if name != "probe/team"]


PARTICLES = ("Swarm", "MultiRoller", "MultiNavigator")


@pytest.mark.parametrize(("name", "wrapper"), list(itertools.product(WRAPPED, WRAPPERS)))
@pytest.mark.quick(
    *(f"probe/continuous-action-{wrapper}" for wrapper in WRAPPERS),
    *(f"{name}-all" for name in WRAPPED if name.startswith(("Acro", "CartPole-No", "MiniGrid-B"))),
)
@pytest.mark.rare(
    *(
        f"{name}-{wrapper}"
        for name in WRAPPED
        for wrapper in WRAPPERS
        if wrapper != "all" and "probe" not in name
    ),
    *(f"particles/{name}-v0-all" for name in PARTICLES),
)
def test_every_wrapper_of_every_environment_keeps_its_types_and_spaces(name, wrapper):
    env = WRAPPERS[wrapper](make(name))
    batch = Batch(env, 2)
    start = jax.eval_shape(batch.reset, jax.random.key(0))
    action = jax.eval_shape(batch.sample_actions, start[1], jax.random.key(0))
    assert jax.eval_shape(batch.step, *(start[0], action, jax.random.key(0))) == start
    agents = () if env.num_agents == 1 else (env.num_agents,)
    assert start[1].observation.shape == (2, *agents, *env.observation_space.shape)
    assert start[1].observation.dtype == env.observation_space.dtype
    assert env.info_summaries == make(name).info_summaries


@pytest.mark.parametrize("name", ["Acrobot-v1", "CartPole-v1", "Pendulum-v1"])
@pytest.mark.quick("CartPole-v1")
def test_a_pile_of_wrappers_rolls_out_within_its_space(name):
    env = WRAPPERS["all"](make(name))
    _, _, timesteps = played(env, 4, 20)
    assert jax.jit(jax.vmap(jax.vmap(env.observation_space.contains)))(timesteps.observation).all()
    np.testing.assert_array_equal(np.flatnonzero(timesteps.last[:, 0]), [3, 7, 11, 15, 19])
