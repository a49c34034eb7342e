"""The summary of a run: its fields, its scores and its checksums."""

import json
import platform
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal.records import scores
from shoal.records import summary as summaries
from shoal.records.directory import RunDirectory
from shoal.records.members import Variant, members_of
from shoal.xla.facts import summary_facts

RETURNS = [9.0, 500.0, 480.0, 490.0, 500.0, 470.0, 500.0, 495.0, 300.0, 500.0]


def make(**changes):
    fields = {
        "environment": "CartPole-v1",
        "algorithm": "ppo",
        "seeds": range(10),
        "steps_per_seed": 499_712,
        "final": np.asarray(RETURNS[::-1], np.float32),
        "absolute": RETURNS,
        "steps_per_second": 1e5,
        "facts": summary_facts(),
        "seconds": {"import": 1.0, "compile": 2.0, "train": 3.0, "evaluate": 4.0},
        "parameters": [{"w": jnp.full(3, k % 9)} for k in range(10)],
    }
    return summaries.build_summary(**fields | changes)


def test_the_fields():
    summary = make(evaluation={"episodes": 320})
    assert list(summary) == [
        "schema", "environment", "algorithm", "seeds", "steps_per_seed", "failed", "final", "absolute",
        "steps_per_second", "seconds", "parameters_sha256", "versions", "revision", "device", "plain",
        "started_time", "ended_time", "host", "command", "evaluation",
    ]  # fmt: skip
    assert summary["plain"] is False
    assert summary["schema"] == 2 and summary["seeds"] == list(range(10))
    assert summary["absolute"]["returns"] == RETURNS == summary["final"]["returns"][::-1]
    assert set(summary["seconds"]) == {"import", "compile", "train", "evaluate"}
    sums = summary["parameters_sha256"]
    assert len(sums) == 10 and sums[0] == sums[9] and len(set(sums)) == 9
    assert set(summary["versions"]) == {"python", "jax", "jaxlib", "flax", "optax", "numpy", "shoal"}
    assert summary["versions"]["jax"] == jax.__version__
    assert summary["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert summary["device"] == {"kind": "cpu", "platform": "cpu", "count": 2, "matmul_precision": "default"}


def test_it_is_strict_json(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "x", "y", {})
    summary = make(started_time=0.5, command="shoal train 'a b'")
    directory.save_summary(summary)
    text = (tmp_path / "run" / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == directory.load_summary() == summary
    assert summary["started_time"] == "1970-01-01T00:00:00+00:00" < summary["ended_time"]
    assert (summary["host"], summary["command"]) == (platform.node(), "shoal train 'a b'")
    assert make()["started_time"] is None and make()["command"] is None


def test_scores_hold_the_interquartile_mean_and_its_interval():
    score = summaries.score_statistics(RETURNS[:8])
    assert score["iqm"] == pytest.approx(stats.trim_mean(RETURNS[:8], 0.25))
    low, high = score["interval"]
    assert min(RETURNS) <= low < score["iqm"] < high <= max(RETURNS)
    assert summaries.score_statistics([3.0]) == {"returns": [3.0], "iqm": 3.0, "interval": None}
    # The bootstrap's seed is fixed.
    assert summaries.score_statistics(RETURNS) == summaries.score_statistics(RETURNS)


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_a_seed_that_failed_is_the_worst_there_is(count, tmp_path):
    """Of ten seeds two are cut at each end; where all failed there is no score."""
    failed = {k: {"seed": k, "update": 3, "last_policy_step": 64} for k in range(10 - count, 10)}
    metrics = {"x": np.array(RETURNS)}
    score = summaries.chosen_score("x", metrics, metrics, failed)
    summary = make(failed=failed, score=score, final=RETURNS)
    assert summary["failed"] == list(failed.values())
    values = np.array([*RETURNS[: 10 - count], *[-np.inf] * count])
    iqm = {1: stats.trim_mean(values, 0.25), 2: stats.trim_mean(values, 0.25), 3: -np.inf, 10: np.nan}[count]
    directory = RunDirectory.create(tmp_path / "run", "x", "y", {})
    directory.save_summary(summary)
    stored = json.loads((tmp_path / "run" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert stored["absolute"]["returns"] == [*RETURNS[: 10 - count], *[None] * count]
    for whole in (summary, directory.load_summary()):
        for part in ("absolute", "final"):
            found, by = whole[part], whole["score"][part]
            assert found["returns"] == by["values"] == values.tolist()
            np.testing.assert_equal([found["iqm"], by["iqm"]], [iqm, iqm])
            expected = None if count == 10 else list(scores.score_interval(values))
            assert found["interval"] == by["interval"] == expected
    # A return that is missing for another reason is no failure, and what failed cannot be told from it.
    directory.save_summary(make(failed=failed, final=[np.nan, *RETURNS[1:]]))
    if count < 10:
        assert directory.load_summary()["final"]["returns"][0] is None


def test_the_score_of_failures_needs_no_number():
    """A resample may draw the failed seed more often, so that the interval has an end at minus infinity, or none."""
    one = summaries.score_statistics([5.0, 6.0, 7.0, 8.0, 9.0], [0])
    assert (one["iqm"], one["interval"][0]) == (7.0, -np.inf) and np.isfinite(one["interval"][1])
    most = summaries.score_statistics([5.0, 6.0, 7.0, 8.0, 9.0], [0, 1, 2, 3])
    assert most["iqm"] == -np.inf and most["interval"] is None


def test_a_seed_that_failed_counts_as_the_worst_of_all_settings():
    """Two tie and one has a failed seed of the same score; of another all failed, with the best returns of all."""
    members = members_of((0, 1), [Variant(label, {}) for label in ("whole", "some", "b", "a", "worst")])
    returns = [9.0, 9.0, 5.0, 5.0, 5.0, 5.0, 4.0, 6.0, 1.0, 1.0]
    rows = summaries.variant_scores(members, returns, returns, failed=[0, 1, 3])
    assert [row["label"] for row in rows] == ["b", "a", "some", "worst", "whole"]
    assert [row.get("failed") for row in rows] == [None, None, [1], None, [0, 1]]
    assert [row["absolute"]["iqm"] for row in rows[:4]] == [5.0, 5.0, 3.0, 1.0]
    assert np.isnan(rows[4]["absolute"]["iqm"])
    assert rows[4]["final"]["interval"] is None
