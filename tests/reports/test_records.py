"""Records of runs and sweeps: what their directories hold, finished, killed, in training, or damaged."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.records.lock import GRACE_SECONDS, Lock, is_held
from shoal.reports import records, run_record, runs_list
from shoal.reports.run_record import RunRecord
from shoal.reports.sweep_record import SweepRecord


def test_reading_imports_no_jax():
    modules = ", ".join(f"shoal.reports.{name}" for name in ("records", "runs_list", "metrics_table"))
    code = f"import sys, {modules}; print('jax' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert output.stdout == "False\n"


@pytest.mark.full
def test_a_trained_run(real_run):
    record = records.read(real_run.path)
    assert isinstance(record, RunRecord) and record.kind == "run"
    assert (record.environment, record.algorithm, record.name) == ("CartPole-v1", "ppo", "real")
    assert (record.tags, record.note, record.state) == (("a", "b"), "why", "finished")
    assert record.steps == real_run.summary["steps_per_seed"] == 512
    assert record.settings == real_run.summary["settings"] == record.config["settings"]
    assert not {"tag", "note", "name"} & record.settings.keys()
    steps, values = record.evaluations()
    assert steps.tolist() == [step for step, _ in real_run.evaluations]
    np.testing.assert_array_equal(values, [x["return_mean"] for _, x in real_run.evaluations])
    scores = record.scores()
    assert scores.values.tolist() == real_run.summary["absolute"]["returns"] and not scores.failed.any()
    assert record.score.iqm == real_run.summary["absolute"]["iqm"] and record.score.interval is None
    assert record.bytes == sum(file.stat().st_size for file in real_run.path.rglob("*") if file.is_file())
    assert record.date.isoformat() == real_run.summary["started_time"]
    assert len(record.rows("evaluation")) == 6 and len(record.rows()) > 6


def test_the_summary_says_when_where_and_by_which_command(real_run):
    summary = real_run.summary
    assert summary["started_time"] <= summary["ended_time"] and summary["ended_time"].endswith("+00:00")
    assert summary["host"] == os.uname().nodename and summary["command"] is None


def test_a_killed_run_has_the_scores_of_its_last_evaluation(write_run):
    path = write_run("killed", (4.0, 8.0), finished=False)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "evaluation", "step": 300, "upd')  # torn
    record = records.read(path)
    assert (record.state, record.steps, record.summary) == ("interrupted", 200, None)
    steps, values = record.evaluations()
    assert steps.tolist() == [0, 100, 200] and values.tolist() == [[0, 0], [2, 4], [4, 8]]
    assert record.scores().values.tolist() == [4, 8]
    assert record.score == run_record.Score(6.0)
    assert record.date.timestamp() == 1e9


def test_a_run_killed_before_its_first_row(write_run):
    path = write_run("early", finished=False)
    (path / "metrics.jsonl").unlink()
    record = records.read(path)
    assert (record.state, record.steps, record.rows(), record.score) == ("interrupted", 0, [], None)
    assert record.evaluations()[1].shape == (0, 2)
    assert np.isnan(record.scores().values).all() and not record.scores().failed.any()


def test_a_member_without_numbers_has_failed_in_a_killed_run(write_run):
    path = write_run("frozen", (4.0, 8.0, 6.0), finished=False)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-2]["return_mean"] = None
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values, failed = records.read(path).scores()
    assert values.tolist() == [4, -math.inf, 6] and failed.tolist() == [False, True, False]


def test_an_extended_run_counts_by_its_last_evaluation(write_run):
    progress = {"steps_per_seed": 150, "failed": [{"seed": 1}], "last_evaluation": None}
    record = records.read(write_run("longer", (4.0, 8.0), summary={"steps_per_seed": 100}, progress=progress))
    assert (record.state, record.steps) == ("interrupted", 200)
    assert record.scores().failed.tolist() == [False, True]


@pytest.mark.parametrize("rows", [3, 6])
def test_a_run_that_was_killed_while_it_was_extended_has_not_ended(write_run, rows):
    """Before its first new checkpoint there is no `progress.json`; its length, or its rows, say so."""
    extended = {"total_steps": 1000, "num_envs": 4, "num_steps": 5} if rows == 3 else {}
    path = write_run("longer", (4.0, 8.0), run=extended)
    with open(path / "metrics.jsonl", "a") as file:
        entries = [{"kind": "train", "step": 300, "updates": 3, "seed": seed} for seed in (0, 1)]
        file.writelines(json.dumps(x) + "\n" for x in entries if rows == 6)
    record = records.read(path)
    assert (record.has_ended, record.state) == (False, "interrupted")
    assert record.steps == (300 if rows == 6 else 200)
    stopped = records.read(write_run("stopped", run=extended, summary={"stopped": "Watch: good"}))
    assert (stopped.has_ended, stopped.state) == (True, "finished")


def test_an_evaluation_that_was_written_in_part_does_not_count(write_run):
    path = write_run("cut", (4.0, 8.0, 6.0), finished=False)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:-1]))
    record = records.read(path)
    assert record.evaluations()[0].tolist() == [0, 100] and not record.scores().failed.any()
    assert record.score.iqm == 3


def test_seeds_that_failed(write_run):
    few = records.read(write_run("few", (4.0, 8.0, 5.0, 6.0, 7.0), failed=[1])).score
    assert (few.iqm, few.failed, few.interval[0]) == (5.0, 1, -math.inf)  # of 4, 5 and 6
    many = records.read(write_run("many", (4.0, 8.0, 5.0, 6.0, 7.0), failed=[1, 2])).score
    assert (many.iqm, many.failed) == (-math.inf, 2)
    record = records.read(write_run("one", (4.0, 8.0), failed=[1]))
    assert record.state == "finished" and record.scores().failed.tolist() == [False, True]
    record = records.read(write_run("all", (4.0, 8.0), failed=[0, 1]))
    assert record.state == "failed" and record.score is None


def test_fewer_than_five_seeds_have_no_interval(write_run):
    assert records.read(write_run("four", [1.0] * 4)).score.interval is None
    assert records.read(write_run("five", [1.0] * 5)).score.interval == (0.0, 2.0)
    assert records.read(write_run("killed", [1.0] * 5, finished=False)).score.interval == (1.0, 1.0)


def test_a_population_of_256_members_of_several_settings(write_run):
    variants = [{"label": f"v{k}", "settings": {"gamma": k / 32}} for k in range(32)]
    path = write_run("many", [0.0] * 8, finished=False, config={"variants": variants})
    rows = [
        {
            "kind": "evaluation",
            "step": 10,
            "updates": 1,
            "seed": seed,
            "label": f"v{k}",
            "return_mean": k + seed / 10,
        }
        for k in range(32)
        for seed in range(8)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    record = records.read(path)
    assert record.num_members == 256
    np.testing.assert_allclose(record.evaluations()[1][0], [row["return_mean"] for row in rows])
    assert record.score.label == "v31" and record.score.iqm == pytest.approx(31.35)


def test_a_run_of_population_based_training(write_run):
    evolution = {"tuned": [{"name": "learning_rate", "scale": "log", "low": 0, "high": 1, "start": [0, 1]}]}
    record = records.read(write_run("pbt", config={"evolution": evolution}))
    assert record.kind == "pbt" and record.settings == {}


def test_members_that_copied_each_other_have_no_interval(write_run):
    evolution = {"tuned": [{"name": "gamma"}]}
    for name, finished in (("ended", True), ("running", False)):
        path = write_run(name, [1.0] * 5, finished=finished, config={"evolution": evolution})
        assert records.read(path).score.interval is None


def test_a_metric_that_there_is_not(write_run):
    with pytest.raises(ShoalError, match=r"no metric 'retrun_mean'; did you mean 'return_mean'\?"):
        records.read(write_run("run")).evaluations("retrun_mean")


def test_a_run_of_before_tags_and_dates(write_run):
    path = write_run("old", summary={"settings": None})
    config = json.loads((path / "config.json").read_text())
    del config["settings"], config["run"]["tag"], config["run"]["note"]
    (path / "config.json").write_text(json.dumps(config))
    summary = json.loads((path / "summary.json").read_text())
    del summary["started_time"], summary["settings"]
    (path / "summary.json").write_text(json.dumps(summary))
    record = records.read(path)
    assert (record.tags, record.note, record.settings, record.state) == ((), "", {}, "finished")
    assert record.date.timestamp() == 1e9


# ---- sweeps


def test_a_sweep(write_sweep):
    record = records.read(write_sweep("grid"))
    assert isinstance(record, SweepRecord) and record.kind == "sweep"
    assert [run.path.name for run in record.runs] == ["000"] and len(record.confirmation) == 1
    named = (record.environment, record.algorithm, record.name, record.tags)
    assert named == ("CartPole-v1", "ppo", "mine", ("s",))
    # Without a confirmation: the seeds are those that chose the setting.
    assert record.score == run_record.Score(8.0, None, "1 b", 1) and record.settings == {"learning_rate": 0.2}
    assert (record.num_members, record.steps) == (4, 200)


def test_a_sweep_that_was_interrupted(write_sweep):
    record = records.read(write_sweep("grid", finished=False, runs=("runs/000", "runs/001")))
    assert record.state == "interrupted" and len(record.runs) == 1
    assert record.score.label == "1 b" and record.score.iqm == 6.0


def test_a_study(write_sweep):
    record = records.read(write_sweep("study", options={"storage": ""}, runs=("batches/00000/000",)))
    assert record.kind == "study" and len(record.runs) == 1


# ---- searching


def test_runs_are_found_where_they_are(write_run, write_sweep, tmp_path):
    write_run("b/c/inner")
    write_run("a")
    write_run(".hidden/run")
    path = write_run("d")
    (path / "nested").mkdir()
    (path / "nested" / "config.json").write_text("{}")
    write_sweep("grid")
    write_run("grid/winner")
    os.symlink(tmp_path / "a", tmp_path / "z")
    os.symlink(tmp_path, tmp_path / "b" / "loop")
    found = [str(path.relative_to(tmp_path)) for path in records.find(tmp_path)]
    assert found == ["a", "b/c/inner", "d", "grid", "grid/winner", "z"]
    assert records.find(path) == [path]


def test_a_damaged_run_is_listed_as_such(write_run, write_sweep, tmp_path):
    write_run("good")
    (write_run("torn") / "config.json").write_text('{"schema": 3, "env')
    (write_run("partial") / "config.json").write_text('{"run": {"seed": 0, "seeds": 2}}')
    (write_sweep("sweep") / "sweep.json").write_text("[]")
    found = {entry.path.name: entry for entry in runs_list.entries(tmp_path)}
    assert {name for name, x in found.items() if x.state == "damaged"} == {"torn", "partial", "sweep"}
    assert "torn/config.json is damaged" in found["torn"].problem
    with pytest.raises(ShoalError, match="lacks 'environment'"):
        records.read(tmp_path / "partial")


def test_a_directory_that_there_is_not(write_run, tmp_path):
    write_run("first")
    with pytest.raises(ShoalError, match=r"there is no run directory .*/fist'; did you mean .*/first'\?"):
        records.read(tmp_path / "fist")
    with pytest.raises(ShoalError, match=r"is not a run directory: it has no config\.json"):
        records.read(tmp_path)
    with pytest.raises(ShoalError, match="there is no directory"):
        records.find(tmp_path / "nowhere")
    assert records.find(tmp_path / "first" / "..") != []


# ---- the lock


def test_a_run_whose_lock_is_held_is_training(write_run):
    path = write_run("run", finished=False)
    assert records.read(path).state == "interrupted" and not (path / ".lock").exists()
    with Lock(path):
        before = (path / ".lock").read_bytes(), (path / ".lock").stat().st_mtime_ns
        assert is_held(path) and records.read(path).state == "training"
        assert ((path / ".lock").read_bytes(), (path / ".lock").stat().st_mtime_ns) == before
        with pytest.raises(ShoalError, match="in use by another call of this process"):
            Lock(path).__enter__()
    assert (path / ".lock").exists() and not is_held(path)
    assert records.read(path).state == "interrupted"


def test_looking_at_a_lock_does_not_keep_a_run_from_taking_it(tmp_path):
    code = f"from shoal.records.lock import is_held\nwhile True: is_held({str(tmp_path)!r})"
    with Lock(tmp_path):
        pass
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        for _ in range(300):
            with Lock(tmp_path):
                pass
    finally:
        process.kill()
        process.wait()
    assert GRACE_SECONDS < 1


# ---- tags and notes


def test_another_note_is_the_same_run(real_run):
    sizes = {"total_steps": 512, "num_envs": 8, "num_steps": 32, "eval_episodes": 2, "num_evals": 2}
    options = {"seeds": 2, "run_dir": real_run.path, "name": "real", **sizes}
    again = shoal.train("CartPole-v1", note="another", **options)
    assert again.summary == json.loads((real_run.path / "summary.json").read_text())
    with pytest.raises(ShoalError, match="gamma"):
        shoal.train("CartPole-v1", gamma=0.5, **options)


def test_records_are_frozen(write_run):
    with pytest.raises(dataclasses.FrozenInstanceError):
        records.read(write_run("run")).path = None
