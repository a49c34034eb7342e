"""A follower sends each row once, whatever is killed, cut or made again, and the numbers are those of the rows."""

import itertools
import json
import math
import os

import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.monitor.loggers.follower import Follower, saved_request
from shoal.monitor.loggers.logger import Logger
from shoal.monitor.loggers.requests import LoggerFlags, Requested, check_loggers, companions_of
from shoal.monitor.loggers.rows import Position, RowReader
from shoal.monitor.loggers.series import MOST_MEMBERS, series_of
from shoal.records import scores

CLOCK = itertools.count(1.7e9)


class Recorder(Logger):
    """Keeps what it receives, beyond the end of its process: what a service would have."""

    def __init__(self, received=None, settle_seconds=0.0):
        self.received = [] if received is None else received
        self.files, self.closed, self.settle_seconds = [], [], settle_seconds
        self.opened = []

    def open(self, run, state):
        self.run = run
        self.opened.append(state)
        return "somewhere"

    def add_scalars(self, series, step, numbers, time):
        self.received.append((series.name, step, numbers))

    def add_file(self, kind, path, step):
        self.files.append((kind, path.name, step))

    def flush(self):
        return {"received": len(self.received)}

    def close(self, summary):
        self.closed.append(summary)


def config(seeds=1, labels=()):
    variants = [{"label": x, "settings": {"learning_rate": k / 8}} for k, x in enumerate(labels)]
    return {
        "environment": {"name": "Walk-v0"},
        "algorithm": {"name": "ppo"},
        "run": {"seed": 3, "seeds": seeds, "name": ""},
        **({"variants": variants} if labels else {}),
    }


class Directory:
    """A run directory whose rows a test writes."""

    def __init__(self, path, seeds=1, labels=()):
        self.path, self.labels = path, labels or ("",)
        self.seeds = range(3, 3 + seeds)
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(config(seeds, labels)))
        self.file = path / "metrics.jsonl"

    def add(self, step, values=None, kind="train", name="episode_return"):
        """Write the rows of all members at a point, with the time that it is."""
        members = [(label, seed) for label in self.labels for seed in self.seeds]
        values = [step + k / 4 for k in range(len(members))] if values is None else values
        with open(self.file, "a") as file:
            for (label, seed), value in zip(members, values, strict=True):
                row = {"kind": kind, "step": step, "updates": step, "time": next(CLOCK), "seed": seed}
                row |= {"label": label} if label else {}
                row |= {name: value, "steps_per_second": 1e6 * math.pi / next(CLOCK)}
                file.write(json.dumps(row) + "\n")

    def cut(self, points):
        lines = self.file.read_text().splitlines(keepends=True)
        self.file.write_text("".join(lines[: points * len(self.seeds) * len(self.labels)]))

    def finish(self, step, **evaluation):
        summary = {"steps_per_seed": step, "evaluation": {"mode": "greedy", **evaluation}}
        (self.path / "summary.json").write_text(json.dumps(summary))
        (self.path / "best.safetensors").write_text("policy")
        (self.path / "learning_curve.png").write_text("picture")


def follow(run, logger, *, is_killed=False, flushes=True, keys="shoal"):
    """Follow a run as one process does; one that is killed closes nothing."""
    follower = Follower(run.path, "test:Recorder", logger, Requested(keys=keys))
    with follower.opened():
        follower._flush_time = -math.inf if flushes else math.inf
        follower.send_new()
        if not is_killed:
            follower.finish()
    return follower


def state_of(run):
    return json.loads((run.path / "loggers/test-Recorder.json").read_text())


def steps(logger, name=""):
    return [step for series, step, _ in logger.received if series == name]


