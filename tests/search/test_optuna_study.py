"""Studies of the real Optuna: batches that are asked for and told, storage, and one sentence for each mistake."""

import importlib.metadata
import math
import sys
import threading

import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs

from shoal import ShoalError
from shoal.base.installation import install_command
from shoal.search import optuna_study
from shoal.search.ranking import AT_RUNG, MemberResult, rank
from shoal.search.space import from_tables, label_of

optuna = pytest.importorskip("optuna")
SPACE = from_tables(
    {
        "grid": {
            "surrogate": ["clip", "penalty"],
            "hidden_sizes": [[64, 64], [256]],
            "target_kl": [math.inf, 0.1],
        },
        "random": {
            "learning_rate": "log:1e-5:1e-2",
            "gamma": "one-minus-log:0.9:0.999",
            "ent_coef": "uniform:0:0.1",
            "update_epochs": "int:1:8",
            "kl_coef": "log:0.1:10",
        },
        "where": {"kl_coef": {"surrogate": "penalty"}},
    }
)
RATE = from_tables({"random": {"learning_rate": "log:1e-5:1e-1"}})
IDENTITY = {"environment": "CartPole-v1"}


def open_study(directory, space, *, storage="", **further):
    """The study of a directory; its journal is there where no other storage is given."""
    storage = storage or str(directory / "study.journal")
    return optuna_study.open_study(storage, space, **further).owned_by(directory)


def members(number, point, scores, **further):
    label = label_of(number, point)
    return [
        MemberResult(label, point, seed, {} if score is None else {"absolute": score}, 1000, **further)
        for seed, score in enumerate(scores)
    ]


def test_points_are_typed_within_bounds_and_read_back(tmp_path):
    study = open_study(tmp_path, SPACE, identity=IDENTITY)
    asked = study.ask(12)
    assert list(asked) == list(range(12))
    for point in asked.values():
        assert ("kl_coef" in point) == (point["surrogate"] == "penalty")
        assert 0.9 <= point["gamma"] <= 0.999 and 1e-5 <= point["learning_rate"] <= 1e-2
        assert type(point["update_epochs"]) is int and point["hidden_sizes"] in SPACE.grid["hidden_sizes"]
        assert point["target_kl"] in (math.inf, 0.1)
    again = open_study(tmp_path, SPACE, identity=IDENTITY)
    assert again.points(list(asked)) == asked
    assert again.running() == set(asked)
    with pytest.raises(
        ShoalError, match=r"^trial 99 is not in the study 'shoal', which has 12 trials; give the"
    ):
        again.points([99])


def test_states_and_members_are_told(tmp_path):
    study = open_study(tmp_path, RATE, identity=IDENTITY)
    asked = study.ask(4)
    told = {
        0: members(0, asked[0], [1.0, 3.0]),
        1: members(1, asked[1], [None, None], failure="not finite"),
        2: members(2, asked[2], [5.0, None]),
        3: [MemberResult(label_of(3, asked[3]), asked[3], 0, {AT_RUNG: 7.0}, 300)],
    }
    study.tell(told)
    trials = study.study.get_trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE", "PRUNED"]
    # A seed that failed has the worst score, 1.
    assert [trial.value for trial in trials][:3] == [2.0, None, 3.0]
    assert trials[3].intermediate_values == {300: 7.0}
    assert study.running() == set()
    study.tell({0: members(0, asked[0], [100.0])})  # told before: nothing changes
    study.fail(0, "late")
    assert study.study.get_trials()[0].value == 2.0
    found = open_study(tmp_path, RATE, identity=IDENTITY).members()
    assert found == [member for group in told.values() for member in group]


def test_failed_seeds_count_as_the_worst_of_the_search(tmp_path):
    """Not of their batch, in which others may have failed whole, nor of what was known when they were told."""
    study = open_study(tmp_path, RATE, identity=IDENTITY)
    batches = [
        {0: [2.0, 9.0], 1: [9.0, 9.0]},
        {2: [50.0, None], 3: [None, None]},  # 2 is (50 + 2) / 2
        {4: [26.0, 26.0], 5: [None, math.nan]},  # 4 ties with it, and did not fail
        {6: [-100.0, -100.0]},
    ]
    for batch in batches:
        asked = study.ask(len(batch))
        study.tell({number: members(number, asked[number], scores) for number, scores in batch.items()})
        if 2 in batch:
            assert (study.best[0].number, study.best[1]) == (2, 26.0)
        if 4 in batch:
            assert (study.best[0].number, study.best[1]) == (4, 26.0)
    trials = study.study.get_trials()
    assert [trial.value for trial in trials] == [5.5, 9.0, 26.0, None, 26.0, None, -100.0]
    assert [trial.number for trial in trials if trial.state.name == "FAIL"] == [3, 5]
    ranked = rank(study.members())
    assert [x.label.split()[0] for x in ranked] == ["4", "1", "0", "2", "6", "3", "5"]
    assert ranked[3].score == -25.0 and ranked[3].failed == (1,)
    assert [x.has_score for x in ranked[4:]] == [True, False, False]
    assert (study.best[0].number, study.best[1]) == (4, 26.0)


