"""A user's modules by `module:Name`: what is found, and every way in which importing one may fail."""

import importlib
import io
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import shoal
from shoal.base.errors import ShoalError, UserCodeError
from shoal.base.imports import find_user_modules, import_name, import_object, import_package
from shoal.base.installation import install_command
from shoal.cli import main
from shoal.envs.registry import make

# (source, what is said after the name, the user's lines that are shown)
FAILURES = {
    "ValueError": ("x = 1\nraise ValueError('bad day')", "in mine.py, line 2: ValueError: bad day.", [2]),
    "TypeError": ("len(3)", "in mine.py, line 1: TypeError: object of type 'int' has no len().", [1]),
    "RuntimeError": ("raise RuntimeError", "in mine.py, line 1: RuntimeError.", [1]),
    "SyntaxError": ("x = 1\ndef f(:\n    pass", "in mine.py, line 2: SyntaxError: invalid syntax.", [2]),
    "IndentationError": (
        "def f():\npass",
        "in mine.py, line 2: IndentationError: expected an indented block",
        [2],
    ),
    "a null byte": ("x = '\0'", "source code string cannot contain null bytes", []),
    "not UTF-8": ("x = '\udcff'", "in mine.py, line 1: SyntaxError: ", [1]),
    "a dependency": (
        "import no_such_dependency",
        "in mine.py, line 1: ModuleNotFoundError: No module named 'no_such_dependency'.",
        [1],
    ),
    "a name": (
        "from math import tau, thau",
        "in mine.py, line 1: ImportError: cannot import name 'thau' from 'math'",
        [1],
    ),
    "itself": ("from mine import later", "in mine.py, line 1: ImportError: cannot import name 'later'", [1]),
    "exit 0": ("import sys\nsys.exit(0)", "in mine.py, line 2: SystemExit: 0, which ends the process.", [2]),
    "exit with words": (
        "raise SystemExit('bye')",
        "in mine.py, line 1: SystemExit: bye, which ends the process.",
        [1],
    ),
    "recursion": (
        "def f():\n    f()\nf()",
        "in mine.py, line 2: RecursionError: maximum recursion depth",
        [2],
    ),
    "a question": ("input('name? ')", "in mine.py, line 1: EOFError: EOF when reading a line.", [1]),
    "within a function": ("def f():\n    return {}['x']\nf()", "in mine.py, line 2: KeyError: 'x'.", [3, 2]),
    "Shoal's sentence": (
        "import shoal\n@shoal.environment\nclass World:\n    pass",
        "in mine.py, line 2: the environment World has no `observation_space`, which every environment needs.",
        [2],
    ),
    "a field of two kinds": (
        "import shoal\nfrom jax import Array\n@shoal.environment\nclass World:\n    x: Array | int\n"
        "    observation_space = action_space = reset = step = None",
        "in mine.py, line 3: TypeError: field 'x' is declared",
        [3],
    ),
    "the lookup": (
        "def __getattr__(name):\n    raise OSError(name)",
        "in mine.py, line 2: OSError: World.",
        [2],
    ),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes `mine.py`, which can be imported from the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(source: str, name: str = "mine") -> None:
        (tmp_path / f"{name}.py").write_bytes(source.encode("utf-8", "surrogateescape"))

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("case", FAILURES)
def test_a_module_that_cannot_be_imported(module, case, tmp_path, capsys, monkeypatch):
    source, sentence, lines = FAILURES[case]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    module(source)
    with pytest.raises(UserCodeError) as raised:
        import_object("mine:World")
    said = str(raised.value)
    assert said.startswith("importing 'mine:World' failed")
    assert sentence in said
    assert "\n" not in said
    assert said.endswith(".")
    assert raised.value.__cause__ is not None
    for line in lines:
        assert f'File "{tmp_path / "mine.py"}", line {line}' in raised.value.frames
    shown = [line for line in raised.value.frames.splitlines() if line.startswith("  File ")]
    assert all("mine.py" in line for line in shown)  # none of importlib's, Shoal's or this test's
    assert len({line.partition(" line ")[2] for line in shown}) == len(lines)

    assert main(["check", "mine:World"]) == 2
    told = capsys.readouterr()
    assert told.err.splitlines()[0] == f"shoal: {said}"
    assert told.err.rstrip("\n").split("\n")[1:] == raised.value.frames.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "mine:World"],
        ["train", "CartPole-v1", "--network", "mine:World"],
        ["train", "CartPole-v1", "--algorithm", "mine:World"],
        ["train", "CartPole-v1", "--score", "mine:World"],
        ["train", "CartPole-v1", "--eval-metrics", "mine:World"],
        ["rollout", "mine:World"],
        ["check", "mine:World"],
        ["envs", "mine:World"],
    ],
)
def test_whatever_is_imported_is_named(module, words, capsys, tmp_path):
    module("raise ValueError('bad day')")
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "shoal: importing 'mine:World' failed in mine.py, line 1: ValueError: bad day.\n  File "
    )
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


