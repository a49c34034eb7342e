"""Training on minibatches shuffled in place learns as well as on minibatches shuffled by a sort."""

import jax
import numpy as np
import pytest
import scipy.stats

import shoal
from shoal.ops import permutations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEEDS = 10
EVALUATIONS = 50


def learning_curves(path, shuffle, monkeypatch):
    """[evaluations, seeds]: CartPole's preset with a shuffle of one's own, and how often it was traced."""
    calls = []

    def counted(key, n):
        calls.append(n)
        return shuffle(key, n)

    jax.clear_caches()  # a program that was traced with another shuffle would be found again
    monkeypatch.setattr(permutations, "permutation", counted)
    run = shoal.train(
        "CartPole-v1", seeds=SEEDS, num_evals=EVALUATIONS, eval_episodes=64, run_dir=path, progress=False
    )
    return (
        np.stack([metrics["return_mean"] for _, metrics in run.evaluations]),
        run.summary["absolute"],
        calls,
    )


def test_as_well_as_with_a_sort(tmp_path, monkeypatch):
    """Ten seeds each way: the best policies, and the mean of all evaluations, which tells fast learners from slow."""
    ours, theirs = permutations.permutation, jax.random.permutation
    curve, reached, calls = learning_curves(tmp_path / "ours", ours, monkeypatch)
    sorted_curve, sorted_reached, sorted_calls = learning_curves(tmp_path / "theirs", theirs, monkeypatch)
    assert calls and sorted_calls  # the training does call what was put in its place
    assert not np.array_equal(curve, sorted_curve)
    assert reached["iqm"] >= sorted_reached["iqm"] - 1.0
    assert min(reached["returns"]) >= 490
    means, sorted_means = curve.mean(axis=0), sorted_curve.mean(axis=0)
    print("means of the evaluations:", means.round(1), "by a sort:", sorted_means.round(1))
    print("best policies:", reached["returns"], "by a sort:", sorted_reached["returns"])
    # Ours is not the worse one by more than chance would make it in one of a hundred such comparisons.
    assert scipy.stats.ttest_ind(means, sorted_means, alternative="less").pvalue > 0.01
    assert means.mean() > sorted_means.mean() - 15
