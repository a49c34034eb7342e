"""What a key alone decides is computed ahead, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla.hoisting import split_by_key, split_by_key_plain


def draws_in(function, *args):
    """How many random draws a traced function makes itself."""
    return str(jax.make_jaxpr(function)(*args)).count("random_bits")


def act(key, scale, x):
    """A draw, a draw that depends on the input, and one that is used as it is."""
    first, second, third = jax.random.split(key, 3)
    noise = jax.random.normal(first, x.shape)
    chosen = jax.random.categorical(second, x)
    return {"action": x + scale * noise, "chosen": chosen}, jax.random.uniform(third)


@pytest.mark.full
@pytest.mark.parametrize("split", [split_by_key, split_by_key_plain])
def test_the_two_parts_together_are_the_function(split):
    """Bit for bit, in both forms."""
    x, scale = jnp.arange(6.0).reshape(2, 3), jnp.float32(0.5)
    draw, finish = split(act, jax.random.key(0), scale, x)
    for seed in range(5):
        key = jax.random.key(seed)
        expected = act(key, scale + seed, x * seed)
        found = finish(draw(key), scale + seed, x * seed)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.full
@pytest.mark.parametrize("split", [split_by_key, split_by_key_plain])
def test_draws_may_be_mapped_over_keys(split):
    """Within a loop, bit for bit."""
    x, scale, keys = jnp.ones((2, 3)), jnp.float32(0.5), jax.random.split(jax.random.key(1), 4)
    draw, finish = split(act, keys[0], scale, x)
    found = jax.jit(lambda draws: jax.lax.map(lambda one: finish(one, scale, x), draws))(jax.vmap(draw)(keys))
    expected = jax.jit(lambda keys: jax.lax.map(lambda key: act(key, scale, x), keys))(keys)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_every_draw_is_made_ahead():
    x, scale = jnp.ones((2, 3)), jnp.float32(0.5)
    draw, finish = split_by_key(act, jax.random.key(0), scale, x)
    assert draws_in(draw, jax.random.key(0)) > 0
    assert draws_in(finish, draw(jax.random.key(0)), scale, x) == 0


@pytest.mark.full
def test_a_draw_whose_shape_of_randomness_depends_on_the_input_stays():
    """A gamma draws as often as its rejections ask for, which its parameter decides."""

    def gamma(key, alpha):
        return jax.random.gamma(key, alpha)

    alpha = jnp.array([0.5, 2.0])
    draw, finish = split_by_key(gamma, jax.random.key(0), alpha)
    np.testing.assert_array_equal(finish(draw(jax.random.key(3)), alpha), gamma(jax.random.key(3), alpha))


def test_it_works_inside_a_trace_with_what_is_closed_over():
    @jax.jit
    def rollout(key, weights):
        def step(key, x):
            return x @ weights + jax.random.normal(key, x.shape)

        x = jnp.zeros((2, 3))
        draw, finish = split_by_key(step, key, x)
        draws = jax.vmap(draw)(jax.random.split(key, 4))
        return jax.lax.scan(lambda x, noise: (finish(noise, x), None), x, draws)[0]

    weights = jnp.eye(3) * 0.5
    expected = jnp.zeros((2, 3))
    for key in jax.random.split(jax.random.key(7), 4):
        expected = expected @ weights + jax.random.normal(key, (2, 3))
    np.testing.assert_allclose(rollout(jax.random.key(7), weights), expected, rtol=1e-5, atol=1e-6)


def test_a_function_that_draws_nothing_is_left_alone():
    draw, finish = split_by_key(lambda key, x: x + 1, jax.random.key(0), jnp.zeros(2))
    assert draw(jax.random.key(0)) == []
    np.testing.assert_array_equal(finish([], jnp.zeros(2)), jnp.ones(2))
