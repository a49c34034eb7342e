"""Presets: data whose every entry is a setting that exists, for an environment that exists."""

from types import SimpleNamespace

import pytest

from shoal import envs
from shoal.algos import catalogue
from shoal.config.settings import settings_of
from shoal.envs.suites.families import FAMILIES
from shoal.records.run_config import RunConfig
from shoal.runs.plan import presets
from shoal.runs.plan.decide import decide
from shoal.runs.train import planning

ENTRIES = [
    (environment, algorithm, name, value)
    for environment in presets.environments()
    for trials in (False, True)
    for algorithm, settings in presets.presets_of(environment, trials=trials).items()
    for name, value in settings.items()
]
NAMES = {*envs.environments(), *(x.prefix + name for x in FAMILIES.values() for name in x.names)}


def fields_of(config_class):
    return {name: setting.declared for name, setting in settings_of(config_class()).items()}


@pytest.mark.parametrize(("environment", "algorithm", "name", "value"), ENTRIES)
def test_every_entry_is_a_setting_of_its_type(environment, algorithm, name, value):
    assert environment in NAMES
    declared = (fields_of(catalogue.config_class(algorithm)) | fields_of(RunConfig)).get(name)
    assert declared is not None, f"{algorithm} has no setting {name!r}"
    if declared in (int, "int"):
        assert isinstance(value, int) and not isinstance(value, bool)
    if declared in (float, "float"):
        assert isinstance(value, float | int) and not isinstance(value, bool)
    if declared in (bool, "bool"):
        assert isinstance(value, bool)


def test_presets_are_found_by_name():
    assert "CartPole-v1" in presets.environments()
    assert presets.preset("CartPole-v1", "ppo") == presets.presets_of("CartPole-v1")["ppo"]
    assert presets.preset("CartPole-v1", "ppo")["learning_rate"] > 0


def test_trials_have_presets_of_their_own_or_the_single_episodes_without_chunks():
    single, trials = (presets.preset("XLand-MiniGrid-R1-9x9", "ppo", trials=x) for x in (False, True))
    assert trials == presets.presets_of("XLand-MiniGrid-R1-9x9", trials=True)["ppo"] != single
    single, trials = (presets.preset("MiniGrid-Unlock", "ppo", trials=x) for x in (False, True))
    assert single["chunk_length"] > 0
    assert trials == {name: value for name, value in single.items() if name != "chunk_length"}


@pytest.mark.parametrize(
    "name", ["Nothing-v0", "", "../presets/CartPole-v1", "/etc/passwd", "my_package:MyEnv", "."]
)
def test_other_names_have_none(name):
    assert presets.preset(name, "ppo") == {} and presets.presets_of(name) == {}
    assert presets.preset("CartPole-v1", "no such algorithm") == {}


@pytest.mark.full
def test_a_preset_of_more_than_ten_minutes_says_so_before_it_begins(capsys):
    for name, overrides, is_long in (
        ("MiniGrid-FourRooms", {}, True),
        ("MiniGrid-FourRooms", {"total_steps": 10_000}, False),
        ("CartPole-v1", {}, False),
        ("gymnax/Breakout-MinAtar", {"seeds": 1}, False),
    ):
        plan = SimpleNamespace(experiment=decide(name, overrides=overrides))
        planning.note_duration(plan, planning.Caller())
        said = capsys.readouterr().err
        assert ("19,988,480 steps take 64 minutes" in said) == is_long == bool(said)
