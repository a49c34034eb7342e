"""Trials against sequences written by hand, and against the inner environment's own episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.engine.evaluation import play_episodes
from shoal.engine.players import RandomPlayer
from shoal.envs import (
    Batch,
    Flatten,
    FrameStack,
    Hide,
    RewardScale,
    StepCount,
    TimeLimit,
    Trial,
    Wrapper,
    environment,
    make,
    restart,
    transition,
)
from shoal.envs.base import again
from shoal.envs.checking.checker import check
from shoal.envs.grid.engine.tiles import Colour, Tile
from shoal.envs.grid.rulesets.rulesets import ruleset
from shoal.envs.summaries import REDUCTIONS
from shoal.types import spec_of
from shoal.types.spaces import Box, Dict, Discrete

TASKS = 1000


@environment
class Lottery:
    """A task is drawn at the start; action 0 goes on, 1 wins (terminates), 2 gives up (truncates).

    The reward of a step is 10 times its number in the episode, and `bonus` more for a win.
    """

    bonus: float = 1.0

    observation_space = Box(0.0, jnp.inf, (2,))
    action_space = Discrete(3)
    info_summaries = {"success": "max", "paid": "sum", "step": "mean"}  # noqa: RUF012

    def look(self, state):
        return jnp.stack(state).astype(jnp.float32)

    def info(self, won, reward, step):
        return {"success": won.astype(jnp.float32), "paid": reward, "step": step, "lucky": step * 7}

    def begin(self, task):
        state = (task, jnp.zeros((), jnp.int32))
        none = jnp.zeros((), jnp.float32)
        info = self.info(jnp.asarray(False), none, state[1])
        return state, restart(self.look(state), action_mask=jnp.asarray([True, True, False]), info=info)

    def reset(self, key):
        return self.begin(jax.random.randint(key, (), 0, TASKS))

    def again(self, state, key):
        return self.begin(state[0])

    def step(self, state, action, key):
        state = (state[0], state[1] + 1)
        won = action == 1
        reward = jnp.asarray(10.0 * state[1] + self.bonus * won, jnp.float32)
        mask = jnp.ones(3, bool)
        return state, transition(
            self.look(state),
            reward,
            terminated=won,
            truncated=action == 2,
            action_mask=mask,
            info=self.info(won, reward, state[1]),
        )


def played(env, actions, key=0):
    """The time-steps of a sequence of actions, from the reset on."""
    state, timestep = jax.jit(env.reset)(jax.random.key(key))
    timesteps, step = [timestep], jax.jit(env.step)
    for t, action in enumerate(actions):
        state, timestep = step(state, jnp.asarray(action), jax.random.key(t))
        timesteps.append(timestep)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *timesteps)


GO, WIN, STOP = 0, 1, 2
# Action; then step number shown, flag, reward, discount, last; then index, return and length in info.
BY_HAND = [
    (None, 0, 0, 0, 1, False, 0, 0, 0), (GO, 1, 0, 10, 1, False, 0, 10, 1), (WIN, 0, 1, 21, 1, False, 0, 31, 2),
    (STOP, 0, 1, 10, 1, False, 1, 10, 1), (GO, 1, 0, 10, 1, False, 2, 10, 1), (GO, 2, 0, 20, 1, False, 2, 30, 2),
    (WIN, 3, 1, 31, 0, True, 2, 61, 3),
]  # fmt: skip


def test_a_trial_by_hand():
    timesteps = played(Trial(Lottery(), 3), [row[0] for row in BY_HAND[1:]])
    _, shown, flag, reward, discount, last, index, returned, length = (
        list(c) for c in zip(*BY_HAND, strict=True)
    )
    np.testing.assert_array_equal(timesteps.observation["observation"][:, 1], shown)
    np.testing.assert_array_equal(timesteps.observation["episode_ended"], flag)
    np.testing.assert_array_equal(timesteps.reward, reward)
    np.testing.assert_array_equal(timesteps.discount, discount)
    np.testing.assert_array_equal(timesteps.last, last)
    np.testing.assert_array_equal(timesteps.first, [True] + [False] * 6)
    np.testing.assert_array_equal(timesteps.info["episode_index"], index)
    np.testing.assert_array_equal(timesteps.info["episode_return"], returned)
    np.testing.assert_array_equal(timesteps.info["episode_length"], length)
    # One task; the mask is that of the observation that is shown.
    assert len(set(timesteps.observation["observation"][:, 0].tolist())) == 1
    np.testing.assert_array_equal(timesteps.action_mask[:, 2], [s > 0 for s in shown])
    np.testing.assert_array_equal(timesteps.info["paid"], reward)  # the inner info is the step's own


def test_the_log_holds_every_episode_by_its_index():
    info = played(Trial(Lottery(), 3), [row[0] for row in BY_HAND[1:]]).info
    by_hand = {
        "return": [[0, 0, 0], [10, 0, 0], [31, 0, 0], [31, 10, 0], [31, 10, 10], [31, 10, 30], [31, 10, 61]],
        "length": [[0, 0, 0], [1, 0, 0], [2, 0, 0], [2, 1, 0], [2, 1, 1], [2, 1, 2], [2, 1, 3]],
        "success": [[0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 1]],
        "paid": [[0, 0, 0], [10, 0, 0], [31, 0, 0], [31, 10, 0], [31, 10, 10], [31, 10, 30], [31, 10, 61]],
        "step": [[0, 0, 0], [1, 0, 0], [1.5, 0, 0], [1.5, 1, 0], [1.5, 1, 1], [1.5, 1, 1.5], [1.5, 1, 2]],
        "lucky": [[0, 0, 0], [7, 0, 0], [14, 0, 0], [14, 7, 0], [14, 7, 7], [14, 7, 14], [14, 7, 21]],
    }
    logged = {name.removesuffix("_of_episode") for name in info if name.endswith("_of_episode")}
    assert logged == set(by_hand)
    for name, expected in by_hand.items():
        np.testing.assert_array_equal(info[f"{name}_of_episode"], expected, err_msg=name)


@pytest.mark.parametrize(("action", "discount"), [(WIN, 0), (STOP, 1)])
def test_a_trial_ends_as_its_last_episode_does(action, discount):
    """And the discount is 1 where an episode ends that is not the last, however that one ended."""
    timesteps = played(Trial(Lottery(), 2), [action, GO, action])
    np.testing.assert_array_equal(timesteps.last, [False, False, False, True])
    np.testing.assert_array_equal(timesteps.discount, [1, 1, 1, discount])
    assert (bool(timesteps.terminated[-1]), bool(timesteps.truncated[-1])) == (action == WIN, action == STOP)


def test_one_episode_is_the_environment_itself_with_a_flag():
    actions = [GO, GO, WIN]
    plain, trial = played(Lottery(), actions), played(Trial(Lottery(), 1), actions)
    np.testing.assert_array_equal(trial.observation["observation"], plain.observation)
    np.testing.assert_array_equal(trial.observation["episode_ended"], [0, 0, 0, 1])
    for field in ("reward", "discount", "first", "last", "action_mask"):
        np.testing.assert_array_equal(getattr(trial, field), getattr(plain, field), err_msg=field)


@jax.jit
def batch_rollout(bonus, key):
    """Sixty steps of a batch of six trials with worlds of a bonus each."""
    batch = Batch(Trial(TimeLimit(Lottery(bonus), 3), 4), 6)

    def body(carry, key):
        state, timestep = carry
        action_key, step_key = jax.random.split(key)
        action = batch.sample_actions(timestep, action_key)
        after = batch.step(state, action, step_key)
        return after, (action, after[1])

    start = batch.reset(key)
    _, (actions, rest) = jax.lax.scan(body, start, jax.random.split(key, 60))
    return actions, jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), start[1], rest)


def expected_steps(actions, limit, episodes, bonus):
    """The steps of trials one after the other in plain Python, with the batch's ignored step between them."""
    number, episode, over = 0, 0, False
    returned, log = 0.0, np.zeros(episodes)
    yield dict(shown=0, flag=0, reward=0.0, discount=1, first=True, last=False, log=log.copy())
    for action in actions:
        if over:
            number, episode, over, returned, log = 0, 0, False, 0.0, np.zeros(episodes)
            yield dict(shown=0, flag=0, reward=0.0, discount=1, first=True, last=False, log=log.copy())
            continue
        number += 1
        reward = 10.0 * number + bonus * (action == WIN)
        returned += reward
        log[episode] = returned
        ended = action in (WIN, STOP) or number == limit
        over = ended and episode == episodes - 1
        discount = 0 if over and action == WIN else 1
        shown = 0 if ended and not over else number
        yield dict(
            shown=shown,
            flag=int(ended),
            reward=reward,
            discount=discount,
            first=False,
            last=over,
            log=log.copy(),
        )
        if ended and not over:
            number, episode, returned = 0, episode + 1, 0.0