def test_trials_are_compared_by_the_objective(tmp_path):
    study = open_study(tmp_path, RATE, objective="length_mean", identity=IDENTITY)
    (number, point), *_ = study.ask(1).items()
    study.tell({number: [MemberResult("0", point, 0, {"length_mean": 3.0, "absolute": 1.0}, 10)]})
    assert study.best[1] == 3.0
    with pytest.raises(ShoalError, match="made with objective='length_mean', not 'absolute'"):
        open_study(tmp_path, RATE, identity=IDENTITY)


def test_a_batch_is_no_near_copies_and_gets_better(tmp_path):
    study = open_study(tmp_path, RATE, identity=IDENTITY, seed=3)
    batches = []
    for _ in range(5):
        asked = study.ask(8)
        batches.append([math.log10(point["learning_rate"]) for point in asked.values()])
        study.tell(
            {
                n: members(n, point, [-abs(math.log10(point["learning_rate"]) + 3)])
                for n, point in asked.items()
            }
        )
    assert len({round(x, 5) for batch in batches for x in batch}) == 40
    distances = [np.abs(np.array(batch) + 3) for batch in batches]
    assert np.median(distances[2:]) < 0.7  # of uniform draws it is 1
    assert min(np.ptp(batch) for batch in batches) > 0.3


@pytest.mark.full
def test_a_seed_fixes_the_proposals(tmp_path):
    def propose(folder, seed, told=False):
        (tmp_path / folder).mkdir()
        study = open_study(tmp_path / folder, SPACE, identity=IDENTITY, seed=seed)
        points = []
        for _ in range(2):
            asked = study.ask(6)
            points += asked.values()
            study.tell({n: members(n, point, [point["gamma"]]) for n, point in asked.items()})
        return points

    first = propose("a", 0)
    assert propose("b", 0) == first != propose("c", 1)
    drawn = np.array([[point["learning_rate"], point["ent_coef"]] for point in first])
    ranks = drawn.argsort(axis=0).argsort(axis=0)
    assert not np.array_equal(ranks[:, 0], ranks[:, 1])  # settings of a trial are drawn apart


def test_processes_share_a_study_and_know_their_own_trials(tmp_path):
    storage = str(tmp_path / "study.journal")
    first, second = (tmp_path / name for name in "ab")
    first.mkdir(), second.mkdir()
    one, other = (open_study(x, RATE, storage=storage, identity=IDENTITY) for x in (first, second))
    mine, theirs = one.ask(3), other.ask(3)
    assert sorted([*mine, *theirs]) == list(range(6))
    assert (one.running(), other.running()) == (set(mine), set(theirs))
    assert not {p["learning_rate"] for p in mine.values()} & {p["learning_rate"] for p in theirs.values()}
    other.tell({number: members(number, point, [1.0]) for number, point in theirs.items()})
    one.tell({number: members(number, point, [2.0]) for number, point in theirs.items()})  # not its own
    assert {trial.value for trial in one.trials if trial.number in theirs} == {1.0}


@pytest.mark.parametrize("content", [b"", b"0123456789ab\xe3def"])
def test_a_damaged_name_of_a_process_is_one_sentence(tmp_path, content):
    study = open_study(tmp_path, RATE, identity=IDENTITY)
    (tmp_path / "owner").write_bytes(content)
    with pytest.raises(ShoalError, match=r"owner is damaged: it holds no name of a process"):
        study.owned_by(tmp_path)


