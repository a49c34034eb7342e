"""The algorithm and the network with memory on the pages about extending learn what the pages say."""

import re
import sys
from pathlib import Path

import pytest

import shoal

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("extending.md", "memory.md")]
pytestmark = pytest.mark.slow


@pytest.fixture
def listings(tmp_path, monkeypatch):
    """Files with the pages' listings, where `module:Name` finds them."""
    text = "".join(page.read_text() for page in PAGES)
    found = re.findall(r"`(\w+)\.py`:\n\n```python\n(.*?)```", text, re.DOTALL)
    for name, code in found:
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, _ in found:
        sys.modules.pop(name, None)


def test_the_network_with_memory_remembers(listings):
    """As on the page, with two seeds: a policy without memory has a return of 0."""
    settings = {"network": "attention:AttentionConfig", "seeds": 2, "progress": False}
    run = shoal.train("MemoryChain-v0", **settings, run_dir=listings / "run")
    assert min(run.summary["absolute"]["returns"]) > 0.95


def test_the_algorithm_learns(listings):
    """From about 22 by random actions, within half of the budget on the page."""
    run = shoal.train(
        "CartPole-v1",
        algorithm="linear:LinearConfig",
        **{"learning_rate": 0.5, "num_envs": 32, "num_steps": 512, "total_steps": 500_000, "seeds": 2},
        **{"num_evals": 1, "devices": 1, "progress": False},
        run_dir=listings / "run",
    )
    assert min(run.summary["absolute"]["returns"]) > 200
    assert shoal.load(run.path).config.learning_rate == 0.5
