"""The summary of a run: its fields, its scores and its checksums."""

import json
import platform
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal.disk import summary as summaries
from shoal.disk.directory import RunDirectory
from shoal.engine.population.members import Variant, members_of

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
    assert summary["schema"] == 1 and summary["seeds"] == list(range(10))
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


def test_a_run_of_which_all_seeds_failed_has_no_score():
    """A seed that failed beside others counts with the return of the policy that it has."""
    failed = [{"seed": k, "update": 3, "last_policy_step": 64} for k in range(10)]
    some = make(failed=failed[:3])
    assert some["failed"] == failed[:3]
    assert some["absolute"] == make()["absolute"]
    every = make(failed=failed)
    for part in ("absolute", "final"):
        assert np.isnan(every[part]["iqm"]) and every[part]["interval"] is None
        assert every[part]["returns"] == make()[part]["returns"]
    metrics = {"x": np.arange(3.0)}
    assert np.isnan(summaries.chosen_score("x", metrics, metrics, has_score=False)["final"]["iqm"])


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