@pytest.mark.full
def test_a_batch_of_trials_under_vmap_goes_on_with_new_tasks():
    bonuses = jnp.asarray([1.0, 3.0])
    actions, timesteps = jax.device_get(jax.vmap(batch_rollout, (0, None))(bonuses, jax.random.key(5)))
    tasks, trials = [], 0
    for world, i in np.ndindex(2, 6):
        steps = list(expected_steps(actions[world, :, i], 3, 4, float(bonuses[world])))
        got = jax.tree.map(lambda x, world=world, i=i: x[world, :, i], timesteps)
        column = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
        np.testing.assert_array_equal(got.observation["observation"][:, 1], column["shown"])
        np.testing.assert_array_equal(got.observation["episode_ended"], column["flag"])
        np.testing.assert_array_equal(got.info["return_of_episode"], column["log"])
        for field in ("reward", "discount", "first", "last"):
            np.testing.assert_array_equal(getattr(got, field), column[field], err_msg=field)
        task = got.observation["observation"][:, 0]
        starts = np.flatnonzero(got.first)
        trials += len(starts)
        for start, stop in zip(starts, [*starts[1:], len(task)], strict=True):
            assert len(set(task[start:stop].tolist())) == 1  # one task a trial
        tasks += task[starts].tolist()
    assert trials > 60
    assert len(set(tasks[: trials // 2])) > 20  # and another task in the next (both worlds draw the same)


WRAPPERS = {
    "TimeLimit": lambda env: TimeLimit(env, 3), "FrameStack": lambda env: FrameStack(env, 2), "Flatten": Flatten,
    "Hide": lambda env: Hide(env, (1,)), "RewardScale": lambda env: RewardScale(env, 0.1),
    "StepCount": lambda env: Flatten(StepCount(env)),
    "all": lambda env: FrameStack(RewardScale(Flatten(TimeLimit(env, 3)), 0.1), 2),
}  # fmt: skip


@pytest.mark.quick("RewardScale")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_between_keep_the_task(wrapper):
    env = WRAPPERS[wrapper](Lottery())
    state, start = env.reset(jax.random.key(3))
    stepped, _ = env.step(state, jnp.asarray(GO), jax.random.key(0))
    state_again, start_again = again(env, stepped, jax.random.key(4))
    jax.tree.map(np.testing.assert_array_equal, (state_again, start_again), (state, start))
    _, other = env.reset(jax.random.key(4))
    assert np.any(other.observation != start.observation)


@environment
class Forgetful(Wrapper):
    """Has a start of its own, and does not say how to keep the task."""

    def reset(self, key):
        return self.env.reset(key)


@pytest.mark.full
def test_a_wrapper_that_would_lose_the_task_is_one_sentence():
    trial = Trial(Forgetful(Lottery()), 2)
    state, _ = trial.reset(jax.random.key(0))
    with pytest.raises(ShoalError, match=r"^Forgetful has a `reset` of its own but no `again\(state, key\)`"):
        trial.step(state, jnp.asarray(GO), jax.random.key(0))
    # Where the parameters are the whole task, nothing can be lost.
    played(Trial(Forgetful(make("CartPole-v1")), 2), [0, 1])


def two_worlds():
    """XLand with two tasks that differ in what lies there."""
    goals = [(1, tile, Colour.RED) for tile in (Tile.BALL, Tile.KEY)]
    tasks = [ruleset(goal, [], [(goal[1], Colour.RED)]) for goal in goals]
    both = jax.tree.map(lambda *parts: np.stack(parts), *tasks)
    return make("XLand-MiniGrid-R1-9x9", ruleset=both, max_episode_steps=5, trial_episodes=3)


@pytest.mark.full
def test_grid_worlds_keep_their_ruleset_and_change_their_layout():
    env = two_worlds()

    @jax.jit
    @jax.vmap
    def run(key):
        def body(state, key):
            action = env.action_space.sample(key)
            state, timestep = env.step(state, action, key)
            return state, (state.env.task, state.env.agent.place, timestep)

        state, _ = env.reset(key)
        return state.env.task, jax.lax.scan(body, state, jax.random.split(key, 15))[1]

    task, (tasks, places, timesteps) = jax.device_get(run(jax.random.split(jax.random.key(0), 32)))
    assert set(task.tolist()) == {0, 1}
    np.testing.assert_array_equal(tasks, np.repeat(task[:, None], 15, 1))
    assert "view" not in timesteps.observation  # a view alone is an array
    unsolved = (timesteps.info["success_of_episode"][:, -1] == 0).all(1)
    assert unsolved.sum() > 3
    np.testing.assert_array_equal(timesteps.last[unsolved], np.tile(np.arange(15) == 14, (unsolved.sum(), 1)))
    assert (places[:, 4] != places[:, 9]).any()


@environment
class Told:
    """Shows a dictionary to two agents."""

    observation_space = Dict({"seen": Box(0.0, 9.0, (1,))})
    action_space = Discrete(2)
    num_agents = 2

    def reset(self, key):
        both = jnp.zeros(2, jnp.float32)
        return both, restart({"seen": both[:, None]})._replace(reward=both, discount=both + 1)

    def step(self, state, action, key):
        state = state + action
        ended = state.sum() >= 3
        timestep = transition({"seen": state[:, None]}, 0.0, terminated=ended)
        return state, timestep._replace(reward=state, discount=jnp.where(ended, jnp.zeros(2), jnp.ones(2)))


def test_dictionaries_get_one_more_entry_and_agents_one_flag_each():
    env = Trial(Told(), 2)
    assert list(env.observation_space) == ["episode_ended", "seen"]
    timesteps = played(env, [(1, 0), (1, 1), (1, 1), (0, 1)])
    np.testing.assert_array_equal(
        timesteps.observation["episode_ended"], np.repeat([[0], [0], [1], [0], [1]], 2, 1)
    )
    np.testing.assert_array_equal(
        timesteps.observation["seen"][..., 0], [[0, 0], [1, 0], [0, 0], [1, 1], [1, 2]]
    )
    np.testing.assert_array_equal(timesteps.reward, [[0, 0], [1, 0], [2, 1], [1, 1], [1, 2]])
    np.testing.assert_array_equal(timesteps.discount, [[1, 1]] * 4 + [[0, 0]])
    np.testing.assert_array_equal(timesteps.info["return_of_episode"][-1], [[3, 1], [2, 3]])


@environment
class Mortal:
    """Two agents, of which the second ends with its first step; what it is paid later is `late`."""

    late: float

    observation_space = Box(0.0, 9.0, (1,))
    action_space = Discrete(2)
    num_agents = 2

    def seen(self, step):
        return jnp.broadcast_to(step.astype(jnp.float32), (2, 1))

    def reset(self, key):
        step = jnp.zeros((), jnp.int32)
        return step, restart(self.seen(step), num_agents=2, alive=jnp.ones(2, bool))

    def step(self, state, action, key):
        step, over = state + 1, state + 1 >= 3
        reward = jnp.stack([jnp.float32(1.0), jnp.where(step == 1, 5.0, self.late)])
        alive = jnp.stack([~over, jnp.asarray(False)])
        return step, transition(self.seen(step), reward, terminated=~alive, alive=alive)


@environment
class PaidLater(Mortal):
    """The same, whose late payments count."""

    pays_absent = True


@pytest.mark.quick("world1-returned1")
@pytest.mark.parametrize(
    "world, returned", [(Mortal(float("nan")), [3, 5]), (Mortal(7.0), [3, 5]), (PaidLater(7.0), [3, 19])]
)
def test_rewards_of_agents_that_take_no_part_count_where_the_world_says_so(world, returned):
    env = Trial(world, 2)
    steps = played(env, [(0, 0)] * 6)
    np.testing.assert_array_equal(steps.info["return_of_episode"][-1], [returned] * 2)
    algorithm = RandomPlayer().algorithm(spec_of(env))
    settings = dict(episodes=2, max_steps=6, greedy=False)
    results = play_episodes(env, algorithm, (), jax.random.key(0), **settings)
    np.testing.assert_array_equal(results.agents, np.full((2, 2), returned) * 2)


@pytest.mark.parametrize(
    "env",
    [
        lambda: make("CartPole-v1", max_episode_steps=9, trial_episodes=2),
        lambda: Trial(TimeLimit(Lottery(), 4), 3),
        two_worlds,
    ],
    ids=["CartPole", "Lottery", "XLand"],
)
@pytest.mark.slow
def test_the_checker_finds_nothing(env):
    assert check(env(), keys=4, steps=40) == []


def test_the_parameter_of_every_environment():
    limited = make("CartPole-v1", gravity=5.0, max_episode_steps=7)
    assert make("CartPole-v1", gravity=5.0, max_episode_steps=7, trial_episodes=4) == Trial(limited, 4)
    assert make("CartPole-v1", trial_episodes=None) == make("CartPole-v1")
    for wrong in (0, 2.5, True, "3"):
        with pytest.raises(
            ShoalError, match=r"trial_episodes=.* is not a whole number of 1 or more, nor None"
        ):
            make("CartPole-v1", trial_episodes=wrong)
    with pytest.raises(ShoalError, match="max_episode_steps=<traced> is not a whole number"):
        jax.jit(lambda n: make("CartPole-v1", max_episode_steps=n).reset(jax.random.key(0)))(3)


def test_what_a_trial_cannot_be_is_one_sentence():
    with pytest.raises(ShoalError, match="adds 'episode_ended' to an observation that has it already"):
        _ = Trial(Trial(Lottery(), 2), 2).observation_space
    with pytest.raises(ShoalError, match="uses the name 'episode_index' in `info` itself"):
        Trial(Trial(Lottery(), 2), 2).reset(jax.random.key(0))


def test_the_inner_summaries_are_those_of_the_whole_trial():
    declared = Trial(Lottery(), 2).info_summaries
    assert {name: declared[name] for name in Lottery.info_summaries} == Lottery.info_summaries
    assert set(declared.values()) <= set(REDUCTIONS)
