"""V-trace: value targets and advantages from data of an older policy.

The rules at the ends of episodes, for gradients and for dtypes are those of `shoal.ops.returns`. All share

    δ_t = r_t + γ_t V_t - V_{t-1},   ρ = min(ρ̄, π/μ),   c = min(c̄, π/μ)
    v_{t-1} = V_{t-1} + ρ_{t-1} δ_t + γ_t λ_t c_{t-1} (v_t - V_t),   v_T = V_T

where V are the given values (`v_tm1`, `v_t`) and v the targets. Ratios are given as logarithms (`log_rho_tm1`, log
π(a) - log μ(a) of the actions, [T]), and cut as such, so that one that would overflow has a finite result and
gradient.

Source: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
Architectures", eq. 1 and section 4.2; λ as in its remark 2.
"""

from collections.abc import Callable

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


def vtrace_targets(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    v_tm1: Array,
    v_t: Array,
    log_rho_tm1: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    clip_rho: Array | float = 1.0,
    clip_c: Array | float = 1.0,
    stop_target_gradients: bool = True,
) -> Array:
    """V-trace's targets of the value.

        v_{t-1} = V_{t-1} + ρ_{t-1} δ_t + γ_t λ_t c_{t-1} (v_t - V_t),   v_T = V_T

    Args:
      clip_rho: ρ̄; it decides which policy's value the targets converge to.
      clip_c: c̄; it decides only how fast. The proof of convergence is for c̄ <= ρ̄; others are not refused.
    Returns:
      targets v, [T]; V_{t-1} where the weight is 0.
    """
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, v_tm1=v_tm1, v_t=v_t, log_rho_tm1=log_rho_tm1)
    errors = accumulate(s, _terms(clip_rho, clip_c), (v_tm1, v_t, log_rho_tm1))
    return stop_gradient_if(v_tm1 + errors, stop_target_gradients)


def vtrace_advantages(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    v_tm1: Array,
    v_t: Array,
    targets_tm1: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """V-trace's advantages without their ratio, for a loss that has it (PPO's, and `vtrace_policy_gradient`).

        A_{t-1} = r_t + γ_t [(1 - λ_t) V_t + λ_t v_t] - V_{t-1},   [...] = V_t at an end

    The ratio within the targets corrects the following transitions; the action's own ratio is in the loss,
    once.

    Returns:
      advantages, [T]; 0 where the weight is 0.
    """
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, v_tm1=v_tm1, v_t=v_t, targets_tm1=targets_tm1)

    def step(
        now: StreamStep, target_t: Array, v_tm1: Array, v_t: Array, target_tm1: Array
    ) -> tuple[Array, Array]:
        fixed, decay = lambda_terms(now, v_t)
        return target_tm1, fixed + decay * target_t - masked(now.is_transition, v_tm1)

    advantages = scan_backwards(s, step, jnp.zeros((), s.discount_t.dtype), (v_tm1, v_t, targets_tm1))
    return stop_gradient_if(advantages, stop_target_gradients)


def _terms(clip_rho: Array | float, clip_c: Array | float) -> Callable[..., tuple[Array, Array]]:
    """Return the terms of v_{t-1} - V_{t-1} = ρ_{t-1} δ_t + γ_t λ_t c_{t-1} (v_t - V_t)."""

    def terms(now: StreamStep, v_tm1: Array, v_t: Array, log_rho_tm1: Array) -> tuple[Array, Array]:
        log_rho_tm1 = masked(now.is_transition, log_rho_tm1)
        decay = now.discount_t * now.lambda_t * _clipped_ratio(log_rho_tm1, clip_c)
        return _clipped_ratio(log_rho_tm1, clip_rho) * td_error(now, v_tm1, v_t), decay

    return terms


def _clipped_ratio(log_ratio: Array, bound: Array | float) -> Array:
    """Compute min(bound, exp(log_ratio)), by the minimum of logarithms: infinite ratios have no gradient."""
    return jnp.exp(jnp.minimum(log_ratio, jnp.log(jnp.asarray(bound, log_ratio.dtype))))
