"""The classic environments against Gymnasium's own, the real package, from the same states.

What "equal within float32" means here. Gymnasium computes in float64, we in float32, so one step may
differ by a few roundings of the numbers that go into it: `tolerance` gives, for each state, that
difference and no more. Ends, walls and the goal's reward are jumps, where no tolerance helps: there
a difference is allowed only if Gymnasium, started from a state that equals ours within four float32
roundings, gives our answer. Such states are counted, and are rare.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from gymnasium.envs.classic_control import acrobot as gymnasium_acrobot

from shoal.config.struct import as_arrays
from shoal.envs import Batch, make
from shoal.envs.classic.acrobot import AcrobotState
from shoal.envs.classic.cartpole import CartPole, CartPoleState
from shoal.envs.classic.mountain_car import MountainCar, MountainCarState
from shoal.envs.classic.pendulum import PendulumState

EPS = float(np.finfo(np.float32).eps)
ROUNDINGS = 4  # an operation rounds by eps/2; the longest chain has a few dozen, mostly cancelling
ENVS, STEPS = 20, 1100  # one more than MountainCarContinuous's time limit, and 22,000 steps in all

ANGLE_LIMIT = CartPole().angle_limit


class Case(NamedTuple):
    """How an environment is exercised."""

    state: type
    low: tuple[float, ...]  # of the states that are tried, coordinate by coordinate
    high: tuple[float, ...]
    special: tuple[tuple[float, ...], ...]  # values worth trying, in every combination
    policy: Callable  # an action that reaches the ends that random ones do not
    tolerance: Callable  # states -> of the observation [n, k] and of the reward [n]


def plain_tolerance(states: np.ndarray, observations: np.ndarray) -> tuple[np.ndarray, Any]:
    """Each number is a short sum of terms that are no larger than itself or 1."""
    return ROUNDINGS * EPS * np.maximum(1, np.abs(observations)), ROUNDINGS * EPS * 100


def pendulum_tolerance(states: np.ndarray, observations: np.ndarray) -> tuple[np.ndarray, Any]:
    """An angle of several turns is rounded by more, and so is all that is made of it."""
    angle = ROUNDINGS * EPS * np.maximum(1, np.abs(states[:, 0]))
    return np.stack([angle, angle, np.full_like(angle, ROUNDINGS * EPS * 8)], 1), 2 * np.pi * angle


def acrobot_tolerance(states: np.ndarray, observations: np.ndarray) -> tuple[np.ndarray, Any]:
    """At top speed one step of 0.2 s is chaotic: what a rounding of the state does is asked of Gymnasium."""
    inner = gymnasium.make("Acrobot-v1", disable_env_checker=True).unwrapped

    def move(state: np.ndarray) -> np.ndarray:
        return gymnasium_acrobot.rk4(inner._dsdt, np.append(state, 0.0), [0, inner.dt])

    states = states.astype(np.float64)
    total = np.zeros_like(states)
    moved = np.stack([move(state) for state in states])
    for j in range(4):
        nudge = np.zeros(4)
        nudge[j] = 1e-7
        slope = (np.stack([move(state + nudge) for state in states]) - moved) / nudge[j]
        total += np.abs(slope) * ROUNDINGS * EPS * np.maximum(1, np.abs(states[:, [j]]))
    total += ROUNDINGS * EPS * np.maximum(1, np.abs(moved))
    return total[:, [0, 0, 1, 1, 2, 3]], ROUNDINGS * EPS


def pump(observation: jax.Array) -> jax.Array:
    """Pushes the way the car rolls."""
    return jnp.where(observation[1] >= 0, 2, 0)


CASES = {
    "CartPole-v1": Case(
        CartPoleState,
        (-2.5, -4, -0.22, -4),
        (2.5, 4, 0.22, 4),
        ((-2.4, 0, 2.4, 4.8), (-3, 0, 3), (-ANGLE_LIMIT, 0, ANGLE_LIMIT, 2 * ANGLE_LIMIT), (-3, 0, 3)),
        lambda o: jnp.asarray(o[2] + 0.3 * o[3] + 0.05 * o[1] + 0.02 * o[0] > 0, jnp.int32),
        plain_tolerance,
    ),
    "MountainCar-v0": Case(
        MountainCarState,
        (-1.2, -0.07),
        (0.6, 0.07),
        ((-1.2, -1.13, -0.5, 0.43, 0.45, 0.5, 0.6), (-0.07, -0.001, 0, 0.001, 0.07)),
        pump,
        plain_tolerance,
    ),
    "MountainCarContinuous-v0": Case(
        MountainCarState,
        (-1.2, -0.07),
        (0.6, 0.07),
        ((-1.2, -1.13, -0.5, 0.38, 0.45, 0.5, 0.6), (-0.07, -0.001, 0, 0.001, 0.07)),
        lambda o: (pump(o)[None] - 1.0) * 1.2,  # beyond the bound, so that it is clipped but paid for
        plain_tolerance,
    ),
    "Acrobot-v1": Case(
        AcrobotState,
        (-np.pi, -np.pi, -4 * np.pi, -9 * np.pi),
        (np.pi, np.pi, 4 * np.pi, 9 * np.pi),
        ((-np.pi, 0, np.pi / 2, np.pi), (-np.pi, 0, np.pi / 2, np.pi), (-4 * np.pi, 0, 4 * np.pi),
            (-9 * np.pi, 0, 9 * np.pi)),
        lambda o: jnp.where(o[5] >= 0, 2, 0),
        acrobot_tolerance,
    ),
    "Pendulum-v1": Case(
        PendulumState,
        (-20, -8),
        (20, 8),
        ((-3 * np.pi, -np.pi, -np.pi / 2, 0, np.pi, 2 * np.pi), (-8, -1, 0, 1, 8)),
        lambda o: jnp.where(o[2:3] >= 0, 2.5, -2.5),
        pendulum_tolerance,
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", CASES)


class Answers(NamedTuple):
    """What steps gave, one row each."""

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray

    def rows(self, index: Any) -> "Answers":
        return Answers(*(x[index] for x in self))


def gymnasium_steps(
    name: str, states: np.ndarray, actions: np.ndarray, attributes: dict[str, float] | None = None
) -> Answers:
    """One step of Gymnasium's environment, with some of its attributes changed, from each state."""
    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    for attribute, value in (attributes or {}).items():
        assert hasattr(env, attribute)
        setattr(env, attribute, value)
    env.reset(seed=0)
    answers = []
    for state, action in zip(states.astype(np.float64), actions, strict=True):
        env.state, env.steps_beyond_terminated = state.copy(), None
        answers.append(env.step(action if action.ndim else int(action))[:3])
    return Answers(*(np.stack(column) for column in zip(*answers, strict=True)))


