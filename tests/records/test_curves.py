"""Curves on a common grid, and the steps to a score, against loops and SciPy's Kaplan-Meier estimate."""

import numpy as np
import pytest
import scipy.stats

from shoal.records import curves

INF = np.inf


def test_a_common_grid_is_that_of_the_coarsest_run():
    coarse, fine = np.arange(0, 41.0, 10), np.arange(0, 41.0, 2)
    np.testing.assert_array_equal(curves.common_grid([coarse, fine]), coarse)
    np.testing.assert_array_equal(curves.common_grid([coarse, coarse]), coarse)
    shifted = np.array([0.0, 8, 16, 24, 32, 40])
    grid = curves.common_grid([coarse, shifted])
    np.testing.assert_array_equal(grid, [0, 10, 20, 30, 40])
    longer = curves.common_grid([coarse, np.arange(0, 101.0, 25)])
    np.testing.assert_array_equal(longer, [0, 25, 50, 75, 100])


def test_each_point_has_the_last_evaluation_since_the_point_before():
    steps, values = np.arange(0, 21.0, 4), np.arange(6.0)[:, None]
    found = curves.on_grid(np.array([0.0, 10, 20, 30]), steps, values)
    np.testing.assert_array_equal(found[:, 0], [0, 2, 5, np.nan])  # nothing is extrapolated
    late = curves.on_grid(np.array([0.0, 10]), np.array([5.0]), np.ones((1, 2)))
    np.testing.assert_array_equal(late, [[np.nan] * 2, [1, 1]])


def test_evaluating_more_often_does_not_win():
    """Noise alone: on its own points the finer run would reach the score much earlier."""
    generator, wins, own = np.random.default_rng(0), [], []
    coarse, fine = np.arange(0, 101.0, 10), np.arange(0, 101.0, 1)
    for _ in range(300):
        tables = [(steps, generator.normal(size=(len(steps), 1))) for steps in (coarse, fine)]
        grid = curves.common_grid([coarse, fine])
        a, b = (curves.steps_to_score(grid, curves.on_grid(grid, *x), 1.0)[1][0] for x in tables)
        wins.append((b < a) + 0.5 * (b == a))
        a, b = (curves.steps_to_score(*x, 1.0)[1][0] for x in tables)
        own.append((b < a) + 0.5 * (b == a))
    assert np.mean(wins) == pytest.approx(0.5, abs=0.08) and np.mean(own) > 0.8


def test_the_first_of_consecutive_points_counts():
    generator = np.random.default_rng(1)
    grid = np.arange(12.0) * 100
    for k in (1, 2, 3, 13):
        values = generator.normal(size=(12, 30))
        values[3, 4] = np.nan
        for member, found in enumerate(zip(*curves.steps_to_score(grid, values, 0.3, k), strict=True)):
            starts = [grid[i] for i in range(13 - k) if all(values[i + j, member] >= 0.3 for j in range(k))]
            assert found == ((max(starts[0] - 100, 0), starts[0]) if starts else (INF, INF))


def test_survival_quantiles_are_kaplan_and_meiers():
    generator = np.random.default_rng(2)
    for _ in range(50):
        times = generator.integers(1, 12, 9).astype(float)
        is_event = generator.random(9) < 0.6
        data = scipy.stats.CensoredData.right_censored(times, ~is_event)
        survival = scipy.stats.ecdf(data).sf
        reached = survival.quantiles[survival.probabilities <= 0.5 + 1e-9]
        assert curves.survival_quantile(times, is_event) == (reached[0] if reached.size else INF)


def test_with_equal_budgets_it_is_the_quantile_with_infinity():
    times = np.array([30.0, 10, 50, 100, 100])
    has_reached = times < 100
    expected = np.quantile(np.where(has_reached, times, INF), 0.5, method="inverted_cdf")
    assert curves.survival_quantile(times, has_reached) == expected == 50
    few = curves.survival_quantile(np.array([30.0, 100, 100, 100, INF]), np.array([True, *[False] * 4]))
    assert few == INF
    low, high = curves.survival_interval(times, times, has_reached)
    assert low in (10, 30) and high == INF
    before = np.where(has_reached, times - 10, times)  # the cell of the grid that the event lies in
    assert curves.survival_interval(before, times, has_reached) == (low - 10, INF)
    # One that was observed for 20 steps says nothing of later ones, and does not count as a failure.
    shorter = np.array([30.0, 10, 50, 20, 20])
    assert curves.survival_quantile(shorter, has_reached) == 30


def test_an_interval_of_steps_has_the_cell_of_the_median():
    """Ten seeds cross between the same two of six evaluations: the median is there, wherever it is."""
    generator, steps, covered = np.random.default_rng(3), np.arange(6) * 20.0, []
    for _ in range(40):
        median = generator.uniform(5, 75)
        crossings = median * np.exp(0.1 * generator.normal(size=10))
        before, times = curves.steps_to_score(steps, steps[:, None] / crossings, 1.0)
        assert ((before < crossings) & (crossings <= times)).all()
        low, high = curves.survival_interval(before, times, np.isfinite(times))
        covered.append(low <= median <= high)
        assert high - low >= 20
    assert np.mean(covered) > 0.95


def test_what_failed_is_minus_infinity_from_its_end_on():
    values = np.array([[1.0, 2, np.nan, np.nan], [np.inf, np.nan, 3, np.nan], [4, np.nan, np.nan, np.nan]])
    found = curves.with_failures(values, [1, 3])
    expected = [[1, 2, np.nan, -INF], [np.nan, -INF, 3, -INF], [4, -INF, np.nan, -INF]]
    np.testing.assert_array_equal(found, expected)
    assert np.isposinf(values[1, 0])  # a copy
