"""How layers are made: scales, biases and activations by settings, in hidden layers and in every kind of encoder."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.dqn_config import DQNConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config.requirements import check_needs
from shoal.config.settings import flat, needs_of, with_settings
from shoal.config.struct import named_leaves
from shoal.nets import torsos
from shoal.nets.cnn import GridCNN
from shoal.nets.networks import NetworkConfig
from shoal.nets.q_networks import QNetworkConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete

KEY = jax.random.key(0)
CARTPOLE = EnvSpec(Box(-5.0, 5.0, (4,)), Discrete(2))
IMAGE, CELLS = Box(0, 255, (9, 8, 3), np.uint8), Box(0, 5, (5, 6, 2), np.uint8)


def test_hidden_layers_of_the_heads_have_a_scale_of_their_own():
    def kernels(**settings):
        config = NetworkConfig(hidden_sizes=(6,), hidden_scale=3.0, encoder="mlp", **settings)
        actor = config.build(CARTPOLE, KEY).actor
        return np.asarray(actor.encoder.torsos[0].layers[0].kernel), np.asarray(actor.mlp.layers[0].kernel)

    plain, scaled = kernels(), kernels(head_hidden_scale=1.5)
    np.testing.assert_array_equal(plain[0], scaled[0])
    np.testing.assert_allclose(plain[1], 2.0 * scaled[1], rtol=1e-6)


def features_of(module, observation):
    """The output of the torso's last layer, of an actor or a critic."""
    features = module.encoder(observation)
    return module.mlp.with_features(features)[1] if module.mlp.layers else features


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_sizes": (6, 5)},
        {"hidden_sizes": (6,), "critic_hidden_sizes": (), "encoder": "mlp"},
        {"hidden_sizes": (), "encoder": "mlp"},
        {"hidden_sizes": (), "encoder": "mlp_each,mlp", "encoder_features": (6,)},
    ],
    ids=str,
)
def test_the_last_layer_of_a_torso_may_have_no_activation(settings):
    for is_on in (True, False):
        config = NetworkConfig(activation="relu", torso_final_activation=is_on, **settings)
        network = config.build(CARTPOLE, KEY)
        for module in (network.actor, network.critic):
            features = features_of(module, jax.random.normal(KEY, (20, 4)))
            assert bool(jnp.any(features < 0)) != is_on


def test_torsos_before_another_keep_their_activation():
    config = NetworkConfig(hidden_sizes=(), activation="relu", torso_final_activation=False)
    row = torsos.build(CARTPOLE.observation_space, "mlp_each,mlp", config, key=KEY)
    first, last = row.modules
    assert (first.torsos[0].num_activated, last.torsos[0].num_activated) == (1, 0)


def test_layers_after_a_core_are_no_torso():
    settings = {"core": "gru", "core_size": 3, "hidden_sizes": (6,), "head_sizes": (4,)}
    actor = NetworkConfig(torso_final_activation=False, **settings).build(CARTPOLE, KEY).actor
    assert (actor.torso.mlp.num_activated, actor.mlp.num_activated) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "space", "features"),
    [
        ("cnn", CELLS, ()),
        ("cnn", IMAGE, ()),
        ("cnn", IMAGE, (5,)),
        ("resnet", IMAGE, ()),
        ("resnet", IMAGE, (5,)),
        ("set", Box(-1.0, 1.0, (3, 2)), (5,)),
    ],
)
def test_an_encoder_is_the_last_part_where_there_are_no_hidden_layers(kind, space, features):
    observation = jax.vmap(space.sample)(jax.random.split(KEY, 5))

    def any_negative(**settings):
        config = NetworkConfig(
            encoder=kind, encoder_features=features, activation="relu", initialiser="he_normal", **settings
        )
        return bool(jnp.any(torsos.build(space, kind, config, key=KEY)(observation) < 0))

    assert any_negative(hidden_sizes=(), torso_final_activation=False)
    assert not any_negative(hidden_sizes=())
    assert not any_negative(hidden_sizes=(4,), torso_final_activation=False)


def test_layers_that_are_normalised_may_have_no_bias():
    settings = {"hidden_sizes": (6, 5), "layer_norm": True, "encoder": "mlp"}
    plain, bare = (
        NetworkConfig(**settings, layer_norm_bias=x).build(CARTPOLE, KEY).actor for x in (True, False)
    )
    names = [set(named_leaves(x)) for x in (plain, bare)]
    assert names[0] - names[1] == {
        "encoder/torsos/0/layers/0/bias",
        "mlp/layers/0/bias",
        "mlp/layers/1/bias",
    }
    for rows in (1, 5, 40):  # by rows, and by features
        x = jax.random.normal(KEY, (rows, 4))
        np.testing.assert_allclose(plain.policy(x).logits, bare.policy(x).logits, atol=1e-6)
    # Without a normalisation there is nothing that makes up for it.
    unchanged = NetworkConfig(layer_norm_bias=False).build(CARTPOLE, KEY).actor
    assert "mlp/layers/0/bias" in named_leaves(unchanged)


