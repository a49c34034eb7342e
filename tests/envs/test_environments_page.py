"""The page on environments: its code runs, from top to bottom, and the checker finds nothing in it."""

import pathlib
import re
import sys

import pytest

from shoal.envs import make, registry
from shoal.envs.checking.checker import check

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "environments.md"


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Saves the page's module where it can be imported; returns the other blocks of Python."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (module,) = (block for block in blocks if block.startswith("# walk.py"))
    (tmp_path / "walk.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    yield [block for block in blocks if block is not module]
    sys.modules.pop("walk", None)


def test_the_code_of_the_page_runs(own_module):
    assert len(own_module) == 9
    # In one namespace, as a reader would; a module of its own, since dataclasses look annotations up there.
    namespace = {"__name__": __name__}
    for block in own_module:
        exec(compile(block, str(PAGE), "exec"), namespace)


@pytest.mark.parametrize("parameters", [{}, {"slip": 0.2, "length": 9, "max_episode_steps": 100}])
@pytest.mark.full
@pytest.mark.rare("parameters0", "parameters1")
def test_the_checker_finds_nothing_in_its_environment(own_module, parameters):
    assert check(make("walk:Walk", **parameters)) == []
