"""Registered parts: found by flags, keywords and files alike, and by the modules that another process names."""

import json
import os
import subprocess
import sys

import pytest
from tiny_bandit import BanditConfig

import shoal
from shoal.base import registers
from shoal.base.errors import ShoalError
from shoal.cli import train as command
from shoal.config import settings
from shoal.monitor.loggers.requests import LoggerFlags, check_loggers
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.encoders.kinds import Flatten
from shoal.runs.plan.decide import decide


class MyNetwork(ActorCritic):
    """A user's network."""


class MyTorso(Flatten):
    """A user's torso."""


class MyHead:
    """A user's head, which no test builds."""


class MyLogger(shoal.Logger):
    """A user's logger."""

    def add_scalars(self, numbers, step, time, series):
        """Receive numbers."""


# The setting that chooses a part of each kind, the part, and another name of the kind.
PARTS = {
    "algorithm": ("algorithm", BanditConfig, "ppo"),
    "network": ("network", MyNetwork, None),
    "torso": ("encoder", MyTorso, "cnn"),
    "head": ("value_head", MyHead, "categorical"),
    "logger": ("logger", MyLogger, "wandb"),
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Each part under the name `mine_KIND`, by its `module:Name`."""
    monkeypatch.setattr(registers, "_targets", {})
    for kind, (_, part, _) in PARTS.items():
        getattr(shoal, f"register_{kind}")(f"mine_{kind}", registers.portable(part))


def by_flag(setting, name):
    flags = [f"--{setting.replace('_', '-')}", name]
    if setting == "logger":
        return LoggerFlags(logger=(name,)).loggers()
    known, choices, overrides, _ = command._parse(["CartPole-v1", *flags], "CartPole-v1")
    return decide("CartPole-v1", algorithm=choices.algorithm, overrides=overrides, known=known)


def by_keyword(setting, name):
    if setting == "logger":
        return check_loggers([name])
    given = {"algorithm": name, "overrides": {}} if setting == "algorithm" else {"overrides": {setting: name}}
    return decide("CartPole-v1", **given)


def by_file(setting, name, path):
    if setting == "logger":  # no setting of a run
        return by_keyword(setting, name)
    algorithm = {"name": name} if setting == "algorithm" else {"name": "ppo", setting: name}
    path.write_text(json.dumps({"environment": "CartPole-v1", "run": {}, "algorithm": algorithm}))
    return decide(None, config_file=path, overrides={})


def content(planned):
    """What is written down of a run, or the loggers that it is asked for."""
    return planned if isinstance(planned, dict) else (planned.algorithm, settings.flat(planned.config))


@pytest.mark.parametrize("kind", PARTS)
def test_a_registered_part_is_found_by_flag_keyword_and_file(kind, tmp_path):
    """The run has its `module:Name`, so that it is loaded by a process that registers nothing."""
    setting, part, own = PARTS[kind]
    file, name = tmp_path / "config.json", f"mine_{kind}"
    found = [
        content(x) for x in (by_flag(setting, name), by_keyword(setting, name), by_file(setting, name, file))
    ]
    assert found[0] == found[1] == content(by_keyword(setting, registers.portable(part)))
    assert found[2] == found[0] if kind == "logger" else registers.portable(part) in str(found[2])
    for ask in (by_flag, by_keyword, lambda *x: by_file(*x, file)):
        with pytest.raises(ShoalError, match=rf"mine_{kind}.*; did you mean 'mine_{kind}'\?"):
            ask(setting, f"mine_{kind[:-1]}")
    add = getattr(shoal, f"register_{kind}")
    with pytest.raises(ShoalError, match=f"the {kind} '{name}' is registered already"):
        add(name, part)
    add(name, part, replace=True)
    assert content(by_keyword(setting, name)) == content(
        by_keyword(setting, part if kind != "logger" else name)
    )
    with pytest.raises(ShoalError, match=r"is neither .*, nor 'module:Name' of one"):
        add("five", 5)
    with pytest.raises(ShoalError, match="a name is text without colon"):
        add("a:b", part)
    if own:
        with pytest.raises(ShoalError, match=f"the name '{own}' is that of a {kind} of Shoal"):
            add(own, part)


def test_a_process_finds_what_the_modules_register_that_it_is_told(tmp_path):
    (tmp_path / "my_parts.py").write_text(
        "import shoal\n"
        "shoal.register('Mine-v0', 'shoal.envs.classic.cartpole:CartPole')\n"
        "shoal.register_algorithm('mine', 'my_algorithm:Config')\n"
        "shoal.register_logger('my_log', 'my_loggers:Log')\n"
    )
    package = tmp_path / "their_parts-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-parts\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[shoal]\nparts = their_parts\n")
    (tmp_path / "their_parts.py").write_text(
        "import shoal\nshoal.register_torso('theirs', 'their_nets:Torso')\n"
    )
    program = (
        "import sys, shoal\n"
        "from shoal.algos import catalogue\n"
        "from shoal.base import registers\n"
        "from shoal.monitor.loggers.logger_names import checked_name\n"
        "print(catalogue.portable_name('mine'), checked_name('my_log'), 'Mine-v0' in shoal.environments(),\n"
        "      registers.target_of('torso', 'theirs'), 'jax' in sys.modules)\n"
    )

    def run(modules):
        variables = {
            **os.environ,
            "SHOAL_REGISTER": modules,
            "PYTHONPATH": f"{tmp_path}:{os.pathsep.join(sys.path)}",
        }
        return subprocess.run(
            [sys.executable, "-c", program], check=False, env=variables, capture_output=True, text=True
        )

    assert run("my_parts").stdout.split() == [
        "my_algorithm:Config",
        "my_loggers:Log",
        "True",
        "their_nets:Torso",
        "False",
    ]
    assert (
        "'SHOAL_REGISTER=no_parts' cannot be imported: there is no module 'no_parts'"
        in run("no_parts").stderr
    )


def test_a_module_that_failed_is_imported_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SHOAL_REGISTER", "failing_parts")
    (tmp_path / "failing_parts.py").write_text(
        "import shoal\nshoal.register_torso('late', 'nets:Torso')\nraise ValueError\n"
    )
    for _ in range(2):
        with pytest.raises(shoal.ShoalError, match="SHOAL_REGISTER=failing_parts"):
            registers.target_of("torso", "late")
    (tmp_path / "failing_parts.py").write_text("import shoal\nshoal.register_torso('late', 'nets:Torso')\n")
    assert registers.target_of("torso", "late") == "nets:Torso"
