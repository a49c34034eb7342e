"""Loops over the entries of arrays, and over steps that a run may no longer need."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from shoal.xla import backend
from shoal.xla.plain import uses_plain_form

Array = jax.Array
S = TypeVar("S")
X = TypeVar("X")
Y = TypeVar("Y")

MAX_DRAWN_BYTES = 2**18  # of what a block of `loop_in_blocks` computes ahead: within a core's cache


def sum_by_loop(function: Callable[..., Array], *arrays: Array) -> Array:
    """Compute the sum of a function over the entries of the last axis of some arrays.

        sum(function(*(x[..., j:j+1] for x in arrays)) for j in range(m)),   within float32's rounding

    On a CPU they are added up one after the other, and so is the gradient: each pass is over all results, which the
    compiler makes vector instructions of, as it does not of a sum over the last axis of all pairs.

    Gain: the gradient of a quantile regression of 128 rows of 200 quantiles and 200 samples took 3 ms instead of 40.

    Args:
      function: of one entry of each array, [..., 1].
      arrays: [..., m] each.
    Returns:
      of the shape of the function's results.
    """
    if uses_plain_form("sum_by_loop") or not backend.is_cpu():
        return sum_by_loop_plain(function, *arrays)

    @jax.checkpoint  # so that nothing of the passes is kept for the gradient
    def add(total: Array, entries: tuple[Array, ...]) -> tuple[Array, None]:
        return total + function(*(x[..., None] for x in entries)), None

    entries = tuple(jnp.moveaxis(x, -1, 0) for x in arrays)
    result = jax.eval_shape(function, *(jax.ShapeDtypeStruct((*x.shape[:-1], 1), x.dtype) for x in arrays))
    return jax.lax.scan(add, jnp.zeros(result.shape, result.dtype), entries)[0]


def sum_by_loop_plain(function: Callable[..., Array], *arrays: Array) -> Array:
    """Compute the results of all entries at once, and their sum: the plain form of `sum_by_loop`."""
    entries = tuple(x[..., None] for x in arrays)
    return jnp.sum(jax.vmap(function, in_axes=-2, out_axes=-1)(*entries), axis=-1)


@custom_vmap
def any_member(is_running: Array) -> Array:
    """Return whether a run continues; under `vmap`, whether any member does, which is one number for all."""
    return is_running


@any_member.def_vmap
def _(_: int, is_batched: list[bool], is_running: Array) -> tuple[Array, bool]:
    return any_member(jnp.any(is_running)), False


def scan_while(
    is_running: Callable[[S, X], Array],
    step: Callable[[S, X], tuple[S, Y]],
    rest: Callable[[S, X], tuple[S, Y]],
    state: S,
    xs: X,
) -> tuple[S, Y]:
    """Scan `step` while it is needed, and from there on `rest`, which costs less.

        jax.lax.scan(step, state, xs)

    Under `vmap` all members make `step` as long as any of them needs it. The counter is one for all, so that each loop
    has one condition, and selects nothing.

    Gain: `docs/performance.md` has that of a KL stop.

    Args:
      is_running: of a state and the next entry, whether `step` is needed; once False, it stays so.
      rest: gives what `step` does for a run that does not need it.
    """
    if uses_plain_form("scan_while"):
        return jax.lax.scan(step, state, xs)
    length = len(jax.tree.leaves(xs)[0])

    def entry(index: Array) -> X:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), xs)

    def advance(step: Callable[[S, X], tuple[S, Y]], index: Array, carry: tuple[S, Y]) -> tuple[S, Y]:
        state, output = step(carry[0], entry(index))
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=index, axis=0)
        return state, jax.tree.map(put, carry[1], output)

    def is_needed(carry: tuple[Array, tuple[S, Y]]) -> Array:
        index, (state, _) = carry
        return (index < length) & any_member(is_running(state, entry(index)))

    shapes = jax.eval_shape(step, state, entry(jnp.int32(0)))[1]
    outputs = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)
    start = jnp.int32(0), (state, outputs)
    index, carry = jax.lax.while_loop(is_needed, lambda x: (x[0] + 1, advance(step, *x)), start)
    return jax.lax.fori_loop(index, length, functools.partial(advance, rest), carry)


def loop_in_blocks(
    draw: Callable[[Array], X], body: Callable[[Array, X, S], S], start: Array, stop: Array, state: S
) -> S:
    """Loop over steps `start` to `stop - 1`, and compute ahead, in blocks, what depends on a step's number alone.

        for t in range(start, stop):
            state = body(t, draw(t), state)

    A step of few and small numbers takes less time than the hashes of its keys, which a block computes side by side.

    Gain: four environments of MountainCar by random actions, 14.3 million steps/s instead of 9.2.
    """
    if uses_plain_form("loop_in_blocks"):
        return jax.lax.fori_loop(start, stop, lambda t, state: body(t, draw(t), state), state)
    drawn_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(draw, start)))
    block = max(1, MAX_DRAWN_BYTES // max(1, drawn_bytes))

    def advance(carry: tuple[Array, S]) -> tuple[Array, S]:
        first, state = carry
        end = jnp.minimum(first + block, stop)
        drawn = jax.vmap(draw)(first + jnp.arange(block))

        def step(t: Array, state: S) -> S:
            return body(t, jax.tree.map(lambda x: x[t - first], drawn), state)

        return end, jax.lax.fori_loop(first, end, step, state)

    return jax.lax.while_loop(lambda carry: carry[0] < stop, advance, (start, state))[1]


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many inputs of a traced scan are constants, and how many are carried, in JAX 0.10 and in 0.12."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)
