"""Losses of values, elementwise and unreduced: the caller weighs and averages. All are to be minimised.

`value` is the prediction and `target` a constant (no gradient passes); both [...], and so is the result. A
temporal-difference error is a loss with `target` left at 0: `squared(td_learning(...))`, `huber(...)`.

**Single transitions.** The functions here and in `shoal.ops.q_losses` and `shoal.ops.distributional` that take a
reward are about the transition from observation t-1 to observation t. Batch axes [...] come first and are the same
everywhere (none at all for one transition, [T] or [T, B] for a stream, [B] for a minibatch), axes of actions
and atoms last.

    discount_t = 0      where the episode terminated at t: the next value is not read
    discount_t = γ      elsewhere, at a truncation too: it is then the final observation's
    w_tm1      = 0      where there is no transition: it leads out of a finished episode, or its agent is dead

The result of a transition of weight 0 is 0. What is not read may hold anything, NaN included, in the gradient
as well. An action that does not exist (below 0, or the number of actions and above) gives NaN where the weight is
above 0. Nothing passes from one transition to another, so none of these functions needs `last_t`.

**Arguments**: `v_tm1`, `q_tm1`: predictions at the observations that were acted on; `v_t`, `q_t`: values of those that
followed (of the target network); `a_tm1`: the actions, integers [...]; `r_t`: rewards [...]; `discount_t`: γ times
the environment's discount [...]; `w_tm1`: weights, 0 or 1, [...], None for all 1; `selector_t`: values of the next
actions by which one is chosen (of the network that learns), [..., A].

**Gradients.** `stop_target_gradients=True`, the default everywhere, makes the target a constant
(semi-gradients); False lets gradients through to all inputs.

**Dtypes.** As of `shoal.ops.returns`: rewards may be floating, integers or booleans, and weights too; actions are
integers. All other arrays, and rewards if they are floating, have one floating dtype, in which everything is
computed and returned: float32, or float64 where JAX has it switched on. A disagreement of shapes raises a
ValueError while tracing, one of dtypes a TypeError, each with the names and what they are.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.ops import _checks
from shoal.ops._selects import clip_by_select
from shoal.ops._streams import masked
from shoal.ops._transitions import check_axes, td_error, transition

Array = jax.Array


def squared(value: Array, target: Array | float = 0.0) -> Array:
    """Half the squared error: `(v - g)² / 2`, whose gradient is `v - g`."""
    return 0.5 * jnp.square(value - _constant(value, target=target))


def huber(value: Array, target: Array | float = 0.0, delta: Array | float = 1.0) -> Array:
    """Huber's loss: squared for errors up to δ, linear beyond, so that the gradient is within ±δ.

        e²/2 where |e| <= δ,   δ (|e| - δ/2) elsewhere,   e = v - g

    Source: Huber 1964, "Robust Estimation of a Location Parameter".
    """
    _checks.broadcastable(jnp.shape(value), delta=delta)
    error = jnp.abs(value - _constant(value, target=target))
    quadratic = jnp.minimum(error, delta)  # and the rest is linear; neither overflows or divides
    return 0.5 * jnp.square(quadratic) + delta * (error - quadratic)


def clipped_value(
    value: Array,
    old_value: Array,
    target: Array,
    clip_coef: Array | float,
    loss: Callable[[Array, Array], Array] = squared,
) -> Array:
    """The larger of two losses: of the value, and of the value clipped to within ε of the one when the data
    were gathered.

        max(l(v, g), l(v_old + clip(v - v_old, -ε, ε), g)),   l(v, g) = (v - g)² / 2 unless another is given

    Source: OpenAI Baselines' ppo2; examined in Engstrom et al. 2020, "Implementation Matters in Deep
    Policy Gradients".
    """
    _checks.broadcastable(jnp.shape(value), clip_coef=clip_coef)
    old_value = _constant(value, old_value=old_value)
    clipped_prediction = old_value + clip_by_select(value - old_value, -clip_coef, clip_coef)
    plain_loss, clipped_loss = loss(value, target), loss(clipped_prediction, target)
    # A select: the gradient of `jnp.maximum` at a tie would be half of each.
    return jnp.where(plain_loss >= clipped_loss, plain_loss, clipped_loss)


def td_learning(
    v_tm1: Array,
    r_t: Array,
    discount_t: Array,
    v_t: Array,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """TD errors of state values.

        δ_t = r_t + γ_t v_t - v_{t-1}

    Returns:
      TD errors, [...], for `squared` or `huber`; 0 where the weight is 0.
    Source: Sutton 1988, "Learning to Predict by the Methods of Temporal Differences".
    """
    t = transition(r_t, discount_t, w_tm1, v_tm1=v_tm1, v_t=v_t)
    check_axes(t.r_t.shape, "[...] [...]", v_tm1=v_tm1, v_t=v_t)
    return td_error(t, jnp.asarray(v_tm1), masked(t.bootstraps, v_t), stop_target_gradients)


def _constant(value: Array, **target: Array | float) -> Array:
    """Check the target against the value, and stop its gradient."""
    _checks.broadcastable(jnp.shape(value), **target)
    (array,) = target.values()
    if isinstance(array, int | float):
        return jnp.asarray(array, _checks.floating(value=value))
    _checks.floating(value=value, **{name: jnp.asarray(array) for name in target})
    return jax.lax.stop_gradient(array)