OF_NORMS = {"layer_norm_bias": False}


@pytest.mark.parametrize(
    "config, others, given, has_effect",
    [
        (PPOConfig(), {"head_sizes": (5,), "head_layer_norm": True}, OF_NORMS, True),
        (DQNConfig(), {"head_sizes": (5,), "noisy": True, "layer_norm": True}, OF_NORMS, True),
        (DQNConfig(), {"noisy": True, "layer_norm": True}, OF_NORMS, False),
        (DQNConfig(), {}, OF_NORMS, False),
        (DQNConfig(), {"head_sizes": (5,), "noisy": True}, {"initialiser": "lecun_normal"}, True),
        (DQNConfig(), {"encoder": "mlp", "noisy": True}, {"initialiser": "lecun_normal"}, True),
        (DQNConfig(), {"noisy": True}, {"initialiser": "lecun_normal"}, False),
    ],
)
def test_a_setting_is_refused_where_no_layer_has_it_and_nowhere_else(config, others, given, has_effect):
    plain = with_settings(config, hidden_sizes=(6,), **others)
    changed = with_settings(plain, **given)
    leaves = [jax.tree.leaves_with_path(x.network.build(CARTPOLE, KEY)) for x in (plain, changed)]
    assert has_effect == (str(leaves[0]) != str(leaves[1]))
    values = {"action_space": CARTPOLE.action_space, "num_agents": 1, **flat(changed)}
    with contextlib.nullcontext() if has_effect else pytest.raises(ShoalError, match="has no effect with"):
        check_needs(given, values, needs_of(changed))


@pytest.mark.parametrize("critic", [None, (6,)])
def test_the_last_activation_is_refused_where_neither_torso_has_layers(critic):
    given = {"torso_final_activation": False}
    config = with_settings(PPOConfig(), hidden_sizes=(), critic_hidden_sizes=critic, **given)
    values = {"action_space": CARTPOLE.action_space, "num_agents": 1, **flat(config)}
    with contextlib.nullcontext() if critic else pytest.raises(ShoalError, match="has no effect with"):
        check_needs(given, values, needs_of(config))


@pytest.mark.parametrize("space", [CELLS, IMAGE], ids=["cells", "image"])
def test_normalised_convolutions_may_have_no_bias(space):
    observation = jax.vmap(space.sample)(jax.random.split(KEY, 3))

    def torso_of(has_bias):
        config = NetworkConfig(encoder_layer_norm=True, layer_norm_bias=has_bias)
        return torsos.build(space, "cnn", config, key=KEY)

    plain, bare = torso_of(True), torso_of(False)
    dropped = set(named_leaves(plain)) - set(named_leaves(bare))
    assert dropped and all(name.endswith("bias") for name in dropped)
    np.testing.assert_allclose(plain(observation), bare(observation), atol=1e-6)


def test_noisy_layers_take_the_final_activation():
    config = QNetworkConfig(noisy=True, hidden_sizes=(6, 5), torso_final_activation=False)
    assert config.build(CARTPOLE, KEY).layers.modules[0].mean.num_activated == 1


def test_integers_of_cells_pass_the_convolutions_as_numbers():
    observation = jax.vmap(CELLS.sample)(jax.random.split(KEY, 3))
    torso = torsos.build(CELLS, "cnn", NetworkConfig(encoder_embedding=0), key=KEY)
    (grid,) = torso.pictures
    assert isinstance(grid, GridCNN) and not grid.embeddings
    assert grid.cnn.convs[0].kernel.shape == (16, 2, 2, 2)
    np.testing.assert_allclose(torso(observation), grid.cnn(observation.astype(jnp.float32)), rtol=1e-6)


def test_entries_beside_pictures_may_pass_a_linear_layer():
    space = Dict({"view": CELLS, "direction": Discrete(4), "speed": Box(-1.0, 1.0, (3,))})
    plain = torsos.build(space, "cnn", NetworkConfig(), key=KEY)
    torso = torsos.build(space, "cnn", NetworkConfig(encoder_others=6), key=KEY)
    observation = jax.vmap(space.sample)(jax.random.split(KEY, 3))
    features = torso(observation)
    assert features.shape == (3, torso.num_features) == (3, plain.num_features - 4 - 3 + 6 + 6)
    direction, speed = torso.others
    one_hot = jax.nn.one_hot(observation["direction"], 4)
    np.testing.assert_allclose(features[:, :6], one_hot @ direction.projection[0].kernel.T, atol=1e-6)
    np.testing.assert_allclose(
        features[:, 6:12], observation["speed"] @ speed.projection[0].kernel.T, atol=1e-5
    )
    np.testing.assert_array_equal(features[:, 12:], plain(observation)[:, 7:])  # the same draw