def differ(ours: Answers, theirs: Answers, observation_tolerance: Any, reward_tolerance: Any) -> np.ndarray:
    """Where the answers are not the same."""
    observation = np.any(~(np.abs(ours.observation - theirs.observation) <= observation_tolerance), axis=-1)
    reward = ~(np.abs(ours.reward - theirs.reward) <= reward_tolerance)
    return observation | reward | (ours.terminated != theirs.terminated)


def assert_same(name: str, states: np.ndarray, actions: np.ndarray, ours: Answers, theirs: Answers) -> int:
    """Asserts what the module's docstring says; returns at how many states a rounding decided."""
    case = CASES[name]
    larger = np.flatnonzero(differ(ours, theirs, *plain_tolerance(states, theirs.observation)))
    if len(larger) == 0:
        return 0
    states, actions, ours, theirs = states[larger], actions[larger], ours.rows(larger), theirs.rows(larger)
    tolerance, reward_tolerance = case.tolerance(states, theirs.observation)
    reward_tolerance = np.broadcast_to(reward_tolerance, len(states))
    doubtful = np.flatnonzero(differ(ours, theirs, tolerance, reward_tolerance))
    scale = np.abs(np.asarray(case.high))
    nudges = np.asarray(list(itertools.product((0, -1, 1, -ROUNDINGS, ROUNDINGS), repeat=len(scale))))
    for row in doubtful:
        around = states[row] + nudges * EPS * np.maximum(np.abs(states[row]), scale)
        nearby = gymnasium_steps(name, around, np.repeat(actions[row : row + 1], len(nudges), 0))
        explained = ~differ(ours.rows(row), nearby, tolerance[row], reward_tolerance[row])
        assert explained.any(), (states[row], actions[row], ours.rows(row), theirs.rows(row))
    return len(doubtful)


