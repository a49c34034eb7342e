"""Data flow through traced programs, on programs whose flow is plain to see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.checking.check_flow import trace_flow


def sources(function, *args):
    """For each result, the inputs that it is computed from, and which it copies."""
    found = trace_flow(jax.make_jaxpr(function)(*args))
    return [sorted(i for i in x.sources if i >= 0) for x in found.results], [x.copy_of for x in found.results]


def scanned(a, b, c):
    """The carry's second part is reached by `a` after two rounds only; `c` reaches what is stacked."""

    def body(carry, x):
        first, second, third = carry
        return (a, first, third), second + x

    return jax.lax.scan(body, (b, b * 0, b + 1), c * jnp.ones(3))


def looped(a, b, c):
    return jax.lax.while_loop(lambda x: x[0] < a, lambda x: (x[0] + 1, x[1] * 2, x[2]), (0.0, b, c))[:2]


@jax.custom_jvp
def custom(a, b):
    return a * 2, b


custom.defjvp(lambda primals, tangents: (custom(*primals), tangents))

PROGRAMS = {
    "arithmetic": (lambda a, b, c: (a + b, c * 0, 1.0), [[0, 1], [2], []], [None, None, None]),
    "copies": (lambda a, b, c: (b, a), [[1], [0]], [1, 0]),
    "jit": (lambda a, b, c: jax.jit(lambda x, y: (y, x + 1))(a, b), [[1], [0]], [1, None]),
    "cond": (lambda a, b, c: jax.lax.cond(a > 0, lambda x, y: x, lambda x, y: y, b, c), [[0, 1, 2]], [None]),
    "select": (lambda a, b, c: jnp.where(a > 0, b, 2.0), [[0, 1]], [None]),
    "scan": (scanned, [[0, 1], [0, 1], [1], [0, 1, 2]], [None, None, None, None]),
    "while": (looped, [[0], [0, 1]], [None, None]),
    "custom": (lambda a, b, c: custom(a, b), [[0], [1]], [None, 1]),
    "vmap": (lambda a, b, c: jax.vmap(lambda x: x * a)(b * jnp.ones(2)), [[0, 1]], [None]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_flow_of_a_program(name):
    function, expected, copies = PROGRAMS[name]
    assert sources(function, 1.0, 2.0, 3.0) == (expected, copies)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_result_changes_with_no_input_that_it_is_not_computed_from(name):
    function = PROGRAMS[name][0]
    given = np.asarray([1.0, 2.0, 3.0], np.float32)
    expected = jax.tree.leaves(function(*given))
    for i in range(3):
        changed = given.copy()
        changed[i] = -4.0
        for result, before, origin in zip(
            jax.tree.leaves(function(*changed)), expected, sources(function, *given)[0], strict=True
        ):
            assert i in origin or np.array_equal(result, before)


def test_draws_are_told_by_the_inputs_of_their_keys():
    def draws(key, number):
        key, other = jax.random.split(key)
        constant = jax.random.normal(jax.random.key(0))
        folded = jax.random.uniform(jax.random.fold_in(jax.random.key(1), number))
        return constant + folded, jax.random.randint(other, (), 0, 5), key

    found = trace_flow(jax.make_jaxpr(draws)(jax.random.key(0), 3))
    assert set(found.draws) == {frozenset(), frozenset([1]), frozenset([0])}
    assert [set(x.sources) for x in found.results] == [{1, ~1}, {0, ~0}, {0}]


def test_a_draw_in_a_loop_is_told_by_all_that_its_key_becomes():
    """The key of the first round is constant; it is made of the input from the second round on."""

    def loop(key, number):
        def body(carry, _):
            own, total = carry
            return (jax.random.fold_in(key, 1), total + jax.random.normal(own)), None

        return jax.lax.scan(body, (jax.random.key(0), 0.0), length=4)[0][1]

    assert set(trace_flow(jax.make_jaxpr(loop)(jax.random.key(0), 3)).draws) == {frozenset([0])}
