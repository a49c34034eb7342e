"""The listings on the pages about extending are whole: each is saved under its name and used as its page does."""

import re
import sys
from pathlib import Path

import pytest

import shoal
from shoal.algos.ppo import PPOConfig
from shoal.base.imports import import_object
from shoal.config.settings import flat, with_settings
from shoal.nets.network_check import check_network
from shoal.types import spec_of

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("extending.md", "memory.md")]
NAMES = ("corridor", "my_net", "sized", "linear", "attention")


@pytest.fixture
def listings(tmp_path, monkeypatch):
    """Files with the page's listings, where `module:Name` finds them."""
    text = "".join(page.read_text() for page in PAGES)
    found = re.findall(r"`(\w+)\.py`:\n\n```python\n(.*?)```", text, re.DOTALL)
    assert tuple(name for name, _ in found) == NAMES
    for name, code in found:
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.full
def test_the_environment_is_sound(listings):
    assert shoal.check("corridor:Corridor", keys=4, steps=32) == []


def test_the_network_is_sound(listings):
    check_network(import_object("my_net:GatedActorCritic"), spec_of(shoal.make("CartPole-v1")))


def test_the_network_with_settings_is_sound(listings):
    config = with_settings(PPOConfig(), network="sized:Sized", width=8, num_minibatches=1)
    config.resolved().validate(spec_of(shoal.make("CartPole-v1")), 4, 8)
    assert flat(config)["width"] == 8


@pytest.mark.full
def test_the_network_with_memory_is_sound(listings):
    """The check, which replays steps, finds nothing; and a narrower window is a setting."""
    config = with_settings(PPOConfig(), network="attention:AttentionConfig", window=4, num_minibatches=1)
    config.resolved().validate(spec_of(shoal.make("MemoryChain-v0")), 4, 8)
    assert flat(config)["window"] == 4


@pytest.mark.slow
def test_the_network_with_memory_remembers(listings):
    """As on the page, with two seeds: a policy without memory has a return of 0."""
    run = shoal.train(
        "MemoryChain-v0",
        network="attention:AttentionConfig",
        seeds=2,
        progress=False,
        run_dir=listings / "run",
    )
    assert min(run.summary["absolute"]["returns"]) > 0.95


@pytest.mark.parametrize(
    ("num_steps", "total_steps", "least"),
    [(8, 256, 9), pytest.param(512, 500_000, 200, marks=pytest.mark.slow)],
)
@pytest.mark.full
def test_the_algorithm_learns(listings, num_steps, total_steps, least):
    """From about 22 by random actions, within half of the budget on the page."""
    run = shoal.train(
        "CartPole-v1",
        algorithm="linear:LinearConfig",
        **{
            "learning_rate": 0.5,
            "num_envs": 32,
            "num_steps": num_steps,
            "total_steps": total_steps,
            "seeds": 2,
        },
        **{"num_evals": 1, "devices": 1, "progress": False},
        run_dir=listings / "run",
    )
    assert min(run.summary["absolute"]["returns"]) > least
    assert shoal.load(run.path).config.learning_rate == 0.5
