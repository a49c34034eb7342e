"""The loop of tuning over a cheap function: batches, interruptions at every point, and settings that cannot work."""

import json
import math

import pytest

from shoal import ShoalError
from shoal.search.optuna_study import open_study
from shoal.search.ranking import AT_RUNG, MemberResult, rank
from shoal.search.space import from_tables
from shoal.search.tune import tune

pytest.importorskip("optuna")
SPACE = from_tables({"random": {"learning_rate": "log:1e-5:1e-1"}, "grid": {"core": ["none", "gru"]}})


def score(point):
    return -abs(math.log10(point["learning_rate"]) + 3) - (point["core"] == "gru")


class Runner:
    """Trains nothing; it remembers its calls, and can be interrupted in one of them."""

    def __init__(self, interrupted_in=None):
        self.calls, self.interrupted_in = [], interrupted_in

    def __call__(self, points, directory):
        assert (directory / "trials.json").exists()  # recorded before anything runs
        self.calls.append((directory.name, dict(points)))
        if len(self.calls) - 1 == self.interrupted_in:
            raise KeyboardInterrupt
        return [
            MemberResult(label, point, seed, {"absolute": score(point) + seed}, 1000)
            for label, point in points.items()
            for seed in range(2)
        ]


def opened(directory, **further):
    directory.mkdir(exist_ok=True)
    storage = further.pop("storage", str(directory / "study.journal"))
    return open_study(storage, SPACE, identity={}, **further).owned_by(directory)


def test_batches_run_until_there_are_enough_trials(tmp_path):
    runner, lines = Runner(), []
    members = tune(opened(tmp_path), runner, tmp_path, trials=10, batch=4, report=lines.append)
    assert [len(points) for _, points in runner.calls] == [4, 4, 2]
    assert [name for name, _ in runner.calls] == ["00000", "00004", "00008"]
    assert len(members) == 20
    best = rank(members)[0]
    assert best.score == pytest.approx(
        max(score(p) for _, points in runner.calls for p in points.values()) + 0.5
    )
    assert lines[-1] == f"10 of 10 trials, best {best.score:.4g} (trial {best.label.split()[0]})"
    recorded = json.loads((tmp_path / "batches" / "00004" / "trials.json").read_text())
    assert recorded["trials"] == {label.split()[0]: label for label in runner.calls[1][1]}
    again = Runner()
    assert tune(opened(tmp_path), again, tmp_path, trials=10, batch=4) == members and again.calls == []
    assert len(tune(opened(tmp_path), again, tmp_path, trials=12, batch=4)) == 24


