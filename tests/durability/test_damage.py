"""Damage to a run directory: each kind is named, the newest checkpoint that can be used is used, nothing is lost."""

import contextlib
import json
import re
import shutil

import pytest
from forged import forge
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig

import shoal
from shoal.cli import main
from shoal.envs.probes import ActionReward
from shoal.records import array_file
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.runs.train import compiled_trainer
from shoal.runs.train.pacing import Pacer

pytestmark = pytest.mark.usefixtures("undrawn")

SETTINGS = {
    **{"seeds": 2, "num_envs": 4, "num_steps": 8, "total_steps": 32 * 12, "num_evals": 3, "log_every": 64},
    **{"eval_episodes": 4, "devices": 1, "progress": False, "checkpoint_every": 64, "keep": 10},
}
ALL = [64 * k for k in range(7)]


def train(path, **settings):
    return shoal.train(ActionReward(), algorithm=BanditConfig(), run_dir=path, **SETTINGS | settings)


def resume(path, **settings):
    return shoal.resume(path, environment=ActionReward(), **settings)


@pytest.fixture(scope="module", autouse=True)
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pacer, "size", lambda self, left: 1)
        patch.setattr("shoal.runs.train.checkpointing.REST", 0)
        patch.setattr("shoal.runs.train.checkpointing.RunSupervisor._submit", _submit_and_wait())
        patch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
        yield


def _submit_and_wait():
    """A checkpoint at each point, however slow the disk is."""
    from shoal.runs.train.checkpointing import RunSupervisor

    submit = RunSupervisor._submit

    def called(self, *arguments):
        submit(self, *arguments)
        self._writer.wait()

    return called


@pytest.fixture(scope="module")
def whole(small_pieces, tmp_path_factory):
    """A run that nobody damaged, and the shapes of its population."""
    shapes = []
    original = compiled_trainer.compile_run

    def compile_run(*arguments, **keywords):
        compiled = original(*arguments, **keywords)
        shapes.append(compiled.shapes)
        return compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_trainer, "compile_run", compile_run)
        run = train(tmp_path_factory.mktemp("whole") / "run")
    assert Checkpoints(run.path).steps() == ALL
    return run, shapes[0]


@pytest.fixture(scope="module")
def another(small_pieces, tmp_path_factory):
    """A run of another seed, whose checkpoints have the same leaves."""
    return train(tmp_path_factory.mktemp("another") / "run", seed=7).path


@pytest.fixture
def path(whole, tmp_path):
    """A copy of the run as it was after the checkpoint at 320: unfinished."""
    path = tmp_path / "run"
    shutil.copytree(whole[0].path, path)
    (path / "summary.json").unlink()
    for name in ("best", "last", "checkpoints/384"):
        (path / f"{name}.safetensors").unlink()
    return path


class ChosenError(shoal.ShoalError):
    """The checkpoint was chosen; nothing needs to be compiled to see that."""


@contextlib.contextmanager
def only_choosing(shapes):
    """Let a run choose its checkpoint, and end there."""

    def compile_run(*_, check=lambda shapes: None, restore=None, **__):
        check(shapes)
        raise ChosenError(restore.__self__.steps if restore is not None else None)  # of its `Restoration`

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_trainer, "compile_run", compile_run)
        yield


WALL_TIME = ("seconds", "time", "per_second")


def rows(path):
    return [
        {name: x for name, x in row.items() if not any(word in name for word in WALL_TIME)}
        for row in RunDirectory.open(path).load_metrics()
    ]


def assert_same(run, whole):
    assert rows(run.path) == rows(whole.path)
    for name in ("parameters_sha256", "absolute", "final", "evaluation", "steps_per_seed"):
        assert run.summary[name] == whole.summary[name]
    for which in ("best", "last"):
        first, second = (directory / f"{which}.safetensors" for directory in (run.path, whole.path))
        assert first.read_bytes() == second.read_bytes()


def place(path, steps):
    return path / "checkpoints" / f"{steps}.safetensors"


