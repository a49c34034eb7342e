"""What a batch does for few of its members against the same function of each member alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla import sparse_updates


def change(current, key, scale):
    """A new value of each, of the key and of what all share."""
    x, count = current
    return x * scale + jax.random.uniform(key, x.shape), count + 1


@pytest.mark.parametrize(
    "size", [1, sparse_updates.MAX_SINGLE_GROUP, sparse_updates.MAX_SINGLE_GROUP + 1, 150]
)
@pytest.mark.parametrize("mapped_scale", [False, True])
@pytest.mark.quick("True-1", "False-16", "True-17", "False-150")
def test_where_changes_those_to_whom_it_happens(mapped_scale, size):
    rng = np.random.default_rng(2)
    current = jnp.asarray(rng.normal(size=(size, 3)), jnp.float32), jnp.arange(size)
    keys = jax.random.split(jax.random.key(3), size)
    scale = jnp.linspace(1.0, 2.0, size) if mapped_scale else jnp.float32(3.0)
    axes = 0, 0, 0 if mapped_scale else None

    @jax.jit
    def all_ways(happens):
        forms = sparse_updates.change_where, sparse_updates.change_where_plain
        found = [
            jax.vmap(lambda happens, *rest, form=form: form(happens, change, *rest), (0, *axes))(
                happens, current, keys, scale
            )
            for form in forms
        ]
        return *found, jax.vmap(change, axes)(current, keys, scale)

    for share in (0.0, 0.02, 0.5, 1.0):
        happens = rng.random(size) < share
        (x, count), (plain_x, plain_count), (new_x, new_count) = all_ways(happens)
        np.testing.assert_allclose(x, jnp.where(happens[:, None], new_x, current[0]), rtol=1e-6)
        np.testing.assert_array_equal(count, jnp.where(happens, new_count, current[1]))
        np.testing.assert_allclose(x, plain_x, rtol=1e-6)
        np.testing.assert_array_equal(count, plain_count)


def test_where_of_one_environment_is_a_choice():
    current = jnp.ones(3), jnp.int32(4)
    for happens in (False, True):
        x, count = jax.jit(lambda h: sparse_updates.change_where(h, change, current, jax.random.key(0), 2.0))(
            happens
        )
        assert count == 4 + happens
        assert bool(jnp.all(x == 1)) is not happens


def test_where_computes_nothing_for_those_to_whom_it_does_not_happen():
    asked = []

    def counted(current, number):
        return jax.pure_callback(lambda n: asked.append(n) or n, current, number, vmap_method="sequential")

    happens = jnp.arange(64) % 32 == 5
    numbers = jnp.arange(64, dtype=jnp.float32)
    result = jax.jit(jax.vmap(lambda h, x, n: sparse_updates.change_where(h, counted, x, n)))(
        happens, -numbers, numbers
    )
    np.testing.assert_array_equal(result, jnp.where(happens, numbers, -numbers))
    assert len(asked) == sparse_updates.MIN_GROUP_SIZE


def test_a_small_batch_computes_nothing_unless_it_happens_to_one():
    asked = []

    def counted(group, current):
        new = jax.pure_callback(lambda x: asked.append(x) or x, jax.ShapeDtypeStruct((8,), jnp.int32), group)
        return jnp.where(group < 8, new, -1)

    change = jax.jit(lambda happens: sparse_updates.change_in_groups(happens, counted, jnp.full(8, 9)))
    np.testing.assert_array_equal(change(jnp.zeros(8, bool)), np.full(8, 9))
    assert not asked
    np.testing.assert_array_equal(change(jnp.arange(8) % 3 == 1), [9, 1, 9, 9, 4, 9, 9, 7])
    assert len(asked) == 1


def test_groups_are_changed_until_none_waits():
    happens = jnp.ones(50, bool)

    def numbered(group, current):
        return current[group] + group

    np.testing.assert_array_equal(
        sparse_updates.change_in_groups(happens, numbered, jnp.zeros(50, jnp.int32)), np.arange(50)
    )


@pytest.mark.parametrize("size", [3, 50])
def test_both_forms_change_the_same_members(size):
    """Bit for bit, where what a member is changed to does not depend on its group."""
    happens = jnp.arange(size) % 3 == 1

    def numbered(group, current):
        return current[group] + group

    current = jnp.full(size, 7)
    found = [
        jax.jit(lambda happens, form=form: form(happens, numbered, current))(happens)
        for form in (sparse_updates.change_in_groups, sparse_updates.change_in_groups_plain)
    ]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0], np.where(happens, 7 + np.arange(size), 7))


def test_a_batch_rule_is_taken_by_a_batch_alone():
    """Its plain form is the function of one member."""
    both = sparse_updates.with_batch_rule(lambda x: x + 1, lambda xs: xs + 2)
    assert both(jnp.int32(0)) == 1
    np.testing.assert_array_equal(jax.jit(jax.vmap(both))(jnp.zeros(3, jnp.int32)), [2, 2, 2])