def test_what_a_module_imports_in_turn_is_named_with_its_own_line(module):
    module("import theirs")
    module("x = 1\ny = x / 0", "theirs")
    with pytest.raises(UserCodeError, match=r"failed in theirs\.py, line 2: ZeroDivisionError") as raised:
        import_object("mine:World")
    assert raised.value.frames.index("mine.py") < raised.value.frames.index("theirs.py")
    module("x = (", "theirs")
    with pytest.raises(UserCodeError, match=r"failed in theirs\.py, line 1: SyntaxError") as raised:
        import_object("mine:World")
    assert raised.value.frames.index("mine.py") < raised.value.frames.index("theirs.py")


def test_an_interrupt_passes(module):
    module("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        import_object("mine:World")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mine", "'mine' is not module:Name, such as my_package.my_module:MyClass."),
        (":World", "is not module:Name"),
        ("mine:", "is not module:Name"),
        (
            "mine.py:World",
            "there is no module 'mine.py', since a module is named by words with dots between; did you ",
        ),
        ("./worlds/mine.py:World", "did you mean 'worlds.mine:World'?"),
        (".mine:World", "did you mean 'mine:World'?"),
        ("a b:World", "there is no module 'a b', since a module is named by words with dots between."),
        ("..:World", "there is no module '..'"),
        ("nowhere:World", "'nowhere:World' cannot be imported: there is no module 'nowhere'."),
        ("mime:World", "there is no module 'mime'; did you mean 'mine'?"),
        ("mine.worlds:World", "there is no module 'mine.worlds'"),
        ("mine:Wold", "'mine:Wold' cannot be imported: mine has no 'Wold'; did you mean 'World'?"),
        ("mine:World.Inner.Depth", "mine has no 'World.Inner.Depth'"),
    ],
)
def test_a_name_that_names_nothing(module, name, sentence):
    module("class World:\n    class Inner:\n        pass")
    with pytest.raises(ShoalError) as raised:
        import_object(name)
    assert sentence in str(raised.value)
    assert not isinstance(raised.value, UserCodeError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["check", "mine:number"], "mine:number is of type int, not a class or function"),
        (["check", "mine:Other"], "mine:Other made a Other, which has no `observation_space`"),
        (["check", "mine:Failing"], "Failing.__init__ failed in mine.py, line 6: OSError: no map."),
        (
            ["train", "CartPole-v1", "--network", "mine:number"],
            "network 3 cannot be built as 3(spec, key=key): 'int' object is not callable.",
        ),
        (["train", "CartPole-v1", "--algorithm", "mine:Other"], "'mine:Other' is not an algorithm's config"),
        (["train", "CartPole-v1", "--score", "mine:number"], "score='mine:number' is not a function."),
    ],
)
def test_what_is_imported_but_does_not_fit(module, words, sentence, capsys):
    module(
        "number = 3\nclass Other:\n    pass\nclass Failing:\n    def __init__(self):\n        raise OSError('no map')"
    )
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_what_a_module_prints_is_left_alone(module, capsys):
    module("print('loading')\nWorld = 3")
    assert import_object("mine:World") == 3
    assert capsys.readouterr().out == "loading\n"


def test_what_is_inside_of_a_class_is_found_by_its_own_name(module):
    module("class World:\n    class Inner:\n        pass")
    found = import_object("mine:World.Inner")
    assert found.__name__ == "Inner"
    assert import_object(import_name(found)) is found


def test_a_module_that_calls_shoal_names_its_own_line(module):
    module("import shoal\nWorld = shoal.make('CartPole-v1', gravty=1.0)")
    with pytest.raises(
        ShoalError, match=r"failed in mine\.py, line 2: CartPole-v1 has no parameter 'gravty'"
    ):
        make("mine:World")
    assert issubclass(UserCodeError, shoal.ShoalError)


