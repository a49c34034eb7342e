"""Arrays joined to a vector come out as they went in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla import packing

LEAVES = (jnp.arange(4.0).reshape(2, 2), jnp.arange(12.0).reshape(2, 6), jnp.ones(2), jnp.zeros((2, 3)))


# The vector is there even if it is empty.
@pytest.mark.parametrize("large, arrays", [(100, 1), (6, 3), (1, 5)])
def test_both_forms_come_out_as_they_went_in(monkeypatch, large, arrays):
    """Bit for bit."""
    monkeypatch.setattr(packing, "MIN_UNPACKED_SIZE", large)
    packed, unpack = packing.pack(LEAVES)
    plain, unpack_plain = packing.pack_plain(LEAVES)
    assert len(jax.tree.leaves(packed)) == arrays and len(plain) == len(LEAVES)
    jax.tree.map(np.testing.assert_array_equal, unpack(packed), LEAVES)
    jax.tree.map(np.testing.assert_array_equal, unpack_plain(plain), LEAVES)


def test_what_treats_each_number_by_itself_is_the_same_for_both_forms():
    """Bit for bit."""

    def squared(form):
        def apply(leaves):
            packed, restore = form(leaves)
            return restore(jax.tree.map(lambda x: 0.3 * x**2, packed))

        return jax.jit(apply)(LEAVES)

    jax.tree.map(np.testing.assert_array_equal, squared(packing.pack), squared(packing.pack_plain))
