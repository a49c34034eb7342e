"""What tells runs apart: the settings that are not those of the preset."""

import dataclasses
import json

import pytest
from tiny_bandit import BanditConfig

from shoal.config.struct import struct
from shoal.runs.plan import presets
from shoal.runs.plan.decide import decide
from shoal.runs.plan.differences import directory_words
from shoal.runs.train.resume import config_json


@pytest.mark.parametrize(
    ("environment", "parameters", "overrides", "found", "words"),
    [
        ("CartPole-v1", {}, {}, {}, "ppo"),
        ("CartPole-v1", {}, {"learning_rate": 1e-3, "seeds": 3, "total_steps": 1e6, "keep": 1}, {}, "ppo"),
        (
            "CartPole-v1",
            {"gravity": 3.7, "cart_mass": 1.0},
            {"learning_rate": 1e-4, "hidden_sizes": (8, 8), "norm_obs": True},
            {"learning_rate": 1e-4, "hidden_sizes": [8, 8], "norm_obs": True, "gravity": 3.7},
            "ppo-norm_obsTrue-lr1e-4-hidden8x8-gravity3.7",
        ),
        ("CartPole-v1", {}, {"gamma": 0.97, "name": "first try"}, {"gamma": 0.97}, "ppo-first try"),
        (
            "tiny_worlds:Halves",
            {"bonus": 2.0},
            {"gamma": 0.5},
            {"gamma": 0.5, "bonus": 2.0},
            "ppo-gamma0.5-bonus2",
        ),
    ],
)
def test_a_run_is_told_apart_by_what_is_not_the_presets(environment, parameters, overrides, found, words):
    experiment = decide(environment, environment_parameters=parameters, overrides=overrides)
    assert experiment.differences == found
    assert directory_words(experiment) == words


def test_what_a_config_file_says_differs_from_the_preset_too(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("[ppo]\ngamma = 0.5")
    assert decide("CartPole-v1", config_file=path, overrides={}).differences["gamma"] == 0.5


def test_a_run_differs_from_the_preset_of_its_own_time(tmp_path, monkeypatch):
    """A later preset changes nothing of it; what a file of before lacks is today's; of another algorithm, too."""
    now = decide("CartPole-v1", overrides={"gamma": 0.5})
    saved = config_json(now, now)
    assert saved["preset"] == now.defaults.preset == presets.preset("CartPole-v1", "ppo")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(saved))
    later = {"gamma": 0.5, "learning_rate": 0.25}
    monkeypatch.setattr("shoal.runs.plan.defaults.preset", lambda *_, **__: later)
    again = decide(None, config_file=file, overrides={})
    assert again.defaults.preset == now.defaults.preset
    assert again.differences == saved["settings"] == {"gamma": 0.5}
    assert config_json(again, again)["preset"] == now.defaults.preset
    assert decide(None, config_file=file, algorithm="dqn", overrides={}).defaults.preset == later
    del saved["preset"]
    file.write_text(json.dumps(saved))
    assert "learning_rate" in decide(None, config_file=file, overrides={}).differences


def test_a_name_of_many_settings_is_short():
    overrides = {
        "vf_coef": 0.1,
        "ent_coef": 0.2,
        "clip_coef": 0.3,
        "gae_lambda": 0.4,
        "gamma": 0.5,
        "max_grad_norm": 6.0,
    }
    experiment = decide("CartPole-v1", overrides=overrides)
    assert experiment.differences.keys() == overrides.keys()
    assert len(directory_words(experiment)) < 70


def test_an_algorithm_that_cannot_be_imported_or_made_without_arguments_does_no_harm():
    @struct
    class Local(BanditConfig):
        needed: int = 3

    @struct
    class Wanting:
        needed: int

    experiment = decide("CartPole-v1", algorithm=Local(step_size=0.25), overrides={})
    assert experiment.differences == {"step_size": 0.25}
    assert dataclasses.replace(experiment, config=Wanting(needed=1)).differences == {}
