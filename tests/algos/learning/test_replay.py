"""The replay against the whole history in NumPy: nothing invalid is drawn, and nothing is lost."""

import functools
import math
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from shoal.algos.learning import priorities, replay
from shoal.algos.learning.replay import ReplayConfig
from shoal.base.errors import ShoalError
from shoal.config import settings
from shoal.ops import returns
from shoal.types import TimeStep, Trajectory

GAMMA = 0.9
N = 3  # environments
SHAPES = (  # rows of a ring, steps of a rollout, steps of a window
    *((2, 1, 1), (3, 1, 4), (3, 2, 2), (5, 4, 3), (6, 2, 1), (7, 3, 4)),
    *((9, 8, 2), (11, 3, 3), (13, 5, 4), (16, 1, 2), (16, 8, 4), (16, 7, 1)),
)


class History(NamedTuple):
    """All time-steps 0..S of N streams, [S+1, N]; actions [S, N]. What may not be read is NaN."""

    observation: np.ndarray  # a number of its own for each time-step
    reward: np.ndarray  # of the step that led here
    discount: np.ndarray
    last: np.ndarray
    alive: np.ndarray
    action: np.ndarray

    @property
    def ended(self):
        return self.last | ~self.alive


def history_of(seed, steps, end_rate, with_alive=False):
    rng = np.random.default_rng(seed)
    shape = (steps + 1, N)
    last = rng.uniform(size=shape) < end_rate
    last[1:] &= ~last[:-1] | with_alive
    alive = (rng.uniform(size=shape) < 0.7) | (not with_alive)
    discount = np.where((last | ~alive) & (rng.uniform(size=shape) < 0.5), 0.0, 1.0)
    reward = rng.normal(size=shape)
    no_transition = (last | ~alive)[:-1]
    reward[1:][no_transition] = discount[1:][no_transition] = np.nan
    observation = 1.0 + np.arange(shape[0] * N).reshape(shape)
    action = rng.integers(0, 5, (steps, N))
    return History(observation, reward, discount, last, alive, action)


def trajectory_of(history, begin, length, with_alive=False):
    """The rollout of `length` steps from time-step `begin` on."""
    part = slice(begin, begin + length + 1)
    timesteps = TimeStep(
        observation={"id": jnp.asarray(history.observation[part], jnp.float32)},
        reward=jnp.asarray(history.reward[part], jnp.float32),
        discount=jnp.asarray(history.discount[part], jnp.float32),
        first=jnp.zeros((length + 1, N), bool),  # a replay does not read it
        last=jnp.asarray(history.last[part]),
        alive=jnp.asarray(history.alive[part]) if with_alive else None,
    )
    action = jnp.asarray(history.action[begin : begin + length], jnp.int32)
    return Trajectory(timesteps, action, {"log_prob": action * -0.5}, ())


def unwritten(trajectory, num_rows):
    """Rings whose rows hold what nobody may read: NaN, other numbers 1, and what looks like a transition."""
    step = jax.tree.map(lambda x: x[0, 0], replay.stored_steps(trajectory))
    ring = replay.empty_ring(step, N, num_rows)
    ring = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan if x.dtype == jnp.float32 else 1), ring)
    return ring._replace(last=jnp.zeros_like(ring.last))


@jax.jit
def write(ring, written, trajectory):
    return replay.write(ring, written, replay.stored_steps(trajectory))


def written_ring(history, num_rows, length, rollouts, with_alive=False):
    ring = unwritten(trajectory_of(history, 0, length, with_alive), num_rows)
    written = jnp.zeros((), jnp.int32)
    for i in range(rollouts):
        ring, written = write(ring, written, trajectory_of(history, i * length, length, with_alive))
    return ring, written


@functools.partial(jax.jit, static_argnums=4)
def read(ring, written, env, age, n):
    """All that a learner reads of the windows of these ages."""
    window = replay.windows(ring, written, env, age, n)
    target = replay.n_step_return(window, GAMMA)
    start, end = (replay.steps_at(ring, window, offset) for offset in (0, target.steps))
    return window, target, start, end


