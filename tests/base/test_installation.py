"""The revision of a checkout and of a copy, and the commands that install further packages."""

import importlib.util
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import shoal
from shoal.base import installation

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def git(root, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def package(tmp_path):
    """The package of a checkout without a repository."""
    package = tmp_path / "src" / "shoal"
    (package / "base").mkdir(parents=True)
    shutil.copy(installation.__file__, package / "base")
    return package


def commit(root):
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "a")
    return git(root, "rev-parse", "HEAD")


def test_the_revision_is_that_of_the_checkout(tmp_path, package):
    assert Path(shoal.__file__).resolve().parent == installation.PACKAGE
    assert installation.revision(package) is None  # no repository
    git(tmp_path, "init", "--quiet")
    assert installation.revision(package) is None  # no commit
    revision = commit(tmp_path)
    assert installation.revision(package) == revision and len(revision) == 40
    (package / "b.py").write_text("")
    assert installation.revision(package) == f"{revision}-dirty"
    installed = tmp_path / ".venv" / "lib" / "shoal"
    installed.mkdir(parents=True)
    assert installation.revision(installed) is None


def test_without_git_there_is_no_revision(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert installation.revision(tmp_path / "src" / "shoal") is None


def test_a_built_package_knows_the_revision_that_it_was_built_from(tmp_path, package, monkeypatch):
    interface = types.SimpleNamespace(BuildHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)

    def included(target, version="standard"):
        """The text that the hook adds, by its path."""
        hook = runpy.run_path(str(ROOT / "hatch_build.py"))["RevisionHook"]()
        hook.root, hook.target_name, data = str(tmp_path), target, {"force_include": {}}
        hook.initialize(version, data)
        texts = {path: Path(file).read_text() for file, path in data["force_include"].items()}
        hook.finalize(version, data, "")
        assert not any(map(Path.exists, map(Path, data["force_include"])))
        return texts

    assert included("wheel") == {}  # no repository
    text = f"{commit(tmp_path)}\n"
    assert included("wheel") == {"shoal/revision.txt": text}
    assert included("wheel", "editable") == {}
    (path,) = included("sdist")
    shutil.rmtree(tmp_path / ".git")
    (tmp_path / path).write_text(text)  # as the source distribution is unpacked
    assert included("wheel") == {}  # it is a file of the package then
    assert installation.revision(package) == text.strip()


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_of_an_extra_are_those_of_pyproject(extra):
    assert sorted(installation.packages_of(extra)) == sorted(
        x.replace(">= ", ">=") for x in EXTRAS[extra]
    )  # of the installed distribution's metadata


def test_the_command_installs_into_the_environment_that_runs(tmp_path, package, monkeypatch):
    needed = ["gymnax>=1.0.1", "six>=1.16"]
    python = [sys.executable, "-m", "pip", "install", *needed]
    assert shlex.split(installation.install_command("gymnax")) in (
        python,
        ["make", "extras", "EXTRAS=gymnax"],
        ["make", "-C", str(ROOT), "extras", "EXTRAS=gymnax"],
    )
    monkeypatch.setattr(installation, "PACKAGE", package)
    (tmp_path / "Makefile").write_text("")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "another"))  # an editable installation elsewhere
    monkeypatch.setattr(importlib.util, "find_spec", {"pip": True}.get)
    assert shlex.split(installation.install_command("gymnax")) == python
    monkeypatch.setattr(importlib.util, "find_spec", {}.get)
    uv = ["uv", "pip", "install", "--python", sys.executable, *needed]
    assert shlex.split(installation.install_command("gymnax")) == uv
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert installation.install_command("gymnax") == f"make -C {tmp_path} extras EXTRAS=gymnax"
    monkeypatch.chdir(tmp_path)
    assert installation.install_command("gymnax") == "make extras EXTRAS=gymnax"


@pytest.mark.parametrize("has_uv", [False, True])
def test_the_makefile_keeps_the_installation_editable_and_gives_it_pip(tmp_path, has_uv):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "bin").mkdir()
    if has_uv:
        (tmp_path / "bin" / "uv").write_text("#!/bin/sh\n")
        (tmp_path / "bin" / "uv").chmod(0o755)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    command = [
        "make",
        "-n",
        "-f",
        str(ROOT / "Makefile"),
        "extras",
        "EXTRAS=gymnax,wandb",
        f"PYTHON={sys.executable}",
    ]
    planned = subprocess.run(
        command, cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=True
    ).stdout
    tool = (
        f"{tmp_path}/bin/uv pip install --quiet --python .venv/bin/python"
        if has_uv
        else ".venv/bin/python -m pip"
    )
    last = planned.splitlines()[-1]
    assert last.startswith(tool) and last.endswith("--editable '.[gymnax,wandb]'")
    assert "uv venv --quiet --seed" in planned if has_uv else "-m venv .venv" in planned


def test_every_command_that_pages_and_sentences_name_works():
    """`shoal` is on no index, and a copy in the place of an editable installation would ignore later edits."""
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("src/**/*.toml"),
    ]
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages}
    wrong = re.compile(r"pip install (?:\S+ )*'?(?:shoal\b|\.(?:\[|$|\s))", re.MULTILINE)
    assert {page: found for page, text in texts.items() if (found := wrong.findall(text))} == {}
    named = {
        x
        for text in texts.values()
        for words in re.findall(r"EXTRAS=([a-z,]+)", text)
        for x in words.split(",")
    }
    assert named <= EXTRAS.keys() and len(named) > 8
