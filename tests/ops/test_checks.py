"""Disagreement is said in one sentence, with names and shapes, while tracing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import _checks

a, b, matrix = jnp.zeros(3), jnp.zeros(4), jnp.zeros((3, 2))


def test_one_shape():
    assert _checks.same_shape(x=a, y=np.ones(3)) == (3,)
    assert _checks.same_shape("[T, A]", x=matrix) == (3, 2)
    assert _checks.same_shape(x=1.0, y=jnp.zeros(())) == ()
    with pytest.raises(ValueError, match=r"^x \[3\], y \[4\] must all have the same shape\.$"):
        _checks.same_shape(x=a, y=b)
    with pytest.raises(ValueError, match=r"x \[3, 2\] must .* shape \[T\]; .* jax\.vmap\.$"):
        _checks.same_shape("[T]", x=matrix)


def test_the_first_axes():
    _checks.leading((3,), "[T, A]", x=matrix, y=jnp.zeros((3, 5)))
    with pytest.raises(ValueError, match=r"^x \[3, 2\] must have the axes \[T, A\] and begin with \[4\]\.$"):
        _checks.leading((4,), "[T, A]", x=matrix)
    with pytest.raises(ValueError, match=r"^x \[3\] must have the axes"):
        _checks.leading((3,), "[T, A]", x=a)


def test_a_number_or_one_per_step():
    _checks.broadcastable((3,), x=a, y=0.5, z=jnp.ones(()))
    with pytest.raises(ValueError, match=r"^y \[4\] must be a number or have the shape \[3\]\.$"):
        _checks.broadcastable((3,), x=a, y=b)


def test_one_floating_dtype():
    assert _checks.floating(x=a, y=np.zeros(2)) == np.float32  # NumPy's float64 enters JAX as float32
    with pytest.raises(TypeError, match=r"^x float32, y bfloat16 must all have the same dtype"):
        _checks.floating(x=a, y=b.astype(jnp.bfloat16))
    with pytest.raises(TypeError, match=r"^y is int32; it must be floating\.$"):
        _checks.floating(x=a, y=jnp.arange(3))
    with jax.enable_x64(True):
        assert _checks.floating(x=np.zeros(2)) == np.float64


def test_kinds():
    _checks.real(x=a, y=np.arange(3), z=a > 0)
    _checks.integer(x=np.arange(3, dtype=np.uint8))
    _checks.boolean(x=a > 0)
    for check, argument, worded in (
        (_checks.real, a + 1j, "complex64; it must be floating, integer or boolean"),
        (_checks.integer, a, "float32; it must be integer"),
        (_checks.boolean, a, "float32; it must be boolean"),
    ):
        with pytest.raises(TypeError, match=f"^x is {worded}.$"):
            check(x=argument)


def test_while_tracing():
    with pytest.raises(ValueError, match=r"x \[3\], y \[4\]"):
        jax.eval_shape(lambda x, y: _checks.same_shape(x=x, y=y), a, b)