read_windows = jax.jit(replay.windows, static_argnums=4)
sample = jax.jit(replay.sample, static_argnums=(3, 4))
steps_at = jax.jit(replay.steps_at)


def looped(history, newest, env, t, n):
    """The return, the discount and the time-step of the bootstrap of the transition from time-step t, by a loop."""
    total, factor = 0.0, 1.0
    for _ in range(n):
        total += factor * history.reward[t + 1, env]
        factor *= GAMMA * history.discount[t + 1, env]
        t += 1
        if history.ended[t, env] or t == newest:
            break
    return total, factor, t


def check_everything(shape, rollouts, seed, end_rate, with_alive):
    """Compare the window of every environment and age with the history; return how many transitions there are."""
    num_rows, length, n = shape
    newest = rollouts * length
    history = history_of(seed, newest, end_rate, with_alive)
    ring, written = written_ring(history, num_rows, length, rollouts, with_alive)
    env, age = (x.ravel() for x in np.meshgrid(range(N), range(1, num_rows), indexing="ij"))
    window, target, start, end = jax.tree.map(np.asarray, read(ring, written, env, age, n))
    starts = []
    for b in range(len(env)):
        t = newest - age[b]
        if t < 0:  # never written
            assert target.weight[b] == 0
            continue
        assert start.observation["id"][b] == history.observation[t, env[b]]
        assert target.weight[b] == (0 if history.ended[t, env[b]] else 1)
        if not target.weight[b]:
            assert (target.reward[b], target.discount[b], target.steps[b]) == (0, 0, 0)
            assert not window.weight[:, b].any()
            continue
        total, factor, until = looped(history, newest, env[b], t, n)
        np.testing.assert_allclose(target.reward[b], total, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(target.discount[b], factor, rtol=1e-5)
        assert end.observation["id"][b] == history.observation[until, env[b]]
        assert target.steps[b] == until - t
        np.testing.assert_array_equal(window.weight[:, b], np.arange(n) < until - t)
        assert window.last[until - t - 1, b] == history.ended[until, env[b]]
        assert start.action[b] == history.action[t, env[b]]
        assert start.extras["log_prob"][b] == -0.5 * history.action[t, env[b]]
        starts.append((env[b], t))
    oldest = max(newest - (num_rows - 1), 0)
    expected = [(e, t) for e in range(N) for t in range(oldest, newest) if not history.ended[t, e]]
    assert sorted(starts) == expected
    return len(expected)


@pytest.mark.full
@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(
    st.sampled_from(SHAPES),
    st.integers(1, 9),
    st.integers(0, 2**31),
    st.sampled_from((0.0, 0.2, 0.5, 1.0)),
    st.booleans(),
)
def test_every_window_is_that_of_the_history_and_none_is_lost(shape, rollouts, seed, end_rate, with_alive):
    check_everything(shape, rollouts, seed, end_rate, with_alive)


@pytest.mark.full
@pytest.mark.parametrize("num_rows", range(2, 17))
@pytest.mark.rare("5", "6", "7", "9", "10", "11", "13", "14", "15")
def test_rings_of_every_size(num_rows):
    for length in range(1, min(num_rows - 1, 8) + 1):
        for n in range(1, 5):
            for rollouts in (1, 2, 7):
                check_everything((num_rows, length, n), rollouts, 97 * length + n, 0.25, False)


def test_many_ends_and_wraps_were_compared():
    assert sum(check_everything((11, 3, 3), rollouts, 5, 0.2, False) for rollouts in (1, 3, 4, 20)) > 60


def one_episode(discount, steps=6, end=4):
    """One stream: an episode that ends at time-step `end`, then the next; rewards 1, 2, 4, ..."""
    last = np.zeros((steps + 1, N), bool)
    last[end] = True
    reward = np.repeat(2.0 ** np.arange(-1, steps)[:, None], N, axis=1)
    discounts = np.ones_like(reward)
    discounts[end], reward[end + 1], discounts[end + 1] = discount, np.nan, np.nan
    observation = np.repeat(np.arange(steps + 1.0)[:, None], N, axis=1)
    return History(observation, reward, discounts, last, ~np.zeros_like(last), np.zeros((steps, N), int))


@pytest.mark.parametrize("discount", [0.0, 1.0], ids=["terminated", "truncated"])
def test_the_windows_at_an_end_by_hand(discount):
    ring, written = written_ring(one_episode(discount), num_rows=7, length=6, rollouts=1)
    env, age = np.zeros(6, int), 6 - np.arange(6)  # the starts 0 to 5
    _, target, _, end = read(ring, written, env, age, 3)
    g, d = GAMMA, discount
    expected = [1 + 2 * g + 4 * g * g, 2 + 4 * g + 8 * g * g, 4 + 8 * g, 8, 0, 32]
    np.testing.assert_allclose(target.reward, expected, rtol=1e-6)
    np.testing.assert_allclose(target.discount, [g**3, d * g**3, d * g**2, d * g, 0, g], rtol=1e-6)
    np.testing.assert_array_equal(target.steps, [3, 3, 2, 1, 0, 1])
    np.testing.assert_array_equal(target.weight, [1, 1, 1, 1, 0, 1])
    # The final observation is 4, the reset's 5, the newest 6.
    np.testing.assert_array_equal(end.observation["id"], [3, 4, 4, 4, 4, 6])


def test_a_window_is_a_stream_for_the_functions_of_returns():
    """With λ = 1 and nothing to correct, the return of the window's stream is the n-step target."""

    @jax.jit
    def both(ring, written, env, age):
        window = replay.windows(ring, written, env, age, 4)
        value = replay.steps_at(ring, window, jnp.arange(1, 5)[:, None]).observation["id"]
        lambda_returns = jax.vmap(returns.lambda_returns, (1, 1, 1, 1, None, 1))
        discount = GAMMA * window.discount
        stream = lambda_returns(window.reward, discount, window.last, value, 1.0, window.weight)[:, 0]
        target = replay.n_step_return(window, GAMMA)
        end = replay.steps_at(ring, window, target.steps).observation["id"]
        n_step = target.reward + target.discount * jnp.where(target.discount > 0, end, 0.0)
        return jnp.where(target.weight > 0, stream, n_step), n_step

    for rollouts in (1, 2, 6):
        ring, written = written_ring(history_of(rollouts, 5 * rollouts, 0.25), 13, 5, rollouts)
        env, age = (x.ravel() for x in np.meshgrid(range(N), range(1, 13)))
        np.testing.assert_allclose(*both(ring, written, env, age), rtol=1e-5)


def test_a_ring_that_was_never_written_has_no_transition():
    ring = unwritten(trajectory_of(one_episode(0.0), 0, 6), 9)
    window = sample(jax.random.key(0), ring, jnp.zeros((), jnp.int32), 50, 2)
    target = replay.n_step_return(window, GAMMA)
    for x in target:
        np.testing.assert_array_equal(x, 0)


def test_a_batch_reads_the_same_windows_as_one_by_one():
    history = history_of(3, 40, 0.2)
    ring, written = written_ring(history, num_rows=12, length=4, rollouts=10)
    window = sample(jax.random.key(1), ring, written, 64, 3)
    age = (written - window.start - 1) % 12 + 1
    assert age.min() >= 1 and age.max() <= 11
    again = read_windows(ring, written, window.env, age, 3)
    jax.tree.map(np.testing.assert_array_equal, window, again)
    steps = steps_at(ring, window, jnp.arange(4)[:, None])
    assert steps.observation["id"].shape == (4, 64)
    for k in range(4):
        alone = steps_at(ring, window, k)
        jax.tree.map(lambda x, y, k=k: np.testing.assert_array_equal(x[k], y), steps, alone)


@pytest.mark.parametrize("rollouts", [1, 9], ids=["filling", "full"])
def test_environments_and_ages_are_drawn_uniformly(rollouts):
    num_rows, size = 9, 20_000
    ring, written = written_ring(history_of(0, 4 * rollouts, 0.2), num_rows, 4, rollouts)
    window, other = (sample(jax.random.key(seed), ring, written, size, 1) for seed in range(2))
    kept = min(4 * rollouts, num_rows - 1)
    age = np.asarray((written - window.start - 1) % num_rows)
    counts = np.bincount(np.asarray(window.env) * kept + age, minlength=N * kept)
    assert age.max() < kept and len(counts) == N * kept
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    assert np.mean(np.asarray(window.start == other.start)) < 0.9
    assert np.mean(np.asarray(window.env == other.env)) < 0.9


@pytest.mark.parametrize("with_alive", [False, True])
@pytest.mark.parametrize("shape", SHAPES[::3])
def test_rows_have_priority_exactly_where_a_transition_starts(shape, with_alive):
    """In rings that fill and wrap: not where an episode is over, nor at the newest time-step until the next rollout."""
    num_rows, length, n = shape
    history = history_of(3, 6 * length, 0.3, with_alive)
    ring, written = (
        unwritten(trajectory_of(history, 0, length, with_alive), num_rows),
        jnp.zeros((), jnp.int32),
    )
    ring = ring._replace(priorities=priorities.empty(N, num_rows))
    for i in range(6):
        before = ring.priorities
        ring, written = write(ring, written, trajectory_of(history, i * length, length, with_alive))
        tree = np.asarray(ring.priorities.tree)
        leaves = tree[:, tree.shape[1] // 2 :]
        newest = (i + 1) * length
        for t in range(newest, newest - num_rows, -1):
            is_kept = t >= 0
            starts = ~history.ended[t] & (t < newest) if is_kept else np.zeros(N, bool)
            np.testing.assert_array_equal(leaves[:, t % num_rows] > 0, starts)
        assert (leaves[:, num_rows:] == 0).all()
        window = sample(jax.random.key(i), ring, written, 64, n)
        np.testing.assert_array_equal(window.weight[0] > 0, window.probability > 0)
        if (leaves > 0).any():
            assert (window.probability > 0).all()
            share = leaves[window.env, window.start] / leaves.sum()
            np.testing.assert_allclose(window.probability, share, rtol=1e-5)
        plain = sample(jax.random.key(i), ring._replace(priorities=None), written, 64, n)
        assert plain.probability is None
    assert not np.array_equal(before.tree, ring.priorities.tree)


def test_dtypes_and_optional_entries_are_kept():
    observation = {"image": jnp.full((5, N, 4, 4), 255, jnp.uint8), "state": jnp.ones((5, N, 2))}
    numbers, flags = jnp.ones((5, N)), jnp.zeros((5, N), bool)
    mask = jnp.ones((5, N, 3), bool)
    timesteps = TimeStep(observation, numbers, numbers, flags, flags, mask)
    trajectory = Trajectory(timesteps, jnp.ones((4, N), jnp.int32), (), ())
    steps = jax.eval_shape(replay.stored_steps, trajectory)
    assert steps.alive is None and steps.extras == ()
    step = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), steps)
    ring, written = write(replay.empty_ring(step, N, 6), jnp.zeros((), jnp.int32), trajectory)
    window = sample(jax.random.key(0), ring, written, 7, 2)
    drawn = steps_at(ring, window, 0)
    assert window.weight.dtype == jnp.float32 and window.weight.shape == (2, 7)
    assert drawn.observation["image"].dtype == jnp.uint8 and drawn.observation["image"].shape == (7, 4, 4)
    assert drawn.action_mask.shape == (7, 3) and drawn.action_mask.dtype == bool
    np.testing.assert_array_equal(drawn.observation["image"], 255)
    np.testing.assert_array_equal(drawn.action, 1)
    assert written.dtype == jnp.int32 and drawn.action.dtype == jnp.int32


