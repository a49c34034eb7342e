"""Torsos by name: what holds for every kind, rows of several, classes of a user's own, and what is refused."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.nets import torso_choice, torsos
from shoal.nets.network_check import check_torsos
from shoal.nets.networks import NetworkConfig
from shoal.nets.torso_choice import KINDS
from shoal.nets.torso_config import TorsoConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete

KEY = jax.random.key(0)
IMAGE = Box(0, 255, (9, 8, 3), np.uint8)
CELLS = Box(0, 5, (5, 6, 2), np.uint8)
MIXED = Dict(
    {"image": IMAGE, "rows": Box(-1.0, 1.0, (3, 2)), "kind": Discrete(4), "speed": Box(-1.0, 1.0, (2,))}
)


class Scaled(nnx.Module):
    """Numbers of the observation times learned ones, and their square."""

    def __init__(self, space, *, key):
        self.num_features = 2 * space.shape[0]
        self.scale = nnx.Param(1.0 + 0.1 * jax.random.normal(key, space.shape))

    def __call__(self, observation):
        x = observation * self.scale[...]
        return jnp.concatenate([x, x**2], axis=-1)


@struct.struct
class Wide:
    """A torso with settings: one is structure, the other data."""

    width: int = struct.parameter(3, low=1)
    """Gives the torso this width."""
    gain: float = struct.parameter(1.0, above=0.0)
    """Multiplies its features."""

    def build(self, space, key):
        return OfDictionary(space, self.width, self.gain, key)

    def validate(self):
        if self.width == 13:
            raise ShoalError("width=13 is unlucky; 12 is not.")


class OfDictionary(nnx.Module):
    def __init__(self, space, width, gain, key):
        self.num_features, self.gain = width, nnx.Param(jnp.asarray(gain, jnp.float32))
        self.kernel = nnx.Param(jax.random.normal(key, (space["speed"].shape[0], width)))
        self.names = tuple(space)

    def __call__(self, observation):
        assert tuple(observation) == self.names
        return self.gain[...] * observation["speed"] @ self.kernel[...]


def layers(channels=None, kernels=None, strides=None, features=None, **others):
    """Settings by their names without `encoder_`."""
    given = dict(channels=channels, kernels=kernels, strides=strides, features=features, **others)
    return TorsoConfig(
        **{name if name == "channels_first" else f"encoder_{name}": x for name, x in given.items()}
    )


CASES: dict[str, tuple[Any, TorsoConfig, int]] = {  # space, layers, and the length of the features
    "flatten": (MIXED, layers(), 216 + 4 + 6 + 2),
    "one_hot": (CELLS, layers(), 5 * 6 * 2 * 6),
    "mlp": (MIXED, layers(features=(7, 5)), 5),
    "mlp_each": (MIXED, layers(features=(5,)), 20),
    "cnn": (MIXED, layers(layer_norm=True, activation="silu"), 128 + 4 + 6 + 2),
    "resnet": (MIXED, layers(channels=(2, 3), blocks=1, features=(6,)), 6 + 4 + 6 + 2),
    "set": (MIXED, layers(features=(4,)), 216 + 4 + 8 + 2),
    "cnn,mlp": (CELLS, layers(features=(7,)), 7),
    "resnet,mlp,mlp": (IMAGE, layers(channels=(2,), features=(7,)), 7),
    f"mlp,{__name__}:Scaled": (MIXED, layers(features=(5,)), 10),
    f"{__name__}:Wide": (MIXED, layers(), 3),
    f"{__name__}:Wide,mlp": (MIXED, layers(features=(4,)), 4),
}


def drawn(space, batch_shape, seed=0):
    rng = np.random.default_rng(seed)
    if isinstance(space, Dict):
        return {name: drawn(part, batch_shape, seed + 1) for name, part in space.items()}
    shape = (*batch_shape, *space.shape)
    if isinstance(space, Discrete):
        return jnp.asarray(rng.integers(space.n, size=shape))
    if np.issubdtype(space.dtype, np.integer):
        return jnp.asarray(rng.integers(int(np.max(space.high)) + 1, size=shape), space.dtype)
    return jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32)


def test_every_kind_is_among_the_cases():
    assert (
        set(KINDS) == set(torsos.ENCODERS) == {name for name in CASES if "," not in name and ":" not in name}
    )


@pytest.mark.quick("tests.nets.test_torsos:Wide,mlp")
@pytest.mark.parametrize("name", CASES)
def test_every_torso_gives_features_of_any_batch_and_gradients(name):
    space, config, width = CASES[name]
    check_torsos(space, name, config)
    torso = torsos.build(space, name, config, key=KEY)
    assert torso.num_features == width
    alone = drawn(space, ())
    assert torso(alone).shape == (width,)
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, 3, *x.shape)), alone)
    features = torso(batch)
    assert features.shape == (2, 3, width) and features.dtype == jnp.float32
    np.testing.assert_allclose(features, np.broadcast_to(torso(alone), features.shape), rtol=2e-5, atol=2e-5)
    observation = drawn(space, (4,))
    weights = jnp.linspace(0.5, 1.0, width)
    gradients = jax.grad(lambda torso: jnp.sum(jnp.tanh(torso(observation)) * weights))(torso)
    for path, gradient in struct.named_leaves(gradients).items():
        assert np.isfinite(gradient).all() and np.any(gradient), path


def test_a_name_is_chosen_and_named_again():
    for name in (*CASES, None):
        assert torso_choice.name_of(torso_choice.choose(name)) == name
    assert torso_choice.choose(["cnn", "mlp"]) == torso_choice.choose(" cnn , mlp ")
    assert torso_choice.name_of(torso_choice.choose(Scaled)) is Scaled
    assert torso_choice.name_of(torso_choice.choose(("mlp", Scaled))) == f"mlp,{__name__}:Scaled"
    assert torso_choice.choose([Wide(width=5), "mlp"]).first.width == 5


def test_only_mlp_takes_the_features_in_a_row_that_has_one():
    config = layers(channels=(2,), kernels=(3,), strides=(2,), features=(6, 5))
    row = torsos.build(IMAGE, "cnn,mlp", config, key=KEY)
    cnn, mlp = row.modules
    assert cnn.num_features == 128 and len(cnn.pictures[0].convs) == 1  # what fits an image of this size
    assert [layer.kernel.shape for layer in mlp.torsos[0].layers] == [(6, 128), (5, 6)]
    alone = torsos.build(IMAGE, "cnn", config, key=KEY)
    assert alone.num_features == 5


@pytest.mark.quick("cnn-False")
@pytest.mark.parametrize("kind, cells", [("cnn", False), ("cnn", True), ("resnet", False)])
def test_channels_first_equals_channels_last_on_the_transposed_observation(kind, cells):
    space = CELLS if cells else IMAGE
    turned = Box(*(np.transpose(x, (2, 0, 1)) for x in (space.low, space.high)), dtype=space.dtype)
    last = torsos.build(space, kind, layers(features=(6,)), key=KEY)
    first = torsos.build(turned, kind, layers(features=(6,), channels_first=True), key=KEY)
    observation = drawn(space, (2, 3))
    np.testing.assert_array_equal(first(jnp.moveaxis(observation, -1, -3)), last(observation))
    with pytest.raises(ShoalError, match="must end in"):
        first(observation)
    message = r"encoder='cnn' needs an observation \[channels, height, width\]"
    with pytest.raises(ShoalError, match=message):
        check_torsos(Box(-1.0, 1.0, (3,)), "cnn", layers(channels_first=True))


def test_the_resnet_is_the_published_architecture():
    """Espeholt et al. 2018, figure 3: the forward pass by `lax`, from the parameters in their order."""
    space = Box(0, 255, (20, 17, 3), np.uint8)
    torso = torsos.build(space, "resnet", key=KEY)
    assert torso.num_features == 256
    image = drawn(space, (2,))

    def conv(layer, x):
        kernel = jnp.transpose(layer.kernel, (1, 2, 3, 0))
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers) + layer.bias

    x, convs = image.astype(jnp.float32) / 255, iter(torso.pictures[0].convs)
    for channels in (16, 32, 32):
        x = conv(next(convs), x)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for _ in range(2):
            inner = conv(next(convs), jax.nn.relu(x))
            x = x + conv(next(convs), jax.nn.relu(inner))
        assert x.shape[-1] == channels
    assert next(convs, None) is None and x.shape[1:3] == (3, 3)
    (dense,) = torso.pictures[0].mlp.layers
    expected = jax.nn.relu(jax.nn.relu(x).reshape(2, -1) @ dense.kernel.T + dense.bias)
    np.testing.assert_allclose(torso(image), expected, rtol=2e-4, atol=2e-5)


class NoWidth(nnx.Module):
    def __init__(self, space, *, key):
        self.kernel = nnx.Param(jnp.ones((2, 2)))

    def __call__(self, observation):
        return observation @ self.kernel[...]


class WrongWidth(NoWidth):
    num_features = 3


class Whole(NoWidth):
    num_features = 2

    def __call__(self, observation):
        return jnp.zeros((*observation.shape[:-1], 2), jnp.int32)


class Silent(nnx.Module):
    num_features = 2

    def __init__(self, space, *, key):
        self.kernel = nnx.Param(jnp.ones((2, 2)))


class TakesNoKey(NoWidth):
    def __init__(self, space):
        super().__init__(space, key=None)


class Pooling(nnx.Module):
    num_features = 1

    def __init__(self, space, *, key):
        pass

    def __call__(self, observation):
        return jnp.max(observation, axis=-1, keepdims=True)


VECTOR = Box(-1.0, 1.0, (2,))


def test_a_torso_without_parameters_is_one():
    check_torsos(VECTOR, Pooling)
    assert torsos.build(VECTOR, Pooling, key=KEY)(jnp.array([1.0, 3.0])) == 3.0


@pytest.mark.parametrize(
    "space, encoder, given, sentence",
    [
        (VECTOR, NoWidth, {}, "torso NoWidth has num_features=None; it must be a whole number of at least 1"),
        (
            VECTOR,
            WrongWidth,
            {},
            r"returns features of float32\[3, 2, 2\] for .* must return float32\[3, 2, 3\], since num_features=3",
        ),
        (VECTOR, Whole, {}, r"returns features of int32\[3, 2, 2\] for .* must return float32"),
        (VECTOR, Silent, {}, r"torso Silent cannot be called; it needs __call__\(observation\)"),
        (VECTOR, TakesNoKey, {}, r"torso TakesNoKey cannot be built as TakesNoKey\(space, key=key\)"),
        (
            VECTOR,
            "mpl",
            {},
            r"encoder='mpl' is none of flatten, .*module:Name of your own; did you mean 'mlp'\?",
        ),
        (VECTOR, f"{__name__}:Wid", {}, "has no 'Wid'; did you mean 'Wide'"),
        (VECTOR, "no_such_module:Wide", {}, "there is no module 'no_such_module'"),
        (VECTOR, 3, {}, "encoder=3 is neither module:Name, nor a class, nor a torso's settings"),
        (VECTOR, (), {}, r"encoder=\(\) has no torso; give one, such as 'flatten'"),
        (
            VECTOR,
            "mlp,cnn",
            {},
            "encoder='mlp,cnn' has 'cnn' after another torso, whose features are a vector",
        ),
        (VECTOR, "cnn,mlp", {}, r"encoder='cnn' needs an observation \[height, width, channels\]"),
        (VECTOR, "resnet", {}, r"encoder='resnet' needs an observation \[height, width, channels\]"),
        (VECTOR, "mlp", {"features": ()}, r"encoder_features=\(\) leaves encoder='mlp' without a layer"),
        (CELLS, "cnn", {"padding": "same"}, "encoder_padding='same' pads images, and .* is a grid of cells"),
        (IMAGE, "cnn", {"activation": "rely"}, r"activation='rely' .* did you mean 'relu'\?"),
    ],
    ids=str,
)
def test_bad_torsos_are_refused_in_a_sentence(space, encoder, given, sentence):
    with pytest.raises(ShoalError, match=sentence) as error:
        check_torsos(space, encoder, layers(**given))
    assert "\n" not in str(error.value)


def test_actor_and_critic_have_torsos_of_their_own_and_see_what_is_theirs():
    spec = EnvSpec(MIXED, Discrete(2), critic_only=("rows",), actor_only=("speed", "image"))
    network = NetworkConfig(
        encoder=f"{__name__}:Wide", critic_encoder=["flatten", "mlp"], encoder_features=(5,)
    )
    assert network.encoder_kinds == {"flatten", "mlp"}
    built = network.build(spec, KEY)
    assert built.actor.encoder.names == ("image", "kind", "speed")
    assert built.critic.encoder.modules[0].num_features == 4 + 6
    observation = drawn(MIXED, (3,))
    shown = {name: x for name, x in observation.items() if name != "rows"}
    assert built.actor(shown).logits.shape == (3, 2) and built.value(observation).shape == (3,)
    same = NetworkConfig(encoder=f"{__name__}:Wide", critic_encoder=f"{__name__}:Wide")
    assert torso_choice.name_of(same.critic_encoder) is None and same.of_critic is same.encoder
    with pytest.raises(ShoalError, match="width=13 is unlucky"):
        NetworkConfig(encoder=Wide(width=13)).validate()


@pytest.mark.quick("False")
@pytest.mark.parametrize("memory", [False, True])
def test_initial_weights_have_the_kinds_and_scales_of_torso_and_heads(memory):
    spec = EnvSpec(Box(-1.0, 1.0, (6,)), Discrete(4))
    style = dict(
        initialiser="he_uniform",
        hidden_scale=3.0,
        head_initialiser="lecun_uniform",
        policy_scale=2.0,
        value_scale=0.5,
    )
    if memory:
        network = NetworkConfig(core="gru", core_size=8, hidden_sizes=(50,), head_sizes=(20,), **style).build(
            spec, KEY
        )
        hidden = [part.torso.mlp for part in (network.actor,)] + [network.critic.torso[0].mlp]
        hidden += [network.actor.mlp, network.critic.mlp]
    else:
        network = NetworkConfig(hidden_sizes=(50, 20), **style).build(spec, KEY)
        hidden = [network.actor.mlp, network.critic.mlp]
    for layer in (layer for mlp in hidden for layer in mlp.layers):
        bound = 3.0 * math.sqrt(6 / layer.kernel.shape[1])  # variance 2 / fan_in of a uniform distribution
        assert 0.7 * bound < np.abs(layer.kernel).max() <= bound * (1 + 1e-6)
    for mlp, scale in ((network.actor.mlp, 2.0), (network.critic.mlp, 0.5)):
        kernel = mlp.projection[0].kernel
        bound = scale * math.sqrt(3 / kernel.shape[1])
        assert 0.7 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6)
    shared = NetworkConfig(shared_torso=True, hidden_sizes=(20,), **style).build(spec, KEY)
    bound = 0.5 * math.sqrt(3 / 20)
    assert 0.7 * bound < np.abs(shared.critic.mlp.projection[0].kernel).max() <= bound * (1 + 1e-6)
