"""Torsos and shown entries as settings of a run: written down, resumed, loaded, and refused in a sentence."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import shoal
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import flat, with_settings
from shoal.nets import torso_choice
from shoal.runs.plan.decide import decide
from shoal.types import EnvSpec, spec_of
from shoal.types.spaces import Box, Dict, Discrete

TINY = dict(
    **{"seeds": 1, "num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "num_evals": 1},
    **{"eval_episodes": 2, "eval_max_steps": 20, "hidden_sizes": (4,), "preset": False, "progress": False},
)
PARTIAL = "CartPole-NoVelocity-v1"


class Fourier(nnx.Module):
    def __init__(self, space, frequencies, gain, key):
        self.num_features = 2 * frequencies
        self.kernel = nnx.Param(gain * jax.random.normal(key, (space.shape[0], frequencies)))

    def __call__(self, observation):
        phase = observation @ self.kernel[...]
        return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1)


@struct.struct
class Waves:
    """Sines and cosines of learned frequencies."""

    frequencies: int = struct.parameter(3, low=1)
    """Uses so many frequencies."""
    gain: float = struct.parameter(1.0, above=0.0)
    """Multiplies the initial frequencies."""

    def build(self, space, key):
        return Fourier(space, self.frequencies, self.gain, key)


NAME = f"{__name__}:Waves"


def kernels(tree):
    leaves = struct.named_leaves(tree)
    return {k.removesuffix("/value"): x.shape for k, x in leaves.items() if "kernel" in k}


@pytest.mark.full
def test_a_torso_of_ones_own_trains_resumes_and_comes_back(tmp_path):
    asked = dict(
        encoder=[NAME, "mlp"], critic_encoder="flatten", frequencies=5, gain=0.5, encoder_features=(6,)
    )
    run = shoal.train("CartPole-v1", **asked, **TINY, total_steps=64, run_dir=tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["algorithm"]
    assert saved["encoder"] == f"{NAME},mlp" and saved["critic_encoder"] == "flatten"
    assert saved["frequencies"] == 5 and saved["gain"] == 0.5
    policy = shoal.load(run.path, "last")
    shapes = kernels(policy.parameters)
    assert shapes["actor/encoder/modules/0/torso/kernel"] == (4, 5)
    assert shapes["actor/encoder/modules/1/torsos/0/layers/0/kernel"] == (6, 10)
    assert policy((), np.zeros(4))[1] in (0, 1)
    resumed = shoal.resume(run.path, total_steps=128, progress=False)
    whole = shoal.train("CartPole-v1", **asked, **TINY, total_steps=128, run_dir=tmp_path / "whole")
    assert resumed.summary["parameters_sha256"] == whole.summary["parameters_sha256"]


def test_the_settings_of_a_torso_are_found_from_names_files_and_flags(tmp_path):
    decided = decide("CartPole-v1", overrides={"encoder": NAME, "frequencies": 7})
    assert flat(decided.config)["frequencies"] == 7
    (tmp_path / "config.json").write_text(json.dumps(decided.as_json()))
    again = decide(None, config_file=tmp_path, overrides={})
    assert again.config == decided.config
    listed = decide(None, config_file=tmp_path, overrides={"encoder": [NAME], "gain": 2.0})
    assert flat(listed.config)["frequencies"] == 7 and flat(listed.config)["gain"] == 2.0
    other = decide(None, config_file=tmp_path, overrides={"encoder": "flatten"})
    assert "frequencies" not in flat(other.config)
    given = with_settings(PPOConfig(), encoder=Waves(frequencies=2), critic_encoder="mlp")
    assert flat(given)["encoder"] == NAME and flat(given)["frequencies"] == 2
    assert torso_choice.name_of(with_settings(given, encoder="mlp,mlp").network.encoder) == "mlp,mlp"


@pytest.mark.parametrize(
    "asked, sentence",
    [
        ({"frequencies": 5}, "there is no setting 'frequencies'"),
        ({"encoder": NAME, "frequencies": 0}, "frequencies=0 is out of bounds: it must be at least 1"),
        ({"encoder": "cn"}, r"encoder='cn' is none of .* did you mean 'cnn'\?"),
        ({"critic_encoder": "cn"}, "critic_encoder='cn' is none of"),
        ({"encoder": f"{__name__}:Wave"}, r"has no 'Wave'; did you mean 'Waves'\?"),
        (
            {"encoder": "resnet", "encoder_kernels": (3,)},
            "encoder_kernels=.* has no effect with encoder='resnet'",
        ),
        ({"encoder": "mlp", "encoder_blocks": 1}, "encoder_blocks=1 has no effect with encoder='mlp'"),
        ({"encoder": "one_hot,mlp", "norm_obs": True}, "norm_obs=True replaces the integers"),
        ({"critic_encoder": "one_hot", "norm_obs": True}, "critic_encoder='one_hot' needs"),
        ({"initialiser": "orthogonl"}, "initialiser='orthogonl' is none of"),
        (
            {"actor_only": ("x",)},
            "actor_only=x names entries of a dictionary .* observation is a Box; leave it",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_compiles(asked, sentence):
    with pytest.raises(ShoalError, match=sentence):
        experiment = decide("CartPole-v1", overrides=asked, use_preset=False)
        experiment.validate()


@pytest.mark.parametrize(
    "asked, sentence",
    [
        (
            {"actor_only": ("observatoin",)},
            r"actor_only names 'observatoin', .* did you mean 'observation'\?",
        ),
        ({"critic_only": ("stat",)}, r"critic_only names 'stat', .* did you mean 'state'\?"),
        ({"actor_only": ("observation", "state")}, "actor_only names all entries of observation_space"),
        ({"critic_only": ("observation",)}, "critic_only names all entries .* leave some for the actor"),
        ({"actor_only": ("state",)}, "critic_only and actor_only both name 'state', which nobody is shown"),
        ({"actor_only": ("observation",), "shared_torso": True}, "shared_torso=True .* is for the critic"),
    ],
    ids=str,
)
def test_names_of_entries_are_compared_with_the_space(asked, sentence):
    parameters = {"critic_state": True}
    with pytest.raises(ShoalError, match=sentence):
        decide(PARTIAL, environment_parameters=parameters, overrides=asked, use_preset=False).validate()


def test_a_torso_that_is_shared_cannot_keep_an_entry_from_the_critic():
    spec = EnvSpec(Dict({"a": Box(-1, 1, (2,)), "b": Box(-1, 1, (2,))}), Discrete(2), actor_only=("a",))
    with pytest.raises(ShoalError, match=r"shared_torso=True .* actor_only=\('a',\) is for the actor only"):
        with_settings(PPOConfig(), shared_torso=True).resolved().validate(spec, 4, 32)


@pytest.mark.parametrize("core", ["none", "gru"])
@pytest.mark.full
@pytest.mark.rare("gru")
def test_the_critic_sees_the_state_in_place_of_what_the_actor_sees(core, tmp_path):
    run = shoal.train(
        PARTIAL,
        environment_parameters={"critic_state": True},
        actor_only=("observation",),
        norm_obs=True,
        core=core,
        **({"core_size": 4} if core == "gru" else {}),
        **TINY,
        total_steps=64,
        run_dir=tmp_path / "run",
    )
    shared = jax.tree.map(lambda x: x[0], run.learner.shared)
    assert set(shared.observation.mean) == {"observation", "state"}
    shapes = kernels(shared.network)
    place = "torso/0/mlp" if core == "gru" else "mlp"
    assert shapes[f"critic/{place}/layers/0/kernel"] == (4, 4)
    assert shapes[f"actor/{'torso/' if core == 'gru' else ''}mlp/layers/0/kernel"] == (4, 2)
    policy = shoal.load(run.path)
    assert spec_of(policy.environment).actor_only == ("observation",)
    assert set(policy.parameters.observation.mean) == {"observation"}
    assert policy(policy.initial_memory(), {"observation": np.zeros(2)})[1] in (0, 1)
    assert np.isfinite(shoal.evaluate(policy, episodes=2)["return_mean"])