def test_more_steps_than_an_integer_holds_are_written():
    """`written` stays below 2 C; it says the same as the count of all steps."""
    num_rows, length = 5, 3
    history = history_of(1, length, 0.3)
    ring, written = written_ring(history, num_rows, length, 1)
    for rollouts in range(2, 30):
        ring, written = write(ring, written, trajectory_of(history, 0, length))
        assert written < 2 * num_rows and written.dtype == jnp.int32
        assert written % num_rows == rollouts * length % num_rows
        assert (written >= num_rows) == (rollouts * length >= num_rows)


def stacked(trees):
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


@pytest.mark.full
def test_members_under_vmap_are_as_one_after_the_other():
    def member(ring, written, trajectory, key):
        ring, written = replay.write(ring, written, replay.stored_steps(trajectory))
        window = replay.sample(key, ring, written, 16, 2)
        target = replay.n_step_return(window, GAMMA)
        return ring, written, target, replay.steps_at(ring, window, target.steps)

    arguments = []
    for seed, rollouts in enumerate((1, 2, 5)):  # members need not have written as much
        history = history_of(seed, 4 * (rollouts + 1), 0.2)
        ring, written = written_ring(history, 7, 4, rollouts)
        arguments.append((ring, written, trajectory_of(history, 4 * rollouts, 4), jax.random.key(seed)))
    together = jax.jit(jax.vmap(member))(*stacked(arguments))
    alone = stacked([jax.jit(member)(*each) for each in arguments])
    jax.tree.map(np.testing.assert_array_equal, together, alone)