def random_actions(name: str, rng: np.random.Generator, count: int) -> np.ndarray:
    space = make(name).action_space
    if space.shape == ():
        return rng.integers(0, space.n, count)
    return rng.uniform(1.5 * space.low, 1.5 * space.high, (count, *space.shape)).astype(np.float32)


def special_states(case: Case) -> np.ndarray:
    """Every combination of the special values and their float32 neighbours."""
    values = [np.float32(special) for special in case.special]
    around = [np.concatenate([np.nextafter(x, np.float32(s)) for s in (-100, 0, 100)] + [x]) for x in values]
    grid = np.asarray(list(itertools.product(*around)), np.float32)
    return np.random.default_rng(1).permutation(grid)


def states_at_the_end(name: str, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """States just before and just after terminating, by bisection between some that do and that do not."""
    terminated = gymnasium_steps(name, states, actions).terminated
    count = min(len(states) // 25, terminated.sum())
    inside, beyond = states[~terminated][:count], states[terminated][:count]
    actions = actions[terminated][:count]
    same_side = gymnasium_steps(name, inside, actions).terminated
    inside, beyond, actions = inside[~same_side], beyond[~same_side], actions[~same_side]
    for _ in range(30):
        middle = (inside.astype(np.float64) + beyond) / 2
        over = gymnasium_steps(name, middle, actions).terminated[:, None]
        inside, beyond = np.where(over, inside, middle), np.where(over, middle, beyond)
    return np.concatenate([inside, beyond]).astype(np.float32), np.concatenate([actions, actions])


def our_steps(name: str, states: np.ndarray, actions: np.ndarray) -> Answers:
    env = make(name, max_episode_steps=None)
    step = jax.jit(jax.vmap(lambda state, action: env.step(state, action, jax.random.key(0))[1]))
    timestep = step(CASES[name].state(*states.T), actions)
    return Answers(*map(np.asarray, (timestep.observation, timestep.reward, timestep.terminated)))


@EACH
@pytest.mark.parametrize("count", [1000, pytest.param(4000, marks=pytest.mark.slow)])
def test_one_step_from_any_state_and_from_boundaries(name: str, count: int) -> None:
    case, rng = CASES[name], np.random.default_rng(0)
    anywhere = rng.uniform(case.low, case.high, (count, len(case.low))).astype(np.float32)
    states = np.concatenate([anywhere, special_states(case)[:count]])
    actions = random_actions(name, rng, len(states))
    if name != "Pendulum-v1":  # it never terminates
        ends, end_actions = states_at_the_end(name, states[:count], actions[:count])
        assert len(ends) >= 50
        states, actions = np.concatenate([states, ends]), np.concatenate([actions, end_actions])
    theirs = gymnasium_steps(name, states, actions)
    ours = our_steps(name, states, actions)
    decided_by_rounding = assert_same(name, states, actions, ours, theirs)
    assert decided_by_rounding <= len(states) // 20


@functools.cache
def rollout(name: str) -> tuple:
    """States, actions and time-steps of a batch; half the environments act at random, half do well."""
    batch = Batch(make(name), ENVS)
    well = CASES[name].policy

    @jax.jit
    def run(key: jax.Array) -> tuple:
        def body(carry: tuple, key: jax.Array) -> tuple:
            state, timestep = carry
            action_key, step_key = jax.random.split(key)
            random = batch.sample_actions(timestep, action_key)
            good = jax.vmap(well)(timestep.observation).astype(random.dtype)
            choose_random = (jnp.arange(ENVS) % 2 == 0).reshape((ENVS,) + (1,) * (random.ndim - 1))
            action = jnp.where(choose_random, random, good)
            after = batch.step(state, action, step_key)
            return after, (state.env.env, action, after[1])

        return jax.lax.scan(body, batch.reset(key), jax.random.split(key, STEPS))[1]

    states, actions, timesteps = jax.tree.map(np.asarray, run(jax.random.key(3)))
    return np.stack(states, -1), actions, timesteps


@EACH
@pytest.mark.quick("CartPole-v1", "Pendulum-v1")
@pytest.mark.rare("MountainCar-v0")
def test_whole_episodes_with_time_limit(name: str) -> None:
    """At least 20,000 steps, Gymnasium's time limit running beside ours."""
    states, actions, timesteps = rollout(name)
    np.testing.assert_array_equal(timesteps.first[1:], timesteps.last[:-1])
    order: list[tuple[int, int]] = []
    answers: list[tuple] = []
    for i in range(ENVS):
        env = gymnasium.make(name, disable_env_checker=True)
        env.reset(seed=i)
        for t in range(STEPS):
            if timesteps.first[t, i]:
                env.reset()
                assert timesteps.reward[t, i] == 0
                assert timesteps.discount[t, i] == 1
                continue
            action = actions[t, i]
            env.unwrapped.state = states[t, i].astype(np.float64)
            observation, reward, terminated, truncated, _ = env.step(action if action.ndim else int(action))
            order.append((t, i))
            answers.append((observation, reward, terminated))
            ours_terminated = timesteps.discount[t, i] == 0
            assert ours_terminated or timesteps.last[t, i] == truncated
    index = tuple(np.asarray(order).T)
    assert len(order) >= 20_000
    ours = Answers(timesteps.observation[index], timesteps.reward[index], timesteps.terminated[index])
    theirs = Answers(*(np.stack(column) for column in zip(*answers, strict=True)))
    decided_by_rounding = assert_same(name, states[index], actions[index], ours, theirs)
    assert decided_by_rounding <= 5
    assert timesteps.truncated.any()
    assert timesteps.terminated.any() or name == "Pendulum-v1"


@EACH
def test_starts_come_from_gymnasiums_distribution(name: str) -> None:
    env = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    theirs = []
    for _ in range(3000):
        env.reset()
        theirs.append(np.asarray(env.state))
    ours, _ = jax.jit(jax.vmap(make(name).reset))(jax.random.split(jax.random.key(0), 3000))
    ours = np.stack(ours.env, -1)
    for j in range(ours.shape[-1]):
        their_column = np.stack(theirs)[:, j]
        if np.ptp(their_column) == 0:
            np.testing.assert_array_equal(ours[:, j], their_column)
        else:
            assert scipy.stats.ks_2samp(ours[:, j], their_column).pvalue > 1e-3


@EACH
def test_spaces_are_gymnasiums(name: str) -> None:
    ours, theirs = make(name), gymnasium.make(name, disable_env_checker=True)
    np.testing.assert_array_equal(ours.observation_space.low, theirs.observation_space.low)
    np.testing.assert_array_equal(ours.observation_space.high, theirs.observation_space.high)
    if isinstance(theirs.action_space, gymnasium.spaces.Discrete):
        assert ours.action_space.n == theirs.action_space.n
    else:
        np.testing.assert_array_equal(ours.action_space.low, theirs.action_space.low)
        np.testing.assert_array_equal(ours.action_space.high, theirs.action_space.high)
    assert ours.max_steps == theirs.spec.max_episode_steps


@EACH
def test_step_keeps_the_structure_that_reset_gave_with_arrays_as_parameters(name: str) -> None:
    env = as_arrays(make(name))
    state, timestep = env.reset(jax.random.key(0))
    action = env.action_space.sample(jax.random.key(1))
    before = jax.eval_shape(lambda: (state, timestep))
    after = jax.eval_shape(lambda: env.step(state, action, jax.random.key(2)))
    assert before == after
    for leaf in jax.tree.leaves(after):
        assert leaf.dtype in (jnp.float32, jnp.int32, jnp.bool_)
        assert not leaf.weak_type


def test_worlds_of_different_gravity_step_under_one_vmap() -> None:
    gravities = jnp.asarray([0.001, 0.0025, 0.004])
    state = MountainCarState(jnp.float32(-0.3), jnp.float32(0.01))

    @jax.jit
    @jax.vmap
    def step(gravity: jax.Array) -> jax.Array:
        env = make("MountainCar-v0", gravity=gravity, max_episode_steps=None)
        return env.step(state, jnp.int32(2), jax.random.key(0))[0].velocity

    env = gymnasium.make("MountainCar-v0", disable_env_checker=True).unwrapped
    for gravity, velocity in zip(gravities, step(gravities), strict=True):
        env.gravity, env.state = float(gravity), (float(state.position), float(state.velocity))
        np.testing.assert_allclose(velocity, env.step(2)[0][1], rtol=ROUNDINGS * EPS)


def test_a_stack_of_environments_is_mapped_over() -> None:
    worlds = [as_arrays(make("Pendulum-v1", mass=mass)) for mass in (0.5, 1.0, 2.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *worlds)
    state, _ = worlds[0].reset(jax.random.key(0))
    action = jnp.asarray([1.5])
    step = jax.jit(lambda world: world.step(state, action, jax.random.key(0))[1].observation)
    together, alone = jax.vmap(step)(stacked), [step(world) for world in worlds]
    np.testing.assert_allclose(together, jnp.stack(alone), rtol=ROUNDINGS * EPS, atol=ROUNDINGS * EPS)
    assert len(np.unique(np.asarray(together)[:, 2])) == 3


LIMITS = {  # ours, Gymnasium's attribute, another value
    "CartPole-v1": (("position_limit", "x_threshold", 1.2), ("angle_limit", "theta_threshold_radians", 0.1)),
    "MountainCar-v0": (
        ("min_position", "min_position", -0.9),
        ("max_position", "max_position", 0.3),
        ("max_speed", "max_speed", 0.03),
        ("goal_position", "goal_position", 0.2),
    ),
    "MountainCarContinuous-v0": (
        ("min_position", "min_position", -0.9),
        ("max_position", "max_position", 0.3),
        ("max_speed", "max_speed", 0.03),
        ("goal_position", "goal_position", 0.2),
    ),
    "Acrobot-v1": (("max_velocity_1", "MAX_VEL_1", 5.0), ("max_velocity_2", "MAX_VEL_2", 9.0)),
    "Pendulum-v1": (("max_speed", "max_speed", 3.0), ("max_torque", "max_torque", 1.0)),
}


@EACH
def test_limits_are_parameters(name):
    """Each changed limit changes something, and all together are as Gymnasium's changed attributes."""
    case, rng = CASES[name], np.random.default_rng(5)
    states = rng.uniform(case.low, case.high, (200, len(case.low))).astype(np.float32)
    actions = random_actions(name, rng, len(states))
    limits = LIMITS[name]

    def steps(**parameters):
        env = make(name, max_episode_steps=None, **parameters)
        state = case.state(*jnp.asarray(states.T))
        _, after = jax.jit(jax.vmap(env.step, (0, 0, None)))(state, jnp.asarray(actions), jax.random.key(0))
        return Answers(*map(np.asarray, (after.observation, after.reward, after.terminated)))

    theirs = gymnasium_steps(name, states, actions, {theirs: value for _, theirs, value in limits})
    ours = steps(**{own: value for own, _, value in limits})
    tolerance, reward_tolerance = case.tolerance(states, theirs.observation)
    assert not differ(ours, theirs, tolerance, reward_tolerance).any()
    default = steps()
    for own, _, value in limits:
        assert any((x != y).any() for x, y in zip(steps(**{own: value}), default, strict=True)), own
    assert (
        make(name, **{own: value for own, _, value in limits}).observation_space
        != make(name).observation_space
    )


@pytest.mark.full
def test_limits_of_stacked_environments_are_data():
    env = jax.vmap(lambda x: MountainCar(max_speed=x))(jnp.asarray([0.01, 0.07]))
    assert env.observation_space.high.tolist() == [np.inf, np.inf]  # all fields are stacked
    state = MountainCarState(jnp.full(2, -0.5), jnp.full(2, 0.0095))
    _, after = jax.vmap(lambda env, state: env.step(state, 2, jax.random.key(0)))(env, state)
    assert after.observation[0, 1] == np.float32(0.01) < after.observation[1, 1]
