"""The flat view of a config: each name once, in whichever struct it is; structs that a setting chooses."""

import dataclasses
import functools
import json
import math
import operator

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algos.catalogue import algorithms, config_class
from shoal.algos.learning.optimisers import JointOptimizerConfig
from shoal.algos.policy_gradient import A2CConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct as structs
from shoal.config.settings import check_fields, flat, groups_of, needs_of, settings_of, with_settings
from shoal.config.struct import parameter, struct
from shoal.config.values import json_value
from shoal.envs import make
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.networks import NetworkClass, NetworkConfig
from shoal.nets.torso_config import MAX_LAYERS
from shoal.records.run_config import RunConfig
from shoal.runs.plan.config_files import read_config
from shoal.runs.plan.decide import decide
from shoal.types import EnvSpec, spec_of
from shoal.types.spaces import Box, Dict, Discrete

OWN = "shoal.nets.actor_critic:ActorCritic"


@struct
class Wide:
    """A network of the user's own with settings."""

    width: int = parameter(16, low=1)
    """Gives each layer this width."""
    scale: float = parameter(1.0, above=0.0)
    """Multiplies the logits by this."""

    def build(self, spec, key):
        """An actor and a critic with one layer each."""
        return ActorCritic(spec, NetworkConfig(hidden_sizes=(self.width,)), key=key)


class Plain(ActorCritic):
    """A class without settings."""


@dataclasses.dataclass(frozen=True)
class NoStruct:
    """A dataclass that is no struct."""

    width: int = 3


@pytest.mark.parametrize("name", algorithms())
def test_each_name_exists_once(name):
    """In the algorithm's config and the run's together; the fields that hold structs have names of their own."""
    config = config_class(name)()
    names = set(settings_of(config))
    assert not names & set(settings_of(RunConfig()))
    parts = {field.name for field in dataclasses.fields(config) if "Config" in str(field.type)}
    assert {"agents", "optimization"} <= parts and not parts & names
    assert set(needs_of(config)) <= names
    assert sorted(x for group in groups_of(config).values() for x in group) == sorted(names)


def test_two_structs_with_one_name_are_refused():
    @struct
    class Twice(PPOConfig):
        learning_rate: float = 1.0

    with pytest.raises(
        ShoalError, match="'learning_rate' is a setting of JointOptimizerConfig and of Twice; rename"
    ):
        flat(Twice())


def test_settings_are_replaced_wherever_they_are():
    config = with_settings(PPOConfig(), hidden_sizes=(4,), gamma=0.5, learning_rate=0.1)
    network = NetworkConfig(hidden_sizes=(4,))
    assert config == PPOConfig(
        network=network, gamma=0.5, optimization=JointOptimizerConfig(learning_rate=0.1)
    )
    assert with_settings(config) is config
    assert with_settings(A2CConfig(), gamma=0.5).optimization == A2CConfig().optimization
    with pytest.raises(ShoalError, match="there is no setting 'gama'; did you mean 'gamma'"):
        with_settings(config, gama=0.5)
    with pytest.raises(
        ShoalError, match=r"there is no setting 'wandb'; the numbers of a run are sent elsewhere by --logger"
    ):
        with_settings(config, wandb=True)
    with pytest.raises(ShoalError, match=r"there is no setting 'lr'; did you mean 'learning_rate'\?"):
        with_settings(PPOConfig(), lr=1e-3)


@pytest.mark.parametrize("make_config", [PPOConfig, lambda **x: dataclasses.replace(PPOConfig(), **x)])
def test_a_setting_at_the_wrong_place_says_where_it_went(make_config):
    sentence = (
        r"^hidden_sizes is a setting of NetworkConfig: PPOConfig\(network=NetworkConfig\(hidden_sizes=...\)\), or "
        r"with_settings\(PPOConfig\(\), hidden_sizes=...\)\.$"
    )
    with pytest.raises(ShoalError, match=sentence):
        make_config(hidden_sizes=(4,))
    with pytest.raises(TypeError):
        make_config(nothing=1)


def test_a_setting_has_what_its_field_declares():
    found = settings_of(with_settings(PPOConfig(), core="gru"))
    assert found["core"].value == "gru" and found["core"].owner is NetworkConfig
    assert found["hidden_sizes"].field.bounds.longest == MAX_LAYERS
    assert found["critic_learning_rate"].declared == float | None
    assert found["gamma"].text == "Discounts rewards by this factor per step."
    data = {name for name, setting in found.items() if setting.is_data}
    assert {"gamma", "learning_rate", "target_kl"} <= data
    assert not data & {"network", "hidden_sizes", "initial_std", "optimizer"}