def learn(ring, written, trajectory, key, count, num_updates):
    """A loop of writes, each followed by a number of gradient steps that is data."""

    def update(_, carry):
        ring, written, total = carry
        ring, written = replay.write(ring, written, replay.stored_steps(trajectory))

        def gradient_step(i, total):
            window = replay.sample(jax.random.fold_in(key, i), ring, written, 8, 2)
            target = replay.n_step_return(window, GAMMA)
            end = replay.steps_at(ring, window, target.steps)
            return total + jnp.sum(target.reward + target.discount * end.observation["id"])

        return ring, written, jax.lax.fori_loop(0, count, gradient_step, total)

    return jax.lax.fori_loop(0, num_updates, update, (ring, written, jnp.zeros(())))


@pytest.mark.quick("one")
@pytest.mark.parametrize("members", [None, 4], ids=["one", "members"])
def test_a_compiled_loop_writes_in_place(members):
    trajectory = trajectory_of(history_of(0, 4, 0.2), 0, 4)
    run, arguments = (
        learn,
        (unwritten(trajectory, 100_000), jnp.zeros((), jnp.int32), trajectory, jax.random.key(0)),
    )
    if members:
        run = jax.vmap(learn, (0, 0, 0, 0, None, None))
        arguments = stacked([arguments] * members)
    ring_bytes = sum(x.nbytes for x in jax.tree.leaves(arguments[0]))
    addresses = [x.unsafe_buffer_pointer() for x in jax.tree.leaves(arguments[0])]
    compiled = jax.jit(run, donate_argnums=0).lower(*arguments, 2, 3).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < ring_bytes / 100
    ring = compiled(*arguments, 2, 3)[0]
    assert [x.unsafe_buffer_pointer() for x in jax.tree.leaves(ring)] == addresses


