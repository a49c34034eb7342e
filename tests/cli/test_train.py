import dataclasses
import errno
import fcntl
import json
import os

import pytest

import shoal
from shoal.algos.dqn_config import DQNConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.algos.sac_config import SACConfig
from shoal.algos.td3_config import TD3Config
from shoal.base.errors import ShoalError
from shoal.cli import train
from shoal.config import settings
from shoal.config.other_trainers import other_trainers
from shoal.config.settings import flat
from shoal.envs.registry import make
from shoal.records.directory import RunDirectory
from shoal.records.run_config import RunConfig
from shoal.runs.plan.defaults import defaults, with_values
from shoal.runs.plan.experiment import Experiment
from shoal.runs.plan.presets import preset
from shoal.xla.machine import cores

MY_MODULE = """
import dataclasses
import jax.numpy as jnp
from shoal import environment, restart, transition
from shoal.algos.ppo_config import PPOConfig
from shoal.algos.sac_config import SACConfig
from shoal.algos.td3_config import TD3Config
from shoal.types.spaces import Box, Discrete
from shoal.config.struct import struct


@environment
class Corner:
    \"\"\"One step.\"\"\"

    bonus: float = 1.0

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return (), restart(jnp.zeros(1))

    def step(self, state, action, key):
        return (), transition(jnp.ones(1), action * self.bonus, terminated=True)


@struct
class Bolder(PPOConfig):
    \"\"\"PPO that explores.\"\"\"

    ent_coef: float = 0.5
    \"\"\"Much.\"\"\"
    boldness: float = 2.0
    \"\"\"How bold.\"\"\"


class Net:
    \"\"\"A network.\"\"\"
"""


@pytest.fixture
def decide(command, monkeypatch):
    """The experiment that `shoal train ...` would carry out."""

    decided = []

    def stop(experiment, *_):
        decided.append(experiment)
        raise shoal.ShoalError("that is enough")

    monkeypatch.setattr(train, "run_experiment", stop)

    def decide(*words) -> Experiment:
        command("train", *words)
        return decided.pop()

    return decide


# ---- what is decided


def test_every_setting_is_a_flag(command, capsys):
    with pytest.raises(SystemExit):
        command("train", "CartPole-v1", "--help")
    page = capsys.readouterr().out
    for config in (RunConfig(), defaults("CartPole-v1")[2]):
        for name in flat(config):
            assert f"--{name.replace('_', '-')}" in page


def test_help_shows_what_would_be_used(command, capsys):
    def shown(*words) -> str:
        with pytest.raises(SystemExit):
            command("train", *words, "--help")
        page = " ".join(capsys.readouterr().out.replace("│", " ").split())
        return page.split("--learning-rate FLOAT")[1].split("(default: ")[1].split(")")[0]

    tuned, plain = preset("CartPole-v1", "ppo")["learning_rate"], flat(defaults()[2])["learning_rate"]
    assert tuned != plain
    assert float(shown("CartPole-v1")) == tuned
    assert float(shown("--seeds", "3", "CartPole-v1")) == tuned
    assert float(shown("CartPole-v1", "--no-preset")) == plain
    assert float(shown()) == plain


def test_the_preset_is_used_unless_overridden(decide):
    tuned, plain = preset("CartPole-v1", "ppo"), defaults()[2]
    assert flat(decide("CartPole-v1").config)["learning_rate"] == tuned["learning_rate"]
    assert decide("CartPole-v1", "--no-preset").config == plain
    # A value that happens to be the class's default is an override all the same.
    asked = decide("CartPole-v1", "--learning-rate", plain.optimization.learning_rate)
    assert flat(asked.config)["learning_rate"] == plain.optimization.learning_rate
    assert asked.run.num_envs == tuned["num_envs"]


def test_words_of_two_flags_may_have_one_name(decide):
    """`eps=1e-6` is of each optimiser, and no parameter that is given twice."""
    words = [
        "--critic-optimizer",
        "adam",
        "--optimizer-args",
        "eps=1e-6",
        "--critic-optimizer-args",
        "eps=1e-5",
    ]
    asked = decide("CartPole-v1", *words)
    assert (flat(asked.config)["optimizer_args"], flat(asked.config)["critic_optimizer_args"]) == (
        ("eps=1e-6",),
        ("eps=1e-5",),
    )


def test_flags_may_be_written_with_underscores(decide):
    asked = decide("CartPole-v1", "--no_preset", "--num_envs=8", "--algorithm", "a2c")
    assert asked.run.num_envs == 8
    assert asked.config == defaults(algorithm="a2c")[2]


