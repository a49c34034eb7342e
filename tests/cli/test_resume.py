"""`shoal resume` and `shoal checkpoints`: what they print, and what they refuse."""

import json
import shutil

import pytest


@pytest.fixture(scope="module")
def path(trained, tmp_path_factory):
    """A copy of the run that the tests share, to be changed."""
    path = tmp_path_factory.mktemp("resume") / "run"
    shutil.copytree(trained[1], path)
    return path


def test_the_list_has_a_line_for_each_checkpoint(path, command, capsys):
    assert command("checkpoints", path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["steps", "age", "score", "size", "state"]
    assert lines[1].split()[0] == "0"
    assert lines[-1].split()[0] == "4,096"
    assert all(line.endswith("sound") for line in lines[1:])
    assert command("checkpoints", path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found[-1]["steps"] == 4096
    assert found[-1]["score"] is not None
    assert {row["problem"] for row in found} == {""}


def test_a_damaged_one_is_named_and_the_status_is_1(path, command, capsys):
    checkpoint = path / "checkpoints" / "0.safetensors"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:-1] + b"x")
    try:
        assert command("checkpoints", path) == 1
    finally:
        checkpoint.write_bytes(content)
    assert "it was altered" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.full
def test_a_finished_run_needs_more_steps_and_then_goes_on(path, command, capsys):
    assert command("resume", path) == 2
    assert "is finished, with 4,096 environment steps; give more total_steps" in capsys.readouterr().err
    assert command("resume", path, "--total-steps", "8192", "--quiet") == 0
    told = capsys.readouterr()
    assert "2 seeds, 8,192 steps each" in told.out
    assert told.err == ""


@pytest.mark.full
def test_a_new_run_goes_on_from_an_older_checkpoint(path, command, capsys):
    new = path.parent / "new"
    words = ["--run-dir", new, "--num-updates", 2 * 4096 // 512, "--quiet"]
    assert command("resume", path, "--from-step", "0", *words) == 0
    assert "2 seeds, 8,192 steps each" in capsys.readouterr().out
    assert json.loads((new / "summary.json").read_text())["resumed_from"] == {"run": str(path), "step": 0}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{path}", "--from-step", "5"], "there is no checkpoint at 5; the nearest is 0."),
        (["{path}", "--from-step", "last"], "leaves nothing to train after the checkpoint at 4,096"),
        (
            ["{path}", "--run-dir", "here"],
            "run_dir='here' has no effect on a run that is resumed in its own directory",
        ),
        (["{path}", "--num-updates", "1"], "is less than the 4,096 environment steps"),
        (["{path}/no"], "there is no run directory"),
        (["{path}", "--num-envs", "8"], "num_envs=8 cannot be changed in a resumed run (it has 4)"),
        (["{path}", "--num-env", "8"], "no flag '--num-env'; did you mean '--num-envs'?"),
        (["{path}", "--total-steps", "2048"], "total_steps=2048 is less than the 4,096 environment steps"),
        (["{path}", "more"], "takes one run directory, and was given"),
        (["{path}", "--keep", "0"], "keep=0 is out of bounds: it must be at least 1"),
        (
            ["{path}", "--checkpoint-seconds", "0"],
            "checkpoint_seconds=0 is out of bounds: it must be greater than 0",
        ),
        (["{path}", "--checkpoint-every", "0"], "checkpoint_every=0 is not a number of environment steps"),
        ([], "no run was named; give one, such as shoal resume"),
    ],
)
def test_what_cannot_be_is_one_sentence(path, command, capsys, words, sentence):
    assert command("resume", *[word.format(path=path) for word in words]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_the_help_shows_the_runs_settings(path, command, capsys):
    with pytest.raises(SystemExit):
        command("resume", path, "--help")
    assert "--total-steps" in capsys.readouterr().out