@pytest.mark.full
def test_a_database_holds_several_studies(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = open_study(tmp_path, RATE, storage=url, name="a", identity=IDENTITY)
    asked = study.ask(2)
    study.tell({0: members(0, asked[0], [1.5])})
    study.fail(1, "num_minibatches=7 does not divide 512.")
    reread = open_study(tmp_path, RATE, storage=url, name="a", identity=IDENTITY)
    assert [trial.state.name for trial in reread.trials] == ["COMPLETE", "FAIL"]
    assert len(reread.members()) == 1
    assert open_study(tmp_path, RATE, storage=url, name="b", identity=IDENTITY).trials == []


def test_another_space_or_setting_is_refused(tmp_path):
    open_study(tmp_path, RATE, identity=IDENTITY)
    wider = from_tables({"random": {"learning_rate": "log:1e-5:1"}})
    with pytest.raises(ShoalError) as caught:
        open_study(tmp_path, wider, identity=IDENTITY)
    assert str(caught.value) == (
        "study 'shoal' was made with random.learning_rate='log:1e-05:0.1', not 'log:1e-05:1.0'; give the same, "
        "or another name (study)."
    )
    with pytest.raises(
        ShoalError, match="was made with environment='CartPole-v1', not 'Acrobot-v1'; give the same"
    ):
        open_study(tmp_path, RATE, identity={"environment": "Acrobot-v1"})


def test_a_study_of_others_is_refused(tmp_path):
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
    )
    optuna.create_study(storage=storage, study_name="shoal").ask()
    with pytest.raises(
        ShoalError, match=r"^study 'shoal' has trials that Shoal did not make; give another name"
    ):
        open_study(tmp_path, RATE, identity=IDENTITY)


def test_one_sentence_says_why_a_storage_cannot_be_opened(tmp_path):
    with pytest.raises(ShoalError, match=r"cannot be opened: No such file or directory\.$"):
        open_study(tmp_path, RATE, storage=str(tmp_path / "missing" / "a"), identity=IDENTITY)
    with pytest.raises(ShoalError, match=r"^storage 'nothing://a' cannot be opened: "):
        open_study(tmp_path, RATE, storage="nothing://a", identity=IDENTITY)


def test_one_sentence_says_that_optuna_is_missing_or_old(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ShoalError) as caught:
        open_study(tmp_path, RATE, identity=IDENTITY)
    command = install_command("tune")
    assert str(caught.value) == f"tuning needs optuna, which is not installed; `{command}` installs it."
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "4.2.1")
    with pytest.raises(ShoalError, match=r"^tuning needs optuna 4\.3 or newer, and 4\.2\.1 is installed; `"):
        open_study(tmp_path, RATE, identity=IDENTITY)


def test_a_torn_last_line_of_a_journal_is_cut(tmp_path, capsys):
    """A process was killed while it wrote: whatever is written next would be joined to what it left."""
    journal = tmp_path / "study.journal"
    open_study(tmp_path, RATE, identity=IDENTITY).ask(2)
    written = journal.read_bytes()
    whole, last = written[: written.rindex(b"\n", 0, -1) + 1], written.splitlines(keepends=True)[-1]
    for torn in (last[:1], last[:-2], last[:-1], last[:20] + b"\0" * 9, last[:20] + last):
        journal.write_bytes(whole + torn)
        for _ in range(2):
            study = open_study(tmp_path, RATE, identity=IDENTITY)
            assert len(study.trials) == 2
            study.study.set_user_attr("later", 1)
        assert journal.read_bytes().startswith(whole + b'{"op_code":')
        assert capsys.readouterr().err == (
            f"{journal}: the last record is not whole, since its process was killed while it wrote; its {len(torn)} "
            "bytes are removed\n"
        )


def test_a_line_that_a_live_process_is_writing_stays(tmp_path, capsys):
    journal = tmp_path / "study.journal"
    open_study(tmp_path, RATE, identity=IDENTITY).ask(1)
    written = journal.read_bytes()
    journal.write_bytes(written[:-7])
    lock = optuna.storages.journal.JournalFileOpenLock(str(journal))
    lock.acquire()

    def finish():
        journal.write_bytes(written)
        lock.release()

    writer = threading.Timer(0.3, finish)
    writer.start()
    assert len(open_study(tmp_path, RATE, identity=IDENTITY).trials) == 1
    writer.join()
    assert journal.read_bytes().startswith(written) and capsys.readouterr().err == ""


def test_what_is_no_whole_journal_is_one_sentence(tmp_path):
    journal = tmp_path / "study.journal"
    journal.write_text("notes\nof mine")
    with pytest.raises(
        ShoalError, match=r"^storage '.*study\.journal' is not a journal of Optuna; give another"
    ):
        open_study(tmp_path, RATE, identity=IDENTITY)
    assert journal.read_text() == "notes\nof mine"
    journal.unlink()
    open_study(tmp_path, RATE, identity=IDENTITY)
    first, *others = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([first[:-9], b"\n", *others]))
    with pytest.raises(ShoalError, match=r"^storage '.*study\.journal' cannot be opened: ") as caught:
        open_study(tmp_path, RATE, identity=IDENTITY)
    assert "\n" not in str(caught.value)
