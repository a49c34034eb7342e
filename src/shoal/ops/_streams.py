"""What the functions of returns share: which transitions count, where they go on, and the backward recursion.

The rules at the ends of episodes are in `shoal.ops.returns`; this is the one place that follows them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.ops import _checks

Array = jax.Array


class Stream(NamedTuple):
    """One stream of transitions, each [T]; what may not be read is 0."""

    r_t: Array
    discount_t: Array
    lambda_t: Array  # 0 where nothing goes on
    counts: Array  # whether the transition is one at all: its weight is not 0
    bootstraps: Array  # whether the value of where it led is read: it counts, and nothing terminated there
    goes_on: Array  # whether the next transition belongs to the same episode, and there is one


def stream(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    lambda_: Array | float,
    w_tm1: Array | None,
    **values: Array,
) -> Stream:
    """Checks one stream, `values` (by name, [T]) included, and finds what may be read and what goes on.

    Raises:
      ValueError: shapes disagree, or λ is a number outside [0, 1].
      TypeError: dtypes disagree.
    """
    weights = {} if w_tm1 is None else {"w_tm1": w_tm1}
    shape = _checks.same_shape("[T]", r_t=r_t, discount_t=discount_t, last_t=last_t, **values, **weights)
    _checks.broadcastable(shape, lambda_=lambda_)
    if isinstance(lambda_, int | float) and not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_={lambda_} must be between 0 and 1.")
    _checks.boolean(last_t=last_t)
    _checks.real(r_t=r_t, lambda_=lambda_, **weights)
    rewards = {"r_t": r_t} if jnp.issubdtype(jnp.result_type(r_t), jnp.floating) else {}
    dtype = _checks.floating(**rewards, discount_t=discount_t, **values)

    counts = counted(w_tm1, shape)
    bootstraps = counts & (jnp.asarray(discount_t) != 0)
    goes_on = bootstraps & ~jnp.asarray(last_t) & shifted(counts)
    lambda_t = jnp.broadcast_to(jnp.asarray(lambda_, dtype), shape)
    return Stream(
        kept(counts, jnp.asarray(r_t, dtype)),
        kept(counts, discount_t),
        kept(goes_on, lambda_t),
        counts,
        bootstraps,
        goes_on,
    )


def counted(w_tm1: Array | None, shape: tuple[int, ...]) -> Array:
    """Which transitions count: those of a weight above 0, or all."""
    return jnp.ones(shape, bool) if w_tm1 is None else jnp.asarray(w_tm1) > 0


def shifted(x_tm1: Array) -> Array:
    """What belongs to observation t of what is given for t-1; 0 after the last."""
    return jnp.append(x_tm1, jnp.zeros((), x_tm1.dtype))[1:]


def kept(where: Array, x: Array) -> Array:
    """`x` [T, ...] where it may be read, and 0 elsewhere, in its gradient too."""
    x = jnp.asarray(x)
    return jnp.where(where.reshape(where.shape + (1,) * (x.ndim - where.ndim)), x, jnp.zeros((), x.dtype))


def td_errors(s: Stream, v_tm1: Array, v_t: Array) -> Array:
    """δ_t = r_t + γ_t v_t - v_{t-1}; 0 where the weight is 0."""
    return s.r_t + s.discount_t * kept(s.bootstraps, v_t) - kept(s.counts, v_tm1)


def accumulate(s: Stream, delta_t: Array, decay_t: Array) -> Array:
    """x_{t-1} = delta_t + decay_t x_t, where x_t is 0 if nothing goes on; one scan backwards."""

    def backwards(following: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        delta, decay, goes_on = step
        # Selected, and not only multiplied by 0: the next episode may have diverged.
        result = delta + decay * jnp.where(goes_on, following, jnp.zeros((), following.dtype))
        return result, result

    steps = (delta_t, decay_t, s.goes_on)
    return jax.lax.scan(backwards, jnp.zeros((), delta_t.dtype), steps, reverse=True)[1]


def corrected_returns(s: Stream, q_t: Array, v_t: Array, c_t: Array) -> Array:
    """G_{t-1} = r_t + γ_t (v_t + λ_t c_t (G_t - q_t)), where the bracket is v_t if nothing goes on."""
    return accumulate(s, *corrected_terms(s, q_t, v_t, c_t))


def corrected_terms(s: Stream, q_t: Array, v_t: Array, c_t: Array) -> tuple[Array, Array]:
    """The two parts of `corrected_returns`: what each step adds, and the decay of what follows."""
    trace_t = s.lambda_t * kept(s.goes_on, c_t)
    bootstrap_t = kept(s.bootstraps, v_t) - trace_t * kept(s.goes_on, q_t)
    return s.r_t + s.discount_t * bootstrap_t, s.discount_t * trace_t


def stopped(x: Array, stop: bool) -> Array:
    """`x`, without its gradient if `stop`."""
    return jax.lax.stop_gradient(x) if stop else x
