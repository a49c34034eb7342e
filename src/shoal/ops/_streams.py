"""Streams of transitions for the functions of returns: weights, ends of episodes, and the backward recursion.

The rules at the ends of episodes are in `shoal.ops.returns`; this module alone applies them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from shoal.ops import _checks

Array = jax.Array
PyTree = Any


class TransitionStream(NamedTuple):
    """One stream of transitions as the caller gives it, each [T], or one row of it."""

    r_t: Array
    discount_t: Array
    last_t: Array
    lambda_t: Array
    is_transition: Array | None  # whether the weight is not 0; None: all


class StreamStep(NamedTuple):
    """One transition, each entry a number; entries that may not be read are 0."""

    r_t: Array
    discount_t: Array
    lambda_t: Array  # 0 where the recursion ends
    is_transition: Array  # whether the weight is not 0
    bootstraps: Array  # whether the next value is read: the weight is not 0, and nothing terminated there
    continues: Array  # whether the next transition belongs to the same episode and exists


def stream(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    lambda_: Array | float,
    w_tm1: Array | None,
    **values: Array,
) -> TransitionStream:
    """Check one stream, and `values` (by name, [T]) against it.

    Raises:
      ValueError: shapes disagree, or λ is a number outside [0, 1].
      TypeError: dtypes disagree.
    """
    weights = {} if w_tm1 is None else {"w_tm1": w_tm1}
    shape = _checks.same_shape("[T]", r_t=r_t, discount_t=discount_t, last_t=last_t, **values, **weights)
    _checks.broadcastable(shape, lambda_=lambda_)
    # One that is traced cannot be compared here.
    if isinstance(lambda_, int | float) and not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_={lambda_} must be between 0 and 1.")
    _checks.boolean(last_t=last_t)
    _checks.real(r_t=r_t, lambda_=lambda_, **weights)
    dtype = _checks.common_dtype(r_t, discount_t=discount_t, **values)
    return TransitionStream(
        jnp.asarray(r_t, dtype),
        jnp.asarray(discount_t),
        jnp.asarray(last_t),
        jnp.broadcast_to(jnp.asarray(lambda_, dtype), shape),
        None if w_tm1 is None else jnp.asarray(w_tm1) > 0,
    )


def scan_backwards(
    s: TransitionStream, step: Callable[..., tuple[PyTree, PyTree]], start: PyTree, values: PyTree
) -> PyTree:
    """Scan once from the end of the stream to its start.

    All is computed within the scan, for one step: values that are prepared for all steps at once are written
    to memory and read again, and `vmap` over a second axis transposes them, which together takes up to twice
    the time.

    Args:
      step: (the step, the value passed back from the following step, the step's `values`) -> (the value to pass back,
        its result). A value that would be passed back across an end, or from beyond the stream, is 0.
      values: further arrays, [T, ...] each.
    Returns:
      the results, [T, ...].
    """

    def scan_step(
        carry: tuple[PyTree, Array], row: tuple[TransitionStream, PyTree]
    ) -> tuple[tuple[PyTree, Array], PyTree]:
        following, next_is_transition = carry
        now = _masked_step(row[0], next_is_transition)
        # Selected, and not only multiplied by 0: values of the next episode may be NaN or infinite.
        following = jax.tree.map(lambda x: masked(now.continues, x), following)
        passed_on, result = step(now, following, *row[1])
        return (passed_on, now.is_transition), result

    return jax.lax.scan(scan_step, (start, jnp.zeros((), bool)), (s, values), reverse=True)[1]


def accumulate(
    s: TransitionStream, terms: Callable[..., tuple[Array, Array]], values: tuple[Array, ...]
) -> Array:
    """Compute x_{t-1} = fixed_t + decay_t x_t, where x_t is 0 at an end; `terms` gives the two of one step."""

    def step(now: StreamStep, following: Array, *value: Array) -> tuple[Array, Array]:
        fixed, decay = terms(now, *value)
        result = fixed + decay * following
        return result, result

    return cast(Array, scan_backwards(s, step, jnp.zeros((), s.discount_t.dtype), values))


def masked(where: Array, x: Array) -> Array:
    """Replace `x` by 0 where it may not be read, in its gradient too; `x` may have further axes at its end."""
    x = jnp.asarray(x)
    where = where.reshape(where.shape + (1,) * (x.ndim - where.ndim))
    return jnp.where(where, x, jnp.zeros((), x.dtype))


def td_error(now: StreamStep, v_tm1: Array, v_t: Array) -> Array:
    """Compute δ_t = r_t + γ_t v_t - v_{t-1}; 0 where the weight is 0."""
    return now.r_t + now.discount_t * masked(now.bootstraps, v_t) - masked(now.is_transition, v_tm1)


def corrected_terms(now: StreamStep, q_t: Array, v_t: Array, c_t: Array) -> tuple[Array, Array]:
    """Return the terms of G_{t-1} = r_t + γ_t (v_t + λ_t c_t (G_t - q_t)), whose bracket is v_t at an end."""
    trace_t = now.lambda_t * masked(now.continues, c_t)
    bootstrap_t = masked(now.bootstraps, v_t) - trace_t * masked(now.continues, q_t)
    return now.r_t + now.discount_t * bootstrap_t, now.discount_t * trace_t


def lambda_terms(now: StreamStep, v_t: Array) -> tuple[Array, Array]:
    """Return the terms of G_{t-1} = r_t + γ_t ((1 - λ_t) v_t + λ_t G_t), whose bracket is v_t at an end."""
    bootstrap_t = (1 - now.lambda_t) * masked(now.bootstraps, v_t)
    return now.r_t + now.discount_t * bootstrap_t, now.discount_t * now.lambda_t


def stop_gradient_if(x: Array, stop: bool) -> Array:
    """Return `x`, without its gradient if `stop`."""
    return jax.lax.stop_gradient(x) if stop else x


def _masked_step(s: TransitionStream, next_is_transition: Array) -> StreamStep:
    """Return one step of the stream, given whether the next one is a transition."""
    is_transition = jnp.ones_like(next_is_transition) if s.is_transition is None else s.is_transition
    bootstraps = is_transition & (s.discount_t != 0)
    continues = bootstraps & ~s.last_t & next_is_transition
    return StreamStep(
        masked(is_transition, s.r_t),
        masked(is_transition, s.discount_t),
        masked(continues, s.lambda_t),
        is_transition,
        bootstraps,
        continues,
    )