@pytest.mark.parametrize("inside", ["evil:Name", "runs.stranger.evil:Name", "runs.stranger:Name"])
def test_code_inside_of_a_run_directory_is_never_imported(tmp_path, monkeypatch, inside):
    """From above, from within, and as a package; nothing of it runs."""
    run = tmp_path / "runs" / "stranger"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").touch()
    for name in ("evil.py", "__init__.py"):
        (run / name).write_text(
            f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nName = 1\n"
        )
    monkeypatch.setattr(sys, "path", [str(run if inside.startswith("evil") else tmp_path), *sys.path])
    with pytest.raises(ShoalError, match=r"lies in the run directory .* is never run"):
        import_object(inside)
    assert not (tmp_path / "ran").exists()
    (run / "metrics.jsonl").unlink()  # a folder of a user's own modules may hold a config.json
    importlib.invalidate_caches()
    assert import_object(inside) == 1
    for name in list(sys.modules):
        if name.split(".")[0] in ("evil", "runs"):
            del sys.modules[name]


WORLD = """
import neighbour  # of the same folder

import jax.numpy as jnp
from shoal import environment, restart, transition
from shoal.types.spaces import Box, Discrete


@environment
class World:
    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        import later  # not before the first episode

        return (), restart(jnp.full(1, later.VALUE))

    def step(self, state, action, key):
        return (), transition(jnp.zeros(1), neighbour.VALUE, terminated=True)
"""


def test_files_that_are_named_like_modules_of_others_are_not_imported_in_their_place(tmp_path):
    """A user's module, its neighbours, and their neighbours are found, behind the standard library and packages."""
    for name in ("random", "secrets", "ast", "numpy", "optuna", "tomllib", "matplotlib"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the file of the current directory')")
    (tmp_path / "mine.py").write_text(WORLD)
    (tmp_path / "neighbour.py").write_text("VALUE = 1.0")
    (tmp_path / "later.py").write_text("VALUE = 0.5")
    words = ["rollout", "mine:World", "--envs", "2", "--steps", "4", "--devices", "1"]
    command = [Path(sys.executable).with_name("shoal"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mean return 1.00" in done.stdout


def test_a_file_that_another_module_hides_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("World = None")
    assert main(["envs", "random:World"]) == 2
    assert capsys.readouterr().err == (
        "shoal: 'random:World' cannot be imported: random has no 'World'; this is not 'random.py' of the current "
        "directory, which needs another name to be found.\n"
    )


def test_the_current_directory_is_for_what_is_looked_up_there_and_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_the_user.py").write_text("def load():\n    import beside_it\n    return beside_it")
    (tmp_path / "beside_it.py").touch()
    (tmp_path / "other_package").mkdir()
    (tmp_path / "other_package" / "part.py").write_text("Name = 1")
    find_user_modules()
    before, paths = set(sys.modules), list(sys.path)
    try:
        for name in ("of_the_user", "beside_it", "other_package"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(name)  # as a library, or Shoal, would import an optional module
        assert import_object("other_package.part:Name") == 1
        assert import_object("of_the_user:load")().__name__ == "beside_it"
        assert sys.path == paths
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


def test_a_package_that_is_missing_or_old_or_lacks_another_one_is_one_sentence(monkeypatch, tmp_path):
    def error(*arguments):
        with pytest.raises(ShoalError) as caught:
            import_package("this needs", *arguments)
        return str(caught.value)

    command = f"`{install_command('wandb')}` installs"
    assert import_package("this needs", "numpy", "wandb", "1.2.3", "numpy.linalg") is numpy.linalg
    assert (
        error("no_package", "wandb", "1") == f"this needs no_package, which is not installed; {command} it."
    )
    assert error("numpy", "wandb", "99.1") == (
        f"this needs numpy 99.1 or newer, and {numpy.__version__} is installed; {command} a newer one."
    )
    (tmp_path / "half_installed.py").write_text("import missing_package.part")
    monkeypatch.syspath_prepend(tmp_path)
    needs_another = error("numpy", "wandb", "", "half_installed")
    assert needs_another == f"this needs missing_package, which is not installed; {command} it."