def test_numbers_of_nested_structs_are_leaves():
    config = structs.as_arrays(PPOConfig().resolved())
    stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (2,)), config)
    swept = with_settings(stacked, learning_rate=jnp.array([1e-3, 1e-2]))
    assert swept.optimization.learning_rate.shape == (2,)
    assert jax.tree.structure(swept) == jax.tree.structure(config)


# ---- the network


@pytest.mark.parametrize("network", [OWN, ActorCritic, NetworkConfig, NetworkConfig()])
def test_shoals_own_network_is_found_by_its_names(network):
    config = with_settings(PPOConfig(), network=network, hidden_sizes=(3,))
    assert config.network == NetworkConfig(hidden_sizes=(3,)) and flat(config)["network"] == OWN
    assert with_settings(config, network=OWN) is config  # what is there already stays


IMAGE = EnvSpec(Box(0.0, 1.0, (10, 10, 4)), Discrete(3))
LAYERS = {
    "encoder_channels": (8, 6),
    "encoder_kernels": (3, 2),
    "encoder_strides": (2, 1),
    "encoder_features": (5,),
}


@pytest.mark.quick("gru")
@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_layers_of_the_encoder_are_the_actors_and_the_critics(core):
    """With a memory and without; where none is given, the structure is as if the defaults were."""

    def kernels(**given):
        network = with_settings(PPOConfig(), core=core, encoder="cnn", **given).network
        leaves = structs.named_leaves(jax.eval_shape(lambda: network.build(IMAGE, jax.random.key(0))))
        return {
            name: x.shape for name, x in leaves.items() if "/pictures/" in name and name.endswith("kernel")
        }

    found, fitting = kernels(**LAYERS), [(16, 3, 3, 4), (128, 8 * 8 * 16)]
    assert list(found.values()) == 2 * [(8, 3, 3, 4), (6, 2, 2, 8), (5, 3 * 3 * 6)]
    assert [name.split("/")[0] for name in found] == 3 * ["actor"] + 3 * ["critic"]
    assert list(kernels().values()) == 2 * fitting
    assert kernels(encoder_channels=(16,), encoder_features=(128,)) == kernels()


def test_the_layers_of_the_encoder_are_checked_for_what_the_actor_and_the_critic_see():
    entries = {"image": IMAGE.observation_space, "state": Box(0.0, 1.0, (3, 3, 1))}
    config = with_settings(PPOConfig(), encoder="cnn", encoder_kernels=(4,)).resolved()
    config.validate(IMAGE, 4, 32)
    for critic_only in ((), ("state",)):
        spec = EnvSpec(Dict(entries), Discrete(3), critic_only=critic_only)
        with pytest.raises(
            ShoalError, match=r"the 3 x 3 image that reaches convolution 1 of observation/state"
        ):
            config.validate(spec, 4, 32)
    with pytest.raises(ShoalError, match=r"encoder='cnn' needs an observation \[height, width, channels\]"):
        only = Dict(entries | {"place": Box(0.0, 1.0, (3,))})
        config.validate(EnvSpec(only, Discrete(3), critic_only=("image", "state")), 4, 32)


def test_the_layers_of_the_encoder_are_written_and_read_again(tmp_path):
    given = LAYERS | {"encoder": "cnn", "encoder_strides": None, "encoder_channels": [8.0, 6]}
    decided = decide("MiniGrid-Empty-5x5", overrides=given)
    network = decided.config.network
    assert (network.encoder_channels, network.encoder_kernels) == ((8, 6), (3, 2))
    assert network.encoder_strides is None and network.encoder_features == (5,)
    (tmp_path / "config.json").write_text(json.dumps(decided.as_json()))
    assert decide(None, config_file=tmp_path, overrides={}).config == decided.config


@pytest.mark.quick("Plain")
@pytest.mark.parametrize("network", [f"{__name__}:Plain", Plain])
def test_a_class_without_settings_may_be_a_network(network):
    config = with_settings(PPOConfig(), network=network, distribution="tanh_normal")
    assert config.network == NetworkClass(network, "tanh_normal") and flat(config)["network"] == network
    assert isinstance(config.network.build(spec_of(make("Pendulum-v1")), jax.random.key(0)), Plain)
    with pytest.raises(
        ShoalError, match=r"^hidden_sizes=\(4,\) has no effect with network=.*it needs network="
    ):
        with_settings(config, hidden_sizes=(4,))


