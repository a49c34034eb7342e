import subprocess
import sys

import jax
import pytest

from shoal import cli
from shoal.base.errors import ShoalError
from shoal.base.signals import Interrupted


def test_help_names_every_command_and_imports_nothing_heavy():
    code = (
        "import sys; from shoal.cli import main; main(['--help']);"
        "print([x for x in ('jax', 'numpy') if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *page, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    assert all(any(line.startswith(f"  {name} ") for line in page) for name in cli.COMMANDS)


def test_every_command_has_a_module_with_help(command, capsys):
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as end:
            command(name, "--help")
        assert not end.value.code
        assert f"usage: shoal {name}" in capsys.readouterr().out


def test_help_of_a_command_may_be_asked_for_in_either_order(command, capsys):
    pages = []
    for words in (["help", "rollout"], ["rollout", "--help"]):
        with pytest.raises(SystemExit):
            command(*words)
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1] and pages[0].startswith("usage: shoal rollout ENV")
    assert command("help") == 0
    assert "`shoal --version` prints the version" in capsys.readouterr().out
    assert command("help", "trian") == 2
    assert "there is no command 'trian'" in capsys.readouterr().err


def test_no_words_show_the_help(command, capsys):
    assert command() == 0
    assert "usage: shoal" in capsys.readouterr().out


def test_version(command, capsys):
    import shoal

    assert command("--version") == 0
    assert capsys.readouterr().out == f"shoal {shoal.__version__}\n"
    assert command("--version", "--verbose") == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (rows["jax"], rows["shoal"]) == (jax.__version__, shoal.__version__)
    assert rows["devices"] == f"{jax.device_count()} of cpu (cpu)"
    assert command("--version", "--all") == 2
    as_module = subprocess.check_output([sys.executable, "-m", "shoal", "--version"], text=True)
    assert as_module == f"shoal {shoal.__version__}\n"


def test_an_unknown_command_names_the_nearest(command, capsys):
    assert command("trian") == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "shoal: there is no command 'trian'; there are train, resume, checkpoints, eval, export, sweep, tune, pbt, "
        "rollout, check, grid, envs, runs, compare, report, log; did you mean 'train'?\n"
    )


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (KeyboardInterrupt(), 130, "shoal: interrupted.\n"),
        (
            Interrupted("a"),
            75,
            "shoal: interrupted; the run is saved, and `shoal resume a` continues it.\n",
        ),
        (ShoalError("seeds=0 is too few"), 2, "shoal: seeds=0 is too few.\n"),
        (ShoalError("seeds=0 is too few."), 2, "shoal: seeds=0 is too few.\n"),
        (ShoalError("no 'x'; did you mean 'y'?."), 2, "shoal: no 'x'; did you mean 'y'?\n"),
    ],
)
def test_an_end_before_the_end_is_one_line(command, capsys, monkeypatch, error, status, sentence):
    from shoal.cli import envs

    def raising(_):
        raise error

    monkeypatch.setattr(envs, "main", raising)
    assert command("envs") == status
    assert capsys.readouterr().err == sentence


def test_a_mistake_in_the_program_keeps_its_traceback(command, monkeypatch):
    from shoal.cli import envs

    monkeypatch.setattr(envs, "environments", None)  # what Shoal's own code then calls is no function
    with pytest.raises(TypeError):
        command("envs")


def test_a_reader_that_goes_away_is_no_error():
    code = "import sys; from shoal.cli import main; sys.exit(main(['--help']))"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 0
