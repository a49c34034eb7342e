"""Returns of a target policy π from the actions of a behaviour policy μ.

The rules at the ends of episodes, for gradients and for dtypes are those of `shoal.ops.returns`. All but
`importance_corrected_td_errors` are one recursion, given here for the target of `q(o_{t-1}, a_{t-1})`:

    G_{t-1} = r_t + γ_t (v_t + λ_t c_t (G_t - q_t)),   the bracket is v_t at T and where the episode ended

with v_t the value of observation t under π, q_t that of the action taken there, and c_t the trace of that action:

| algorithm | v_t | c_t |
| --- | --- | --- |
| importance sampling (per decision) | E_π q | π/μ |
| Q(λ) of Harutyunyan et al. 2016 | E_π q | 1 |
| Tree-Backup | E_π q | π |
| Retrace | E_π q | min(1, π/μ) |
| Q(λ) after Watkins | max q | 1 if the action was greedy, else 0 |
| Q(λ) after Peng | max q | 1, and q_t replaced by v_t |

Where an episode or the stream ends at t no action was taken, or none that counts: the entries of `q_t` [T], `a_t`,
`c_t`, `mu_t` and `log_rho_t` are not read there, and those of `v_t`, `q_t` [T, A] and `pi_t` are, unless it
terminated. Where it is read, an action that is none of 0..A-1 makes NaN of the return, and of those before it
that it is passed back into. From T+1 observations and T actions they are made as `q[1:]` and `jnp.append(a[1:], 0)`.

Further arguments, of the observations that followed: `q_t` values of the actions taken there, [T], or of all, [T, A];
`a_t` these actions, integers, `c_t` their traces, `mu_t` the probabilities with which μ took them, and `log_rho_t`
log π(a) - log μ(a), [T]; `pi_t` probabilities under π, [T, A]. Returns are targets of the values of the actions taken.

Source: Munos et al. 2016, "Safe and Efficient Off-Policy Reinforcement Learning", eq. 3 and table 1.
"""

import jax
import jax.numpy as jnp

from shoal.ops import _checks
from shoal.ops._selects import take_entry
from shoal.ops._streams import (
    StreamStep,
    TransitionStream,
    accumulate,
    corrected_terms,
    lambda_terms,
    masked,
    stop_gradient_if,
    stream,
    td_error,
)

Array = jax.Array


