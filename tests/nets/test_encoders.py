"""Encoders: observations of every space as one vector, in name order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.nets import torsos
from shoal.nets.encoders.kinds import Encoder
from shoal.nets.network_check import check_torsos
from shoal.nets.torso_config import TorsoConfig
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

NESTED = Dict(
    {"b": Discrete(3), "a": Dict({"image": Box(0, 255, (2, 2), np.uint8), "goal": Box(-1, 1, (3,))})}
)


def encoder_for(space, kind="flatten", config=None, key=None):
    """An encoder of a kind."""
    return torsos.build(space, kind, config, key=jax.random.key(0) if key is None else key)


def layers(channels=None, kernels=None, strides=None, features=None, **others):
    """Settings by their names without `encoder_`."""
    given = dict(channels=channels, kernels=kernels, strides=strides, features=features, **others)
    return TorsoConfig(
        **{name if name == "channels_first" else f"encoder_{name}": x for name, x in given.items()}
    )


@pytest.mark.parametrize(
    "space, observation, expected",
    [
        (Box(-1.0, 1.0, (2, 2)), [[1.0, 2.0], [3.0, 4.0]], [1, 2, 3, 4]),
        (Box(-1.0, 1.0, ()), 0.5, [0.5]),
        (Box(0, 255, (2,), np.uint8), np.array([7, 255], np.uint8), [7, 255]),
        (Discrete(4), 2, [0, 0, 1, 0]),
        (MultiDiscrete((2, 3)), [1, 0], [0, 1, 1, 0, 0]),
        (
            NESTED,
            {"b": 1, "a": {"image": np.array([[1, 2], [3, 4]], np.uint8), "goal": [0.1, 0.2, 0.3]}},
            [0.1, 0.2, 0.3, 1, 2, 3, 4, 0, 1, 0],
        ),
    ],
)
def test_flatten(space, observation, expected):
    encoder = encoder_for(space)
    observation = jax.tree.map(jnp.asarray, observation, is_leaf=lambda x: not isinstance(x, dict))
    vector = encoder(observation)
    assert vector.dtype == jnp.float32
    assert vector.shape == (encoder.num_features,)
    np.testing.assert_allclose(vector, expected)
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x, (5, 2, *x.shape)), observation)
    np.testing.assert_allclose(encoder(batch), np.broadcast_to(expected, (5, 2, len(expected))))
    assert not jax.tree.leaves(encoder)


def test_one_hot_takes_integers_of_few_values_as_such_and_numbers_as_they_are():
    most = np.broadcast_to(np.array([2, 1]), (2, 2, 2))
    space = Dict(
        {
            "direction": Discrete(3),
            "far": Box(-1, 1, (2,)),
            "signed": Box(-3, 3, (2,), np.int32),
            "view": Box(0, most, dtype=np.uint8),
        }
    )
    encoder = encoder_for(space, "one_hot")
    observation = {
        "direction": jnp.array([0, 2]),
        "far": jnp.array([[0.5, -0.5], [1.0, 0.0]]),
        "signed": jnp.array([[-3, 3], [1, 0]]),
        "view": jnp.array(
            [[[[0, 1], [2, 0]], [[1, 1], [0, 0]]], [[[2, 1], [2, 1]], [[1, 0], [1, 0]]]], jnp.uint8
        ),
    }
    cells = {
        (0, 1): [1, 0, 0, 0, 1],
        (2, 0): [0, 0, 1, 1, 0],
        (1, 1): [0, 1, 0, 0, 1],
        (0, 0): [1, 0, 0, 1, 0],
    }
    cells |= {(2, 1): [0, 0, 1, 0, 1], (1, 0): [0, 1, 0, 1, 0]}
    expected = [
        [1, 0, 0, 0.5, -0.5, -3, 3, *cells[0, 1], *cells[2, 0], *cells[1, 1], *cells[0, 0]],
        [0, 0, 1, 1.0, 0.0, 1, 0, *cells[2, 1], *cells[2, 1], *cells[1, 0], *cells[1, 0]],
    ]
    np.testing.assert_array_equal(encoder(observation), np.array(expected, np.float32))
    assert encoder.num_features == 27
    with pytest.raises(ShoalError, match=r"encoder='one_hot' needs integers of less than 64 values"):
        encoder_for(Box(0, 255, (2,), np.uint8), "one_hot")


@pytest.mark.full
def test_mlp_each_passes_every_part_through_its_own_mlp():
    encoder = encoder_for(NESTED, "mlp_each", layers(features=(8, 4)), key=jax.random.key(0))
    observation = jax.jit(jax.vmap(NESTED.sample))(jax.random.split(jax.random.key(1), 6))
    vector = encoder(observation)
    assert vector.shape == (6, encoder.num_features) == (6, 12)
    goal = encoder.torsos[0](observation["a"]["goal"])
    np.testing.assert_allclose(vector[:, :4], goal, atol=1e-6)
    observation["a"]["goal"] += 1.0
    changed = np.any(np.abs(encoder(observation) - vector) > 1e-6, axis=0)
    assert changed[:4].all()
    assert not changed[4:].any()


def test_a_large_space_costs_nothing_to_hash():
    """The structure is hashed at each call of a compiled function; it must not hold the bounds."""
    encoder = encoder_for(Box(np.zeros((64, 64, 3)), np.ones((64, 64, 3))))
    assert "array" not in repr(jax.tree.structure(encoder))
    assert len(repr(jax.tree.structure(encoder))) < 2000


def test_bad_observations_and_spaces_are_named():
    with pytest.raises(ShoalError, match=r"observation has shape \(2, 4\), which must end in \(3,\)"):
        encoder_for(Box(-1.0, 1.0, (3,)))(jnp.zeros((2, 4)))
    with pytest.raises(ShoalError, match=r"observation has shape \(\), which must end in \(3,\)"):
        encoder_for(Box(-1.0, 1.0, (3,)))(jnp.zeros(()))
    with pytest.raises(ShoalError, match=r"observation/a/goal has shape \(6, 2\)"):
        encoder_for(NESTED)(
            {"b": jnp.zeros(6), "a": {"goal": jnp.zeros((6, 2)), "image": jnp.zeros((6, 2, 2))}}
        )
    with pytest.raises(ShoalError, match=r"lacks 'b'"):
        encoder_for(NESTED)({"a": {"goal": jnp.zeros(3), "image": jnp.zeros((2, 2))}})
    with pytest.raises(ShoalError, match=r"observation_space/a=.* cannot be encoded"):
        encoder_for(Dict({"a": Dict({})}))
    with pytest.raises(ShoalError, match=r"encoder='flat' is none of .* did you mean 'flatten'\?"):
        encoder_for(Discrete(2), "flat")
    with pytest.raises(ShoalError, match=r"encoder_features=\(\) leaves encoder='mlp_each' without a layer"):
        encoder_for(NESTED, "mlp_each", layers(features=()), key=jax.random.key(0))


@pytest.mark.full
def test_cnn_takes_grids_and_images_as_pictures_and_the_rest_as_it_is():
    cells = np.broadcast_to(np.array([12, 11]), (5, 5, 2))
    space = Dict(
        {
            "direction": Discrete(4),
            "image": Box(0, 255, (12, 10, 3), np.uint8),
            "view": Box(0, cells, dtype=np.uint8),
        }
    )
    encoder = jax.jit(lambda key: encoder_for(space, "cnn", key=key))(jax.random.key(0))
    image, grid = encoder.pictures
    assert [embedding.tables[0].shape[0] for embedding in grid.embeddings] == [13]
    assert grid.embeddings[0].tables[1].shape[0] == 12
    observation = jax.jit(jax.vmap(space.sample))(jax.random.split(jax.random.key(1), 6))
    vector = jax.jit(Encoder.__call__)(encoder, observation)
    assert vector.shape == (6, encoder.num_features)
    expected = [
        jax.nn.one_hot(observation["direction"], 4),
        image(observation["image"] / 255.0),
        grid(observation["view"]),
    ]
    np.testing.assert_allclose(vector, np.concatenate(expected, axis=-1), atol=1e-4)
    alone = encoder(jax.tree.map(lambda x: x[2], observation))
    np.testing.assert_allclose(alone, vector[2], atol=1e-4)

    def of_image(*shape):
        space = Box(0, 255, shape, np.uint8)
        return jax.eval_shape(lambda key: encoder_for(space, "cnn", key=key), jax.random.key(0))

    assert of_image(84, 84, 4).num_features == 3136
    for shape, windows, features in (  # whole tiles of 8 x 8, smaller than Atari's: a window a tile
        ((56, 56, 3), 8, 3 * 3 * 32),
        ((40, 80, 3), 8, 1 * 6 * 32),
        ((56, 84, 3), 8, 3 * 7 * 64),
        ((55, 56, 3), 8, 3 * 3 * 64),
        ((35, 40, 3), 3, 128),  # below 36: a small window once, then a layer, as for MinAtar's
        ((10, 10, 4), 3, 128),
    ):
        encoder = of_image(*shape)
        assert encoder.num_features == features
        (picture,) = encoder.pictures
        assert (len(picture.convs) == 1) == (features == 128)
        assert picture.convs[0].kernel.shape[1:3] == (windows, windows)


def test_an_image_smaller_than_the_window_is_padded():
    encoder = encoder_for(Box(0.0, 1.0, (2, 5, 3)), "cnn", key=jax.random.key(0))
    assert encoder(jnp.ones((4, 2, 5, 3))).shape == (4, 128)


def test_cnn_needs_a_picture():
    with pytest.raises(ShoalError, match=r"encoder='cnn' needs an observation .* 'flatten' works"):
        encoder_for(Box(-1.0, 1.0, (4,)), "cnn", key=jax.random.key(0))


# ---- the layers of the convolutions

CELLS = Box(0, np.broadcast_to(np.array([5, 2]), (5, 6, 2)), dtype=np.uint8)
PICTURES = Dict({"image": Box(0.0, 1.0, (10, 12, 4)), "place": Box(-1.0, 1.0, (3,)), "view": CELLS})
FITTING = {  # what each kind of picture has where nothing is given
    (10, 10, 4): layers((16,), (3,), (1,), (128,)),
    (40, 40, 3): layers((16, 32, 32), (8, 3, 3), (8, 1, 1), ()),
    (44, 50, 3): layers((32, 64, 64), (8, 4, 3), (4, 2, 1), ()),
    "cells": layers((16, 32, 64), (2, 2, 2), (1, 1, 1), ()),
}


@pytest.mark.quick("cells")
@pytest.mark.parametrize("kind", FITTING, ids=str)
def test_layers_that_are_given_as_they_fit_change_nothing(kind):
    """Structure, names and the program that draws the parameters; also if only some are given."""
    space = CELLS if kind == "cells" else Box(0, 255, kind, np.uint8)

    def built(config):
        build = jax.make_jaxpr(lambda key: encoder_for(space, "cnn", config, key=key), return_shape=True)
        program, encoder = build(jax.random.key(3))
        return str(program), jax.tree.structure(encoder)

    default = built(layers())
    for given in (
        FITTING[kind],
        layers(kernels=FITTING[kind].encoder_kernels, features=FITTING[kind].encoder_features),
    ):
        assert built(given) == default


@pytest.mark.quick("given2-image2-view2-179")
@pytest.mark.parametrize(
    "given, image, view, num_features",
    [
        (layers(channels=(8,)), [(8, 3, 3, 4)], [(8, 2, 2, 32)], 128 + 3 + 4 * 5 * 8),
        (layers(features=(7, 6)), [(16, 3, 3, 4)], [16, 32, 64], 6 + 3 + 6),
        (layers((8,), (4,), (2,), ()), [(8, 4, 4, 4)], [(8, 4, 4, 32)], 4 * 5 * 8 + 3 + 1 * 2 * 8),
        (
            layers((8, 9), (2, (1, 3)), (1, 2), (5,)),
            [(8, 2, 2, 4), (9, 1, 3, 8)],
            [(8, 2, 2, 32), (9, 1, 3, 8)],
            5 + 3 + 5,
        ),
    ],
)
def test_each_setting_of_the_layers_is_for_every_picture(given, image, view, num_features):
    encoder = jax.eval_shape(lambda: encoder_for(PICTURES, "cnn", given, key=jax.random.key(0)))
    for picture, expected in zip((encoder.pictures[0], encoder.pictures[1].cnn), (image, view), strict=True):
        shapes = [conv.kernel.shape for conv in picture.convs]
        assert [
            s if isinstance(x, tuple) else s[0] for s, x in zip(shapes, expected, strict=True)
        ] == expected
    assert encoder.num_features == num_features


def test_kernels_that_are_given_are_not_padded():
    space = Box(0.0, 1.0, (2, 5, 3))
    assert encoder_for(space, "cnn", layers((4,), features=()), key=jax.random.key(0)).num_features == 40
    given = layers((4,), (2,), features=())
    assert encoder_for(space, "cnn", given, key=jax.random.key(0)).num_features == 1 * 4 * 4


@pytest.mark.parametrize(
    "space, config, message",
    [
        (
            Box(0, 255, (84, 84, 4), np.uint8),
            layers(channels=(32,)),
            r"^encoder_channels=\(32,\), encoder_kernels=\(8, 4, 3\) and encoder_strides=\(4, 2, 1\) of observation "
            r"\[84, 84, 4\] must have equally many numbers, one for each convolution; what is not given "
            r"\(encoder_kernels, encoder_strides\) is the default for it\.$",
        ),
        (
            Box(0, 255, (84, 84, 4), np.uint8),
            layers(strides=(16, 2, 1)),
            r"^encoder_kernels=\(8, 4, 3\) with encoder_strides=\(16, 2, 1\) has a window of 3 x 3, which is larger "
            r"than the 1 x 1 image that reaches convolution 3 of observation \[84, 84, 4\]; smaller kernels or "
            r"strides, fewer of them, or encoder_padding='same' would do\.$",
        ),
        (CELLS, layers((4,), (0,)), r"encoder_kernels\[0\]=0 must be an integer of at least 1"),
    ],
)
def test_layers_that_do_not_fit_are_named(space, config, message):
    for look in (check_torsos, encoder_for):
        with pytest.raises(ShoalError, match=message):
            look(space, "cnn", config)
