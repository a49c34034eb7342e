"""Files of settings in three formats, over each other, and found by name in folders of presets."""

import json
import math
import os

import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.base.installation import install_command
from shoal.config.settings import flat
from shoal.runs.plan import presets, setting_files
from shoal.runs.plan.config_files import read_config
from shoal.runs.plan.decide import decide


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def value(name, *files, environment=None, **overrides):
    decided = decide(environment, config_file=files, overrides=overrides)
    return (flat(decided.config) | flat(decided.run))[name]


def write(name, text):
    from pathlib import Path

    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- formats


def test_the_same_settings_in_three_formats():
    settings = {"gamma": 0.5, "learning_rate": 1e-3, "hidden_sizes": [8, 8], "critic_learning_rate": None}
    write("a.json", json.dumps({"environment": "CartPole-v1", "ppo": settings, "eval_env": {"gravity": 3}}))
    write(
        "b.toml",
        "environment = 'CartPole-v1'\n[ppo]\ngamma = 0.5\nlearning_rate = 1e-3\nhidden_sizes = [8, 8]\n"
        "critic_learning_rate = 'None'\n[eval_env]\ngravity = 3",
    )
    text = (
        "environment: CartPole-v1\nppo:\n  gamma: 0.5\n  learning_rate: 1e-3\n  hidden_sizes: [8, 8]\n"
        "  critic_learning_rate: null\neval_env: {gravity: 3}\n"
    )
    write("c.yaml", text)
    write("d.yml", text)
    first, *others = (read_config(name) for name in ("a.json", "b.toml", "c.yaml", "d.yml"))
    assert first["algorithm"]["learning_rate"] == 1e-3 and all(first == other for other in others)


@pytest.mark.parametrize(
    "text, number",
    [("1e-3", 1e-3), ("-2E5", -2e5), ("1_0e1", 100.0), ("1.5e-3", 1.5e-3), (".inf", math.inf), ("3", 3)],
)
def test_numbers_of_yaml(text, number):
    assert setting_files.read_settings(write("a.yaml", f"x: {text}"), "a")["x"] == number


@pytest.mark.parametrize("text", ["e3", "1e", "1e-3s", "x1e3"])
def test_texts_of_yaml(text):
    assert setting_files.read_settings(write("a.yaml", f"x: {text}"), "a")["x"] == text