def general_off_policy_returns_from_q_and_v(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    q_t: Array,
    v_t: Array,
    c_t: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Off-policy returns with traces of the caller's own, from the values of actions and observations.

        G_{t-1} = r_t + γ_t (v_t + λ_t c_t (G_t - q_t))

    Source: Munos et al. 2016, eq. 3.
    """
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, q_t=q_t, v_t=v_t, c_t=c_t)
    return stop_gradient_if(accumulate(s, corrected_terms, (q_t, v_t, c_t)), stop_target_gradients)


def general_off_policy_returns_from_action_values(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    q_t: Array,
    a_t: Array,
    pi_t: Array,
    c_t: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Off-policy returns with traces of the caller's own, from the values of all actions.

        G_{t-1} = r_t + γ_t (Σ_a π_t(a) q_t(a) + λ_t c_t (G_t - q_t(a_t)))

    Args:
      pi_t: probabilities of the target policy there, [T, A]; the value of an action of probability 0 is not read.
    Source: Munos et al. 2016, eq. 3.
    """
    s = _with_actions(r_t, discount_t, last_t, lambda_, w_tm1, q_t, a_t, pi_t, c_t=c_t)

    def terms(now: StreamStep, q_t: Array, a_t: Array, pi_t: Array, c_t: Array) -> tuple[Array, Array]:
        return corrected_terms(now, take_entry(q_t, a_t), _expected(now, q_t, pi_t), c_t)

    return stop_gradient_if(accumulate(s, terms, (q_t, a_t, pi_t, c_t)), stop_target_gradients)


def retrace(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    q_t: Array,
    a_t: Array,
    pi_t: Array,
    mu_t: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Retrace(λ) of discrete actions: the trace is cut as far as the action is less probable under π.

        G_{t-1} = r_t + γ_t (Σ_a π_t(a) q_t(a) + λ_t min(1, π_t(a_t) / μ_t(a_t)) (G_t - q_t(a_t)))

    Source: Munos et al. 2016, eq. 3 and section 3.
    """
    s = _with_actions(r_t, discount_t, last_t, lambda_, w_tm1, q_t, a_t, pi_t, mu_t=mu_t)

    def terms(now: StreamStep, q_t: Array, a_t: Array, pi_t: Array, mu_t: Array) -> tuple[Array, Array]:
        pi_a_t = take_entry(pi_t, a_t)
        # Divided only where the ratio is below 1, so that neither a quotient nor its gradient overflows.
        below = now.continues & (pi_a_t < mu_t)
        c_t = jnp.where(below, pi_a_t / jnp.where(below, mu_t, 1), 1)
        return corrected_terms(now, take_entry(q_t, a_t), _expected(now, q_t, pi_t), c_t)

    return stop_gradient_if(accumulate(s, terms, (q_t, a_t, pi_t, mu_t)), stop_target_gradients)


def retrace_continuous(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    q_t: Array,
    v_t: Array,
    log_rho_t: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Retrace(λ) of continuous actions, whose expected value is given.

        G_{t-1} = r_t + γ_t (v_t + λ_t min(1, exp(log_rho_t)) (G_t - q_t))

    Args:
      log_rho_t: log π(a) - log μ(a) of those actions, [T].
    Source: Munos et al. 2016, eq. 3 and section 3.
    """
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, q_t=q_t, v_t=v_t, log_rho_t=log_rho_t)

    def terms(now: StreamStep, q_t: Array, v_t: Array, log_rho_t: Array) -> tuple[Array, Array]:
        return corrected_terms(now, q_t, v_t, jnp.exp(jnp.minimum(masked(now.continues, log_rho_t), 0)))

    return stop_gradient_if(accumulate(s, terms, (q_t, v_t, log_rho_t)), stop_target_gradients)


def tree_backup(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    q_t: Array,
    a_t: Array,
    pi_t: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Tree-Backup(λ): the return of the action taken counts by its probability under π; μ need not be known.

        G_{t-1} = r_t + γ_t (Σ_a π_t(a) q_t(a) + λ_t π_t(a_t) (G_t - q_t(a_t)))

    Source: Precup, Sutton and Singh 2000, "Eligibility Traces for Off-Policy Policy Evaluation"; Sutton and
    Barto 2018, "Reinforcement Learning", eq. 7.16 (for λ = 1).
    """
    s = _with_actions(r_t, discount_t, last_t, lambda_, w_tm1, q_t, a_t, pi_t)

    def terms(now: StreamStep, q_t: Array, a_t: Array, pi_t: Array) -> tuple[Array, Array]:
        return corrected_terms(now, take_entry(q_t, a_t), _expected(now, q_t, pi_t), take_entry(pi_t, a_t))

    return stop_gradient_if(accumulate(s, terms, (q_t, a_t, pi_t)), stop_target_gradients)


def q_lambda_peng(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    q_t: Array,
    lambda_: Array | float,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Q(λ) after Peng and Williams: λ-returns with the greedy value, for any actions.

        G_{t-1} = r_t + γ_t ((1 - λ_t) max_a q_t(a) + λ_t G_t)

    Traces are never cut, so it learns fast, and with λ above 0 it estimates neither the greedy policy's values
    nor the behaviour's.

    Source: Peng and Williams 1996, "Incremental Multi-Step Q-Learning".
    """
    s = _with_actions(r_t, discount_t, last_t, lambda_, w_tm1, q_t)

    def terms(now: StreamStep, q_t: Array) -> tuple[Array, Array]:
        return lambda_terms(now, _maximum(now, q_t))

    return stop_gradient_if(accumulate(s, terms, (q_t,)), stop_target_gradients)


def q_lambda_watkins(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    q_t: Array,
    a_t: Array,
    lambda_: Array | float,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Q(λ) after Watkins: λ-returns with the greedy value, as far as the actions were greedy.

        G_{t-1} = r_t + γ_t ((1 - κ_t) max_a q_t(a) + κ_t G_t),   κ_t = λ_t if q_t(a_t) = max_a q_t(a), else 0

    Args:
      a_t: the actions taken there, integers, [T]; one of several of the same greatest value is greedy.
    Source: Watkins 1989, "Learning from Delayed Rewards"; Sutton and Barto 2018, "Reinforcement Learning",
    section 12.10.
    """
    s = _with_actions(r_t, discount_t, last_t, lambda_, w_tm1, q_t, a_t)

    def terms(now: StreamStep, q_t: Array, a_t: Array) -> tuple[Array, Array]:
        v_t, q_a_t = _maximum(now, q_t), take_entry(q_t, a_t)
        # NaN, of an action that does not exist, is neither the greatest value nor below it.
        kappa_t = jnp.where(q_a_t >= v_t, now.lambda_t, jnp.where(q_a_t < v_t, 0, jnp.nan))
        return lambda_terms(now._replace(lambda_t=masked(now.continues, kappa_t)), v_t)

    return stop_gradient_if(accumulate(s, terms, (q_t, a_t)), stop_target_gradients)


def importance_corrected_td_errors(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    v_tm1: Array,
    v_t: Array,
    log_rho_tm1: Array,
    lambda_: Array | float = 1.0,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """Multi-step TD errors of the value under π, with importance sampling per decision.

        e_{t-1} = ρ_{t-1} (r_t + γ_t v_t - v_{t-1} + γ_t λ_t e_t),   e_T = 0,   ρ = π/μ

    The ratios are not clipped: their product may grow without bound, which V-trace and Retrace avoid.

    Args:
      stop_target_gradients: whether `e + v_tm1`, the target, is a constant. The error itself then has gradient
        -1 with respect to `v_tm1`, the prediction, and none else.
    Returns:
      errors e, [T]; 0 where the weight is 0.
    Source: Sutton et al. 2014, "A New Q(λ) with Interim Forward View and Monte Carlo Equivalence"; per-decision
    sampling after Precup, Sutton and Singh 2000, "Eligibility Traces for Off-Policy Policy Evaluation".
    """
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, v_tm1=v_tm1, v_t=v_t, log_rho_tm1=log_rho_tm1)

    def terms(now: StreamStep, v_tm1: Array, v_t: Array, log_rho_tm1: Array) -> tuple[Array, Array]:
        rho = jnp.exp(masked(now.is_transition, log_rho_tm1))
        return rho * td_error(now, v_tm1, v_t), rho * now.discount_t * now.lambda_t

    errors = accumulate(s, terms, (v_tm1, v_t, log_rho_tm1))
    if not stop_target_gradients:
        return errors
    # Adds 0 to the value, and -1 to the gradient in v_tm1.
    prediction = v_tm1 if s.is_transition is None else masked(s.is_transition, v_tm1)
    return jax.lax.stop_gradient(errors) - (prediction - jax.lax.stop_gradient(prediction))


def _with_actions(
    r_t: Array,
    discount_t: Array,
    last_t: Array,
    lambda_: Array | float,
    w_tm1: Array | None,
    q_t: Array,
    a_t: Array | None = None,
    pi_t: Array | None = None,
    **values: Array,
) -> TransitionStream:
    """Return the stream, after checking the arrays with an axis of actions against it."""
    s = stream(r_t, discount_t, last_t, lambda_, w_tm1, **values)
    _checks.leading(s.last_t.shape, "[T, A]", q_t=q_t)
    if a_t is not None:
        _checks.leading(s.last_t.shape, "[T]", a_t=a_t)
        _checks.integer(a_t=a_t)
    over_actions = {"q_t": q_t} if pi_t is None else {"q_t": q_t, "pi_t": pi_t}
    _checks.same_shape("[T, A]", **over_actions)
    _checks.floating(discount_t=discount_t, **over_actions)
    return s


def _expected(now: StreamStep, q_t: Array, pi_t: Array) -> Array:
    """Compute Σ_a π(a) q(a) of one step; 0 where nothing bootstraps. Illegal values may be infinite or NaN."""
    pi_t = masked(now.bootstraps, pi_t)
    return jnp.sum(pi_t * masked(pi_t > 0, q_t))


def _maximum(now: StreamStep, q_t: Array) -> Array:
    """Compute max_a q(a) of one step; 0 where nothing bootstraps. The maximum of NaN has no gradient that is 0."""
    return jnp.max(masked(now.bootstraps, q_t))
