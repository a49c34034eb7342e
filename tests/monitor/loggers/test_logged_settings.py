"""What loggers need alike: packages, settings, names, and how a run ended."""

import sys
from pathlib import Path

import pytest
from logging_process import LONG, ODD_NAMES, run

from shoal.base.errors import ShoalError
from shoal.base.installation import install_command
from shoal.monitor.loggers import logged_settings
from shoal.monitor.loggers.fitted_names import FittedNames, shorten_middle, take_note


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "trackio", "wandb"])
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ShoalError) as error:
        logged_settings.require_package(name)
    assert str(error.value) == (
        f"the logger {name} needs {name}, which is not installed; `{install_command(name)}` installs it."
    )


def test_a_package_that_is_too_old_is_named():
    with pytest.raises(
        ShoalError, match=r"^the logger numpy needs numpy 99\.0 or newer, and \S+ is installed; `"
    ):
        logged_settings.require_package("numpy", oldest="99.0")
    assert logged_settings.require_package("numpy", oldest="1.0") is sys.modules["numpy"]


def test_a_series_has_the_settings_of_its_members():
    logged = run({"path": "runs/first", "members": 2})
    _, slow, main = logged.series
    assert logged_settings.main_series(logged) == main
    own = logged_settings.flat_settings(logged, slow)
    assert (own["learning_rate"], own["seed"], own["label"], own["env.gravity"]) == (1e-4, 3, "slow", 9.8)
    everyone = logged_settings.flat_settings(logged, main)
    assert (everyone["learning_rate"], everyone["algorithm"], everyone["environment"]) == (
        1e-3,
        "ppo",
        "CartPole-v1",
    )
    assert [logged_settings.title(logged, x) for x in (slow, main)] == ["first, slow, seed 3", "first"]


def test_settings_that_change_where_a_run_is_resumed_make_it_another_or_not():
    config = run({"path": "runs/first"}).config
    longer = {**config, "run": {**config["run"], "total_steps": 1}}
    other = {**config, "algorithm": {**config["algorithm"], "gamma": 0.5}}
    before, *after = map(logged_settings.settings_hash, (config, longer, other))
    assert [x == before for x in after] == [True, False]


@pytest.mark.parametrize(
    "summary, succeeded",
    [(None, False), ({}, True), ({"failed": [{}]}, True), ({"failed": [{}, {}]}, False)],
    ids=["interrupted", "finished", "one failed", "all failed"],
)
def test_a_run_has_succeeded_if_one_member_has(summary, succeeded):
    assert logged_settings.has_succeeded(run({"path": "first", "members": 2}), summary) is succeeded


def test_a_path_that_is_used_gets_a_number(tmp_path):
    for name in ("a.csv", "a-2.csv"):
        (tmp_path / name).touch()
    assert logged_settings.unused(tmp_path / "a.csv", Path.exists).name == "a-3.csv"


def test_fitted_names_are_distinct_and_those_of_the_process_before():
    """In any order of the names; a name that was cut keeps both ends, in at most that many bytes."""
    names = [*ODD_NAMES, *(f"{LONG}{k}" for k in range(12)), "\u221e" * 100]
    first = FittedNames(r"[^a-z/]", 40)
    fitted = {name: first(name) for name in names}
    assert len({x.casefold() for x in fitted.values()}) == len(names)
    assert max(len(x.encode()) for x in fitted.values()) <= 40
    later = FittedNames(r"[^a-z/]", 40, first.changed)
    assert {name: later(name) for name in reversed(names)} == fitted
    note = take_note(first)
    assert note.startswith("'train/success (%)' is called 'train/success____', ") and take_note(first) is None
    assert take_note(later) is None  # it was said before
    assert shorten_middle("abcdefgh", 6) == "ab..gh" and shorten_middle("abc", 6) == "abc"