@pytest.mark.parametrize(
    "name, text, sentence",
    [
        ("a.yaml", "ppo: [", "config file 'a.yaml' is not YAML: "),
        ("a.yaml", "- 1", "config file 'a.yaml' holds a list, not settings by their names"),
        ("a.yaml", "", "config file 'a.yaml' holds a NoneType, not settings"),
        ("a.yaml", "3: 4\nppo: {}", "config file 'a.yaml' has '3', which no config has"),
        (
            "a.yaml",
            "ppo: {gama: 1}\nenvironment: CartPole-v1",
            "there is no setting 'gama'; did you mean 'gamma'?",
        ),
        ("a.yaml", "ppo: {gamma: high}\nenvironment: CartPole-v1", "gamma='high' "),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "config file 'a.yaml' is not YAML: "),
        ("a.toml", "ppo", "config file 'a.toml' is not TOML: "),
        ("a.json", "{", "config file 'a.json' is damaged: it is not JSON"),
        ("b.toml", "", "config file 'a.toml' cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_one_sentence(name, text, sentence):
    write(name, text)
    with pytest.raises(ShoalError) as error:
        decide(None, config_file=name.replace("b.", "a."), overrides={})
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


def test_yaml_says_what_installs_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    write("a.yaml", "ppo: {}")
    with pytest.raises(ShoalError) as error:
        read_config("a.yaml")
    assert str(error.value) == (
        f"config file 'a.yaml' needs yaml, which is not installed; `{install_command('yaml')}` installs it."
    )


# ---- one over the other


def test_later_files_stand_over_earlier_ones_and_flags_over_all():
    write("mine.toml", "[ppo]\ngamma = 0.5\nseeds = 3")
    write("more.yaml", "ppo: {gamma: 0.25}")
    write("run.json", json.dumps({"run": {"seeds": 4}}))
    write("world.toml", "[environment.parameters]\ngravity = 3.0")
    assert value("gamma", "stoix_ff_ppo", "mine.toml") == 0.5
    assert value("num_envs", "stoix_ff_ppo", "mine.toml") == 1024
    assert value("gamma", "stoix_ff_ppo", "mine.toml", "more.yaml") == 0.25
    assert value("gamma", "stoix_ff_ppo", "mine.toml", "more.yaml", gamma=0.75) == 0.75
    assert value("seeds", "stoix_ff_ppo", "mine.toml", "more.yaml") == 3
    assert value("seeds", "stoix_ff_ppo", "run.json") == 4  # although a recipe's run stands in its table
    assert value("seeds", "run.json", "stoix_ff_ppo") == 1
    decided = decide(None, config_file=["stoix_ff_ppo", "world.toml"], overrides={})
    assert decided.environment_parameters["gravity"] == 3.0 and decided.defaults.origin == "config file"
    write("worlds.toml", "[environment.parameters]\ngravity = 3.0\n[ppo]")
    decided = decide("CartPole-v1", config_file="worlds.toml", overrides={})
    assert decided.environment_parameters["gravity"] == 3.0


def test_of_another_environment_or_algorithm_nothing_stays():
    write("world.toml", "[environment.parameters]\ngravity = 3.0\n[environment]\nname = 'CartPole-v1'\n[ppo]")
    write("other.toml", "environment = 'Acrobot-v1'")
    decided = decide(None, config_file=["world.toml", "other.toml"], overrides={})
    assert decided.environment_name == "Acrobot-v1"
    write("dqn.toml", "[dqn]\ngamma = 0.5")
    decided = decide(None, config_file=["stoix_ff_ppo", "dqn.toml"], overrides={})
    assert (decided.algorithm, flat(decided.config)["gamma"], decided.run.num_envs) == ("dqn", 0.5, 8)


def test_what_a_run_says_of_its_preset_is_not_that_of_another_environment(folder):
    """A file of another environment over a run's: the run's preset is not what the new settings are compared with."""
    decided = decide("CartPole-v1", overrides={})
    content = decided.as_json() | {"preset": dict(decided.defaults.preset), "settings": {}}
    write("run/config.json", json.dumps(content, default=str))
    write("other.toml", "environment = 'Acrobot-v1'")
    same = decide(None, config_file=["run"], overrides={})
    assert same.defaults.preset == content["preset"] and same.differences == {}
    moved = decide(None, config_file=["run", "other.toml"], overrides={})
    assert moved.defaults.preset == presets.preset("Acrobot-v1", "ppo")
    assert "gamma" in moved.differences


def test_a_table_of_each_algorithm():
    write("both.toml", "environment = 'CartPole-v1'\n[ppo]\ngamma = 0.5\n[dqn]\ngamma = 0.25")
    assert value("gamma", "both.toml") == 0.5
    decided = decide(None, algorithm="dqn", config_file="both.toml", overrides={})
    assert (decided.algorithm, flat(decided.config)["gamma"]) == ("dqn", 0.25)


def test_several_files_by_the_command_and_from_python(folder, capsys):
    from shoal.cli import main

    write(
        "small.toml", "[ppo]\nseeds = 2\nnum_envs = 4\nnum_steps = 8\nnum_minibatches = 2\ntotal_steps = 64"
    )
    write("short.yaml", "ppo: {num_evals: 0, eval_episodes: 2, absolute_episodes: 2, hidden_sizes: [4]}")
    words = (
        "train --config stoix_ff_ppo --config small.toml --config=short.yaml --gamma 0.5 --seeds 1 --quiet"
    )
    assert main([*words.split(), "--run-dir", "by_command"]) == 0, capsys.readouterr().err
    files = ["stoix_ff_ppo", "small.toml", folder / "short.yaml"]
    shoal.train(config=files, gamma=0.5, seeds=1, run_dir="from_python", progress=False)
    first, second = (
        json.loads((folder / x / "config.json").read_text()) for x in ("by_command", "from_python")
    )
    assert first["run"].pop("run_dir") != second["run"].pop("run_dir") and first == second
    assert (first["algorithm"]["gamma"], first["run"]["seeds"], first["run"]["num_envs"]) == (0.5, 1, 4)
    assert first["algorithm"]["hidden_sizes"] == [4]
    # All of it is in the run's own file, so that what was over what does not matter any more.
    (folder / "small.toml").unlink()
    assert main(["resume", "by_command", "--total-steps", "128", "--quiet"]) == 0, capsys.readouterr().err
    resumed = json.loads((folder / "by_command" / "config.json").read_text())
    assert resumed["run"]["num_envs"] == 4 and resumed["preset"] == first["preset"]


# ---- by name


def test_no_such_recipe_is_one_sentence_with_the_nearest(capsys):
    from shoal.cli import main

    for command in ("train", "rollout", "sweep"):
        assert main([command, "--config", "stoix_ppo"]) == 2
        said = capsys.readouterr().err
        assert (
            "there is no recipe 'stoix_ppo', and no run or file of that name; did you mean 'stoix_ff_ppo'?"
            in said
        )
    assert main(["train", "--config", "qqqqq"]) == 2
    assert (
        "; there are jaxagents_ippo, jaxdem, mountain_car, stoix_ff_ppo, xland_minigrid."
        in capsys.readouterr().err
    )


def test_a_folder_of_a_recipes_name_that_holds_no_run_does_not_hide_it(folder):
    (folder / "jaxdem").mkdir()
    assert read_config("jaxdem")["algorithm"]["num_envs"] == 1024
    write("jaxdem/config.json", '{"environment": "CartPole-v1", "algorithm": "a2c", "run": {}}')
    assert read_config("jaxdem")["algorithm"] == {"name": "a2c"}


def test_folders_of_presets_outside_of_the_package(folder, monkeypatch, capsys):
    from shoal.cli import main

    write("one/CartPole-v1.toml", "[ppo]\ngamma = 0.5")
    write("two/CartPole-v1.yaml", "ppo: {gamma: 0.25}\na2c: {gamma: 0.125}\nsteps_per_second: {ppo: 7}")
    write("two/mpe/Spread-v0.toml", "[ppo]\ngamma = 0.75")
    write("two/mine.toml", "environment = 'CartPole-v1'\n[ppo]\ngamma = 0.0625")
    packaged = presets.preset("CartPole-v1", "ppo"), presets.preset("CartPole-v1", "dqn")
    monkeypatch.setenv("SHOAL_PRESETS", os.pathsep.join([str(folder / "one"), str(folder / "two")]))
    assert presets.preset("CartPole-v1", "ppo") == {"gamma": 0.5} != packaged[0]
    assert presets.preset("CartPole-v1", "a2c") == {"gamma": 0.125}
    assert presets.preset("CartPole-v1", "dqn") == packaged[1]
    assert presets.measured_speed("CartPole-v1", "ppo") == 0  # of the file that was replaced
    assert {"mine", "mpe/Spread-v0", "Acrobot-v1"} <= set(presets.environments())
    assert decide("mpe/Spread-v0", overrides={}).config.gamma == 0.75
    assert value("gamma", "mine") == 0.0625
    assert value("gamma", "mpe/Spread-v0", environment="Pendulum-v1") == 0.75
    for name in ("../one/CartPole-v1", str(folder / "one" / "CartPole-v1"), "."):
        assert presets.presets_of(name) == {}
    assert main(["envs", "CartPole-v1"]) == 0
    assert "presets      ppo, dqn, c51, rainbow, qr_dqn, pqn, sac, a2c" in capsys.readouterr().out
    monkeypatch.setenv("SHOAL_PRESETS", str(folder / "three"))
    assert main(["train", "CartPole-v1"]) == 2
    assert capsys.readouterr().err.endswith(
        f"SHOAL_PRESETS names {str(folder / 'three')!r}, which is not a folder.\n"
    )


@pytest.mark.slow
def test_a_run_keeps_its_preset_when_the_folder_has_changed(folder, monkeypatch):
    monkeypatch.setenv("SHOAL_PRESETS", str(folder))
    write(
        "CartPole-v1.toml",
        "[ppo]\ngamma = 0.5\ntotal_steps = 64\nnum_envs = 4\nnum_steps = 8\nnum_minibatches = 2",
    )
    small = {"seeds": 1, "num_evals": 0, "eval_episodes": 2, "absolute_episodes": 2, "hidden_sizes": (4,)}
    run = shoal.train("CartPole-v1", run_dir="run", progress=False, **small)
    saved = json.loads((run.path / "config.json").read_text())
    assert saved["preset"]["gamma"] == saved["algorithm"]["gamma"] == 0.5 and "gamma" not in saved["settings"]
    write("CartPole-v1.toml", "[ppo]\ngamma = 0.25")
    shoal.resume(run.path, total_steps=96, progress=False)
    resumed = json.loads((run.path / "config.json").read_text())
    assert resumed["preset"] == saved["preset"] and resumed["settings"] == saved["settings"]
    assert resumed["run"]["total_steps"] == 96 and resumed["algorithm"]["gamma"] == 0.5