@pytest.mark.quick("Wide")
@pytest.mark.parametrize("network", [f"{__name__}:Wide", Wide, Wide()])
def test_the_fields_of_a_network_are_settings(network):
    config = with_settings(PPOConfig(), network=network, width=32)
    assert config.network == Wide(width=32) and flat(config)["network"] == f"{__name__}:Wide"
    assert groups_of(config)["network"] == ("network", "width", "scale")
    assert settings_of(config)["width"].text == "Gives each layer this width."
    config.resolved().validate(spec_of(make("CartPole-v1")), 4, 32)
    with pytest.raises(ShoalError, match="width=0 is out of bounds: it must be at least 1"):
        check_fields(with_settings(config, width=0))
    with pytest.raises(ShoalError, match="there is no setting 'widht'; did you mean 'width'"):
        with_settings(config, widht=3)


@pytest.mark.parametrize(
    "network, message",
    [
        (3, "network=3 is neither module:Name, nor a class, nor a network's settings"),
        (f"{__name__}:NoStruct", "is a dataclass, but not a network's settings: decorate it with"),
        (RunConfig(), "is a dataclass, but not a network"),
        (
            flax.linen.Dense,
            r"flax.linen.linear:Dense' is a module of flax.linen that needs features; .*def make.spec.: return Dense",
        ),
        (flax.linen.Dense(3), "flax.linen.linear:Dense' is a module of flax.linen itself and not a class"),
        ("nowhere:Net", "there is no module 'nowhere'"),
    ],
)
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_what_is_no_network_is_refused(network, message, algorithm):
    with pytest.raises(ShoalError, match=message):
        with_settings(config_class(algorithm)(), network=network)
    if isinstance(network, type):
        with pytest.raises(ShoalError, match=message.replace("spec", "space")):
            with_settings(config_class(algorithm)(), encoder=network)


def test_a_name_in_the_place_of_a_struct_is_refused():
    with pytest.raises(
        ShoalError, match=r"network='my:Net' is not a struct; with_settings\(PPOConfig\(\), network="
    ):
        PPOConfig(network="my:Net").resolved()


def test_settings_of_a_preset_that_another_network_lacks_are_left_out():
    decided = decide("CartPole-NoVelocity-v1", overrides={"network": Wide, "width": 8})
    assert decided.config.network == Wide(width=8)
    assert flat(decided.config)["num_minibatches"] != math.inf
    with pytest.raises(ShoalError, match="there is no setting 'widht'; did you mean 'width'"):
        decide("CartPole-v1", overrides={"network": Wide, "widht": 8})


@pytest.mark.full
def test_a_run_of_a_network_with_settings_is_written_loaded_and_run_again(tmp_path):
    sizes = dict(total_steps=256, num_envs=4, num_steps=32, seeds=1, num_evals=1, eval_episodes=2, devices=1)
    run = shoal.train(
        "CartPole-v1", network=Wide, width=8, scale=2.0, run_dir=tmp_path / "run", progress=False, **sizes
    )
    saved = read_config(run.path)["algorithm"]
    assert (saved["network"], saved["width"], saved["scale"]) == (f"{__name__}:Wide", 8, 2.0)
    assert shoal.load(run.path).config.network.width == 8
    again = decide(None, config_file=run.path, overrides={"scale": 3.0})
    assert again.config.network == Wide(width=8, scale=3.0)
    own = decide(None, config_file=run.path, overrides={"network": OWN, "hidden_sizes": (5,)})
    assert own.config.network == NetworkConfig(hidden_sizes=(5,))


@pytest.mark.parametrize(
    "function",
    [
        lambda spec: spec,
        functools.partial(dict, a=1),
        operator.itemgetter(1),
        Wide().build,
        np.frompyfunc(abs, 1, 1),
        "my_module:make.<locals>.Net",
    ],
)
def test_functions_that_no_name_finds_cannot_be_written_down(function):
    with pytest.raises(ShoalError, match="cannot be imported by that name when the run is loaded"):
        json_value(function)


def local_algorithm():
    @struct
    class Local(A2CConfig):
        """An algorithm that no name finds."""

    return Local()


@pytest.mark.parametrize(
    "given",
    [
        {"overrides": {"encoder": (functools.partial(flax.linen.Dense, 3), "mlp")}},
        {"algorithm": local_algorithm(), "overrides": {}},
    ],
    ids=["a row of torsos", "an algorithm"],
)
def test_a_part_of_a_run_that_no_name_finds_is_refused(given):
    with pytest.raises(ShoalError, match="cannot be imported by that name when the run is loaded"):
        decide("CartPole-v1", **given).as_json()
