"""Functions that differ by the backend, and the question for it."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.xla import backend


def test_both_forms_compute_the_same_function():
    """Bit for bit, if both branches do."""

    def both(form):
        return jax.jit(lambda x: form(x, 2.0, cpu=lambda x, y: x * y, default=lambda x, y: y * x))(
            jnp.arange(5.0)
        )

    np.testing.assert_array_equal(both(backend.by_platform), both(backend.by_platform_plain))


def test_the_platform_chooses():
    chosen = jax.jit(lambda x: backend.by_platform(x, cpu=lambda x: x + 1, default=lambda x: x + 2))(
        jnp.int32(0)
    )
    assert chosen == (1 if backend.is_cpu() else 2)
    assert backend.by_platform_plain(0, cpu=lambda x: x + 1, default=lambda x: x + 2) == 2


def test_tests_run_on_the_cpu():
    assert backend.is_cpu()


def test_a_program_is_compiled_unless_jit_is_disabled():
    calls = []

    def power(x, *, exponent):
        calls.append(x)
        return x**exponent

    program = jax.jit(power, static_argnames="exponent")
    for disabled, expected in ((False, 1), (True, 2)):  # in the second case each call runs the Python code
        calls.clear()
        with jax.disable_jit(disabled):
            compiled = backend.compile_ahead(program, jnp.float32(3), exponent=2)
            assert [compiled(jnp.float32(x)) for x in (2, 3)] == [4, 9]
        assert len(calls) == expected
