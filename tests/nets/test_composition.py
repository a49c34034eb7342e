"""Inputs and compositions: each against what its parts give by themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.nets.composition import Branches, Chain, is_noisy
from shoal.nets.ensembles import Ensemble
from shoal.nets.headed import Headed
from shoal.nets.heads import CategoricalHead
from shoal.nets.inputs import ArrayInput, DictInput, EmbeddingInput, Inputs, OneHotInput
from shoal.nets.mlp import MLP
from shoal.nets.noisy import NoisyMLP

KEY, OTHER = jax.random.key(0), jax.random.key(1)


def test_array_input_casts_divides_and_flattens():
    x = jnp.arange(12, dtype=jnp.uint8).reshape(2, 2, 3)
    np.testing.assert_allclose(ArrayInput((2, 3), divisor=2.0)(x), np.arange(12.0).reshape(2, 6) / 2)
    whole = ArrayInput((2, 3), flatten=False)(x)
    assert whole.shape == (2, 2, 3)
    assert whole.dtype == jnp.float32
    assert ArrayInput()(jnp.array([True, False])).shape == (2, 1)


@pytest.mark.full
def test_one_hot_and_embedding_of_one_and_of_several_actions():
    np.testing.assert_array_equal(
        OneHotInput(3)(jnp.array([2, 0, -1, 3])), np.eye(3)[[2, 0, 0, 0]] * [[1], [1], [0], [0]]
    )
    several = jnp.array([[1, 0], [0, 2]])
    np.testing.assert_array_equal(OneHotInput((2, 3))(several), [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]])
    embedding = EmbeddingInput((2, 3), 4, key=KEY)
    first, second = embedding.tables
    assert (first.shape, second.shape) == ((2, 4), (3, 4))
    expected = np.concatenate([first[several[:, 0]], second[several[:, 1]]], axis=-1)
    np.testing.assert_allclose(embedding(several), expected, rtol=1e-6)
    np.testing.assert_array_equal(embedding(jnp.array([-1, 3])), 0.0)
    one = EmbeddingInput(2, 4, key=KEY)
    np.testing.assert_allclose(one(jnp.array([[1], [0]])), one.tables[0][jnp.array([[1], [0]])], rtol=1e-6)


def test_embeddings_begin_with_the_stated_scale_and_learn_only_where_they_were_looked_up():
    embedding = EmbeddingInput(1000, 8, scale=0.3, key=KEY)
    np.testing.assert_allclose(np.std(embedding.tables[0]), 0.3, rtol=0.05)
    gradient = jax.grad(lambda e: jnp.sum(e(jnp.array([3, 3, 5])) * 2.0))(embedding).tables[0]
    np.testing.assert_array_equal(gradient[3], 4.0)
    np.testing.assert_array_equal(gradient[5], 2.0)
    assert float(jnp.abs(gradient).sum()) == 8 * 6


def test_a_dictionary_and_several_arguments_are_their_torsos_one_after_the_other():
    mlp, actions = MLP(3, (4,), key=KEY), OneHotInput(2)
    x, a = jax.random.normal(KEY, (5, 3)), jnp.array([0, 1, 1, 0, 1])
    named = DictInput({"x": mlp, "a": actions})
    assert named.names == ("a", "x")
    np.testing.assert_allclose(
        named({"x": x, "a": a, "more": 0}), np.concatenate([actions(a), mlp(x)], axis=-1), rtol=1e-6
    )
    np.testing.assert_allclose(
        Inputs(mlp, actions)(x, a), np.concatenate([mlp(x), actions(a)], axis=-1), rtol=1e-6
    )
    assert named.out_features == Inputs(mlp, actions).out_features == 6


def test_a_chain_is_its_modules_in_order_and_hands_the_mask_to_its_head():
    torso, head = MLP(3, (4,), key=KEY), Headed(CategoricalHead(2), 4, scale=1.0, key=OTHER)
    x = jax.random.normal(KEY, (5, 3))
    np.testing.assert_array_equal(Chain(torso, head)(x).logits, head(torso(x)).logits)
    only = Chain(torso, head)(x, jnp.array([False, True]))
    np.testing.assert_array_equal(only.mode(), 1)
    np.testing.assert_allclose(only.entropy(), 0.0, atol=1e-6)
    branches = Branches(torso, torso)
    np.testing.assert_array_equal(branches(x), np.concatenate([torso(x), torso(x)], axis=-1))
    assert branches.out_features == 8


@pytest.mark.full
def test_noise_reaches_every_noisy_part_with_a_key_of_its_own():
    plain, noisy = MLP(3, (3,), key=KEY), NoisyMLP(3, (), 3, key=KEY)
    x = jax.random.normal(KEY, (5, 3))
    for composed in (Chain(plain, noisy, noisy), Branches(noisy, plain, noisy), Inputs(noisy, noisy)):
        inputs = (x, x) if isinstance(composed, Inputs) else (x,)
        assert is_noisy(composed)
        first, again, other, mean = (composed(*inputs, key=key) for key in (KEY, KEY, OTHER, None))
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1e-3
        assert np.abs(first - mean).max() > 1e-3
        assert np.all(mean == composed(*inputs))
    both = Branches(noisy, noisy)(x, key=KEY)
    assert np.abs(both[:, :3] - both[:, 3:]).max() > 1e-3
    assert not is_noisy(Chain(plain, plain))
    named = DictInput({"a": noisy, "b": plain})
    assert np.abs(named({"a": x, "b": x}, key=KEY) - named({"a": x, "b": x})).max() > 1e-3
    ensemble = Ensemble(lambda key: NoisyMLP(3, (), 2, key=key), 2, key=KEY)
    quiet = Ensemble(lambda key: NoisyMLP(3, (), 2, sigma=0.0, key=key), 2, key=KEY)
    noise = ensemble(x, key=KEY) - quiet(x)
    assert np.abs(noise[0] - noise[1]).max() > 1e-3


@pytest.mark.quick("<lambda>-2 inputs were given; they must be 1")
@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda: Chain(MLP(3, (4,), key=KEY), MLP(5, (4,), key=KEY)),
            r"MLP, module 1 of a Chain, has in_features=5; it must be 4, the out_features of the MLP before it",
        ),
        (lambda: ArrayInput((2,))(jnp.zeros((2, 3))), r"x has shape \(2, 3\), which must end in \(2,\)"),
        (lambda: OneHotInput(2)(jnp.zeros(3)), "x is float32; .* integers"),
        (
            lambda: OneHotInput((2, 2))(jnp.zeros((3, 1), int)),
            r"x has shape \(3, 1\), which must end in \(2,\)",
        ),
        (lambda: Inputs(OneHotInput(2))(0, 1), "2 inputs were given; they must be 1"),
    ],
)
def test_bad_input_is_named(build, message):
    with pytest.raises(ShoalError, match=message):
        build()