def test_a_last_batch_that_is_too_small_to_stop_any_ranks_beside_what_was_trained_to_the_end(tmp_path):
    """Batches of three, of which one goes on; the last has one trial, which no rung has compared."""

    def halving(points, directory):
        best = max(points, key=lambda label: score(points[label]))
        return [
            MemberResult(label, point, 0, {"absolute": score(point)}, 900, rung=len(points) // 3)
            if label == best
            else MemberResult(label, point, 0, {AT_RUNG: score(point) + 5}, 300)
            for label, point in points.items()
        ]

    study = opened(tmp_path, seed=2)
    members = tune(study, halving, tmp_path, trials=7, batch=3)
    assert [trial.state.name for trial in study.trials].count("PRUNED") == 4
    ranked = rank(members)
    ends = [x.scores["absolute"] for x in members if "absolute" in x.scores]
    assert [x.score for x in ranked[:3]] == sorted(ends, reverse=True)
    assert all(x.stopped for x in ranked[3:])
    assert study.best[1] == ranked[0].score


@pytest.mark.parametrize("trained", [True, False])
def test_a_study_in_which_every_trial_fails(tmp_path, trained):
    """By numbers that are not finite: there are members, of which none has a score; else nothing was trained."""

    def run(points, directory):
        failed = [MemberResult(x, point, 0, {}, 0, failure="not finite") for x, point in points.items()]
        return failed if trained else []

    lines, study = [], opened(tmp_path)
    if trained:
        members = tune(study, run, tmp_path, trials=3, batch=2, report=lines.append)
        assert len(members) == 3 and not any(x.has_score for x in rank(members))
    else:
        with pytest.raises(
            ShoalError, match=r"^no trial could be trained; each was told to Optuna as failed\.$"
        ):
            tune(study, run, tmp_path, trials=3, batch=2, report=lines.append)
    assert study.best is None and lines[-1] == "3 of 3 trials, 3 failed"


def test_a_process_that_was_killed_resumes_its_trials(tmp_path):
    killed = Runner(interrupted_in=1)
    with pytest.raises(KeyboardInterrupt):
        tune(opened(tmp_path), killed, tmp_path, trials=8, batch=4)
    resumed = Runner()
    members = tune(opened(tmp_path), resumed, tmp_path, trials=8, batch=4)
    assert resumed.calls == killed.calls[1:]
    assert len(members) == 16
    states = {trial.state.name for trial in opened(tmp_path).trials}
    assert states == {"COMPLETE"}


def test_trials_that_no_batch_has_are_told_as_failed(tmp_path):
    opened(tmp_path).ask(3)  # and the process is killed
    runner = Runner()
    tune(opened(tmp_path), runner, tmp_path, trials=5, batch=4)
    assert [len(points) for _, points in runner.calls] == [2]
    assert [trial.state.name for trial in opened(tmp_path).trials] == ["FAIL"] * 3 + ["COMPLETE"] * 2


def test_two_directories_share_the_trials(tmp_path):
    storage = str(tmp_path / "study.journal")
    first, second = Runner(interrupted_in=1), Runner()
    with pytest.raises(KeyboardInterrupt):
        tune(opened(tmp_path / "a", storage=storage), first, tmp_path / "a", trials=12, batch=4)
    tune(opened(tmp_path / "b", storage=storage), second, tmp_path / "b", trials=12, batch=4)
    assert [name for name, _ in second.calls] == ["00008"]  # the trials of the first are its own
    resumed = Runner()
    members = tune(opened(tmp_path / "a", storage=storage), resumed, tmp_path / "a", trials=12, batch=4)
    assert resumed.calls == first.calls[1:] and len(members) == 24


def test_settings_that_cannot_work_are_told_as_failed(tmp_path):
    def check(point):
        if point["core"] == "gru":
            raise ShoalError("core='gru' cannot work.")

    runner = Runner()
    members = tune(opened(tmp_path, seed=1), runner, tmp_path, trials=12, batch=4, check=check)
    trials = opened(tmp_path).trials
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    assert 0 < len(failed) < 12
    assert {trial.user_attrs["failure"] for trial in failed} == {"core='gru' cannot work."}
    assert len(members) == 2 * (12 - len(failed))


def test_a_space_in_which_nothing_can_work_is_one_sentence(tmp_path):
    def check(point):
        raise ShoalError("num_minibatches=7 does not divide 512.")

    with pytest.raises(ShoalError, match=r"^num_minibatches=7 does not divide 512\.$"):
        tune(opened(tmp_path), Runner(), tmp_path, trials=8, batch=4, check=check)


def test_batches_of_another_study_are_one_sentence(tmp_path):
    tune(opened(tmp_path), Runner(), tmp_path, trials=2, batch=2)
    with pytest.raises(
        ShoalError, match=r"^trial 0 is not in the study 'other', which has 0 trials; give the storage"
    ):
        tune(opened(tmp_path, name="other"), Runner(), tmp_path, trials=2, batch=2)
    (tmp_path / "batches" / "00000" / "trials.json").write_text("{}")
    with pytest.raises(ShoalError, match=r"trials\.json is damaged: it lacks 'trials'"):
        tune(opened(tmp_path), Runner(), tmp_path, trials=4, batch=2)
