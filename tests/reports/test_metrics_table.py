"""The columns of metrics: of runs, of sweeps, and of runs that were killed."""

import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.reports.metrics_table import metrics


def test_the_columns_of_a_trained_run(real_run):
    columns = metrics(real_run)
    assert {len(column) for column in columns.values()} == {len(columns["kind"])}
    assert list(columns)[:3] == ["kind", "step", "updates"] and columns["step"].dtype == np.int64
    is_evaluation = columns["kind"] == "evaluation"
    assert np.isnan(columns["return_mean"][~is_evaluation]).all()
    evaluations = metrics(real_run.path, kind="evaluation")
    np.testing.assert_array_equal(evaluations["return_mean"], columns["return_mean"][is_evaluation])
    expected = [value for _, x in real_run.evaluations for value in x["return_mean"]]
    np.testing.assert_array_equal(evaluations["return_mean"], expected)
    assert evaluations["seed"].tolist() == [0, 1] * 3 and "label" not in evaluations


def test_pandas_takes_them(real_run):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(metrics(real_run, kind="evaluation"))
    assert frame.groupby("step")["return_mean"].mean().shape == (3,)


def test_a_sweep_has_a_column_for_the_run(write_sweep):
    columns = metrics(write_sweep("grid"))
    assert list(columns)[:2] == ["run", "kind"]
    assert columns["run"].tolist() == ["runs/000"] * 4 + ["confirmation/000"] * 2
    assert columns["label"].tolist() == ["0 a", "0 a", "1 b", "1 b", "0 a", "0 a"]


def test_a_killed_run_has_its_rows_so_far(write_run):
    path = write_run("killed", finished=False)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "evaluation", "step": 300')
    assert metrics(path, kind="evaluation")["step"].tolist() == [0, 0, 100, 100, 200, 200]
    (path / "metrics.jsonl").unlink()
    assert metrics(path) == {} == metrics(path, kind="train")


def test_missing_entries_are_nan_or_none(write_run):
    path = write_run("run")
    (path / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 1, "updates": 1, "seed": 0, "loss": null}\n'
        '{"kind": "exchange", "step": 1, "updates": 1, "seed": 0, "settings": {"a": 1}, "parent": 3}\n'
    )
    columns = metrics(path)
    assert columns["settings"].tolist() == [None, {"a": 1}]
    np.testing.assert_array_equal(columns["parent"], [np.nan, 3])
    assert np.isnan(columns["loss"]).all() and columns["loss"].dtype == np.float64


def test_a_kind_that_there_is_not(write_run):
    with pytest.raises(
        ShoalError, match=r"no rows of kind 'eval', only evaluation, train; did you mean 'evaluation'"
    ):
        metrics(write_run("run"), kind="eval")
