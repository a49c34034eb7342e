"""What a run leaves behind while it goes on: rows, lines, the picture, the result."""

import json
import threading
import time

import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.monitor import interim
from shoal.monitor import run_report as reports
from shoal.monitor.run_report import Reporter, result_text
from shoal.records import metrics_file
from shoal.records.directory import RunDirectory
from shoal.records.members import Variant, members_of
from shoal.records.run_config import RunConfig
from shoal.types import CLIPPING

RUN = RunConfig(seeds=2, seed=7, num_envs=2, num_steps=5, total_steps=109)


def numbers(*pairs, **more):
    """Metrics of two seeds."""
    return {name: np.asarray(x, np.float32) for name, x in {**dict(pairs), **more}.items()}


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run", "CartPole-v1", "ppo", {})


@pytest.fixture
def told(directory, capsys):
    with Reporter(directory, RUN, "CartPole-v1", show=True) as reporter:
        reporter.on_evaluation(0, numbers(return_mean=[10, 20]))
        reporter.on_training(4, numbers(episode_return=[30, np.nan], loss=[0.5, np.inf]), 1.5, 2000.0)
        reporter.on_training(10, numbers(episode_return=[np.nan, np.nan], loss=[0.1, 0.2]), 3.0, 2500.0)
        reporter.on_evaluation(10, numbers(return_mean=[90, 100]))
        reporter.draw_learning_curve({"environment": "CartPole-v1", "algorithm": "ppo"})
    return capsys.readouterr()


@pytest.mark.parametrize("shown", [True, False])
def test_the_end_says_which_bounds_cut_many_targets(tmp_path, capsys, shown):
    for k, (settings, share, sentence) in enumerate(
        [
            (
                {"v_min": -1.0, "v_max": 2.0},
                [0.001, 0.25],
                "25% of the latest targets lie beyond v_min=-1 and v_max=2",
            ),
            (
                {"value_low": 0.0, "value_high": 9.0},
                [np.nan, 0.02],
                "2% of the latest targets lie beyond value_low=0",
            ),
            ({"v_min": -1.0, "v_max": 2.0}, [0.001, 0.01], ""),
            ({"v_min": -1.0, "v_max": 2.0}, [], ""),
        ]
    ):
        made = RunDirectory.create(tmp_path / str(k), "CartPole-v1", "c51", {"algorithm": settings})
        clipped = (
            {"clipped_mass": share, "clipped_low": [np.nan] * 2, "clipped_high": [30, np.nan]}
            if share
            else {}
        )
        with Reporter(made, RUN, "CartPole-v1", show=shown) as reporter:
            reporter.on_training(4, numbers(episode_return=[30, 40], **clipped), 1.5, 2000.0)
            notes = reporter.warn_of_clipping(CLIPPING)
        said = capsys.readouterr().err
        assert len(notes) == bool(sentence) and all(note in said for note in notes)
        if sentence:
            assert (
                sentence in said and f"learned as these bounds; {[*settings][1]}=30 would hold them" in said
            )
        else:
            assert "targets" not in said


def test_there_is_a_row_for_each_point_and_seed(directory, told):
    rows = directory.load_metrics()
    assert [(row["kind"], row["step"], row["updates"], row["seed"]) for row in rows] == [
        ("evaluation", 0, 0, 7),
        ("evaluation", 0, 0, 8),
        ("train", 40, 4, 7),
        ("train", 40, 4, 8),
        ("train", 100, 10, 7),
        ("train", 100, 10, 8),
        ("evaluation", 100, 10, 7),
        ("evaluation", 100, 10, 8),
    ]
    assert time.time() - 60 < rows[2].pop("time") <= time.time()
    assert rows[2] == {
        **{"kind": "train", "step": 40, "updates": 4, "seed": 7},
        **{"episode_return": 30.0, "loss": 0.5, "train_seconds": 1.5, "steps_per_second": 2000.0},
    }
    assert (rows[3]["episode_return"], rows[3]["loss"]) == (None, None)  # strict JSON has no NaN
    assert rows[-1]["return_mean"] == 100


def test_a_disk_that_hangs_holds_up_nobody(directory, monkeypatch):
    hangs, began = threading.Event(), threading.Event()
    append = metrics_file._append

    def hang(file, data):
        began.set()
        hangs.wait(60)
        append(file, data)

    monkeypatch.setattr(metrics_file, "_append", hang)
    monkeypatch.setattr(reports, "CLOSING_SECONDS", 0.1)
    start_time = time.monotonic()
    with Reporter(directory, RUN, "CartPole-v1", show=False) as reporter:
        reporter.on_evaluation(0, numbers(return_mean=[10, 20]))
        assert began.wait(60)
        before = reporter.metrics.mark
        for updates in (4, 10):
            reporter.on_training(updates, numbers(episode_return=[30, 40]), 1.0, 2000.0)
        # What a checkpoint will count once it is written.
        assert reporter.metrics.mark.bytes > before.bytes > 0
        assert directory.load_metrics() == []
    assert time.monotonic() - start_time < 30
    hangs.set()
    reporter.metrics.flush()
    assert [row["updates"] for row in directory.load_metrics()] == [0, 0, 4, 4, 10, 10]
    assert reporter.metrics.mark.bytes == (directory.path / "metrics.jsonl").stat().st_size


