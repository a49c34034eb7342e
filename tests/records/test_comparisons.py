"""Comparisons against double loops, SciPy, numbers that rliable gave, and by how often intervals cover the truth."""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from shoal.records import comparisons, scores

RLIABLE = json.loads((Path(__file__).parent / "data" / "rliable.json").read_text())
X, Y = np.array(RLIABLE["x"]), np.array(RLIABLE["y"])
RNG = np.random.default_rng(0)
INF = np.inf


def brute_force_improvement(x, y):
    total = 0.0
    for a in x:
        for b in y:
            total += 1.0 if b > a else 0.5 if b == a else 0.0
    return total / (len(x) * len(y))


@pytest.mark.parametrize("name", ["x", "y"])
def test_aggregates_are_rliables(name):
    x = np.array(RLIABLE[name])
    statistics_of = {
        "median": comparisons.task_median,
        "iqm": scores.iqm,
        "mean": np.mean,
        "optimality_gap": comparisons.optimality_gap,
    }
    for k, part in enumerate(RLIABLE["order"]):
        compute = statistics_of[part]
        assert compute(x, axis=(0, 1)) == pytest.approx(RLIABLE["points"][name][k], abs=1e-9)
        ends = [RLIABLE["intervals"][name][end][k] for end in (0, 1)]
        found = scores.stratified_bootstrap_interval(x, compute)
        np.testing.assert_allclose(found, ends, atol=0.012)  # Monte-Carlo error of both


def test_the_probability_of_improvement_is_rliables():
    found = comparisons.probability_of_improvement(X, Y)
    assert found == pytest.approx(RLIABLE["improvement"], abs=1e-9)
    np.testing.assert_allclose(
        comparisons.improvement_interval(X, Y), RLIABLE["improvement_interval"], atol=0.025
    )


def test_performance_profiles_are_rliables():
    thresholds = np.array(RLIABLE["thresholds"])
    for name, x in (("x", X), ("y", Y)):
        profile = comparisons.performance_profile(x, thresholds)
        np.testing.assert_allclose(profile, RLIABLE["profiles"][name], atol=1e-9)
        band = comparisons.profile_band(x, thresholds)
        np.testing.assert_allclose(band, RLIABLE["profile_intervals"][name], atol=0.05)


def test_the_probability_of_improvement_counts_pairs():
    for _ in range(20):
        x, y = RNG.integers(0, 4, RNG.integers(1, 7)), RNG.integers(0, 4, RNG.integers(1, 7))
        found = comparisons.probability_of_improvement(x, y)
        assert found == pytest.approx(brute_force_improvement(x, y), abs=1e-12)
        u = scipy.stats.mannwhitneyu(y, x).statistic
        assert found == pytest.approx(u / (len(x) * len(y)), abs=1e-12)
    assert comparisons.probability_of_improvement(X, X) == 0.5


def test_a_failed_seed_loses_every_comparison():
    x, y = np.array([1.0, 2.0, -INF]), np.array([-INF, -5.0])
    # -5 beats the failed one, and two failed ones tie.
    assert comparisons.probability_of_improvement(x, y) == pytest.approx((1 + 0.5) / 6)
    assert comparisons.probability_of_improvement([-INF], [-INF]) == 0.5


def test_newcombes_interval_solves_its_equation():
    """By a search over θ, for the equation written out apart from the implementation."""
    z = 1.959963984540054
    theta = np.linspace(0, 1, 2_000_001)
    for p, m, n in ((0.5, 5, 5), (0.1, 3, 10), (0.93, 10, 7), (0.0, 5, 5), (1.0, 4, 8)):
        k = 0.5 * (m + n) - 1
        bracket = 1 + k * (1 - theta) / (2 - theta) + k * theta / (1 + theta)
        is_inside = np.abs(theta - p) <= z * np.sqrt(theta * (1 - theta) * bracket / (m * n))
        expected = theta[is_inside].min(), theta[is_inside].max()
        np.testing.assert_allclose(comparisons.newcombe_interval(p, m, n), expected, atol=1e-6)
    low, high = comparisons.newcombe_interval(0.3, 5, 9)
    np.testing.assert_allclose(comparisons.newcombe_interval(0.7, 5, 9), (1 - high, 1 - low), atol=1e-12)
    assert comparisons.newcombe_interval(1.0, 5, 5)[0] < 0.65


@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_newcombes_interval_covers_the_truth(n, shift):
    """The bootstrap's covers 0.64 of 0.95 at five seeds, and 0.85 at ten."""
    generator, truth = np.random.default_rng(n), statistics.NormalDist().cdf(shift / np.sqrt(2))
    covered = 0
    for _ in range(1000):
        x, y = generator.normal(size=n), generator.normal(shift, size=n)
        low, high = comparisons.improvement_interval(x, y)
        covered += low <= truth <= high
    assert 0.92 < covered / 1000 < 0.985


def test_several_tasks_are_drawn_each_by_itself():
    x = np.c_[np.arange(5.0), np.arange(5.0)]
    assert comparisons.probability_of_improvement(x, x + np.array([0, 10])) == 0.75
    low, high = comparisons.improvement_interval(x, x + np.array([0, 10]))
    assert 0.5 < low < 0.75 < high < 1.0


def test_the_interval_of_a_difference_is_scipys():
    x, y = RNG.normal(size=12), RNG.normal(1.0, size=9)
    expected = scipy.stats.bootstrap(
        (x, y),
        lambda a, b, axis=-1: np.mean(b, axis=axis) - np.mean(a, axis=axis),
        n_resamples=20_000,
        method="percentile",
        random_state=1,
    ).confidence_interval
    found = comparisons.difference_interval(x, y, np.mean)
    np.testing.assert_allclose(found, expected, atol=0.04)
    assert comparisons.score_difference(x, y, np.mean) == pytest.approx(y.mean() - x.mean())


def test_the_interval_of_a_difference_covers_the_truth():
    covered = 0
    for i in range(300):
        generator = np.random.default_rng(i)
        x, y = generator.normal(size=20), generator.normal(1.0, size=20)
        low, high = comparisons.difference_interval(x, y, np.mean, repetitions=500)
        covered += low < 1.0 < high
    assert 0.9 < covered / 300 < 0.985


def test_differences_of_failed_seeds():
    """One of five is trimmed, but may be drawn twice; of two whose IQM is minus infinity nothing is known."""
    whole, some = np.arange(5.0), np.r_[np.arange(4.0), -INF]
    assert comparisons.score_difference(whole, some) == pytest.approx(-1.0)
    low, high = comparisons.difference_interval(whole, some)
    assert low == -INF and np.isfinite(high)
    assert comparisons.difference_interval(some, some) == (-INF, INF)
    assert np.isnan(comparisons.score_difference(np.full(5, -INF), np.full(5, -INF)))
    assert comparisons.score_difference(np.full(5, -INF), whole) == INF


def test_a_failed_seed_in_aggregates():
    x = np.array([[1.0, 5.0], [2.0, -INF], [3.0, 7.0]])
    assert comparisons.task_median(x) == -INF
    assert comparisons.task_median(x[:, [0, 0, 1]]) == 2.0
    assert comparisons.optimality_gap(x) == INF
    np.testing.assert_allclose(comparisons.performance_profile(x, [-10.0, 4.0]), [5 / 6, 2 / 6])
