"""The interquartile mean against SciPy's trimmed mean; the interval by how often it covers the truth; the ranking."""

import math

import numpy as np
import pytest
import scipy.stats

from shoal.records import scores

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 10, 30, 101])
def test_iqm_is_the_trimmed_mean(n):
    x = RNG.normal(size=n)
    assert scores.iqm(x) == pytest.approx(scipy.stats.trim_mean(x, 0.25), rel=1e-12)
    assert isinstance(scores.iqm(x), float)


def test_iqm_over_axes():
    x = RNG.normal(size=(6, 10, 5))
    assert scores.iqm(x) == pytest.approx(scipy.stats.trim_mean(x, 0.25, axis=None), rel=1e-12)
    np.testing.assert_allclose(scores.iqm(x, axis=1), scipy.stats.trim_mean(x, 0.25, axis=1), rtol=1e-12)
    flat = x.reshape(6, -1)
    np.testing.assert_allclose(scores.iqm(x, axis=(1, 2)), scipy.stats.trim_mean(flat, 0.25, axis=1))
    np.testing.assert_allclose(scores.iqm(x, axis=-1), scipy.stats.trim_mean(x, 0.25, axis=-1))


def test_iqm_does_not_hide_a_failed_run():
    assert np.isnan(scores.iqm([1.0, 2.0, np.nan, 3.0, 4.0]))
    with pytest.raises(ValueError, match="scores is empty"):
        scores.iqm([])


def test_the_interval_is_scipys_for_one_task():
    x = RNG.normal(size=12)
    got = scores.stratified_bootstrap_interval(x, np.mean, repetitions=40_000)
    expected = scipy.stats.bootstrap(
        (x,), np.mean, n_resamples=40_000, method="percentile", random_state=1
    ).confidence_interval
    np.testing.assert_allclose(got, expected, atol=0.02 * np.std(x))


def test_the_interval_is_stratified():
    """Tasks on different scales: drawn over all runs alike the interval would span the tasks."""
    x = RNG.normal(size=(10, 4)) + 1000.0 * np.arange(4)
    low, high = scores.stratified_bootstrap_interval(x, np.mean, repetitions=2_000)
    assert low < x.mean() < high and high - low < 2.0


def test_the_interval_covers_the_truth_as_often_as_it_says():
    covered = 0
    for i in range(300):
        x = np.random.default_rng(i).normal(size=30)
        low, high = scores.stratified_bootstrap_interval(x, np.mean, confidence=0.8, repetitions=500, seed=i)
        covered += low < 0 < high
    assert scipy.stats.binomtest(covered, 300, 0.785).pvalue > 0.001  # a little below 0.8 at 30 samples


def test_the_interval_is_reproducible_and_collapses():
    x = RNG.normal(size=(10, 3))
    assert scores.stratified_bootstrap_interval(x) == scores.stratified_bootstrap_interval(x)
    assert scores.stratified_bootstrap_interval(x) != scores.stratified_bootstrap_interval(x, seed=1)
    assert np.isnan(scores.stratified_bootstrap_interval([3.0])).all()
    assert np.isnan(scores.stratified_bootstrap_interval([[3.0, 4.0]])).all()
    narrow = scores.stratified_bootstrap_interval(x, confidence=0.5)
    wide = scores.stratified_bootstrap_interval(x, confidence=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"\[2, 2, 2\]"):
        scores.stratified_bootstrap_interval(np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match=r"\[0\]"):
        scores.stratified_bootstrap_interval([])
    with pytest.raises(ValueError, match="confidence=95"):
        scores.stratified_bootstrap_interval([1.0, 2.0], confidence=95)


def test_rows_and_columns_are_both_drawn():
    """A column alone is the bootstrap over the rows; what a row has in common does not average out over columns."""
    x = np.random.default_rng(0).normal(size=(10, 1))
    repeated = np.repeat(x, 8, axis=1)
    widths = [
        np.subtract(*f(repeated, np.mean))
        for f in (scores.crossed_bootstrap_interval, scores.stratified_bootstrap_interval)
    ]
    assert widths[0] / widths[1] == pytest.approx(np.sqrt(8), rel=0.1)
    alone = np.subtract(*scores.stratified_bootstrap_interval(x, np.mean))
    assert widths[0] == pytest.approx(alone, rel=0.05)
    assert np.isnan(scores.crossed_bootstrap_interval([[3.0]])).all()
    with pytest.raises(ValueError, match=r"must be \[rows, columns\]"):
        scores.crossed_bootstrap_interval(x[:, 0])