def test_drawing_of_the_run_so_far_holds_up_nobody_and_ends_before_the_last_picture(directory, monkeypatch):
    """What waits is replaced by what is newer, and left out when the run has finished; a failure is left to its end."""
    goes_on, began, drawn = threading.Event(), threading.Event(), []

    def draw(path, steps, *_, **__):
        began.set()
        goes_on.wait(60)
        drawn.append(steps[-1])
        raise RuntimeError("no fonts")

    monkeypatch.setattr(reports, "plot_learning_curve", draw)
    monkeypatch.setattr(interim, "REST", 0)
    best = {"score": np.zeros(2), "updates": np.zeros(2, int)}
    with Reporter(directory, RUN, "CartPole-v1", show=False) as reporter:
        notes = []
        monkeypatch.setattr(reporter.progress, "note", notes.append)
        for updates in (0, 2, 4, 6):
            reporter.on_evaluation(updates, numbers(return_mean=[10, 20]))
            reporter.show_so_far(10 * updates, best, [1])
            began.wait(60)
        goes_on.set()
        while len(drawn) < 2:
            time.sleep(0.01)
        reporter.show_so_far(70, best, [])
        reporter.end_interim()
        reporter.report_failure()
        reporter.report_failure()
    assert drawn == [0, 60]
    assert notes == []
    assert json.loads((directory.path / "progress.json").read_text())["failed"] == [{"seed": 8}]


def test_files_about_the_run_so_far_that_cannot_be_written_are_told_once(directory, monkeypatch):
    def fail(*_):
        raise ShoalError("progress.json cannot be written: No space left on device.")

    monkeypatch.setattr(type(directory), "save_progress", fail)
    with Reporter(directory, RUN, "CartPole-v1", show=False) as reporter:
        notes = []
        monkeypatch.setattr(reporter.progress, "warn", notes.append)
        reporter.show_so_far(10, {"score": np.zeros(2), "updates": np.zeros(2, int)}, [])
        reporter.close()
        reporter.report_failure()
        reporter.report_failure()
    assert notes == [
        "the files about the run so far: progress.json cannot be written: No space left on device. "
        "Training continues."
    ]


def test_the_rounded_budget_is_told_and_each_log_point_has_a_line(told):
    lines = told.err.splitlines()
    assert told.out == ""
    assert lines[0] == "total_steps=109 is rounded down to 100: 10 updates of 10 steps"
    assert lines[1].startswith("CartPole-v1  40 of 100 steps of 2 seeds (40%)  2k steps/s  training return ")
    assert "(sampled actions) 30.0" in lines[1]
    assert lines[2].startswith("CartPole-v1  100 of 100 steps")
    assert "return" not in lines[2]  # no episode ended


def test_nothing_is_told_of_a_whole_budget_or_if_not_shown(directory, capsys):
    with Reporter(directory, RunConfig(num_envs=2, num_steps=5, total_steps=100), "x", show=True):
        pass
    assert capsys.readouterr().err == ""
    with Reporter(directory, RUN, "x", show=False) as reporter:
        reporter.on_training(4, numbers(episode_return=[30, 40]), 1.0, 2000.0)
    assert capsys.readouterr() == ("", "")
    assert len(directory.load_metrics()) == 2  # the file is written all the same


