"""A run that was ended and resumed is the run that was never interrupted, and what may change in it."""

import contextlib
import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal.base import signals
from shoal.envs.probes import ActionReward
from shoal.records import checkpoint_record
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.records.history import History
from shoal.records.lock import Lock
from shoal.runs.policies import evaluate
from shoal.runs.train import resume as resuming
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.runs.train.pacing import Pacer

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    **{"seeds": 2, "num_envs": 4, "num_steps": 8, "total_steps": 32 * 12, "num_evals": 3, "log_every": 64},
    **{"eval_episodes": 4, "devices": 1, "progress": False, "checkpoint_every": 96, "keep": 10},
}
TIMES = ("seconds", "time", "per_second")


def train(path, **settings):
    return shoal.train(ActionReward(), algorithm=BanditConfig(), run_dir=path, **SMALL | settings)


def resume(path, **settings):
    return shoal.resume(path, environment=ActionReward(), progress=False, **settings)


def rows(path):
    return [
        {name: x for name, x in row.items() if not any(word in name for word in TIMES)}
        for row in RunDirectory.open(path).load_metrics()
    ]


@contextlib.contextmanager
def small_pieces_of():
    """Pieces of one update, so that a run can be ended anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pacer, "size", lambda self, left: 1)
        patch.setattr("shoal.runs.train.checkpointing.REST", 0)
        patch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
        yield patch


@pytest.fixture(autouse=True)
def small_pieces():
    """All but the whole run in pieces of one update."""
    with small_pieces_of():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    return train(path)


def end(updates, path, call=train, **settings):
    """End a run after so many updates by a signal, and return its directory."""
    original = RunSupervisor.between_pieces

    def between_pieces(self, population, history):
        if history.updates == updates:
            self.stop._requested = True
        original(self, population, history)

    with small_pieces_of() as patch:
        patch.setattr(RunSupervisor, "between_pieces", between_pieces)
        with pytest.raises(signals.Interrupted, match="shoal resume"):
            call(path, **settings)
    return path


@pytest.fixture(scope="module")
def ended_once(whole, tmp_path_factory):
    """A run that was ended after nine updates; not to be changed."""
    return end(9, tmp_path_factory.mktemp("ended") / "run")


@pytest.fixture
def ended(ended_once, tmp_path):
    """A copy of it."""
    return shutil.copytree(ended_once, tmp_path / "run")


def assert_same(run, expected):
    assert rows(run.path) == rows(expected.path)
    for name in ("parameters_sha256", "absolute", "final", "evaluation", "steps_per_seed"):
        assert run.summary[name] == expected.summary[name]
    assert jax.tree.all(
        jax.tree.map(lambda x, y: bool((x == y).all()), run.learner.shared, expected.learner.shared)
    )
    for (steps, x), (other_steps, y) in zip(run.evaluations, expected.evaluations, strict=True):
        assert steps == other_steps
        assert {name: a.tolist() for name, a in x.items()} == {name: a.tolist() for name, a in y.items()}


@pytest.mark.parametrize("updates", [0, 1, 5, 8, 12])
@pytest.mark.quick("5")
@pytest.mark.rare("1")
def test_a_run_that_was_ended_goes_on_as_if_it_was_not(whole, tmp_path, updates):
    """Between log points, at one, at an evaluation, and at the end."""
    path = end(updates, tmp_path / "run")
    assert not (path / "summary.json").exists()
    assert Checkpoints(path).steps()[-1] == updates * 32
    assert_same(resume(path), whole)


def test_the_same_call_resumes_and_then_reads_the_result(whole, ended):
    path = ended
    assert_same(train(path), whole)
    assert not (path / "progress.json").exists()
    again = train(path)
    assert_same(again, whole)
    assert again.summary == json.loads((path / "summary.json").read_text())


def test_a_run_that_was_ended_is_loaded_and_evaluated_at_its_last_checkpoint(whole, tmp_path, capsys):
    """After its last update its best policies are those of the whole run; it counts as unfinished all the same."""
    path = end(12, tmp_path / "run")
    capsys.readouterr()
    for which in ("best", "last"):
        policies = [
            shoal.load(x, which, environment=ActionReward(), seed=1).parameters for x in (path, whole.path)
        ]
        jax.tree.map(np.testing.assert_array_equal, *policies)
        assert (
            f"its {which} policies so far are those of its checkpoint at 384 env" in capsys.readouterr().err
        )
    assert shoal.load(path, environment=ActionReward()).parameters is not None
    results, expected = (evaluate.evaluate_run(x, ActionReward(), episodes=4) for x in (path, whole.path))
    assert (results.pop("which"), expected.pop("which")) == ("best (checkpoint 384)", "best")
    assert results["metrics"] == expected["metrics"]
    (path / "checkpoints" / "384.safetensors").write_bytes(b"")
    shoal.load(path, environment=ActionReward(), seed=1)
    assert f"those of its checkpoint at {Checkpoints(path).steps()[-2]} " in capsys.readouterr().err
    shutil.rmtree(path / "checkpoints")
    with pytest.raises(shoal.ShoalError, match="holds no policy 'best'"):
        shoal.load(path, environment=ActionReward())


def test_a_run_that_was_ended_says_what_it_has_reached(ended):
    path = ended
    progress = json.loads((path / "progress.json").read_text())
    assert (progress["finished"], progress["seeds"], progress["failed"]) == (False, [0, 1], [])
    assert (progress["steps_per_seed"], progress["total_steps_per_seed"]) == (9 * 32, 12 * 32)
    evaluations = [row for row in rows(path) if row["kind"] == "evaluation"]
    last = [row["return_mean"] for row in evaluations if row["step"] == evaluations[-1]["step"]]
    assert progress["last_evaluation"]["returns"] == last
    assert progress["best"]["scores"] == [
        max(row["score"] for row in evaluations if row["seed"] == seed) for seed in (0, 1)
    ]
    assert (path / "learning_curve.png").is_file()
    assert not (path / "summary.json").exists()


def test_a_run_that_was_made_longer_and_ended_is_loaded_at_its_last_checkpoint(whole, tmp_path, capsys):
    path = shutil.copytree(whole.path, tmp_path / "run")
    end(15, path, call=resume, total_steps=32 * 20)
    capsys.readouterr()
    shoal.load(path, environment=ActionReward())
    assert (
        "not finished; its best policies so far are those of its checkpoint at 480 "
        in capsys.readouterr().err
    )


def test_another_call_is_refused_by_the_name_that_differs(ended):
    path = ended
    before = sorted(path.rglob("*"))
    with pytest.raises(shoal.ShoalError, match=r"holds another run: num_steps=8 there, and 4 was asked for"):
        train(path, num_steps=4)
    assert sorted(path.rglob("*")) == before


def test_a_finished_run_goes_on_when_it_is_extended(whole, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(whole.path, path)
    with pytest.raises(
        shoal.ShoalError, match="is finished, with 384 environment steps; give more total_steps"
    ):
        resume(path)
    run = resume(path, total_steps=32 * 20)
    assert run.summary["steps_per_seed"] == 640
    assert rows(path)[: len(rows(whole.path))] == rows(whole.path)
    steps = [step for step, _ in run.evaluations]
    assert steps[:4] == [step for step, _ in whole.evaluations]
    assert steps[-1] == 640
    assert steps == sorted(set(steps))
    saved = json.loads((path / "config.json").read_text())
    assert saved["history"] == [{"step": 384, "changes": {"total_steps": [384, 640]}}]
    assert saved["run"]["total_steps"] == 640
    assert_same(shoal.resume(run, total_steps=32 * 21, progress=False), run_of(path))


def run_of(path):
    """The finished run that a directory holds."""
    return train(path, total_steps=32 * 21)


@pytest.mark.full
def test_a_run_without_checkpoints_goes_on_from_memory_as_one_with_them_from_the_disk(
    whole, tmp_path, capsys
):
    on_disk = tmp_path / "disk"
    shutil.copytree(whole.path, on_disk)
    expected = resume(on_disk, total_steps=32 * 20)
    settings = {name: x for name, x in SMALL.items() if name not in ("checkpoint_every", "keep")}
    path = tmp_path / "memory"
    run = shoal.train(ActionReward(), algorithm=BanditConfig(), run_dir=path, checkpoints=False, **settings)
    assert whole.finished is None
    for _ in range(2):  # what was trained is still there after it went on
        shutil.copytree(run.path, tmp_path / "copy", dirs_exist_ok=True)
        longer = shoal.resume(run, environment=ActionReward(), total_steps=32 * 20)
        assert "resuming from memory at 384 environment steps, total_steps 640" in capsys.readouterr().err
        assert_same(longer, expected)
        shutil.rmtree(run.path)
        shutil.copytree(tmp_path / "copy", run.path)
    with pytest.raises(shoal.ShoalError, match="holds no checkpoint, so that it cannot be resumed"):
        resume(run.path, total_steps=32 * 20)


def test_fewer_steps_than_were_made_are_refused(whole, ended, tmp_path):
    """Of a run that was ended, of a finished one, and of one in memory; nothing on the disk changes."""
    copy = shutil.copytree(whole.path, tmp_path / "copy")
    sentence = (
        "total_steps=350 is less than the 384 environment steps that each seed of run .* give more than 384"
    )
    in_memory = dataclasses.replace(whole, finished=resuming.Finished(384, None, None, None))
    for run, steps, match in (
        (ended, 32 * 5, "total_steps=160 is less than the 288 environment steps"),
        (copy, 350, sentence),
        (in_memory, 350, sentence),
    ):
        path = getattr(run, "path", run)
        before = {x: x.read_bytes() for x in path.rglob("*") if x.is_file()}
        with pytest.raises(shoal.ShoalError, match=match):
            resume(run, total_steps=steps)
        assert {x: x.read_bytes() for x in path.rglob("*") if x.is_file()} == before


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_envs": 8}, r"num_envs=8 cannot be changed in a resumed run \(it has 4\); .* --from "),
        ({"seed": 3}, r"seed=3 cannot be changed"),
        ({"nu_envs": 8}, r"did you mean 'num_envs'"),
        ({"spread": 0.5}, r"spread cannot change while a run trains, since .* only where a run starts"),
    ],
)
def test_what_cannot_change_is_refused(ended_once, settings, sentence):
    with pytest.raises(shoal.ShoalError, match=sentence):
        resume(ended_once, **settings)
    assert not json.loads((ended_once / "config.json").read_text())["history"]


def test_a_number_that_is_data_may_change_and_is_recorded(ended, whole):
    path = ended
    run = resume(path, step_size=0.25)
    assert (run.learner.shared.actions != whole.learner.shared.actions).any()
    saved = json.loads((path / "config.json").read_text())
    assert (
        saved["history"] == [{"step": 288, "changes": {"step_size": [0.5, 0.25]}}] and saved["preset"] == {}
    )
    assert saved["algorithm"]["step_size"] == 0.25


def test_the_newest_sound_checkpoint_is_used_and_a_damaged_one_set_aside(ended, whole, capsys):
    path = ended
    checkpoints = Checkpoints(path)
    newest, before = checkpoints.steps()[-1], checkpoints.steps()[-2]
    (path / "checkpoints" / f"{newest}.safetensors").write_bytes(b"{}")
    run = shoal.resume(path, environment=ActionReward())
    assert f"the checkpoint at {newest} cannot be used: " in capsys.readouterr().err
    assert (path / "checkpoints" / f"{newest}.damaged").is_file()
    assert before in Checkpoints(path).steps()
    assert_same(run, whole)


def test_without_a_sound_checkpoint_nothing_is_started_over(ended):
    path = ended
    for steps in Checkpoints(path).steps():
        (path / "checkpoints" / f"{steps}.safetensors").write_bytes(b"")
    content = (path / "metrics.jsonl").read_bytes()
    with pytest.raises(shoal.ShoalError, match=r"no checkpoint that can be used \(.*it is not started over"):
        resume(path)
    assert (path / "metrics.jsonl").read_bytes() == content


def test_a_run_without_any_checkpoint_begins_anew(whole, ended):
    path = ended
    shutil.rmtree(path / "checkpoints")
    assert_same(resume(path), whole)


def test_policies_come_from_checkpoints(whole):
    steps = Checkpoints(whole.path).steps()
    last = shoal.load(whole.path, "last", seed=1, environment=ActionReward())
    newest = shoal.load(whole.path, seed=1, environment=ActionReward(), checkpoint="last")
    np.testing.assert_array_equal(last.parameters, newest.parameters)
    first = shoal.load(whole.path, seed=1, environment=ActionReward(), checkpoint=min)
    assert (np.asarray(first.parameters) != np.asarray(last.parameters)).any()
    with pytest.raises(shoal.ShoalError, match=rf"there is no checkpoint at 5; the nearest is {steps[0]}"):
        shoal.load(whole.path, environment=ActionReward(), checkpoint=5)
    for name in ("newest", "²", "9" * 5000):  # the last two are digits that int() does not read
        with pytest.raises(shoal.ShoalError, match="neither a number of environment steps nor best or last"):
            shoal.load(whole.path, environment=ActionReward(), checkpoint=name)
    with pytest.raises(shoal.ShoalError, match=r"from_step='newest' is neither a number"):
        shoal.resume(whole, from_step="newest", environment=ActionReward())


def test_the_score_of_a_checkpoint_is_that_of_its_policies():
    """A frozen seed is the worst there is; another whose score is not finite leaves the run without one."""
    evaluations = [(k, {"score": np.array(x)}) for k, x in enumerate([[4.0, 9.0], [6.0, np.nan]])]
    assert checkpoint_record.iqm_of(History(evaluations=evaluations, frozen=[1])) == -np.inf
    four = [(k, {"score": np.array([1.0, 2.0, 3.0, x])}) for k, x in enumerate((9.0, np.nan))]
    assert checkpoint_record.iqm_of(History(evaluations=four, frozen=[3])) == 1.5
    assert checkpoint_record.iqm_of(History(evaluations=evaluations)) == -np.inf
    assert checkpoint_record.iqm_of(History(evaluations=evaluations[:1])) == 6.5
    assert checkpoint_record.best_steps({0: 6.5, 32: 7.5, 64: 7.5, 96: -np.inf}) == 32


def test_a_run_that_was_written_without_a_setting_is_refused(whole, tmp_path):
    """The command that began it, and `shoal resume`, name what it lacks; nothing changes."""
    path = shutil.copytree(whole.path, tmp_path / "run")
    saved = json.loads((path / "config.json").read_text())
    of_run = {name: x for name, x in saved["run"].items() if name != "on_nan"}
    without_schema = {name: x for name, x in saved.items() if name != "schema"}
    for lacking, config in (("on_nan", saved | {"run": of_run}), ("schema", without_schema)):
        (path / "config.json").write_text(json.dumps(config))
        before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        for call in (resume, train):
            with pytest.raises(
                shoal.ShoalError, match=f"made by an earlier version of Shoal, without {lacking}"
            ):
                call(path)
        assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_difference_of_machines_is_named():
    before = {"jax": "0.10.2", "cpu": "a", "gone": 1}
    assert resuming.machine_differences(before, before) == ""
    told = resuming.machine_differences(before, {"jax": "0.12.0", "cpu": "a"})
    assert told == "jax ('0.10.2' then, '0.12.0' now), gone (1 then, None now)"


def test_the_numbers_of_an_environment_are_held_by_a_checksum():
    """A table may come from a file, whose name stays when its content changes."""

    def checksum(bonus):
        experiment = shoal.runs.plan.decide.decide(
            Halves(bonus=bonus), algorithm=BanditConfig(), overrides={}
        )
        return resuming.identity_of(experiment, experiment.as_json())["environment"]["sha256"]

    assert checksum(1.0) == checksum(1.0) != checksum(2.0)


# ---- a new run from an older checkpoint


@pytest.fixture(scope="module")
def stepped(whole, tmp_path_factory):
    """The whole run with a checkpoint at each evaluation: at 0, 128, 256 and 384; not to be changed."""
    with small_pieces_of():
        run = train(tmp_path_factory.mktemp("stepped") / "run", checkpoint_evals=True)
    assert_same(run, whole)
    return run.path


def files_of(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("name", "step"), [("stepped", 128), ("ended_once", 288)])
def test_a_new_run_from_an_older_checkpoint_ends_as_the_old_one(whole, tmp_path, capsys, request, name, step):
    """Of a finished run and of an unfinished one, with their rows; the old one does not change, nor need its lock."""
    path = request.getfixturevalue(name)
    before = files_of(path)
    with Lock(path):
        run = shoal.resume(path, environment=ActionReward(), from_step=step, run_dir=tmp_path / "new")
    assert f"from the checkpoint of run {str(path)!r} at {step} environment" in capsys.readouterr().err
    assert {file: files_of(path)[file] for file in before} == before
    assert_same(run, whole)
    source = {"run": str(path), "step": step}
    saved = json.loads((run.path / "config.json").read_text())
    assert (saved["resumed_from"], run.summary["resumed_from"]) == (source, source)
    old = json.loads((path / "config.json").read_text())
    assert saved == old | {"resumed_from": source, "run": old["run"] | {"run_dir": str(run.path)}}
    assert Checkpoints(run.path).steps()[0] == step


def test_the_best_checkpoint_is_gone_on_from_with_other_settings(stepped, tmp_path):
    """The new run resumes as any other; `resumed_from` stays."""
    best = checkpoint_record.choose_checkpoint(Checkpoints(stepped), "best")
    run = resume(stepped, from_step="best", run_dir=tmp_path / "new", num_updates=20, step_size=0.25)
    assert run.summary["steps_per_seed"] == 640
    changes = {"step_size": [0.5, 0.25], "total_steps": [384, 640]}
    saved = json.loads((run.path / "config.json").read_text())
    assert saved["history"] == [{"step": best, "changes": changes}]
    up_to_there = [row for row in rows(stepped) if row["step"] <= best]
    assert rows(run.path)[: len(up_to_there)] == up_to_there
    longer = resume(run.path, total_steps=32 * 21)
    source = {"run": str(stepped), "step": best}
    assert longer.summary["resumed_from"] == source
    assert json.loads((run.path / "config.json").read_text())["resumed_from"] == source


def test_settings_that_changed_later_are_those_of_the_checkpoint(whole, stepped, tmp_path):
    path = shutil.copytree(stepped, tmp_path / "run")
    resume(path, total_steps=32 * 20, step_size=0.25)
    assert_same(resume(path, from_step=256, run_dir=tmp_path / "early"), whole)
    saved = json.loads((tmp_path / "early" / "config.json").read_text())
    assert (saved["history"], saved["run"]["total_steps"]) == ([], 384)
    late = resume(
        path, from_step=384, run_dir=tmp_path / "late"
    )  # with what the old one went on with from there
    assert late.summary["parameters_sha256"] == RunDirectory.open(path).load_summary()["parameters_sha256"]
    assert rows(late.path) == rows(path)


def test_a_new_run_that_was_killed_before_its_first_checkpoint_goes_on_from_the_old_one(
    whole, stepped, tmp_path
):
    path = end(5, tmp_path / "new", call=branch(stepped, 128))
    shutil.rmtree(path / "checkpoints")
    (path / "metrics.jsonl").unlink()
    copy = shutil.copytree(path, tmp_path / "copy")
    assert_same(resume(path), whole)
    saved = json.loads((copy / "config.json").read_text())
    saved["resumed_from"]["run"] = str(tmp_path / "nowhere")
    (copy / "config.json").write_text(json.dumps(saved))
    with pytest.raises(shoal.ShoalError, match="there is no run directory"):
        resume(copy)


def branch(path, step):
    """A function of a new directory that goes on there from a checkpoint."""
    return lambda new, **settings: resume(path, from_step=step, run_dir=new, **settings)


def test_what_cannot_be_gone_on_from_is_refused_in_one_sentence(stepped, ended_once, tmp_path):
    """Nothing is written, neither in the old directory nor in the new one."""
    damaged, without = (shutil.copytree(stepped, tmp_path / name) for name in ("damaged", "without"))
    stored = Checkpoints(damaged).info(128).path
    file = next(x for x in (stored, *stored.rglob("*")) if x.is_file() and x.stat().st_size)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    shutil.rmtree(without / "checkpoints")
    one = shutil.copytree(ended_once, tmp_path / "one")
    Checkpoints(one).keep([288])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    before = files_of(tmp_path)
    for path, settings, sentence in (
        (stepped, {"from_step": 100}, "there is no checkpoint at 100; the nearest is 128"),
        (damaged, {"from_step": 128}, "the checkpoint at 128 of run .* cannot be used: .*name another one"),
        (stepped, {"from_step": "bst"}, "from_step='bst' is neither"),
        (without, {"from_step": "best"}, "holds no checkpoint that is sound"),
        (one, {"from_step": "best"}, "no checkpoint of run .* was written at an evaluation"),
        (stepped, {"from_step": 256, "run_dir": str(tmp_path / "taken")}, "is not empty and holds no run"),
        (stepped, {"from_step": 256, "run_dir": str(damaged)}, "already holds another run"),
        (stepped, {"from_step": 256, "num_envs": 8}, "num_envs=8 cannot be changed"),
        (
            stepped,
            {"from_step": 256, "total_steps": 260},
            "leaves nothing to train after the checkpoint at 256",
        ),
        (stepped, {"run_dir": str(tmp_path / "new")}, "run_dir=.* has no effect on a run that is resumed"),
    ):
        with pytest.raises(shoal.ShoalError, match=sentence):
            resume(path, **{"run_dir": str(tmp_path / "new")} | settings)
        assert files_of(tmp_path) == before


def test_a_run_that_inherited_parameters_begins_anew_from_them(whole, tmp_path):
    """And what it started from stays in its `config.json` when its settings change."""
    expected = train(tmp_path / "expected", start_from=whole.path)
    path = end(1, tmp_path / "run", start_from=whole.path)
    shutil.rmtree(path / "checkpoints")
    assert_same(resume(path), expected)
    resume(path, total_steps=32 * 13)
    assert json.loads((path / "config.json").read_text())["from"] == str(whole.path)