def test_settings_are_in_the_order_of_their_interquartile_means():
    by_label = {str(k): np.random.default_rng(k).normal(size=9) for k in range(20)}
    ranked = scores.rank_settings(by_label)
    means = {label: scipy.stats.trim_mean(x, 0.25) for label, x in by_label.items()}
    assert list(ranked) == sorted(means, key=means.get, reverse=True)
    np.testing.assert_allclose([x.iqm for x in ranked.values()], sorted(means.values(), reverse=True))
    assert all(x.scores == tuple(by_label[label]) and x.failures == 0 for label, x in ranked.items())


def test_a_failed_seed_has_the_worst_score_of_the_search():
    by_label = {"a": [9.0, math.nan], "b": [2.0, math.inf], "c": [math.nan, math.nan], "d": [3.0, 4.0]}
    ranked = scores.rank_settings(by_label)
    assert list(ranked) == ["a", "d", "b", "c"]
    assert (ranked["a"].scores, ranked["b"].scores) == ((9.0, 2.0), (2.0, 2.0))
    assert np.isnan(ranked["c"].scores).all() and math.isnan(ranked["c"].iqm)
    assert [x.failures for x in ranked.values()] == [1, 0, 1, 2]
    assert scores.rank_settings(by_label, others=[-50.0, math.nan])["a"].scores == (9.0, -50.0)


def test_of_equal_scores_what_did_not_fail_comes_first():
    by_label = {
        "two failed": [1.0, math.nan, math.nan],
        "one failed": [1.0, 1.0, math.nan],
        "b": [1.0] * 3,
        "a": [1.0] * 3,
    }
    assert list(scores.rank_settings(by_label)) == ["b", "a", "one failed", "two failed"]
    assert list(scores.rank_settings({"failed": [math.nan], "lowest": [-1e30]})) == ["lowest", "failed"]
    assert list(scores.rank_settings({"b": [math.nan], "a": [math.nan]})) == ["b", "a"]


def test_fewer_than_five_seeds_have_no_interval():
    x = RNG.normal(size=(6, 3))
    for statistic in (scores.iqm, np.mean):
        assert scores.score_interval(x[:4], statistic) is None
        assert scores.score_interval(x[:5], statistic) == scores.stratified_bootstrap_interval(
            x[:5], statistic
        )
    assert scores.score_interval([1.0, 2.0, 3.0, 4.0, math.nan]) is None
    assert scores.crossed_score_interval(x[:4]) is None and scores.crossed_score_interval(x[:5]) is None
    assert scores.crossed_score_interval(x[:5, :1]) == scores.crossed_bootstrap_interval(x[:5, :1])
    assert scores.crossed_score_interval(RNG.normal(size=(5, 5))) is not None
    assert scores.crossed_score_interval(RNG.normal(size=(5, 4))) is None
    assert scores.crossed_score_interval([[1.0]]) is None


def test_what_is_said_of_few_seeds():
    assert scores.few_seeds_note(10) == "" and "87% to 93%" in scores.few_seeds_note(9)
    assert scores.few_seeds_note(5) == scores.few_seeds_note(9)
    assert "no interval from 4 seeds" in scores.few_seeds_note(4)
    assert "no interval from 1 seed:" in scores.few_seeds_note(1)


def test_a_failed_seed_is_minus_infinity():
    """One of five is trimmed from the mean; resamples that draw it twice make the lower end infinite, and not NaN."""
    x = np.array([1.0, 2.0, 3.0, 4.0, -np.inf])
    assert scores.iqm(x) == pytest.approx(2.0)
    low, high = scores.stratified_bootstrap_interval(x)
    assert low == -np.inf and 3.0 < high <= 4.0
    assert scores.iqm(np.array([1.0, 2.0, 3.0, -np.inf, -np.inf])) == -np.inf
    assert scores.stratified_bootstrap_interval(np.full(5, -np.inf)) == (-np.inf, -np.inf)
    assert np.isnan(scores.stratified_bootstrap_interval([1.0, 2.0, np.nan])).all()


def test_ends_next_to_infinities_are_values_themselves():
    values = np.r_[np.full(30, -np.inf), np.arange(970.0)]
    low, high = scores.percentile_interval(values)
    assert low == -np.inf and high in values
    assert scores.percentile_interval(np.r_[values, [np.nan] * 60]) == (-np.inf, np.inf)
    finite = RNG.normal(size=1000)
    expected = np.quantile(finite, (0.025, 0.975))
    np.testing.assert_allclose(scores.percentile_interval(finite), expected, rtol=1e-12)
