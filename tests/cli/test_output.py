"""What a command does where its standard streams are closed, full, or read by nobody, and where matplotlib fails."""

import ast
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import cli
from shoal.cli import COMMANDS, SAVING_COMMANDS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="streams are closed as POSIX does")

# A command in a process of its own, which computes nothing: a run prints its result, another command its answer.
SCRIPT = """
import sys, types
from pathlib import Path
from shoal import cli
from shoal.cli import output
name = sys.argv[1]
module = types.ModuleType(f"shoal.cli.{name}")
def main(arguments):
    if arguments == ["--help"]:
        print("a page")
        raise SystemExit(0)
    if name in cli.SAVING_COMMANDS:
        output.print_result("a result", Path("runs/x"))
    else:
        print("an answer")
    print("a note", file=sys.stderr)
    return 1 if arguments == ["--finds-something"] else 0
module.main = main
if name in cli.COMMANDS:
    sys.modules[f"shoal.cli.{name}"] = module
sys.exit(cli.main())
"""
REASONS = {
    "closed": "Bad file descriptor",
    "full": "No space left on device",
    "gone": "Broken pipe",
}
OTHERS = [name for name in COMMANDS if name not in SAVING_COMMANDS]


def run(words, how, stream="1", code=SCRIPT, **more):
    """Run a command with a broken standard output (1) or error (2); return its status and what it wrote."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    shell = f'exec "$@" {stream}>{"&-" if how == "closed" else "/dev/full"}'
    words = [sys.executable, "-c", code, *words]
    streams = {"1": subprocess.PIPE, "2": subprocess.PIPE} | ({stream: write_end} if how == "gone" else {})
    with contextlib.closing(os.fdopen(write_end)):
        done = subprocess.run(
            words if how == "gone" else ["sh", "-c", shell, "sh", *words],
            stdout=streams["1"], stderr=streams["2"], text=True, check=False, timeout=240, **more,
        )  # fmt: skip
    return done.returncode, done.stdout or "", done.stderr or ""


@pytest.mark.quick("train-closed", "train-full", "train-gone")
@pytest.mark.parametrize("how", REASONS)
@pytest.mark.parametrize("name", SAVING_COMMANDS)
def test_a_run_whose_result_cannot_be_printed_ends_as_the_run_did(name, how):
    reason = f"the result cannot be written to standard output: {REASONS[how]}"
    assert run([name], how) == (0, "", f"shoal: {reason}; it is in runs/x.\na note\n")


@pytest.mark.quick("envs-closed", "envs-full", "envs-gone", "--help-full")
@pytest.mark.parametrize("how", REASONS)
@pytest.mark.parametrize("word", [*OTHERS, "--help", "help", "--version"])
def test_an_answer_that_cannot_be_printed_is_an_error_unless_the_reader_has_gone(word, how):
    status, printed, told = run([word], how)
    note = "a note\n" if word in OTHERS else ""
    sentence = f"shoal: the result cannot be written to standard output: {REASONS[how]}.\n"
    assert (status, printed) == (0 if how == "gone" else 2, "")
    assert told == note + ("" if how == "gone" else sentence)


@pytest.mark.parametrize(("how", "status"), [("closed", 2), ("full", 2), ("gone", 0)])
def test_a_page_of_a_command_that_cannot_be_printed_is_an_error_too(how, status):
    found, _, told = run(["train", "--help"], how)
    assert (found, told.count("the result cannot be written to standard output")) == (status, status // 2)


@pytest.mark.parametrize("how", REASONS)
@pytest.mark.parametrize(
    ("words", "status"), [(["train"], 0), (["check", "--finds-something"], 1), (["x"], 2)]
)
def test_a_broken_standard_error_changes_nothing(words, status, how):
    printed = {"train": "a result\n", "check": "an answer\n", "x": ""}[words[0]]
    assert run(words, how, stream="2") == (status, printed, "")


def test_text_that_the_terminal_cannot_show_is_no_error():
    code = SCRIPT.replace("a result", "\\u03b3 = \\udcff")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-c", code, "train"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "\\u03b3 = \\udcff\n")


def test_commands_that_save_print_nothing_but_the_result():
    for name in (*SAVING_COMMANDS, "searching"):
        tree = ast.parse((Path(cli.__file__).parent / f"{name}.py").read_text())
        calls = [x.func for x in ast.walk(tree) if isinstance(x, ast.Call)]
        assert not [x for x in calls if isinstance(x, ast.Name) and x.id == "print"]


BANDIT = "--algorithm tiny_bandit:BanditConfig --devices 1 --quiet"
SMALL = f"probe/action {BANDIT} --num-envs 4 --num-steps 8 --total-steps 64"


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        (f"train {SMALL} --eval-episodes 4 --seeds 1 --run-dir", "learning_curve.png"),
        (
            f"sweep {SMALL} --eval-episodes 4 --seeds 1 --grid step_size=0.1,1.0 --confirm-seeds 0 --run-dir",
            "settings.png",
        ),
        (
            f"pbt {SMALL} --members 5 --tune step_size=log:0.01:1 --eval-episodes 32 --ready-every 32 "
            "--checkpoint-every 32 --run-dir",
            "lineage.png",
        ),
    ],
    ids=["train", "sweep", "pbt"],
)
@pytest.mark.quick("train")
@pytest.mark.rare("pbt")
def test_a_matplotlib_that_fails_costs_only_the_pictures(words, lost, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("Failed to process string with tex because latex could not be found")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert cli.main([*words.split(), str(tmp_path / "run")]) == 0
    told = capsys.readouterr()
    assert str(tmp_path / "run") in told.out.splitlines()[-1]
    warnings = [line for line in told.err.splitlines() if "cannot be drawn" in line]
    assert (
        sum(f"{lost} cannot be drawn: RuntimeError: Failed to process string with tex" in x for x in warnings)
        == 1
    )
    assert len(set(warnings)) == len(warnings)
    assert not (tmp_path / "run" / lost).exists()


def test_a_backend_that_matplotlib_lacks_is_named(tmp_path):
    code = (
        "from pathlib import Path; from shoal.reports import figures; path = Path('x.png')\n"
        "with figures.as_warning(path):\n"
        "    figures.save(figures.new_figure(), path)\n"
        "figures.require_drawing(path)"
    )
    words, environment = [sys.executable, "-c", code], os.environ | {"MPLBACKEND": "nonsense"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if line.startswith("shoal")]
    assert len(lines) == 2  # the warning, and the error
    assert lines[0].startswith("shoal: x.png cannot be drawn: ValueError: ")
    assert lines[0].endswith("(MPLBACKEND=nonsense).")
    assert lines[1] == f"shoal.base.errors.ShoalError: {lines[0].removeprefix('shoal: ')}"


@pytest.mark.full
@pytest.mark.parametrize("how", REASONS)
@pytest.mark.rare("full", "gone")
def test_a_whole_run_without_output_and_pictures_is_sound(how, tmp_path):
    folder = next(x for x in sys.path if (Path(x) / "tiny_bandit.py").is_file())
    environment = os.environ | {"MPLBACKEND": "nonsense", "PYTHONPATH": os.pathsep.join([*sys.path, folder])}
    words = [*f"train {SMALL} --eval-episodes 4 --seeds 1 --run-dir".split(), str(tmp_path / "run")]
    code = "import sys; from shoal.cli import main; sys.exit(main())"
    status, _, told = run(words, how, code=code, env=environment)
    assert status == 0, told
    assert [line.partition(": ")[2].partition(" cannot be ")[0] for line in told.splitlines()] == [
        str(tmp_path / "run" / "learning_curve.png"),
        "the result",
    ]
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_result_cannot_control_the_terminal(tmp_path):
    """Of the standard output of a process of its own; the live line on standard error needs its escapes."""
    code = (
        "import sys; from shoal.cli.output import protect_streams; protect_streams(); "
        "print('\\x1b[31mred'); print('\\x1b[2K', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"\\x1b[31mred\n" and done.stderr == b"\x1b[2K\n"