@pytest.mark.quick("1-10")
@pytest.mark.parametrize("rollout_steps", [1, 8, 10, 80, 128, 1024])
@pytest.mark.parametrize("train_frequency", [1, 4, 10, 12, 100, 999])
def test_the_number_of_gradient_steps_is_that_of_a_loop_over_the_steps(rollout_steps, train_frequency):
    for learning_starts in (0, 3, 80, 1000):
        config = ReplayConfig(
            train_frequency=train_frequency, learning_starts=learning_starts, gradient_steps=3
        )
        updates = 4000 // rollout_steps + 2
        expected = np.zeros(updates, int)
        for global_step in range(updates * rollout_steps):
            if global_step > learning_starts and global_step % train_frequency == 0:  # CleanRL's dqn.py
                expected[global_step // rollout_steps] += 3
        count = replay.num_gradient_steps(config, jnp.arange(updates, dtype=jnp.int32), rollout_steps)
        np.testing.assert_array_equal(count, expected)
        assert count.dtype == jnp.int32


def test_the_schedule_fires_after_more_steps_than_an_integer_holds():
    config = ReplayConfig(train_frequency=7, learning_starts=0)
    updates, rollout_steps = 2**31 - 2, 1024
    steps = range(updates * rollout_steps, (updates + 1) * rollout_steps)
    expected = sum(step % 7 == 0 for step in steps)
    count = jax.jit(lambda updates: replay.num_gradient_steps(config, updates, rollout_steps))
    assert count(jnp.asarray(updates, jnp.int32)) == expected


def test_a_ring_smaller_than_a_rollout_is_refused():
    trajectory = trajectory_of(one_episode(0.0), 0, 6)
    ring = unwritten(trajectory, 6)
    with pytest.raises(
        ShoalError, match="a ring of 6 rows cannot hold the 7 time-steps of a rollout of 6 steps"
    ):
        replay.write(ring, jnp.zeros((), jnp.int32), replay.stored_steps(trajectory))


SMALL = {"batch_size": 1, "learning_starts": 0}


@pytest.mark.parametrize(
    ("values", "sizes", "sentence"),
    [
        (
            {**SMALL, "buffer_size": 16},
            (8, 10),
            "buffer_size=16 keeps 2 steps of each of 8 environments, fewer than the num_steps=10 of a rollout; "
            "it must be at least 80.",
        ),
        (
            {**SMALL, "buffer_size": 16, "n_step": 3},
            (8, 2),
            "buffer_size=16 keeps 2 steps of each of 8 environments, fewer than n_step=3; "
            "choose buffer_size=24, or n_step=2.",
        ),
        (
            {**SMALL, "buffer_size": 100, "batch_size": 128},
            (8, 10),
            "batch_size=128 is greater than buffer_size=100; it must be at most 100.",
        ),
        (
            {"learning_starts": 10_001},
            (8, 10),
            "learning_starts=10001 is greater than buffer_size=10000; it must be at most 10000.",
        ),
        (
            {"train_frequency": 99_991},
            (1024, 1),
            None,
        ),
        (
            {**SMALL, "buffer_size": 2**20, "train_frequency": 2**20 - 1},
            (2**13, 2**7),
            "train_frequency=1048575 and num_envs*num_steps=1048576 have no common divisor that is large enough to "
            "count with; train_frequency=1048576, a multiple, works.",
        ),
        ({}, (8, 10), None),
        ({}, (64, 128), None),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_sentence(values, sizes, sentence):
    config = ReplayConfig(**values)
    settings.check_fields(config)
    if sentence is None:
        config.validate(*sizes)
        return
    with pytest.raises(ShoalError) as error:
        config.validate(*sizes)
    assert str(error.value) == sentence


@pytest.mark.parametrize("name", ["buffer_size", "batch_size", "train_frequency", "gradient_steps", "n_step"])
def test_settings_out_of_bounds_are_refused(name):
    with pytest.raises(ShoalError, match=f"{name}=0 is out of bounds"):
        settings.check_fields(ReplayConfig(**{name: 0}))


@pytest.mark.full
def test_a_ring_keeps_at_least_the_steps_that_were_asked_for():
    for num_envs in (1, 3, 8, 64):
        rows = ReplayConfig(buffer_size=1000).num_rows(num_envs)
        assert (rows - 1) * num_envs >= 1000 > (rows - 2) * num_envs
        assert rows == math.ceil(1000 / num_envs) + 1