def files_of(folder):
    """The content of all files below a folder, so that nothing of it can be lost unseen."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def with_another_shape(record):
    leaves = record["leaves"]
    name = next(name for name, leaf in leaves.items() if leaf["shape"] == [2, 4])
    leaves[name]["shape"] = [2, 5]


# name of the damage -> (what is done to the newest checkpoint, given another run's; what is said of it)
DAMAGE = {
    "truncated": (lambda f, o: truncate(f), "is truncated to"),
    "flipped": (lambda f, o: flip(f), "was altered"),
    "emptied": (lambda f, o: f.write_bytes(b""), "is empty"),
    "begins with another": (
        lambda f, o: f.write_bytes(o.read_bytes()[:2000] + f.read_bytes()[2000:]),
        "was altered|is truncated|bytes instead of",
    ),
}
# The same for what no checksum finds: the one before is used as well, and the file keeps its name.
UNUSABLE = {
    "a folder in its place": (lambda f, o: [f.unlink(), f.mkdir()], "it is a folder, not a file"),
    "an older one renamed": (
        lambda f, o: shutil.copy(place(f.parent.parent, 256), f),
        "it is the checkpoint at 256",
    ),
}
# The same for what is sound and does not fit the code, the versions or the settings: the run is refused.
MISFITS = {
    "of another run": (lambda f, o: shutil.copy(o, f), "seed is 7, and 0 here"),
    "of another algorithm's settings": (
        lambda f, o: forge(f, lambda x: x["record"]["identity"]["run"].update(num_steps=16)),
        "num_steps is 16, and 8 here",
    ),
    "of another environment": (
        lambda f, o: forge(f, lambda x: x["record"]["identity"]["environment"].update(name="Other")),
        "name is 'Other'",
    ),
    "of a newer version": (
        lambda f, o: forge(f, lambda x: x.update(schema=array_file.SCHEMA + 1)),
        "its schema is 2, of a newer version of Shoal",
    ),
    "wrong shape": (
        lambda f, o: forge(f, with_another_shape),
        r"of shape \(2, 5\), and \(2, 4\) is expected",
    ),
    "wrong dtype": (
        lambda f, o: forge(f, lambda x: x["leaves"]["updates"].update(dtype="int64")),
        "'updates' of dtype int64, and int32 is expected",
    ),
    "missing leaf": (
        lambda f, o: forge(f, lambda x: x["leaves"].pop("updates") and x),
        "it has no 'updates'",
    ),
}


@pytest.mark.parametrize("kind", [*DAMAGE, *UNUSABLE])
@pytest.mark.quick("flipped", "an older one renamed")
@pytest.mark.rare("truncated")
def test_a_checkpoint_that_cannot_be_used_is_named_and_the_one_before_is_used(
    kind, path, another, whole, capsys
):
    """It is set aside where a checksum says that it is damaged, and only there."""
    damage, sentence = (DAMAGE | UNUSABLE)[kind]
    damage(place(path, 320), place(another, 320))
    aside = path / "checkpoints" / "320.damaged" if kind in DAMAGE else place(path, 320)
    damaged = place(path, 320).is_file() and place(path, 320).read_bytes()
    with only_choosing(whole[1]), pytest.raises(ChosenError, match=r"^256\b"):
        resume(path)
    lines = [line for line in capsys.readouterr().err.splitlines() if "cannot be used" in line]
    assert len(lines) == 1
    assert lines[0].startswith("the checkpoint at 320 cannot be used: ")
    assert re.search(sentence, lines[0]), lines[0]
    assert lines[0].endswith("; it is now 320.damaged") == (kind in DAMAGE)
    assert (aside.is_file() and aside.read_bytes()) == damaged
    assert Checkpoints(path).steps() == (ALL[:-2] if kind in DAMAGE else ALL[:-1])


@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.quick("of another run", "of a newer version", "wrong dtype")
def test_a_sound_checkpoint_that_does_not_fit_is_refused_and_nothing_changes(
    kind, path, another, whole, capsys
):
    """Neither it nor a damaged one after it is renamed, and none of before is used in its place."""
    misfit, sentence = MISFITS[kind]
    misfit(place(path, 256), place(another, 256))
    truncate(place(path, 320))
    before = files_of(path)
    with only_choosing(whole[1]), pytest.raises(shoal.ShoalError, match=sentence) as error:
        resume(path)
    assert not isinstance(error.value, ChosenError)
    assert "its checkpoint at 256 is sound and does not fit" in str(error.value)
    assert "damaged" not in str(error.value) + capsys.readouterr().err
    assert files_of(path) == before


@pytest.mark.full
def test_several_damaged_ones_change_nothing_in_the_result(path, whole):
    """The newest three are of three kinds; the run goes on from the fourth, to the same end."""
    truncate(place(path, 320))
    place(path, 256).write_bytes(b"")
    flip(place(path, 192))
    run = resume(path, progress=False)
    assert_same(run, whole[0])
    assert Checkpoints(path).steps() == ALL
    aside = {folder.name for folder in (path / "checkpoints").iterdir() if "damaged" in folder.name}
    assert {name for name in aside if not name.endswith(".txt")} == {
        "320.damaged",
        "256.damaged",
        "192.damaged",
    }


@pytest.mark.parametrize("kind", ["shorter", "altered", "missing", "torn"])
def test_metrics_that_are_not_those_that_were_written(kind, path, whole, capsys):
    """A checkpoint that counts rows which are gone is not used, nor set aside: one from before them is."""
    metrics = path / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    marks = {
        steps: Checkpoints(path).info(steps).record["metrics"]["bytes"] for steps in Checkpoints(path).steps()
    }
    if kind == "shorter":
        metrics.write_bytes(metrics.read_bytes()[: marks[192]])
    elif kind == "torn":
        metrics.write_bytes(metrics.read_bytes()[: marks[192] + 10])
    elif kind == "altered":
        data = bytearray(metrics.read_bytes())
        data[marks[192] + 5] ^= 1
        metrics.write_bytes(bytes(data))
    else:
        metrics.unlink()
    assert len(lines) == len(rows(whole[0].path))
    expected = max(steps for steps in marks if marks[steps] <= marks[192]) if kind != "missing" else None
    if expected is None:
        with (
            only_choosing(whole[1]),
            pytest.raises(shoal.ShoalError, match=r"metrics\.jsonl does not fit it"),
        ):
            resume(path)
    else:
        with only_choosing(whole[1]), pytest.raises(ChosenError, match=rf"^{expected}\b"):
            resume(path)
    assert "metrics.jsonl does not fit it" in capsys.readouterr().err
    assert Checkpoints(path).steps() == ALL[:-1]


@pytest.mark.full
def test_shorter_metrics_are_written_again(path, whole):
    metrics = path / "metrics.jsonl"
    mark = Checkpoints(path).info(192).record["metrics"]["bytes"]
    metrics.write_bytes(metrics.read_bytes()[: mark + 10])
    assert_same(resume(path, progress=False), whole[0])


def test_if_all_are_damaged_nothing_is_started_over_or_deleted(path, whole):
    for steps in ALL[:-1]:
        flip(place(path, steps))
    before = files_of(path)
    for start in (resume, train):
        with (
            only_choosing(whole[1]),
            pytest.raises(shoal.ShoalError, match="it is not started over") as error,
        ):
            start(path)
        assert "\n" not in str(error.value)
    kept = set(files_of(path).values())
    assert set(before.values()) <= kept


@pytest.mark.parametrize(
    ("part", "name", "value", "sentence"),
    [
        ("run", "num_envs", 8, "num_envs is 4, and 8 here"),
        ("run", "seeds", 3, "seeds is 2, and 3 here"),
        ("run", "seed", 1, "seed is 0, and 1 here"),
    ],
)
def test_a_config_that_was_edited_does_not_go_with_the_checkpoints(path, whole, part, name, value, sentence):
    config = json.loads((path / "config.json").read_text())
    config[part][name] = value
    (path / "config.json").write_text(json.dumps(config))
    before = files_of(path)
    with only_choosing(whole[1]), pytest.raises(shoal.ShoalError, match=sentence):
        resume(path)
    assert files_of(path) == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": 3}', b"\xff\xfe"])
def test_a_config_that_is_damaged_is_refused_in_one_sentence(path, content, whole):
    (path / "config.json").write_bytes(content)
    before = files_of(path)
    with only_choosing(whole[1]), pytest.raises(shoal.ShoalError) as error:
        resume(path)
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)
    assert files_of(path) == before


def test_the_command_says_so_and_ends_with_2(path, capsys):
    assert main(["resume", str(path.parent)]) == 2
    assert "is not a run directory: it has no config.json" in capsys.readouterr().err
    assert main(["resume", str(path / "nowhere")]) == 2
    assert "there is no run directory" in capsys.readouterr().err
