"""A loop that draws ahead does what a plain loop does, wherever its blocks end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.xla import loops


def draw(t):
    key = jax.random.fold_in(jax.random.key(0), t)
    return {"key": key, "number": jax.random.randint(key, (3,), 0, 10)}


def body(t, drawn, state):
    total, table = state
    bits = jax.random.bits(drawn["key"], (3,)) % 7
    total = total * 3 + drawn["number"] + t + bits.astype(jnp.int32)
    return total, table.at[t].set(total)


@pytest.mark.parametrize("bytes_ahead", [1, 100, 2**18])
@pytest.mark.parametrize(("start", "stop"), [(0, 20), (7, 20), (5, 6), (3, 3), (9, 4)])
def test_blocks_do_what_a_plain_loop_does(start, stop, bytes_ahead, monkeypatch):
    state = jnp.zeros(3, jnp.int32), jnp.zeros((20, 3), jnp.int32)
    expected = state
    for t in range(start, stop):
        expected = body(t, draw(t), expected)
    monkeypatch.setattr(loops, "MAX_DRAWN_BYTES", bytes_ahead)
    run = jax.jit(lambda start, stop: loops.loop_in_blocks(draw, body, start, stop, state))
    jax.tree.map(np.testing.assert_array_equal, run(jnp.int32(start), jnp.int32(stop)), expected)
    monkeypatch.setattr(loops, "uses_plain_form", lambda _: True)
    plain = jax.jit(lambda start, stop: loops.loop_in_blocks(draw, body, start, stop, state))
    jax.tree.map(np.testing.assert_array_equal, plain(jnp.int32(start), jnp.int32(stop)), expected)
