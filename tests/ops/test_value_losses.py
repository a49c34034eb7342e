"""Elementwise value losses against plain loops, rlax and each other, their gradients, and what bad input raises.

`td_learning` is a loss of transitions: `test_transitions.py` holds it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from shoal.ops import value_losses
from shoal.ops.value_losses import clipped_value, huber, squared

VALUE, OLD, TARGET = (2 * np.random.default_rng(0).normal(size=(3, 300))).astype(np.float32)


def huber_by_case(value, target, delta):
    error = abs(value - target)
    return error**2 / 2 if error <= delta else delta * (error - delta / 2)


def clipped_by_case(value, old, target, epsilon):
    if value > old + epsilon:
        clipped = old + epsilon
    elif value < old - epsilon:
        clipped = old - epsilon
    else:
        clipped = value
    return max((value - target) ** 2, (clipped - target) ** 2) / 2


LOSSES = {
    "squared": (squared, lambda v, old, g: (v - g) ** 2 / 2),
    "huber": (huber, lambda v, old, g: huber_by_case(v, g, 1.0)),
    "huber_0.5": (lambda v, g: huber(v, g, 0.5), lambda v, old, g: huber_by_case(v, g, 0.5)),
    "clipped": (None, lambda v, old, g: clipped_by_case(v, old, g, 0.2)),
}


def loss_of(name):
    return (
        (lambda v, old, g: LOSSES[name][0](v, g)) if LOSSES[name][0] else (lambda *a: clipped_value(*a, 0.2))
    )


@pytest.mark.parametrize("name", LOSSES)
def test_equal_their_formulas_and_have_their_gradient(name):
    rows = zip(*(a.astype(np.float64) for a in (VALUE, OLD, TARGET)), strict=True)
    expected = [LOSSES[name][1](*row) for row in rows]
    np.testing.assert_allclose(loss_of(name)(VALUE, OLD, TARGET), expected, rtol=1e-5, atol=1e-6)
    with jax.enable_x64(True):
        value, old, target = (jnp.asarray(a, jnp.float64) for a in (VALUE, OLD, TARGET))
        loss = jax.jit(loss_of(name))
        exact = loss(value, old, target)
        assert exact.dtype == jnp.float64
        np.testing.assert_allclose(exact, expected, rtol=1e-12)
        check_grads(lambda v: loss(v, old, target), (value,), order=1, modes=["rev"], rtol=1e-5, eps=1e-6)
        for slope in jax.grad(lambda old, g: jnp.sum(loss(value, old, g)), argnums=(0, 1))(old, target):
            np.testing.assert_array_equal(slope, 0.0)


def test_bad_input_is_named():
    four, five, whole = jnp.zeros(4), jnp.zeros(5), jnp.zeros(4, jnp.int32)
    for call, said in (
        (lambda: squared(four, five), r"target \[5\] must be a number or have the shape \[4\]"),
        (lambda: huber(four, four, five), r"delta \[5\]"),
        (lambda: clipped_value(four, five, four, 0.2), r"old_value \[5\]"),
        (lambda: clipped_value(four, four, four, five), r"clip_coef \[5\]"),
    ):
        with pytest.raises(ValueError, match=said):
            jax.eval_shape(call)
    for call, said in (
        (lambda: squared(whole, four), "value is int32; it must be floating"),
        (lambda: squared(four, whole), "target is int32; it must be floating"),
        (
            lambda: huber(four, four.astype(jnp.bfloat16)),
            "value float32, target bfloat16 must all have the same",
        ),
    ):
        with pytest.raises(TypeError, match=said):
            jax.eval_shape(call)


@pytest.mark.full
def test_are_rlaxs(rlax):
    np.testing.assert_allclose(squared(VALUE, TARGET), rlax.l2_loss(VALUE, TARGET), rtol=1e-6)
    np.testing.assert_allclose(
        huber(VALUE, TARGET, 0.7), rlax.huber_loss(VALUE - TARGET, 0.7), rtol=1e-5, atol=1e-6
    )
    r_t, discount_t = OLD, np.full_like(OLD, 0.9)
    theirs = jax.vmap(rlax.td_learning)(VALUE, r_t, discount_t, TARGET)
    np.testing.assert_allclose(value_losses.td_learning(VALUE, r_t, discount_t, TARGET), theirs, rtol=1e-6)
