"""Priorities of a replay against leaves in NumPy: what is drawn how often, with which weight, and never."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from shoal.algos.learning import priorities, replay
from shoal.algos.learning.priorities import Priorities
from shoal.algos.learning.replay import ReplayConfig, StoredSteps

N, ROWS = 3, 11  # environments, and rows of each, which are no power of two
SIZE = 16

draw = jax.jit(priorities.draw, static_argnums=2)
updated = jax.jit(priorities.updated)
rows_written = jax.jit(priorities.rows_written)


def leaves_of(made):
    """The priorities of all rows, [N, rows]."""
    return np.asarray(made.tree)[:, made.tree.shape[1] // 2 :]


def with_leaves(leaves):
    """Priorities whose rows have these, [N, rows]."""
    leaves = np.asarray(leaves, np.float32)
    env, row = (x.ravel() for x in np.indices(leaves.shape))
    return updated(priorities.empty(*leaves.shape), env, row, leaves.ravel())


def assert_sums_are_right(made):
    tree = np.asarray(made.tree)
    for i in range(1, tree.shape[1] // 2):
        np.testing.assert_array_equal(tree[:, i], tree[:, 2 * i] + tree[:, 2 * i + 1])
    np.testing.assert_array_equal(made.roots, tree[:, 1])


@pytest.mark.parametrize(("num_envs", "num_rows"), [(1, 2), (1, 9), (3, 16), (5, 11), (8, 2)])
def test_every_sum_is_that_of_both_children_whatever_was_set(num_envs, num_rows):
    """Also after numbers of very different sizes, which a sum that is only added to would not forget."""
    rng = np.random.default_rng(0)
    made = priorities.empty(num_envs, num_rows)
    expected = np.zeros((num_envs, made.tree.shape[1] // 2), np.float32)
    greatest = 0.0
    for _ in range(30):
        env, row = rng.integers(num_envs, size=6), rng.integers(num_rows, size=6)
        priority = np.float32(10.0 ** rng.uniform(-8, 8, 6))
        made = updated(made, env, row, priority)
        expected[env, row] = 0.0
        np.maximum.at(expected, (env, row), priority)
        greatest = max(greatest, priority.max())
        np.testing.assert_array_equal(leaves_of(made), expected)
        np.testing.assert_array_equal(made.greatest, greatest)
        assert_sums_are_right(made)


def test_a_row_that_a_batch_has_several_times_gets_the_greatest_of_its_new_priorities():
    made = with_leaves(np.full((N, ROWS), 9.0))
    made = updated(made, np.array([1, 1, 1, 2]), np.array([4, 4, 4, 4]), np.float32([2.0, 3.0, 1.0, 0.5]))
    expected = np.full((N, ROWS), 9.0)
    expected[1, 4], expected[2, 4] = 3.0, 0.5
    np.testing.assert_array_equal(leaves_of(made)[:, :ROWS], expected)
    assert_sums_are_right(made)


@pytest.mark.parametrize("shape", [(1, 9), (3, 11), (4, 16), (9, 2)])
def test_rows_are_drawn_in_proportion_to_their_priorities(shape):
    """And the returned probabilities are those with which they are."""
    leaves = np.random.default_rng(1).gamma(0.5, size=shape) * (np.random.default_rng(2).random(shape) < 0.8)
    leaves[:, 0], leaves[1:][-1:] = 0.7, 0.0  # no row of the last of several environments
    leaves[0, -1] = 1.0
    size = 50_000
    env, row, probability = map(np.asarray, draw(jax.random.key(0), with_leaves(leaves), size))
    expected = leaves / leaves.sum()
    np.testing.assert_allclose(probability, expected[env, row], rtol=1e-5)
    counts = np.bincount(env * shape[1] + row, minlength=leaves.size)
    assert (counts[expected.ravel() == 0] == 0).all()
    kept = expected.ravel() > 0
    assert scipy.stats.chisquare(counts[kept], size * expected.ravel()[kept]).pvalue > 1e-3
    other = draw(jax.random.key(1), with_leaves(leaves), size)
    assert np.mean((np.asarray(other[0]) == env) & (np.asarray(other[1]) == row)) < 0.9


@pytest.mark.parametrize("seed", range(3))
def test_no_row_of_priority_zero_is_drawn_whatever_rounding_does(seed):
    """A number just below 1 times a sum is the sum; environments and rows of 0 beside tiny and huge ones."""
    rng = np.random.default_rng(seed)
    leaves = 10.0 ** rng.uniform(-12, 12, (6, 37)) * (rng.random((6, 37)) < 0.2)
    leaves[rng.integers(6)] = 0.0
    made = with_leaves(leaves)
    for bits in (0.0, 1.0 - 2.0**-24, 0.5, None):
        uniform = jax.random.uniform if bits is None else lambda key, shape, bits=bits: jnp.full(shape, bits)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.random, "uniform", uniform)
            env, row, probability = priorities.draw(jax.random.key(seed), made, 4096)
        assert (leaves[env, row] > 0).all()
        assert np.isfinite(priorities.weights(probability, 1.0)).all()


def test_where_nothing_can_be_drawn_rows_have_probability_and_weight_zero():
    env, row, probability = draw(jax.random.key(0), priorities.empty(5, ROWS), 7)
    for x in (env, row, probability, priorities.weights(probability, 0.5)):
        np.testing.assert_array_equal(x, 0)


@pytest.mark.full
def test_rows_of_a_small_share_beside_a_great_one_are_all_reached():
    """One number of 24 bits for the whole descent would reach one in sixty of them."""
    leaves = np.ones((1, 2**16), np.float32)
    leaves[0, 0] = 1e9
    made = with_leaves(leaves)
    keys = jax.random.split(jax.random.key(0), 64)
    rows = np.ravel(jax.lax.map(lambda key: draw(key, made, 2**16)[1], keys))
    small = rows[rows > 0]
    assert abs(len(small) / len(rows) * 1e9 / 2**16 - 1) < 0.1
    assert scipy.stats.chisquare(np.bincount(small % 32, minlength=32)).pvalue > 1e-3


def test_weights_are_those_of_the_formula():
    """(R p)^-β over the greatest of the batch, which corrects by a mean for rows that are drawn too often."""
    probability = np.float32([0.5, 0.125, 0.25, 0.125])
    for beta, expected in (
        (0.0, [1, 1, 1, 1]),
        (0.5, [0.5, 1.0, 0.5**0.5, 1.0]),
        (1.0, [0.25, 1, 0.5, 1]),
    ):
        np.testing.assert_allclose(priorities.weights(probability, beta), expected, rtol=1e-6)
    found = priorities.weights(np.float32([0.0, 0.2, 0.1]), 0.4)
    np.testing.assert_allclose(found, [0.0, 0.5**0.4, 1.0], rtol=1e-6)
    leaves = np.random.default_rng(0).gamma(1.0, size=(N, ROWS))
    value = np.random.default_rng(1).normal(size=(N, ROWS))
    env, row, probability = draw(jax.random.key(0), with_leaves(leaves), 200_000)
    weight = np.asarray(priorities.weights(probability, 1.0))
    corrected = (weight * value[env, row]).sum() / weight.sum()
    assert corrected == pytest.approx(value.mean(), abs=0.01)


def test_new_rows_get_the_greatest_priority_so_far_and_at_least_one():
    flags = np.array([[True, False, True], [True, True, False]])
    made = rows_written(priorities.empty(2, 5), np.array([4, 0, 1]), flags)
    np.testing.assert_array_equal(leaves_of(made)[:, :5], [[0, 1, 0, 0, 1], [1, 0, 0, 0, 1]])
    made = updated(made, np.array([0, 1]), np.array([1, 4]), np.float32([0.25, 0.5]))
    made = rows_written(made, np.array([2]), np.full((2, 1), True))
    np.testing.assert_array_equal(leaves_of(made)[:, :5], [[0, 0.25, 1, 0, 1], [1, 0, 1, 0, 0.5]])
    made = updated(made, np.array([0, 1]), np.array([1, 4]), np.float32([4.0, 0.5]))
    made = updated(made, np.array([0]), np.array([1]), np.float32([0.125]))  # the greatest so far, not now
    made = rows_written(made, np.array([3]), np.full((2, 1), True))
    np.testing.assert_array_equal(leaves_of(made)[:, :5], [[0, 0.125, 1, 4, 1], [1, 0, 1, 4, 0.5]])
    assert_sums_are_right(made)
    emptied = jax.tree.map(jnp.zeros_like, made)
    for x, y in zip(emptied, priorities.empty(2, 5), strict=True):
        np.testing.assert_array_equal(x, y)


def of_groups(function, groups):
    return jax.jit(jax.vmap(function, axis_name="groups"))


def test_two_groups_draw_from_their_own_and_agree_on_weights_and_on_the_greatest():
    leaves = np.random.default_rng(0).gamma(1.0, size=(2, N, ROWS))
    leaves[1] *= 5.0
    made = [with_leaves(x) for x in leaves]
    both = jax.tree.map(lambda *x: jnp.stack(x), *made)._replace(greatest=jnp.full((2, N), 1e-3))

    def batch(key, own):
        env, row, probability = priorities.draw(key, own, 20_000)
        weight = priorities.weights(probability, 0.7, ("groups",))
        return env, row, probability, weight, priorities.updated(own, env, row, probability, ("groups",))

    keys = jax.random.split(jax.random.key(0), 2)
    env, row, probability, weight, after = of_groups(batch, 2)(keys, both)
    for k in range(2):
        share = leaves[k] / leaves[k].sum()
        np.testing.assert_allclose(probability[k], share[env[k], row[k]], rtol=1e-5)
        counts = np.bincount(np.asarray(env[k] * ROWS + row[k]), minlength=N * ROWS)
        assert scipy.stats.chisquare(counts, 20_000 * share.ravel()).pvalue > 1e-3
    least = np.min(probability)
    np.testing.assert_allclose(weight, (least / np.asarray(probability)) ** 0.7, rtol=1e-5)
    np.testing.assert_array_equal(after.greatest, np.full((2, N), np.max(probability)))


def learn(made, key, batch_size, steps):
    """A loop of draws, each followed by new priorities of what was drawn, between rollouts."""

    def step(i, made):
        env, row, probability = priorities.draw(jax.random.fold_in(key, i), made, batch_size)
        priority = jnp.where(probability > 0, 0.25 + (row + env) % 7, 0.0)
        return priorities.updated(made, env, row, priority)

    def update(i, made):
        num_envs = len(made.roots)
        made = priorities.rows_written(
            made, 2 * i + jnp.arange(3), jnp.tile(jnp.arange(3) < 2, (num_envs, 1))
        )
        return jax.lax.fori_loop(0, steps, step, made)

    return jax.lax.fori_loop(0, 4, update, made)


@pytest.mark.full
def test_members_under_vmap_are_as_one_after_the_other():
    members = [with_leaves(np.random.default_rng(k).gamma(1.0, size=(N, ROWS))) for k in range(3)]
    keys = jax.random.split(jax.random.key(0), 3)
    run = jax.jit(functools.partial(learn, batch_size=8, steps=3))
    together = jax.jit(jax.vmap(functools.partial(learn, batch_size=8, steps=3)))(
        jax.tree.map(lambda *x: jnp.stack(x), *members), keys
    )
    alone = jax.tree.map(lambda *x: jnp.stack(x), *(run(*each) for each in zip(members, keys, strict=True)))
    jax.tree.map(np.testing.assert_array_equal, together, alone)


def test_a_compiled_loop_changes_the_trees_in_place():
    made = priorities.empty(2, 2**19)
    made = Priorities(*map(jnp.copy, made))
    address = made.tree.unsafe_buffer_pointer()
    run = jax.jit(functools.partial(learn, batch_size=32), donate_argnums=0)
    compiled = run.lower(made, jax.random.key(0), steps=jnp.int32(3)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < made.tree.nbytes / 100
    copies = [line for line in compiled.as_text().splitlines() if " copy(" in line and str(2**20) in line]
    assert not copies
    assert compiled(made, jax.random.key(0), steps=jnp.int32(3)).tree.unsafe_buffer_pointer() == address


class Cliffwalk(NamedTuple):
    """The blind cliffwalk's transitions of all sequences of actions, as one long history in a ring of one environment.

    Of n states each has one right action, which leads on, and at the last one to a reward of 1; the wrong one ends the
    episode without. Every one of the 2^n sequences was tried, so that of 2^(n+1) - 2 transitions one has the reward.
    """

    ring: StoredSteps
    written: jax.Array

    @classmethod
    def of(cls, num_states, prioritized):
        rows = []  # (state, action, reward, discount, last)
        for sequence in range(2**num_states):
            for state in range(num_states):
                is_right = bool(sequence >> state & 1)
                is_end = not is_right or state == num_states - 1
                rows.append((state, int(is_right), float(is_right and is_end), float(not is_end), False))
                if is_end:
                    break
            rows.append((0, 0, 0.0, 0.0, True))
        state, action, reward, discount, last = (np.array(x)[:, None] for x in zip(*rows, strict=True))
        numbers = (np.int32(action), np.float32(reward), np.float32(discount), last)
        steps = StoredSteps(np.int32(state), *numbers)
        ring = replay.empty_ring(jax.tree.map(lambda x: x[0, 0], steps), 1, len(rows))
        drawn_by = priorities.empty(1, len(rows)) if prioritized else None
        return cls(*replay.write(ring._replace(priorities=drawn_by), jnp.int32(0), steps))

    def steps_until_learned(self, num_states, seed):
        """Count steps of tabular Q-learning on one transition each until the mean squared error is below 1e-3."""
        config, gamma = ReplayConfig(batch_size=1, prioritized_replay=True), 1.0 - 1.0 / num_states
        optimal = np.zeros((num_states, 2), np.float32)
        optimal[:, 1] = gamma ** np.arange(num_states - 1, -1, -1)

        def step(carry):
            values, drawn_by, count = carry
            ring = self.ring._replace(priorities=drawn_by)
            key = jax.random.fold_in(jax.random.key(seed), count)
            window, factor = replay.draw(config, key, ring, self.written, jnp.float32(0.0), ())
            returns = replay.n_step_return(window, gamma)
            start, end = (replay.steps_at(ring, window, k) for k in (0, returns.steps))
            entry = start.observation, start.action
            bootstrap = jnp.where(returns.discount > 0, values[end.observation].max(-1), 0.0)
            error = returns.weight * (returns.reward + returns.discount * bootstrap - values[entry])
            drawn_by = replay.with_errors(config, ring, window, error, ()).priorities
            return values.at[entry].add(0.25 * factor * error), drawn_by, count + 1

        def goes_on(carry):
            return (jnp.mean((carry[0] - optimal) ** 2) > 1e-3) & (carry[2] < 1_000_000)

        values = 0.1 * jax.random.normal(jax.random.key(1000 + seed), (num_states, 2))
        return int(jax.lax.while_loop(goes_on, step, (values, self.ring.priorities, 0))[2])


@pytest.mark.parametrize("num_states", [8, 10])
def test_the_blind_cliffwalk_is_learned_in_a_fifth_of_the_steps(num_states):
    """Schaul et al. 2016, figure 1: the one transition with a reward is among hundreds of others."""
    steps = {}
    for prioritized in (True, False):
        walk = Cliffwalk.of(num_states, prioritized)
        run = functools.partial(walk.steps_until_learned, num_states)
        steps[prioritized] = np.median([run(seed) for seed in range(5)])
    assert steps[True] <= steps[False] / 5