def test_settings_are_one_curve_each_and_named_in_rows_and_result(directory, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(
        reports, "plot_learning_curve", lambda *arguments, **more: drawn.append((arguments, more))
    )
    members = members_of((7, 8), [Variant(label, {}) for label in ("slow", "fast")])
    with Reporter(directory, RUN, "CartPole-v1", show=True, members=members) as reporter:
        reporter.on_evaluation(0, numbers(return_mean=[10, 20, 30, np.nan]))
        reporter.on_training(10, numbers(episode_return=[1, 1, 1, 1]), 3.0, 2500.0)
        reporter.draw_learning_curve({"environment": "CartPole-v1", "algorithm": "ppo"})
    assert [(row["label"], row["seed"]) for row in directory.load_metrics()[:4]] == [
        *(("slow", 7), ("slow", 8), ("fast", 7), ("fast", 8))
    ]
    ((_, _, returns, _), more) = drawn[0]
    assert returns.tolist() == [[15.0, 30.0]]
    assert more == {"unit": "setting", "failed": []}
    assert "steps of 4 members (100%)" in capsys.readouterr().err
    score = {"iqm": None, "interval": [None, None], "returns": [1.0, 2.0, 3.0, None]}
    summary = {
        **{
            "environment": "x",
            "algorithm": "y",
            "seeds": [7, 8, 7, 8],
            "steps_per_seed": 100,
            "steps_per_second": 1.0,
        },
        **{"absolute": score, "final": score, "evaluation": {"episodes": 3}},
        **{"seconds": {"compile": 1.0, "train": 1.0, "evaluate": 1.0}},
        "members": [
            {"label": str(k), "absolute": {"iqm": None if k else 2.0, "interval": None}} for k in range(7)
        ],
    }
    text = result_text(summary, "runs/here")
    assert text.startswith("x, y, 4 members, 100 steps each\n  0   IQM 2.000\n  1   IQM nan\n")
    assert "  and 2 more\n" in text
    assert "returns that are not finite: 1 of 4 members" in text


def test_settings_of_which_seeds_failed_are_drawn_to_their_end(directory, monkeypatch):
    """A seed that failed counts as the worst of all, which is 5; a setting of which all failed ends."""
    drawn = []
    monkeypatch.setattr(reports, "plot_learning_curve", lambda *given, **more: drawn.append((given[2], more)))
    members = members_of((7, 8), [Variant(label, {}) for label in ("sound", "some", "whole")])
    failed = [("some", 8), ("whole", 7), ("whole", 8)]
    with Reporter(directory, RUN, "x", show=False, members=members) as reporter:
        reporter.on_evaluation(0, numbers(return_mean=[1, 3, 2, 4, 8, 8]))
        reporter.on_evaluation(10, numbers(return_mean=[5, 7, 6, np.nan, np.nan, np.nan]))
        entries = [{"label": label, "seed": seed} for label, seed in failed]
        reporter.draw_learning_curve({"environment": "x", "algorithm": "y", "failed": entries})
    ((returns, more),) = drawn
    np.testing.assert_array_equal(returns, [[2, 3, 8], [6, 5.5, np.nan]])
    assert more["failed"] == [2]


def test_the_learning_curve_is_drawn(directory, told):
    assert directory.learning_curve.read_bytes()[:4] == b"\x89PNG"


def test_the_result_names_the_scores_and_the_place():
    summary = {
        "environment": "CartPole-v1",
        "algorithm": "ppo",
        "seeds": list(range(10)),
        "steps_per_seed": 500000,
        "absolute": {"iqm": 499.5, "interval": [498.0, 500.0], "returns": [499.0] + [500.0] * 9},
        "final": {"iqm": 450.0, "interval": [400.0, 500.0], "returns": [400.0] + [500.0] * 9},
        "steps_per_second": 1234567.8,
        "seconds": {"import": 1.0, "compile": 2.25, "train": 3.0, "evaluate": 4.0},
        "evaluation": {"episodes": 320},
    }
    text = result_text(json.loads(json.dumps(summary)), "runs/here")
    assert text.splitlines() == [
        "CartPole-v1, ppo, 10 seeds, 500,000 steps each",
        "  best policies   IQM 499.5  [498.0, 500.0]  worst seed 499.0   (320 new episodes each)",
        "  last policies   IQM 450.0  worst seed 400.0",
        "  1,234,568 steps/s of all seeds together; compile 2.2 s, train 3.0 s, evaluate 4.0 s",
        "  runs/here",
    ]
    summary |= {"seeds": [0, 1], "failed": [{"seed": 1, "update": 7, "last_policy_step": 2048}]}
    assert result_text(summary, "runs/here").splitlines()[3] == (
        "  failed          seed 1: a number was not finite in update 7; its last policy is that of step 2,048"
    )
    summary["failed"].append({"seed": 0, "label": "rate=9", "update": 7, "last_policy_step": 0})
    assert result_text(summary, "runs/here").splitlines()[1:4] == [
        "  failed          seed 1: a number was not finite in update 7; its last policy is that of step 2,048",
        "  failed          rate=9, seed 0: a number was not finite in update 7; its last policy is that of step 0",
        "  none was trained to the end, so that there is no best policy",
    ]
    del summary["failed"]
    values = {"values": [0.9, 0.98], "iqm": 0.94, "interval": [0.9, 0.98]}
    summary["score"] = {"name": "info_success", "absolute": values, "final": values | {"iqm": 0.91}}
    lines = result_text(summary, "runs/here").splitlines()
    assert lines[3] == (
        "  the score info_success chose the best policies: IQM 0.940  [0.900, 0.980]  worst seed 0.900; "
        "last policies 0.910"
    )
    summary["evaluation"]["unfinished"] = [1.0, 0.5]
    cut = "  75% of the new episodes were cut at eval_max_steps, and count by their return until then"
    assert result_text(summary, "runs/here").splitlines()[3] == cut
    summary["evaluation"]["unfinished"] = [0.75, None]  # of a member that was stopped early
    assert result_text(summary, "runs/here").splitlines()[3] == cut
    score = {"iqm": 499.5, "interval": None, "returns": [499.5]}
    alone = {**summary, "seeds": [0], "absolute": score, "final": score}
    assert "IQM 499.5  worst seed 499.5" in result_text(alone, "runs/here")
    summary["evaluation"]["unfinished"] = [0.0, 0.0]
    summary["score"] = {"name": "my_scores:careful"}
    assert (
        result_text(summary, "runs/here").splitlines()[3]
        == "  the score my_scores:careful chose the best policies"
    )
