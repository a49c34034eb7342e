"""Networks of other works built by settings alone: the shapes of their leaves, and how these are drawn."""

import jax
import numpy as np
import pytest

import shoal
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.config.struct import named_leaves
from shoal.types import spec_of

pytestmark = pytest.mark.usefixtures("own_kernels")

# `ActorCriticRNN` of XLand-MiniGrid 0d306d1 (flax), in examples/train_single_standalone.ipynb and training/nn.py.
NOTEBOOK = {
    **{"shared_torso": True, "hidden_sizes": (), "activation": "tanh"},
    **{"encoder": "cnn", "encoder_embedding": 0},
    **{"core": "gru", "core_size": 1024, "core_outputs": "sum"},
    **{"core_initialiser": "glorot_normal_whole", "core_recurrent_initialiser": "orthogonal_whole"},
    **{"previous_action": True, "action_embedding": 16, "start_action": "first", "previous_reward": True},
    **{"head_sizes": (256,), "head_hidden_scale": 2.0},
}
IMAGES = {"encoder_channels": (16, 32, 32, 32), "encoder_kernels": (3,) * 4, "encoder_strides": (2,) * 4}
IMAGES |= {"encoder_features": (), "torso_final_activation": False}
SCRIPT = {"encoder_embedding": 16, "encoder_others": 16}
GRU, ENCODER = "actor/torso/core/layers/0", "actor/torso/encoder"


def heads(hidden, width, actions):
    """The leaves of both heads: flax's shapes, by the name of Shoal's leaf."""
    return {
        f"{who}/mlp/{layer}/0/{leaf}": shape
        for who, outputs in (("actor", actions), ("critic", 1))
        for layer, inputs, out in (("layers", hidden, width), ("projection", width, outputs))
        for leaf, shape in (("kernel", (inputs, out)), ("bias", (out,)))
    }


def convolutions(path, *shapes):
    """The leaves of convolutions, of which flax's kernels are [height, width, in, out]."""
    kernels = {f"{path}/convs/{i}/kernel": shape for i, shape in enumerate(shapes)}
    return kernels | {f"{path}/convs/{i}/bias": shape[-1:] for i, shape in enumerate(shapes)}


def gru(inputs, size):
    """The leaves of the reference's GRU, whose kernels are [out, in] as Shoal's: Wi, Wh, bi, bn."""
    shapes = {"kernel": (3 * size, inputs), "recurrent": (3 * size, size)}
    return {f"{GRU}/{name}": shape for name, shape in shapes.items()} | {
        f"{GRU}/bias": (3 * size,),
        f"{GRU}/candidate_bias": (size,),
    }


EMBED = {"actor/torso/embedding/0/projection/0/kernel": (6, 16)}  # flax's table [actions, features]
GRID = [(2, 2, 2, 16), (2, 2, 16, 32), (2, 2, 32, 64)]
NETWORKS = {
    "the notebook": (
        NOTEBOOK,
        {},
        convolutions(f"{ENCODER}/pictures/0/cnn", *GRID)
        | EMBED
        | gru(4 * 4 * 64 + 16 + 1, 1024)
        | heads(1024, 256, 6),
    ),
    "the notebook, images": (
        NOTEBOOK | IMAGES,
        {"observe_image": True, "image_tile_size": 32},
        convolutions(f"{ENCODER}/pictures/0", (3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 32), (3, 3, 32, 32))
        | EMBED
        | gru(13 * 13 * 32 + 16 + 1, 1024)
        | heads(1024, 256, 6),
    ),
    "the script": (
        NOTEBOOK | SCRIPT,
        {"observe_direction": True},
        convolutions(f"{ENCODER}/pictures/0/cnn", (2, 2, 32, 16), *GRID[1:])
        # Tables of 13 tiles and 12 colours there; a world of Shoal's has as many as its space says.
        | {f"{ENCODER}/pictures/0/embeddings/0/tables/{i}": (None, 16) for i in (0, 1)}
        | {f"{ENCODER}/others/0/projection/0/{leaf}": s for leaf, s in (("kernel", (4, 16)), ("bias", (16,)))}
        | EMBED
        | gru(4 * 4 * 64 + 16 + 16 + 1, 1024)
        | heads(1024, 256, 6),
    ),
}


def in_shoals_order(name, shape):
    """Where flax has the outputs last, Shoal has them first."""
    is_kernel = name.endswith("/kernel") and not name.startswith(GRU)
    return (shape[-1], *shape[:-1]) if is_kernel else shape


def built(settings, parameters, **changes):
    """The leaves of a network, as shapes."""
    config = with_settings(PPOConfig(), **settings | changes).resolved()
    spec = spec_of(shoal.make("MiniGrid-Empty-6x6", **parameters))
    config.validate(spec, 16, 16)
    return config, lambda key: named_leaves(config.network.build(spec, key))


@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_are_those_of_the_reference_leaf_by_leaf(name):
    settings, parameters, expected = NETWORKS[name]
    _, build = built(settings, parameters)
    leaves = jax.eval_shape(build, jax.random.key(0))
    assert leaves.keys() == expected.keys()
    for leaf, shape in expected.items():
        wanted = in_shoals_order(leaf, shape)
        assert all(b in (a, None) for a, b in zip(leaves[leaf].shape, wanted, strict=True)), leaf


def singular_values(kernel):
    return np.linalg.svd(np.asarray(kernel).reshape(len(kernel), -1), compute_uv=False)


def test_initial_weights_are_those_of_the_notebook():
    _, build = built(NOTEBOOK, {}, core_size=64, head_sizes=(32,))
    leaves = jax.jit(build)(jax.random.key(0))
    for name, scale in {
        **{f"{ENCODER}/pictures/0/cnn/convs/{i}/kernel": 2**0.5 for i in range(3)},
        f"{GRU}/recurrent": 1.0,  # [3 H, H] as a whole: jax's orthogonal(column_axis=0)
        **{"actor/mlp/layers/0/kernel": 2.0, "critic/mlp/layers/0/kernel": 2.0},
        **{"actor/mlp/projection/0/kernel": 0.01, "critic/mlp/projection/0/kernel": 1.0},
    }.items():
        np.testing.assert_allclose(singular_values(leaves[name]), scale, rtol=1e-4, err_msg=name)
    kernel = np.asarray(leaves[f"{GRU}/kernel"])  # glorot_normal(in_axis=1, out_axis=0) of [3 H, in]
    np.testing.assert_allclose(kernel.std(), (2 / sum(kernel.shape)) ** 0.5, rtol=0.02)
    assert not any(np.any(leaf) for name, leaf in leaves.items() if name.endswith("bias"))
