"""Ensembles against their members one by one, and target networks against their formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal.base.errors import ShoalError
from shoal.config.struct import named_leaves
from shoal.nets.ensembles import Ensemble, lowest
from shoal.nets.mlp import MLP
from shoal.nets.q_heads import ContinuousQ
from shoal.nets.targets import make_target, periodic, polyak

KEY = jax.random.key(0)


@functools.cache
def critics():
    return jax.jit(lambda key: Ensemble(lambda key: ContinuousQ(3, 2, (8, 8), key=key), 3, key=key))(KEY)


@pytest.mark.full
@pytest.mark.usefixtures("own_kernels")
def test_an_ensemble_equals_its_members_one_by_one():
    ensemble = critics()
    features, action = jax.random.normal(KEY, (5, 3)), jax.random.normal(jax.random.key(1), (5, 2))
    q = ensemble(features, action)
    assert q.shape == (3, 5)
    for index, key in enumerate(jax.random.split(KEY, 3)):
        alone = ContinuousQ(3, 2, (8, 8), key=key)
        np.testing.assert_allclose(q[index], alone(features, action), atol=1e-5)
        for name, leaf in named_leaves(ensemble.member(index)).items():
            np.testing.assert_allclose(leaf, named_leaves(alone)[name], atol=1e-6)
    assert np.abs(q[0] - q[1]).max() > 1e-2


@pytest.mark.full
def test_one_update_serves_all_members():
    """An optimiser that treats each number by itself makes of an ensemble what it makes of each member.

    So the gradients of members are apart, too.
    """
    ensemble, optimiser = critics(), optax.adam(1e-2)
    features, action = jax.random.normal(KEY, (5, 3)), jax.random.normal(jax.random.key(1), (5, 2))

    @jax.jit
    def step(network):
        gradient = jax.grad(lambda network: jnp.sum(network(features, action) ** 2))(network)
        return optax.apply_updates(network, optimiser.update(gradient, optimiser.init(network))[0])

    together = step(ensemble)
    for name, leaf in named_leaves(step(ensemble.member(2))).items():
        np.testing.assert_allclose(named_leaves(together.member(2))[name], leaf, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 24, 40])
def test_the_gradient_of_members_is_that_of_each_for_any_number_of_rows(rows):
    """Layers compute few rows in another form, of which the derivative is a function of its own."""
    inputs = jax.random.normal(KEY, (rows, 3)), jax.random.normal(jax.random.key(1), (rows, 2))

    def loss(apply):
        return jnp.sum(apply(*inputs) ** 2)

    ensemble = critics()
    gradient = jax.jit(jax.grad(loss))(ensemble)
    np.testing.assert_allclose(ensemble.one_by_one(*inputs), ensemble(*inputs), atol=1e-5)
    apart = jax.jit(jax.grad(lambda ensemble: loss(ensemble.one_by_one)))(ensemble)
    for name, leaf in named_leaves(gradient).items():
        np.testing.assert_allclose(leaf, named_leaves(apart)[name], rtol=1e-4, atol=1e-4)


def test_lowest_of_all_and_of_some():
    values = jnp.array([[3.0, 1.0], [2.0, 5.0], [9.0, 0.0], [4.0, 4.0]])
    np.testing.assert_array_equal(lowest(values), [2.0, 0.0])
    np.testing.assert_array_equal(lowest(values, KEY, 4), [2.0, 0.0])
    drawn = jax.vmap(lambda key: lowest(values, key, 2))(jax.random.split(KEY, 4000))
    pairs = [tuple(np.minimum(values[i], values[j]).tolist()) for i in range(4) for j in range(i)]
    found, counts = np.unique(np.asarray(drawn), axis=0, return_counts=True)
    assert {tuple(row) for row in found.tolist()} == set(pairs)
    for row, count in zip(found.tolist(), counts, strict=True):
        np.testing.assert_allclose(count / 4000, pairs.count(tuple(row)) / 6, atol=0.04)


def networks():
    return (MLP(3, (4,), 2, key=jax.random.key(seed)) for seed in (0, 1))


def test_polyak_moves_a_part_of_the_way():
    target, network = networks()
    moved = jax.jit(polyak)(target, network, 0.1)
    for name, leaf in named_leaves(moved).items():
        before, towards = (np.asarray(named_leaves(tree)[name], np.float64) for tree in (target, network))
        np.testing.assert_allclose(leaf, 0.9 * before + 0.1 * towards, atol=1e-6)
        np.testing.assert_array_equal(named_leaves(polyak(target, network, 1.0))[name], towards)
        np.testing.assert_array_equal(named_leaves(polyak(target, network, 0.0))[name], before)
    many = jax.lax.fori_loop(0, 20, lambda _, t: polyak(t, network, 0.1), target)
    kernel, start, end = (np.asarray(tree.layers[0].kernel) for tree in (many, target, network))
    np.testing.assert_allclose(kernel, end + 0.9**20 * (start - end), atol=1e-6)


def test_periodic_copies_at_multiples_only():
    target, network = networks()
    update = jax.jit(periodic)
    for step in range(7):
        expected = network if step % 3 == 0 else target
        np.testing.assert_array_equal(
            update(target, network, step, 3).layers[0].kernel, expected.layers[0].kernel
        )
    assert jax.tree.structure(update(target, network, 1, 3)) == jax.tree.structure(network)


def test_a_target_is_a_copy_that_can_be_donated_with_its_network():
    network, _ = networks()
    target = make_target(network)
    for ours, theirs in zip(jax.tree.leaves(target), jax.tree.leaves(network), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.unsafe_buffer_pointer() != theirs.unsafe_buffer_pointer()
    step = jax.jit(lambda learner: jax.tree.map(lambda x: x + 1.0, learner), donate_argnums=0)
    kernel = np.asarray(network.layers[0].kernel)
    np.testing.assert_allclose(step((network, target))[1].layers[0].kernel, kernel + 1.0, rtol=1e-6)


def test_a_rate_of_a_target_out_of_bounds_is_named():
    with pytest.raises(ShoalError, match=r"tau=1.5 of a target network must be between 0 and 1"):
        polyak(*networks(), 1.5)