def test_flags_reach_their_config(decide):
    words = (
        "--num-envs 8 --seed 3 --run-dir x --norm-obs --hidden-sizes 32 16 --optimizer-args b1=0.8 eps=1e-6"
    )
    asked = decide("CartPole-v1", *words.split(), "--lr-schedule", "cosine", "--total-steps", "2e6")
    assert (asked.run.num_envs, asked.run.seed, asked.run.run_dir) == (8, 3, "x")
    assert asked.run.total_steps == 2_000_000
    assert decide("CartPole-v1", "--num-envs", "8", "--num-updates", "1e3").run.total_updates == 1000
    assert asked.config.norm_obs is True
    assert flat(asked.config)["hidden_sizes"] == (32, 16)
    assert flat(asked.config)["optimizer_args"] == ("b1=0.8", "eps=1e-6")
    assert flat(asked.config)["lr_schedule"] == "cosine"


def test_the_environment_may_stand_anywhere_and_has_parameters(decide):
    for words in (
        ["CartPole-v1", "gravity=4", "max_episode_steps=100", "--gamma", "0.9"],
        ["--gamma", "0.9", "CartPole-v1", "gravity=4", "max_episode_steps=100"],
        ["CartPole-v1", "--gamma", "0.9", "gravity=4", "max_episode_steps=100"],
    ):
        asked = decide(*words)
        assert asked.environment == make("CartPole-v1", gravity=4, max_episode_steps=100)
        assert asked.environment_parameters["gravity"] == 4
        assert asked.environment_parameters["max_episode_steps"] == 100
        assert asked.config.gamma == 0.9
        assert flat(asked.config)["learning_rate"] == preset("CartPole-v1", "ppo")["learning_rate"]


def test_trials_have_a_preset_of_their_own(decide):
    """Wherever the parameter stands, and though a flag asks for the value that single episodes have."""
    single = decide("MiniGrid-Unlock").config
    assert single.chunk_length > 0
    for words in (
        ["MiniGrid-Unlock", "trial_episodes=3", "--seeds", "2"],
        ["MiniGrid-Unlock", "--seeds", "2", "trial_episodes=3"],
        ["--seeds", "2", "MiniGrid-Unlock", "trial_episodes=3"],
    ):
        assert decide(*words).config == dataclasses.replace(single, chunk_length=0)
        assert decide(*words, "--chunk-length", single.chunk_length).config == single
    assert decide("MiniGrid-Unlock", "trial_episodes=none").config == single


def test_another_algorithm_has_its_own_flags(decide):
    asked = decide("CartPole-v1", "--algorithm", "a2c")
    assert asked.algorithm == "a2c"
    assert asked.config == defaults("CartPole-v1", algorithm="a2c")[2]


def test_classes_of_the_current_directory(decide, tmp_path):
    (tmp_path / "my_cli_module.py").write_text(MY_MODULE)
    words = ["my_cli_module:Corner", "bonus=3", "--algorithm", "my_cli_module:Bolder", "--boldness", "4"]
    asked = decide(*words, "--network", "my_cli_module:Net")
    assert asked.environment.bonus == 3
    assert (asked.config.boldness, asked.config.ent_coef) == (4.0, 0.5)
    assert flat(asked.config)["network"] == "my_cli_module:Net"


@pytest.mark.full
def test_a_config_is_taken_over_and_overridden(decide, trained):
    _, path = trained
    for config in (path, path / "config.json"):
        asked = decide("--config", config, "--gamma", "0.5")
        assert asked.environment == make("CartPole-v1", gravity=9.9)
        assert flat(asked.config)["learning_rate"] == 2e-3
        assert asked.config.gamma == 0.5
        assert asked.run.total_steps == 4096
        assert asked.run.run_dir == ""
    asked = decide("CartPole-v1", "gravity=1", f"--config={path}")
    assert asked.environment == make("CartPole-v1", gravity=1)
    assert decide("Acrobot-v1", "--config", path).environment_name == "Acrobot-v1"


# ---- what cannot be