def test_each_row_is_sent_once_by_processes_that_follow_each_other(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    for step in (0, 1, 2, 3):
        run.add(step)
        with open(run.file, "a") as file:
            file.write('{"torn')  # a line that is being written
        follow(run, logger, is_killed=step != 3)
        run.cut(step + 1)
    assert steps(logger) == [0, 1, 2, 3]
    assert logger.opened == [None, *({"received": k} for k in (1, 2, 3))]
    assert logger.files == [("config", "config.json", 0)]
    assert logger.closed == [None] and not state_of(run)["finished"]


def test_rows_that_are_made_again_are_skipped_though_their_times_differ(tmp_path):
    run, logger = Directory(tmp_path / "run", seeds=3), Recorder()
    for step in range(6):
        run.add(step)
    follow(run, logger, is_killed=True)
    size = run.file.stat().st_size
    run.cut(2)  # to the checkpoint
    follow(run, logger, is_killed=True)
    for step in range(2, 9):
        run.add(step)
    assert run.file.stat().st_size != size
    follow(run, logger)
    for name in ("seed 3", "seed 4", "seed 5", "all"):
        assert steps(logger, name) == list(range(9))


def test_a_file_that_is_cut_while_it_is_followed_is_read_again(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    for step in range(4):
        run.add(step)
    follower = Follower(run.path, "test:Recorder", logger)
    with follower.opened():
        follower.send_new()
        run.cut(1)
        for step in range(1, 8):
            run.add(step)
        follower.send_new()
        run.add(8)
        follower.send_new()
        follower.finish()
    assert steps(logger) == list(range(9))
    assert state_of(run)["rows"] == 9


def test_other_rows_begin_a_new_run_of_the_logger(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    for step in range(4):
        run.add(step)
    follow(run, logger)
    run.cut(2)
    run.add(2, [7.5])  # with another learning rate, say
    run.add(3)
    run.add(4)
    follow(run, logger)
    assert logger.opened == [None, {"received": 4}, None]
    assert steps(logger) == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert logger.received[6][2]["train/episode_return"] == 7.5
    assert state_of(run)["rows"] == 5


def test_a_changed_setting_begins_a_new_run_of_the_logger_with_all_rows(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    run.add(0)
    follow(run, logger)
    changed = config()
    changed["run"]["total_steps"] = 64  # a longer run is the same run
    (run.path / "config.json").write_text(json.dumps(changed))
    run.add(1)
    follow(run, logger)
    changed["algorithm"]["learning_rate"] = 0.5
    (run.path / "config.json").write_text(json.dumps(changed))
    run.add(2)
    follow(run, logger)
    assert logger.opened == [None, {"received": 1}, None]
    assert steps(logger) == [0, 1, 0, 1, 2]


def test_other_arguments_begin_anew_and_none_are_those_of_before(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    run.add(0)
    renamed = Requested({"dir": "/numbers"}, "cleanrl")

    def follow_as(requested):
        requested = saved_request(run.path, "test:Recorder", requested)
        follower = Follower(run.path, "test:Recorder", logger, requested)
        with follower.opened():
            follower.send_new()
            follower.finish()
        return requested

    assert follow_as(renamed) == renamed
    run.add(1)
    assert follow_as(Requested()) == renamed  # as `shoal log RUN --logger NAME` does
    assert steps(logger) == [0, 1] and "charts/episodic_return" in logger.received[1][2]
    assert follow_as(Requested({"dir": "/others"})) == Requested({"dir": "/others"})
    assert steps(logger) == [0, 1, 0, 1] and "train/episode_return" in logger.received[3][2]


def test_a_shorter_run_begins_a_new_one_only_where_it_has_finished(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    for step in range(4):
        run.add(step)
    follow(run, logger)
    run.cut(2)
    follow(run, logger)  # interrupted again before it came that far
    assert steps(logger) == [0, 1, 2, 3] and state_of(run)["rows"] == 4
    run.finish(1)
    follow(run, logger)
    assert steps(logger) == [0, 1, 2, 3, 0, 1] and state_of(run)["rows"] == 2


def test_a_row_counts_as_sent_when_the_logger_has_stored_it(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("shoal.monitor.loggers.follower.time.monotonic", lambda: now[0])
    run, logger = Directory(tmp_path / "run"), Recorder(settle_seconds=15.0)
    follower = Follower(run.path, "test:Recorder", logger)
    with follower.opened():
        for step in range(4):
            run.add(step)
            follower.send_new()
            now[0] += 6.0
        follower.flush()
        assert state_of(run)["rows"] == 2  # of 100 and 106 seconds, at 124
    again = Recorder(logger.received)
    follow(run, again)
    assert steps(again) == [0, 1, 2, 3, 2, 3]  # repeats, and none is missing


def test_what_was_not_flushed_is_sent_again(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    run.add(0)
    follow(run, logger, is_killed=True)
    run.add(1)
    follow(run, logger, is_killed=True, flushes=False)
    follow(run, logger)
    assert steps(logger) == [0, 1, 1]


def test_the_end_of_a_run_is_sent_once(tmp_path):
    run, logger = Directory(tmp_path / "run", seeds=2), Recorder()
    run.add(0, kind="evaluation", name="return_mean")
    follow(run, logger, is_killed=True)
    run.finish(64, return_mean=[4.0, 8.0], return_max=[9.0, None])
    for _ in range(2):
        follow(run, logger)
    assert logger.files == [
        ("config", "config.json", 0),
        ("policy", "best.safetensors", 64),
        ("picture", "learning_curve.png", 64),
    ]
    absolute = {name: numbers for name, step, numbers in logger.received if step == 64}
    assert absolute["seed 3"] == {"absolute/return_mean": 4.0, "absolute/return_max": 9.0}
    assert math.isnan(absolute["seed 4"]["absolute/return_max"])
    assert absolute["all"] == {"absolute/return_mean": 6.0, "absolute/return_max": 9.0}
    assert len(logger.received) == 6 and [x and x["steps_per_seed"] for x in logger.closed] == [64, 64]
    assert Follower(run.path, "test:Recorder", logger).is_complete()
    run.add(128, kind="evaluation", name="return_mean")
    assert not Follower(run.path, "test:Recorder", logger).is_complete()
    run.finish(128, return_mean=[5.0, 9.0])
    follow(run, logger)
    assert logger.files[3:] == [("policy", "best.safetensors", 128), ("picture", "learning_curve.png", 128)]


def test_films_are_sent_when_they_are_there(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    follower = Follower(run.path, "test:Recorder", logger)
    with follower.opened():
        (run.path / "films").mkdir()
        for name in ("4096.gif", ".8192.gif.tmp", "notes.gif"):
            (run.path / "films" / name).write_text("film")
            follower.send_new()
    assert logger.files[1:] == [("film", "4096.gif", 4096)]


def test_one_process_at_a_time_logs_a_run(tmp_path):
    run = Directory(tmp_path / "run")
    first, second = (Follower(run.path, "test:Recorder", Recorder()) for _ in range(2))
    with first.opened():
        sentence = r"run/?'? is being logged by test:Recorder in another process"
        with pytest.raises(ShoalError, match=sentence), second.opened():
            pass
        with Follower(run.path, "other:Recorder", Recorder()).opened():
            pass
    with second.opened():
        pass


@pytest.mark.parametrize(
    ("seeds", "labels", "expected"),
    [
        (1, (), [("", "member")]),
        (2, (), [("seed 3", "member"), ("seed 4", "member"), ("all", "all")]),
        (1, ("a", "b"), [("a, seed 3", "member"), ("b, seed 3", "member"), ("all", "all")]),
        (9, ("a", "b"), [("a", "setting"), ("b", "setting"), ("all", "all")]),
        (MOST_MEMBERS + 1, (), [("all", "all")]),
        (1, tuple(f"s{k}" for k in range(33)), [("all", "all")]),
    ],
)
def test_series_of_a_run(seeds, labels, expected):
    found = series_of(config(seeds, labels))
    assert [(x.name, x.kind) for x in found] == expected
    assert [x.is_main for x in found] == [k == len(found) - 1 for k in range(len(found))]


def test_numbers_of_many_members_are_robust_means_and_quantiles(tmp_path):
    """A member that failed beside other settings has the worst of all evaluations, and no other number."""
    run, logger = Directory(tmp_path / "run", seeds=10, labels=("a", "b")), Recorder()
    shown = np.random.default_rng(0).normal(size=(3, 20))
    shown[1:, 4], shown[2, 17], shown[:, 9] = np.nan, np.nan, np.nan
    for step, values in enumerate(shown):
        numbers = [None if math.isnan(x) else x for x in values]
        run.add(step, numbers, kind="evaluation", name="return_mean")
        run.add(step, numbers, kind="train", name="policy_loss")
    follow(run, logger)
    for step, (values, failed) in enumerate(zip(shown, ((1, 0), (2, 0), (2, 1)), strict=True)):
        received = [(name, numbers) for name, own, numbers in logger.received if own == step]
        returns, losses = dict(received[:3]), dict(received[3:])
        worst = np.where(np.isnan(values), np.nanmin(values), values)
        for name, places in {"a": slice(10), "b": slice(10, 20), "all": slice(20)}.items():
            numbers, known = returns[name], values[places][~np.isnan(values[places])]
            assert numbers["evaluation/return_mean"] == scores.iqm(worst[places])
            assert numbers["evaluation/return_mean_p90"] == np.quantile(worst[places], 0.9)
            count = {"a": failed[0], "b": failed[1], "all": sum(failed)}[name]
            assert numbers["evaluation/failed"] == losses[name]["train/failed"] == count
            assert losses[name]["train/policy_loss"] == scores.iqm(known)
            assert losses[name]["train/policy_loss_p90"] == np.quantile(known, 0.9)
        assert returns["all"]["evaluation/steps_per_second"] > 0


def test_a_setting_that_failed_whole_has_no_number(tmp_path):
    """It is not counted among all; quantiles of which one is minus infinity are numbers of members."""
    run, logger = Directory(tmp_path / "run", seeds=10, labels=("a", "b")), Recorder()
    run.add(1, [None] * 10 + [2.0] * 9 + [None], kind="evaluation", name="return_mean")
    follow(run, logger)
    by_name = {name: numbers["evaluation/return_mean"] for name, _, numbers in logger.received}
    assert math.isnan(by_name["a"]) and by_name["b"] == by_name["all"] == 2.0
    alone, logger = Directory(tmp_path / "alone", seeds=MOST_MEMBERS + 4), Recorder()
    alone.add(1, [None] * 3 + list(range(MOST_MEMBERS + 1)), kind="evaluation", name="return_mean")
    follow(alone, logger)
    numbers = logger.received[0][2]
    assert numbers["evaluation/failed"] == 3
    assert [numbers[f"evaluation/return_mean_{x}"] for x in ("p10", "p50", "p90")] == [-math.inf, 6.0, 14.0]


@pytest.mark.parametrize(("seeds", "expected"), [(3, -math.inf), (10, 1)])
def test_failures_beyond_a_quarter_leave_no_score(tmp_path, seeds, expected):
    run, logger = Directory(tmp_path / "run", seeds=seeds), Recorder()
    for step, value in enumerate((10.0, None)):
        run.add(step, [value, *[1.0] * (seeds - 1)], kind="evaluation", name="return_mean")
    follow(run, logger)
    by_name = {name: numbers for name, step, numbers in logger.received if step == 1}
    assert by_name["all"]["evaluation/return_mean"] == expected
    assert by_name["all"]["evaluation/failed"] == 1
    assert math.isnan(by_name["seed 3"]["evaluation/return_mean"])


@pytest.mark.parametrize("killed_after", [0, 3, 4])
def test_what_halving_stopped_is_left_out_and_what_failed_is_the_worst(tmp_path, killed_after):
    """Rows of both are null; of four settings the best two continue from step 2, and the best one from step 4."""
    run, logger = Directory(tmp_path / "run", seeds=2, labels=tuple("abcd")), Recorder()
    halving = {"halving": {"factor": 2, "min_steps": 2, "metric": "return_mean"}}
    saved = config(2, tuple("abcd")) | halving
    saved["run"] |= {"num_envs": 1, "num_steps": 1, "total_steps": 8}
    (run.path / "config.json").write_text(json.dumps(saved))
    points = [
        [8.0, 8.0, 6.0, 6.0, 1.0, 1.0, 2.0, 2.0],
        [8.0, 8.0, 6.0, None, 1.0, 1.0, 2.0, 2.0],  # one seed of b has failed, and c and d stop
        [8.0, 8.0, 6.0, None, None, None, None, None],
        [8.0, 8.0, 6.0, None, None, None, None, None],  # b stops
        [None, 9.0, None, None, None, None, None, None],  # a seed of a has failed
    ]
    for step, values in enumerate(points, 1):
        run.add(step, values, kind="evaluation", name="return_mean")
        if step == killed_after:
            follow(run, logger, is_killed=True)
    follow(run, logger)
    found = [numbers for name, _, numbers in logger.received if name == "all"]
    worst = [8, 8, 6, 1, 1, 1, 2, 2], [8, 8, 6, 6], [8, 8, 6, 6], [9, 9]
    expected = [scores.iqm(np.array(x, float)) for x in (points[0], *worst)]
    assert [x["evaluation/return_mean"] for x in found] == expected
    assert [x.get("evaluation/failed") for x in found] == [None, 1, 1, 1, 2]


def test_numbers_of_exchanges_lie_deeper(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    row = {"kind": "exchange", "step": 5, "updates": 1, "time": 1.0, "seed": 3, "score": 2.0, "parent": 3}
    row["settings"] = {"learning_rate": 0.5}
    run.file.write_text(json.dumps(row) + "\n")
    follow(run, logger)
    numbers = {"exchange/updates": 1.0, "exchange/score": 2.0, "exchange/settings.learning_rate": 0.5}
    assert logger.received == [("", 5, numbers)]


def test_cleanrl_names(tmp_path):
    run, logger = Directory(tmp_path / "run"), Recorder()
    run.add(8)
    run.add(8, kind="evaluation", name="return_mean")
    follow(run, logger, keys="cleanrl")
    assert logger.received[0][2]["charts/episodic_return"] == 8 and "charts/SPS" in logger.received[0][2]
    assert logger.received[1][2]["evaluation/return_mean"] == 8
    assert logger.run.names == {"env_id": "Walk-v0", "exp_name": "shoal_ppo", "seed": 3}


def test_a_position_does_not_depend_on_times_and_the_order_of_entries():
    rows = [{"step": 1, "a": 0.1, "time": 3.0, "train_seconds": 1.0}, {"step": 2}]
    first = Position().after(rows[0]).after(rows[1])
    assert first.rows == 2
    assert first == Position().after({"a": 0.1, "step": 1, "time": 4.0}).after({"step": 2})
    assert first != Position().after(rows[1]).after(rows[0])
    assert first != Position().after({"step": 1, "a": 0.2}).after({"step": 2})


def test_a_reader_waits_for_whole_lines(tmp_path):
    reader = RowReader(tmp_path / "metrics.jsonl")
    assert reader.new_rows() == ([], False)
    with open(tmp_path / "metrics.jsonl", "wb", buffering=0) as file:
        for part, expected in (b'{"a"', []), (b": 1}", []), (b'\n{"a": 2}\n{', [1, 2]), (b"}\n", [None]):
            file.write(part)
            assert [row.get("a") for row in reader.new_rows()[0]] == expected
    (tmp_path / "metrics.jsonl").write_text('{"a": 5}\n')
    rows, was_cut = reader.new_rows()
    assert (rows, was_cut) == ([{"a": 5}], True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (dict(logger=("tensorbord",)), r"logger='tensorbord' is none of .*; did you mean 'tensorboard'\?"),
        (
            dict(logger=("csv",), logger_args=("cvs.x=3",)),
            r"logger_args='cvs.x=3' is of a logger that .*'csv'\?",
        ),
        (dict(logger=("csv",), logger_args=("x",)), r"logger_args='x' is not NAME.key=value, such as"),
        (
            dict(wandb_entity="me"),
            r"wandb_project_name and wandb_entity have no effect without .*; add --track",
        ),
    ],
)
def test_bad_flags_are_one_sentence(words, sentence):
    with pytest.raises(ShoalError, match=sentence):
        LoggerFlags(**words).loggers()


def test_bad_loggers_from_python_are_one_sentence():
    with pytest.raises(ShoalError, match="loggers=3 is neither a list of names nor arguments by name"):
        check_loggers(3)
    with pytest.raises(ShoalError, match=r"loggers={'csv': 5} has no arguments by name"):
        check_loggers({"csv": 5})
    with pytest.raises(ShoalError, match=r"Recorder is a class; give its name, as in 'my_module:Recorder'"):
        check_loggers([Recorder])
    with pytest.raises(ShoalError, match="keys='brax' of the logger csv is none of shoal, cleanrl"):
        check_loggers({"csv": {"keys": "brax"}})


def test_flags_become_arguments():
    flags = LoggerFlags(
        ("csv", "my.module:Mine"),
        ("csv.dir=a=b", "my.module:Mine.tags=x,y"),
        "cleanrl",
        True,
        "project",
        "me",
    )
    found = {companion.name: dict(companion.request) for companion in companions_of(flags.loggers())}
    assert found["csv"]["arguments"] == {"dir": f"{os.getcwd()}/a=b"}
    assert found["my.module:Mine"]["arguments"] == {"tags": "x,y"}
    assert found["wandb"]["arguments"] == {"project": "project", "entity": "me"}
    assert {x["keys"] for x in found.values()} == {"cleanrl"}


def test_loggers_receive_the_numbers_of_update_and_evaluation(tmp_path):
    """They are no member's own, so that a member without other numbers has failed."""
    run, logger = Directory(tmp_path / "run", seeds=3), Recorder()
    rows = [
        {
            "kind": "evaluation",
            "step": 64,
            "updates": 4,
            "evaluation": 1,
            "time": 1.0,
            "seed": 3 + k,
            "return_mean": x,
        }
        for k, x in enumerate((1.0, 2.0, None))
    ]
    run.file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    follow(run, logger)
    by_name = {name: numbers for name, _, numbers in logger.received}
    for numbers in by_name.values():
        assert numbers["evaluation/updates"] == 4 and numbers["evaluation/evaluation"] == 1
    assert by_name["all"]["evaluation/failed"] == 1
