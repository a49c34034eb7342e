"""Returns and advantages of one stream of transitions, correct at the ends of episodes.

What is said here holds for `shoal.ops.vtrace` and `shoal.ops.off_policy` too. Every function takes one stream,
time-major; the caller maps over more: `jax.vmap(..., in_axes=..., out_axes=1)`, with keyword arguments bound by
`functools.partial`. Transition t leads from observation t-1 to observation t. Arrays named `_tm1` belong to the
former (the action was taken there), arrays named `_t` to the latter or to the transition itself. A number in
the place of `lambda_` counts for every step.

**Ends of episodes.**

    discount_t = 0      where the episode terminated at t: nothing follows, and `v_t` is not read
    discount_t = γ      elsewhere, at a truncation too
    last_t     = True   where observation t ended its episode, terminated or truncated
    w_tm1      = 0      where there is no transition: it leads out of a finished episode, or its agent is dead

Nothing is passed from transition t+1 back into t where `last_t` is True: the return bootstraps there from `v_t`,
the value of the episode's own final observation. Nothing is passed beyond a transition of weight 0 either; its
own advantage or return is 0, the target of a function that is given `v_tm1` is `v_tm1`. What is not read may
hold anything, NaN included, in the gradient as well. So both kinds of streams are right:

- Environments that reset on the next step (Shoal's own, dm_env's) put one transition of weight 0 between two
  episodes. There `last_t` only repeats what the weights say.
- Environments that reset in the same step have no such transition: leave `w_tm1` out, and give as `v_t` at an
  end the value of the true final observation, not of the first of the next episode.

At the end of the stream, T, the return bootstraps from `v_t` as at a truncation.

**Arguments**, each [T], of the T transitions: `r_t` rewards; `discount_t`, γ times the environment's discount;
`last_t`; `v_tm1` values of the observations that were acted on, `v_t` of those that followed; `lambda_` trace decay, a
number or [T]; `w_tm1` weights, 0 or 1, None for all 1. Results are [T], and 0 where the weight is 0.

**Gradients.** `stop_target_gradients=True`, the default everywhere, makes the results constants, which is what
a loss wants of its targets (semi-gradients); False lets gradients through to all inputs.

**Dtypes.** Rewards may be floating, integers or booleans, and weights too; flags are boolean. All other arrays,
and rewards if they are floating, have one floating dtype, in which everything is computed and returned:
float32, or float64 where JAX has it switched on. λ and the bounds of ratios are cast to it. A disagreement of
shapes raises a ValueError while tracing, one of dtypes a TypeError, each with the names and what they are.
"""

import jax
import jax.numpy as jnp

from shoal.ops._streams import (
    StreamStep,
    accumulate,
    lambda_terms,
    masked,
    scan_backwards,
    stop_gradient_if,
    stream,
    td_error,
)

Array = jax.Array


def gae(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    v_tm1: Array,
    v_t: Array,
    lambda_: Array | float,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Generalised advantage estimates.

        A_{t-1} = r_t + γ_t v_t - v_{t-1} + γ_t λ_t A_t,   A_T = 0

    Returns:
      advantages, [T]; 0 where the weight is 0. `advantages + v_tm1` are the TD(λ) targets of the value.
    Source: Schulman et al. 2015, "High-Dimensional Continuous Control Using Generalized
    Advantage Estimation", eq. 16.
    """
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, v_tm1=v_tm1, v_t=v_t)

    def terms(now: StreamStep, v_tm1: Array, v_t: Array) -> tuple[Array, Array]:
        return td_error(now, v_tm1, v_t), now.discount_t * now.lambda_t

    return stop_gradient_if(accumulate(s, terms, (v_tm1, v_t)), stop_target_gradients)


def lambda_returns(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    v_t: Array,
    lambda_: Array | float,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """λ-returns: a mixture of the returns of all lengths.

        G_{t-1} = r_t + γ_t ((1 - λ_t) v_t + λ_t G_t),   G_T = v_T

    Returns:
      returns, [T]; 0 where the weight is 0. Elsewhere they are `gae(...) + v_tm1`.
    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 12.18.
    """
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, v_t=v_t)
    return stop_gradient_if(accumulate(s, lambda_terms, (v_t,)), stop_target_gradients)


def discounted_returns(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    v_t: Array,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Discounted returns: all rewards to the end of the episode, or to its truncation and then the value there.

        G_{t-1} = r_t + γ_t G_t,   G_t = v_t where the episode was cut at t or t = T

    These are the λ-returns for λ = 1, which is why there is no `lambda_`.

    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 3.9.
    """
    # Not `lambda_returns` with λ = 1: 0 times a value within the episode, which may be NaN, is NaN.
    s = stream(r_t, discount_t, last_t, 1.0, w_tm1, v_t=v_t)

    def terms(now: StreamStep, v_t: Array) -> tuple[Array, Array]:
        return now.r_t + now.discount_t * masked(now.bootstraps & ~now.continues, v_t), now.discount_t

    return stop_gradient_if(accumulate(s, terms, (v_t,)), stop_target_gradients)


def n_step_returns(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    v_t: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    n: int,
    stop_target_gradients: bool = True,
) -> Array:
    """n-step bootstrapped returns: at most n rewards, then the value of the state reached.

        G^1_{t-1} = r_t + γ_t v_t
        G^k_{t-1} = r_t + γ_t ((1 - λ_t) v_t + λ_t G^{k-1}_t),   G^{k-1}_t = v_t where the episode was cut

    so that for λ = 1, `G^n_{t-1} = r_t + γ_t (r_{t+1} + γ_{t+1} (... + γ_{t+n-1} v_{t+n-1}))`; shorter where the
    episode or the stream ends before.

    Returns:
      returns G^n, [T]; 0 where the weight is 0.
    Raises:
      ValueError: n is below 1.
    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 7.1.
    """
    if n < 1:
        raise ValueError(f"n={n} must be at least 1.")
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, v_t=v_t)
    # More steps than the stream has change nothing, and the scan carries n numbers.
    n = min(n, max(len(v_t), 1))

    def step(now: StreamStep, following: Array, v_t: Array) -> tuple[Array, Array]:
        """Compute the returns G^1 to G^n of a step; each but the first continues one of the next step."""
        fixed, decay = lambda_terms(now, v_t)
        one_step = now.r_t + now.discount_t * masked(now.bootstraps, v_t)
        returns = jnp.append(one_step, fixed + decay * following[:-1])
        return returns, returns[-1]

    returns = scan_backwards(s, step, jnp.zeros(n, s.discount_t.dtype), (v_t,))
    return stop_gradient_if(returns, stop_target_gradients)
