"""What is decided from names, presets, config files and overrides, and what is written down of it."""

import dataclasses
import json
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

from shoal import envs
from shoal.algos.policy_gradient import A2CConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.base.imports import load_function
from shoal.config import struct
from shoal.config.settings import flat, with_settings
from shoal.config.values import cast_to_declared
from shoal.envs.base import Wrapper
from shoal.nets.actor_critic import ActorCritic
from shoal.records.directory import RunDirectory
from shoal.records.run_config import RunConfig
from shoal.runs.plan.config_files import read_config
from shoal.runs.plan.decide import decide
from shoal.runs.plan.presets import preset
from shoal.runs.train.placement import place
from shoal.runs.train.training import train

PRESET = preset("CartPole-v1", "ppo")
CARTPOLE = {name: declared.default for name, declared in envs.parameters_of("CartPole-v1").items()}
HALVES = {"max_episode_steps": None, "trial_episodes": None, "bonus": 0.0, "short": 2, "long": 20}


class MyNetwork(ActorCritic):
    """A user's own."""


@envs.environment
class Mine(Wrapper):
    """A wrapper of the user's own."""

    extra: float = 1.0


def written(decided, path):
    """A config.json of what was decided."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(decided.as_json()))
    return path


# ---- precedence


def test_an_override_wins_over_the_file_and_the_file_over_the_preset(tmp_path):
    assert PRESET["learning_rate"] != PPOConfig().optimization.learning_rate
    decided = decide("CartPole-v1", overrides={})
    assert decided.config.optimization.learning_rate == PRESET["learning_rate"]
    assert decided.run.num_envs == PRESET["num_envs"]

    plain = decide("CartPole-v1", use_preset=False, overrides={"gamma": 0.5, "seeds": 3})
    assert plain.config == dataclasses.replace(PPOConfig(), gamma=0.5)
    assert plain.run == RunConfig(seeds=3)

    path = written(plain, tmp_path / "run")
    for file in (path, path / "config.json", str(path)):
        assert decide("CartPole-v1", config_file=file, overrides={}) == plain  # whole: no preset beside it
        assert decide(None, config_file=file, overrides={}) == plain
    changed = decide(None, config_file=path, overrides={"gamma": 0.25, "num_envs": 8})
    assert changed.config == dataclasses.replace(PPOConfig(), gamma=0.25)
    assert changed.run == RunConfig(seeds=3, num_envs=8)


def test_a_run_directory_is_never_taken_over(tmp_path):
    path = written(decide("CartPole-v1", overrides={"run_dir": "here"}), tmp_path / "run")
    assert decide(None, config_file=path, overrides={}).run.run_dir == ""
    assert decide(None, config_file=path, overrides={"run_dir": "there"}).run.run_dir == "there"


def test_another_algorithm_takes_the_files_run_but_not_its_settings(tmp_path):
    path = written(decide("CartPole-v1", overrides={"gamma": 0.5, "seeds": 3}), tmp_path / "run")
    decided = decide(None, algorithm="a2c", config_file=path, overrides={})
    assert decided.config == A2CConfig()
    assert decided.run.seeds == 3


@pytest.mark.parametrize("name", ["gravity", "max_episode_steps"])
def test_a_parameter_of_the_environment_is_no_setting(name):
    sentence = f"{name} is a parameter of the environment.*environment_parameters={{'{name}': 5}} gives it"
    with pytest.raises(ShoalError, match=sentence):
        decide("CartPole-v1", overrides={name: 5})
    with pytest.raises(ShoalError, match="there is no setting 'gravty'"):
        decide("CartPole-v1", overrides={"gravty": 5})


def test_environment_parameters_belong_to_their_environment(tmp_path):
    path = written(
        decide("CartPole-v1", environment_parameters={"gravity": 5.0}, overrides={}), tmp_path / "run"
    )
    assert decide(None, config_file=path, overrides={}).environment.env.gravity == 5.0
    both = decide(None, environment_parameters={"pole_mass": 0.2}, config_file=path, overrides={})
    assert both.environment_parameters == CARTPOLE | {"gravity": 5.0, "pole_mass": 0.2}
    assert both.environment == envs.make("CartPole-v1", gravity=5.0, pole_mass=0.2)
    assert decide("Acrobot-v1", config_file=path, overrides={}).environment == envs.make("Acrobot-v1")


def test_a_number_of_updates_is_written_as_total_steps(tmp_path):
    """An override of either wins over a file and a preset; a file may have either."""
    decided = decide("CartPole-v1", overrides={"num_updates": 10})
    size = decided.run.steps_per_update
    assert (decided.run.total_steps, decided.run.num_updates) == (10 * size, None)
    assert "num_updates" not in decided.as_json()["run"]
    path = written(decided, tmp_path / "run")
    assert decide(None, config_file=path, overrides={"num_updates": 20}).run.total_updates == 20
    assert decide(None, config_file=path, overrides={"total_steps": 30 * size}).run.total_updates == 30
    config = json.loads((path / "config.json").read_text())
    config["run"] = {"num_updates": 7}
    (path / "config.json").write_text(json.dumps(config))
    assert decide(None, config_file=path, overrides={}).run.total_updates == 7
    assert decide(None, config_file=path, overrides={"total_steps": 81_920}).run.total_steps == 81_920
    with pytest.raises(ShoalError, match=r"num_updates=10 and total_steps=20 are two budgets"):
        decide("CartPole-v1", overrides={"num_updates": 10, "total_steps": 20})


# ---- given as objects


def test_a_config_itself_keeps_its_settings_but_takes_the_presets_run():
    mine = with_settings(PPOConfig(), learning_rate=0.125)
    decided = decide("CartPole-v1", algorithm=mine, overrides={"gamma": 0.5})
    assert decided.config == dataclasses.replace(mine, gamma=0.5)
    assert decided.algorithm == "ppo"
    assert decided.run.num_envs == PRESET["num_envs"]
    assert decide("CartPole-v1", algorithm=A2CConfig, overrides={}).config == A2CConfig()


def test_a_users_algorithm_by_name_class_or_value():
    name = "tiny_bandit:BanditConfig"
    for given in (name, BanditConfig, BanditConfig()):
        decided = decide("probe/action", algorithm=given, overrides={"step_size": 0.25, "seeds": 2})
        assert decided.config == BanditConfig(step_size=0.25)
        assert (decided.algorithm, decided.run.seeds) == (name, 2)


@pytest.mark.parametrize(
    "environment,name,changed",
    [
        (envs.make("CartPole-v1"), "CartPole-v1", {}),
        (envs.make("CartPole-v1", gravity=5.0), "CartPole-v1", {"gravity": 5.0}),
        (envs.make("CartPole-v1", max_episode_steps=7), "CartPole-v1", {"max_episode_steps": 7}),
        (envs.make("CartPole-v1", max_episode_steps=None), "CartPole-v1", {"max_episode_steps": None}),
        (Halves(bonus=jnp.float32(2.0), short=3), "tiny_worlds:Halves", {"bonus": 2.0, "short": 3}),
        (envs.TimeLimit(Halves(), 9), "tiny_worlds:Halves", {"max_episode_steps": 9}),
        (
            envs.make("CartPole-NoVelocity-v1", gravity=5.0, trial_episodes=3),
            "CartPole-NoVelocity-v1",
            {"gravity": 5.0, "trial_episodes": 3, "critic_state": False},
        ),
        (
            envs.Trial(envs.TimeLimit(Halves(), 9), 2),
            "tiny_worlds:Halves",
            {"max_episode_steps": 9, "trial_episodes": 2},
        ),
    ],
)
def test_an_environment_itself_is_written_down_so_that_it_is_made_again(environment, name, changed, tmp_path):
    """With the defaults, so that it is the same where a later version has others."""
    decided = decide(environment, overrides={})
    complete = (HALVES if "Halves" in name else CARTPOLE) | changed
    assert (decided.environment_name, decided.environment_parameters) == (name, complete)
    assert not decided.environment_gaps
    again = decide(None, config_file=written(decided, tmp_path / "run"), overrides={})
    assert struct.as_arrays(again.environment) == struct.as_arrays(environment)


def test_a_wrapper_of_ones_own_is_written_down_with_what_it_holds(tmp_path):
    environment = Mine(Halves(short=4), extra=2.0)
    decided = decide(environment, overrides={})
    assert decided.environment_name == f"{__name__}:Mine"
    path = written(decided, tmp_path / "run")
    assert decide(None, config_file=path, overrides={}).environment == environment
    assert decide(f"{__name__}:Mine", config_file=path, overrides={}).environment == environment
    given = {"extra": 3.0, "env": Halves()}
    changed = decide(None, config_file=path, environment_parameters=given, overrides={})
    assert changed.environment == Mine(Halves(), extra=3.0)


def test_what_cannot_be_written_down_is_said_where_it_is_needed(tmp_path):
    """The run is written, with the reason; it is loaded with its environment, or with what is missing."""

    @envs.environment
    class Local(Wrapper):
        """Cannot be imported."""

    environment = Local(Halves())
    path = written(decide(environment, overrides={}), tmp_path / "run")
    reason = "Local cannot be imported by that name; give the environment itself, as in shoal.load"
    with pytest.raises(ShoalError, match=f"the run's environment .* cannot be made again, since .*{reason}"):
        decide(None, config_file=path, overrides={})
    assert decide(environment, config_file=path, overrides={}).environment == environment

    path = written(decide(Mine(Halves(), extra=jnp.zeros(60_000)), overrides={}), tmp_path / "large")
    with pytest.raises(ShoalError, match=r"its parameter 'extra' was not written down: .* 60,000 numbers"):
        decide(None, config_file=path, overrides={})
    again = decide(None, config_file=path, environment_parameters={"extra": 2.0}, overrides={})
    assert again.environment == Mine(Halves(), extra=2.0)


def test_a_config_of_an_earlier_version_is_read(tmp_path):
    """It has no defaults, arrays are lists, and of wrappers nothing is written."""
    path = written(decide("CartPole-v1", overrides={}), tmp_path / "run")
    saved = json.loads((path / "config.json").read_text())

    def read(name, parameters, environment=None):
        saved["environment"] = {"name": name, "parameters": parameters}
        (path / "config.json").write_text(json.dumps(saved))
        return decide(environment, config_file=path, overrides={}).environment

    assert read("CartPole-v1", {"gravity": 5.0}) == envs.make("CartPole-v1", gravity=5.0)
    assert read("CartPole-v1", {"max_episode_steps": None}) == envs.make(
        "CartPole-v1", max_episode_steps=None
    )
    task = [[1] + [0] * 4, [[0] * 7], [[3, 2]]]
    world = read("XLand-MiniGrid-R1-9x9", {"ruleset": task, "view_size": 3})
    assert [x.tolist() for x in world.ruleset] == task
    assert {x.dtype for x in world.ruleset} == {np.dtype(np.uint8)}
    assert read("tiny_worlds:Sized", {"sizes": [[3], [4]], "limit": "inf"}).sizes == ((3,), (4,))
    with pytest.raises(ShoalError, match=r"needs the parameter 'env', .*; give the environment itself"):
        read("shoal.envs.wrappers:FrameStack", {})
    stacked = envs.FrameStack(Halves(), 2)
    assert read("shoal.envs.wrappers:FrameStack", {}, stacked) is stacked


def test_sizes_and_infinities_come_back_as_they_were(tmp_path):
    """JSON has lists for tuples, and neither NaN nor infinity; a static value must be hashable."""
    decided = decide(
        "tiny_worlds:Sized",
        environment_parameters={"sizes": ((3, 4), (5,)), "limit": -math.inf},
        algorithm=with_settings(PPOConfig(), hidden_sizes=(8, 8)),
        overrides={},
    )
    directory = RunDirectory.create(tmp_path / "run", "x", "y", decided.as_json())
    again = decide(None, config_file=directory.path, overrides={})
    assert again.environment == decided.environment
    assert again.config.network.hidden_sizes == (8, 8)
    hash((again.environment.sizes, again.config.network.hidden_sizes))


def test_a_setting_that_follows_another_one_is_written_so(tmp_path):
    """None stays None in the file, though what is trained has a number: a change of the other is then followed."""
    path = tmp_path / "config.json"
    _, placed = place(decide("CartPole-v1", overrides={"seeds": 1, "learning_rate": 2e-3, "devices": 1}))
    assert placed.config.optimization.critic_learning_rate == 2e-3
    path.write_text(json.dumps(placed.as_json()))
    assert json.loads(path.read_text())["algorithm"]["critic_learning_rate"] is None
    again = decide(None, config_file=path, overrides={"learning_rate": 1e-3}).config
    assert again.resolved().optimization.critic_learning_rate == 1e-3
    assert not again.resolved().optimization.separate_updates


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"environment": "Pendulum-v1", "algorithm": "a2c", "run": {"seeds": 3}}'),
        (
            "c.json",
            '{"environment": {"name": "Pendulum-v1"}, "algorithm": {"name": "a2c"}, "run": {"seeds": 3}}',
        ),
        ("c.toml", 'environment = "Pendulum-v1"\nalgorithm = "a2c"\n[run]\nseeds = 3'),
        ("c.toml", 'environment = "Pendulum-v1"\n[a2c]\nseeds = 3'),
    ],
    ids=["names", "objects", "TOML", "TOML as a preset"],
)
def test_a_config_that_was_written_by_hand(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    decided = decide(None, config_file=tmp_path / name, overrides={})
    assert (decided.environment_name, decided.algorithm, decided.run.seeds) == ("Pendulum-v1", "a2c", 3)
    assert decided.defaults.origin == "config file"
    assert decided.config == A2CConfig()


def test_a_preset_of_ones_own_is_of_any_environment(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[ppo]\ngamma = 0.5\nseeds = 3")
    decided = decide("Pendulum-v1", config_file=path, overrides={})
    assert (decided.config.gamma, decided.run.seeds) == (0.5, 3)
    with pytest.raises(ShoalError, match=r"^no environment was named; give one such as CartPole-v1"):
        decide(None, config_file=path, overrides={})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[ppo", "is not TOML: "),
        ("[ppo]\ngama = 1.0", "there is no setting 'gama'; did you mean 'gamma'"),
        ("[run]\nseeds = 3", "lacks algorithm, environment"),
        ("ppo = 3", "lacks algorithm, environment, run; is it"),
        ("environment = 'CartPole-v1'\n[pp0]", "lacks algorithm, run; it has 'pp0'; did you mean 'ppo'"),
        ("environment = 3\n[ppo]", "has environment=3, which is neither a name nor an object"),
        (
            "environment = 'CartPole-v1'\neval_env = 3\n[ppo]",
            "has eval_env=3, which is neither a name nor an object",
        ),
    ],
)
def test_a_mistake_in_a_toml_file_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ShoalError, match=sentence) as error:
        decide("CartPole-v1", config_file=path, overrides={})
    assert "\n" not in str(error.value)


def test_an_experiment_says_where_its_settings_are_from():
    origins = [
        decide(name, use_preset=preset, overrides={}).defaults.origin
        for name, preset in (("CartPole-v1", True), ("CartPole-v1", False), ("MiniGrid-LockedRoom", True))
    ]
    assert origins == ["preset", "defaults", "defaults"]


def test_a_config_of_another_version_is_refused(tmp_path):
    path = tmp_path / "config.json"
    for schema in ("3", None):
        path.write_text(json.dumps(decide("CartPole-v1", overrides={}).as_json() | {"schema": schema}))
        with pytest.raises(ShoalError, match="is damaged: an entry is missing or of another type"):
            decide(None, config_file=path, overrides={})
    for schema, version in ((2, "an earlier"), (4, "a newer")):
        path.write_text(json.dumps(decide("CartPole-v1", overrides={}).as_json() | {"schema": schema}))
        with pytest.raises(
            ShoalError, match=rf"{version} version of Shoal \(schema={schema}, and this one reads 3\)"
        ):
            decide(None, config_file=path, overrides={})


def test_a_network_class_is_written_by_its_name():
    decided = decide("CartPole-v1", overrides={"network": MyNetwork})
    assert flat(decided.config)["network"] is MyNetwork
    assert decided.as_json()["algorithm"]["network"] == f"{__name__}:MyNetwork"


def test_what_is_written_is_complete():
    """Every setting is there, so that other defaults in a later version change nothing; of two budgets one."""
    decided = decide("CartPole-v1", overrides={"seeds": 3})
    saved = json.loads(json.dumps(decided.as_json()))
    assert set(saved) == {"schema", "environment", "algorithm", "run", "from", "from_step"}
    assert {*saved["run"], "num_updates"} == {field.name for field in dataclasses.fields(RunConfig)}
    assert set(saved["algorithm"]) == {"name", *flat(PPOConfig())}
    decided = dataclasses.replace(decided, config=struct.as_arrays(decided.config))
    assert decided.as_json()["algorithm"]["gamma"] == pytest.approx(saved["algorithm"]["gamma"])


# ---- what cannot be


@pytest.mark.parametrize(
    "arguments,sentence",
    [
        ({"environment": "tiny_worlds:Halfs"}, "did you mean 'Halves'?"),
        ({"algorithm": "tiny_bandit:BanditConfg"}, "did you mean 'BanditConfig'?"),
        ({"algorithm": "tiny_bandit:bandit"}, "'tiny_bandit:bandit' is not an algorithm's config"),
        ({"overrides": {"gama": 0.5}}, "there is no setting 'gama'; did you mean 'gamma'?"),
        ({"overrides": {"sed": 1}}, "there is no setting 'sed'; did you mean 'seed'?"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(arguments, sentence):
    with pytest.raises(ShoalError) as error:
        decide(**{"environment": "CartPole-v1", "overrides": {}} | arguments)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text,sentence",
    [
        ("{", "is not JSON"),
        ("[]", "is damaged: it holds a list, not an object"),
        ('{"run": {}}', "lacks algorithm, environment"),
    ],
)
def test_a_file_that_is_no_config(tmp_path, text, sentence):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ShoalError, match="config file .*" + sentence):
        read_config(tmp_path)


def test_a_setting_that_a_file_has_and_no_version_knows(tmp_path):
    path = written(decide("CartPole-v1", overrides={}), tmp_path / "run")
    saved = json.loads((path / "config.json").read_text())
    saved["run"]["num_env"] = 3
    (path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ShoalError, match="there is no setting 'num_env'; did you mean 'num_envs'"):
        decide(None, config_file=path, overrides={})


@pytest.mark.parametrize(
    "settings,sentence",
    [
        (
            {"num_envs": 8, "env_groups": 2, "num_steps": 4, "num_minibatches": 32},
            "num_envs*num_steps/env_groups=16;",
        ),
        ({"gamma": 1.5}, "gamma=1.5 is out of bounds"),
    ],
)
def test_what_cannot_work_is_told_before_anything_starts(settings, sentence):
    with pytest.raises(ShoalError) as error:
        decide("CartPole-v1", overrides=settings).validate()
    assert sentence in str(error.value)


def test_a_config_without_validate_is_taken_as_it_is():
    decide("probe/action", algorithm=BanditConfig, overrides={}).validate()


@struct.struct
class SmallRuns(BanditConfig):
    """An algorithm that suits runs of another size."""

    run_defaults: ClassVar = {"num_envs": 8, "num_steps": 10}


def test_an_algorithm_has_defaults_of_the_run(tmp_path):
    decided = decide("probe/action", algorithm=SmallRuns, overrides={"num_steps": 5})
    assert decided.run == RunConfig(num_envs=8, num_steps=5)
    path = written(decided, tmp_path / "run")
    assert decide("probe/action", algorithm=SmallRuns, config_file=path, overrides={}).run.num_steps == 5
    preset = decide("CartPole-v1", overrides={}).run
    assert (
        decide("CartPole-v1", algorithm=SmallRuns, overrides={"num_envs": preset.num_envs}).run.num_steps
        == 10
    )


def test_functions_are_given_or_named():
    assert load_function("score", decide) is decide
    assert load_function("score", "shoal.runs.plan.decide:decide") is decide
    for value, sentence in (
        (3, "score=3 is not a function."),
        ("nowhere:f", "there is no module 'nowhere'"),
        (
            "shoal.runs.plan.config_files:SCHEMA",
            "score='shoal.runs.plan.config_files:SCHEMA' is not a function.",
        ),
        ("shoal.runs.plan.decide:decid", "did you mean 'decide'"),
    ):
        with pytest.raises(ShoalError, match=sentence):
            load_function("score", value)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"total_steps": 1e5}, "total_steps", 100_000),
        ({"num_envs": 64.0}, "num_envs", 64),
        ({"seeds": np.int64(3)}, "seeds", 3),
        ({"num_steps": np.float64(32)}, "num_steps", 32),
        ({"update_epochs": 2.0}, "update_epochs", 2),
        ({"hidden_sizes": (32.0, 16)}, "hidden_sizes", (32, 16)),
        ({"hidden_sizes": [np.int32(32), 16]}, "hidden_sizes", (32, 16)),
        ({"learning_rate": np.float32(0.5)}, "learning_rate", 0.5),
        ({"gamma": 1}, "gamma", 1),
    ],
)
def test_numbers_are_taken_as_their_field_declares_them(given, name, value):
    decided = decide("CartPole-v1", overrides=given)
    found = (flat(decided.run) | flat(decided.config))[name]
    assert found == value and type(found) is type(value)
    if isinstance(value, tuple):
        assert [type(x) for x in found] == [type(x) for x in value]
    decided.run.validate()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"total_steps": 1e5 + 0.5}, "total_steps=100000.5 is not a whole number."),
        ({"num_envs": float("inf")}, "num_envs=inf is not a whole number."),
    ],
)
def test_what_is_no_whole_number_is_not_made_one(given, sentence):
    with pytest.raises(ShoalError) as error:
        decide("CartPole-v1", overrides=given).validate()
    assert str(error.value) == sentence


@pytest.mark.parametrize("value", ["x", None, [3]])
def test_a_batch_that_is_no_number_is_refused_before_threads_are_chosen(value, tmp_path):
    with pytest.raises(ShoalError, match=r"batch_size=.* is not a whole number"):
        train("CartPole-v1", algorithm="dqn", batch_size=value, run_dir=tmp_path)


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        (3.0, int | None, 3),
        (3.0, float | None, 3.0),
        (3.0, float, 3.0),
        (None, int | None, None),
        (3.5, int, 3.5),
        ((3.0, np.int64(4)), tuple[int, ...] | None, (3, 4)),
        (None, tuple[int, ...] | None, None),
    ],
)
def test_a_number_beside_none(value, declared, expected):
    found = cast_to_declared(value, declared)
    assert found == expected and type(found) is type(expected)