def test_a_directory_that_holds_another_run(command, capsys, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert command("train", "CartPole-v1", "--run-dir", tmp_path) == 2
    assert capsys.readouterr().err == (
        f"shoal: config file {str(tmp_path / 'config.json')!r} lacks algorithm, environment, run; "
        "is it a config.json?\n"
    )


def test_a_directory_that_cannot_be_written(command, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert command("train", "CartPole-v1", "--run-dir", tmp_path / "file" / "run") == 2
    assert capsys.readouterr().err == (
        f"shoal: run directory {str(tmp_path / 'file' / 'run')!r} cannot be written to: Not a directory.\n"
    )


def test_a_disk_without_locks(command, capsys, monkeypatch, tmp_path):
    def fail(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", fail)
    assert command("train", "CartPole-v1", "--run-dir", tmp_path / "run") == 2
    assert capsys.readouterr().err == (
        f"shoal: directory {str(tmp_path)!r} cannot be locked: Function not implemented.\n"
    )
    assert list(tmp_path.iterdir()) == []


# ---- real runs


@pytest.mark.full
def test_a_run_leaves_its_result_and_its_files(trained):
    done, path = trained
    assert {x.name for x in path.iterdir()} == {
        *(
            "config.json",
            "metrics.jsonl",
            "summary.json",
            "learning_curve.png",
            "best.safetensors",
            "last.safetensors",
            "checkpoints",
        ),
        ".lock",
    }
    summary = RunDirectory.open(path).load_summary()
    assert f"IQM {summary['absolute']['iqm']:.4g}" in done.stdout
    assert str(path) in done.stdout
    assert "4,096 of 4,096 steps" in done.stderr  # progress, and nothing else, goes to stderr
    assert summary["seeds"] == [0, 1]
    assert summary["steps_per_seed"] == 4096
    assert set(summary["seconds"]) == {"import", "compile", "train", "evaluate"}
    assert 0.05 < summary["seconds"]["import"] < 60
    # Every core is a device: nothing started a backend before the run was decided.
    assert summary["device"]["count"] == cores()


@pytest.mark.slow
def test_the_costs_are_those_of_the_network(trained):
    done, path = trained
    run, algorithm = (json.loads((path / "config.json").read_text())[x] for x in ("run", "algorithm"))
    costs = json.loads((path / "summary.json").read_text())["costs"]
    assert f"{costs['parameters']:,} parameters" in done.stderr
    first, second = algorithm["hidden_sizes"]
    actor, critic = (4 * first + first * second + second * outputs for outputs in (2, 1))
    assert costs["parameters"] == actor + critic + 2 * (first + second) + 3
    assert costs["act_flops"] == 2 * actor
    # Acting, values, and in each epoch forwards, the gradient by weights, and that by inputs but for the first layer's.
    rows = run["num_envs"] * run["num_steps"]
    row = 2 * (3 * (actor + critic) - 2 * 4 * first)
    least = rows * (2 * actor + 2 * critic + algorithm["update_epochs"] * row)
    assert least <= costs["update_flops"] < 1.05 * least


def test_the_help_and_the_flags_have_the_settings_of_the_network(command, decide, capsys, tmp_path):
    (tmp_path / "wide_net.py").write_text(
        "from shoal.nets.networks import NetworkConfig\nfrom shoal.config.struct import struct\n"
        "\n\n@struct\nclass Wide:\n"
        '    """Wide."""\n\n    width: int = 16\n    """Gives each layer this width."""\n\n'
        "    def build(self, spec, key):\n        return NetworkConfig(hidden_sizes=(self.width,)).build(spec, key)\n"
    )
    with pytest.raises(SystemExit):
        command("train", "CartPole-v1", "--network", "wide_net:Wide", "--help-all")
    page = capsys.readouterr().out
    assert "--width INT" in page and "(default: 16)" in page and "--hidden-sizes" not in page
    assert flat(decide("CartPole-v1", "--network=wide_net:Wide", "--width", "8").config)["width"] == 8
    capsys.readouterr()
    assert command("train", "CartPole-v1", "--network", "wide_net:Wide", "--widht", "8") == 2
    assert "did you mean '--width'" in capsys.readouterr().err


def test_the_help_and_the_flags_have_the_settings_of_a_torso(command, decide, capsys, tmp_path):
    (tmp_path / "scaled_torso.py").write_text(
        "from shoal.nets.mlp import MLP\nfrom shoal.config.struct import struct\n"
        "\n\n@struct\nclass Scaled:\n"
        '    """Scaled."""\n\n    breadth: int = 16\n    """Gives its layer this width."""\n\n'
        "    def build(self, space, key):\n        return MLP(space.shape[0], (self.breadth,), key=key)\n"
    )
    with pytest.raises(SystemExit):
        command("train", "CartPole-v1", "--critic-encoder", "scaled_torso:Scaled", "--help-all")
    page = capsys.readouterr().out
    assert "--breadth INT" in page and "(default: 16)" in page and "--encoder-kernels" in page
    asked = decide(
        "CartPole-v1", "--encoder=scaled_torso:Scaled,mlp", "--breadth", "8", "--encoder-features", "9"
    )
    values = flat(asked.config)
    assert values["encoder"] == "scaled_torso:Scaled,mlp" and values["breadth"] == 8
    capsys.readouterr()
    assert command("train", "CartPole-v1", "--breadth", "8") == 2
    assert "has no flag '--breadth'" in capsys.readouterr().err
    assert command("train", "CartPole-v1", "--encoder") == 2
    assert "--encoder has no value; give it one" in capsys.readouterr().err


MEANINGS, _, SENTENCES = other_trainers()
SWITCHES = ("layer_norm", "norm_obs", "norm_reward")  # whose flags have no value
CONFIGS = [PPOConfig(), DQNConfig(), SACConfig(), TD3Config()]
OF_ALL = {"algorithm"} | settings.settings_of(RunConfig()).keys()


def config_for(name, meant):
    """The first of an algorithm that has the settings that are meant, and none of this name."""
    known = ((config, OF_ALL | settings.settings_of(config).keys()) for config in CONFIGS)
    return next(config for config, names in known if meant <= names and name not in names)


@pytest.mark.quick("entropy_coef")
@pytest.mark.parametrize("name", [*MEANINGS, *SENTENCES])
def test_a_name_of_another_trainer_gets_the_flag_of_its_setting(name):
    """As a flag, as name=value after ENV, also as PureJaxRL and Hydra write it, and as a keyword in Python."""
    parts = [part.partition("=") for part in MEANINGS.get(name, "").split()]
    as_flags = " ".join(f"--{setting.replace('_', '-')} {value}".rstrip() for setting, _, value in parts)
    as_keywords = ", ".join(setting + f"={value!r}" * bool(value) for setting, _, value in parts)
    value = "" if parts and (parts[-1][2] or parts[-1][0] in SWITCHES) else " 0.5"
    config = config_for(name, {setting for setting, *_ in parts})

    def told(meant):
        return f"did you mean {meant!r}?" if meant.strip() else f"{SENTENCES[name]}."

    def error(call, *arguments):
        with pytest.raises(ShoalError) as caught:
            call(*arguments)
        return str(caught.value)

    def refused(*words):
        algorithm = ("--algorithm", config.name) if config is not CONFIGS[0] else ()
        return error(train._parse, ["CartPole-v1", *words, *algorithm], "CartPole-v1")

    flag = f"--{name.replace('_', '-')}"
    assert refused(flag, "0.5") == f"shoal train has no flag {flag!r}; {told(as_flags)}"
    for word in (name, name.upper(), f"+algo.{name}"):
        sentence = f"CartPole-v1 has no parameter {word!r}, and settings are flags; "
        assert refused(f"{word}=0.5") == sentence + told(as_flags + value * bool(parts))
    found = error(with_values, RunConfig(), config, {name: 0.5})
    assert found == f"there is no setting {name!r}; {told(as_keywords)}"


def test_a_flag_of_another_trainer_gets_what_switches_it_off(command, capsys):
    cases = {"--anneal-lr False": "--lr-schedule constant", "--anneal-lr=0": "--lr-schedule constant"}
    cases |= {"--anneal-lr": "--lr-schedule linear", "--normalize-observations False": "--no-norm-obs"}
    for words, meant in cases.items():
        assert command("train", "CartPole-v1", *words.split()) == 2
        assert capsys.readouterr().err.endswith(f"; did you mean {meant!r}?\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("learning_rate=1e-3", "--learning-rate 1e-3"),
        ("num-envs=8", "--num-envs 8"),
        ("NUM_ENVS=8", "--num-envs 8"),
        ("norm_obs=False", "--no-norm-obs"),
        ("norm_obs=True", "--norm-obs"),
        ("gravity=3 gamma=0.5", "--gamma 0.5"),
        ("anneal_lr=False", "--lr-schedule constant"),
        ("norm_adv=False", "--norm-adv none"),
    ],
)
@pytest.mark.parametrize("name", ["train", "sweep", "tune", "pbt"])
def test_a_setting_after_the_environment_gets_its_flag(name, words, meant, command, capsys):
    assert command(name, "CartPole-v1", *words.split()) == 2
    assert capsys.readouterr().err.endswith(f", and settings are flags; did you mean {meant!r}?\n")


def test_a_parameter_with_the_name_of_a_setting_is_the_parameter(monkeypatch):
    monkeypatch.setattr("shoal.cli.flags.parameters_of", lambda _: {"lr": None})
    assert train._parse(["CartPole-v1", "lr=3"], "CartPole-v1")[3] == ["CartPole-v1", "lr=3"]
