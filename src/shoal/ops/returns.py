"""Returns and advantages of one stream of transitions, correct at the ends of episodes.

Every function takes one stream, time-major; the caller maps over more (`jax.vmap(..., in_axes=1,
out_axes=1)`). Transition t leads from observation t-1 to observation t: `v_tm1` and `v_t` are the values of
the two, `r_t` and `discount_t` belong to it, and so does its weight `w_tm1`, 1 or 0.

    discount_t = 0   where the episode terminated: nothing follows
    discount_t = γ   elsewhere, at a truncation too: `v_t` is then the value of the final observation
    w_tm1      = 0   for the transition that leads out of a finished episode, or of an agent that is dead

Nothing passes a transition of weight 0, whatever its entries hold, NaN included: two episodes in one stream,
with such a transition between them, give what each gives alone. Rewards may be integers; the results are
float32. No function stops gradients: targets that should carry none go through `jax.lax.stop_gradient`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


def gae(
    r_t: Array, discount_t: Array, v_tm1: Array, v_t: Array, w_tm1: Array, lambda_: Array | float
) -> Array:
    """Generalised advantage estimates of one stream of transitions.

        A_{t-1} = w_{t-1} (r_t + γ_t v_t - v_{t-1} + γ_t λ_t A_t),   A_T = 0

    A transition of weight 0 (it leads out of a finished episode, or its agent is dead)
    has advantage 0 and passes nothing back, whatever its other entries hold, NaN included.

    Args:
      r_t: rewards of the T transitions, [T].
      discount_t: γ times the environment's discount, [T]; 0 where the episode terminated.
      v_tm1: values of the observations that were acted on, [T].
      v_t: values of the observations that followed, [T].
      w_tm1: weights of the transitions, 0 or 1, [T].
      lambda_: trace decay, a number or [T].

    Returns:
      advantages, [T]; `advantages + v_tm1` are the TD(λ) value targets.

    Raises:
      ValueError: the shapes disagree.

    Source: Schulman et al. 2015, "High-Dimensional Continuous Control Using Generalized
    Advantage Estimation", eq. 16.
    """
    _same_shape(r_t=r_t, discount_t=discount_t, v_tm1=v_tm1, v_t=v_t, w_tm1=w_tm1)
    delta_t = r_t + _discounted(discount_t, v_t) - v_tm1
    return _accumulate(delta_t, discount_t * lambda_, w_tm1)


def discounted_returns(r_t: Array, discount_t: Array, v_t: Array, w_tm1: Array) -> Array:
    """Discounted returns: all rewards to the end of the episode, or of the stream and then its last value.

        G_{t-1} = w_{t-1} (r_t + γ_t G_t),   G_t = v_t where the episode was cut at t or t = T

    Args:
      r_t: rewards, [T].
      discount_t: γ times the environment's discount, [T]; 0 where the episode terminated.
      v_t: values of the observations that followed, [T]; read only at truncations and at T.
      w_tm1: weights of the transitions, 0 or 1, [T].

    Returns:
      returns, [T]; 0 for a transition of weight 0.

    Raises:
      ValueError: the shapes disagree.

    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 3.9.
    """
    return lambda_returns(r_t, discount_t, v_t, w_tm1, 1.0)


def lambda_returns(r_t: Array, discount_t: Array, v_t: Array, w_tm1: Array, lambda_: Array | float) -> Array:
    """λ-returns: a mixture of the returns of all lengths.

        G_{t-1} = w_{t-1} (r_t + γ_t ((1 - λ_t) v_t + λ_t G_t)),   G_t = v_t where w_t = 0 or t = T

    Args:
      r_t: rewards, [T].
      discount_t: γ times the environment's discount, [T]; 0 where the episode terminated.
      v_t: values of the observations that followed, [T]; where λ is 1, read only at truncations and at T.
      w_tm1: weights of the transitions, 0 or 1, [T].
      lambda_: trace decay, a number or [T].

    Returns:
      returns, [T]; 0 for a transition of weight 0. With `v_tm1` of the same stream they are
      `gae(...) + v_tm1` where the weight is 1.

    Raises:
      ValueError: the shapes disagree.

    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 12.18.
    """
    _same_shape(r_t=r_t, discount_t=discount_t, v_t=v_t, w_tm1=w_tm1)
    lambda_t = jnp.broadcast_to(jnp.asarray(lambda_, jnp.float32), r_t.shape)
    goes_on_t = jnp.append(w_tm1[1:] > 0, False)  # whether the return goes on beyond t

    def backwards(following: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, discount, value, lambda_, goes_on, weight = step
        # The value is read only where it counts, so that it may be NaN elsewhere.
        mixed = jnp.where(lambda_ < 1, (1 - lambda_) * value, 0.0) + lambda_ * following
        mixed = jnp.where(goes_on, mixed, value)
        result = jnp.where(weight > 0, reward + _discounted(discount, mixed), 0.0)
        return result, result

    steps = (r_t.astype(jnp.float32), discount_t, v_t, lambda_t, goes_on_t, w_tm1)
    _, returns = jax.lax.scan(backwards, jnp.zeros((), jnp.float32), steps, reverse=True)
    return returns


def n_step_returns(r_t: Array, discount_t: Array, v_t: Array, w_tm1: Array, n: int) -> Array:
    """Returns of at most n rewards, then the value of where that led.

        G_{t-1} = w_{t-1} (r_t + γ_t (r_{t+1} + γ_{t+1} (... + γ_{t+n-1} v_{t+n-1})))

    Shorter where the episode or the stream ends before: then the value is that of the last observation.

    Args:
      r_t: rewards, [T].
      discount_t: γ times the environment's discount, [T]; 0 where the episode terminated.
      v_t: values of the observations that followed, [T].
      w_tm1: weights of the transitions, 0 or 1, [T].
      n: how many rewards, static, at least 1.

    Returns:
      returns, [T]; 0 for a transition of weight 0.

    Raises:
      ValueError: the shapes disagree or n is below 1.

    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 7.1.
    """
    _same_shape(r_t=r_t, discount_t=discount_t, v_t=v_t, w_tm1=w_tm1)
    if n < 1:
        raise ValueError(f"n={n} must be at least 1.")
    goes_on_t = jnp.append(w_tm1[1:] > 0, False)

    def one_more(shorter: Array, _: None) -> tuple[Array, None]:
        """The returns of one reward more, from those of k rewards: one step of value iteration in time."""
        following = jnp.where(goes_on_t, jnp.append(shorter[1:], 0.0), v_t)
        return jnp.where(w_tm1 > 0, r_t + _discounted(discount_t, following), 0.0), None

    one = jnp.where(w_tm1 > 0, r_t + _discounted(discount_t, v_t), 0.0)
    return jax.lax.scan(one_more, one, None, length=n - 1)[0]


class VTrace(NamedTuple):
    """What `vtrace` returns, each [T]."""

    targets: Array  # v_{t-1}: what the value should be; V_{t-1} where the weight is 0
    advantages: Array  # of the policy gradient, already with its ratio; 0 where the weight is 0


def vtrace(
    r_t: Array,
    discount_t: Array,
    v_tm1: Array,
    v_t: Array,
    w_tm1: Array,
    log_rho_tm1: Array,
    lambda_: Array | float = 1.0,
    clip_rho: Array | float = 1.0,
    clip_c: Array | float = 1.0,
    clip_pg_rho: Array | float = jnp.inf,
) -> VTrace:
    """V-trace: value targets and advantages of data that an older policy acted out.

        v_{t-1} - V_{t-1} = w_{t-1} (ρ_{t-1} δ_t + γ_t c_{t-1} w_t (v_t - V_t)),   v_T = V_T
        δ_t = r_t + γ_t V_t - V_{t-1},   ρ = min(ρ̄, π/μ),   c = λ min(c̄, π/μ)
        A_{t-1} = w_{t-1} min(ρ̄_pg, π/μ) (r_t + γ_t [(1 - λ) V_t + λ v_t] - V_{t-1})

    Where w_t = 0 (the episode was cut at t, or the stream ended) the bracket is V_t. A loss that has the
    ratio already, as PPO's, takes the targets from here and its advantages from `vtrace_advantages`.

    Args:
      r_t: rewards, [T].
      discount_t: γ times the environment's discount, [T]; 0 where the episode terminated.
      v_tm1: values of the observations that were acted on, [T].
      v_t: values of the observations that followed, [T].
      w_tm1: weights of the transitions, 0 or 1, [T].
      log_rho_tm1: log π(a) - log μ(a) of the actions, [T].
      lambda_: trace decay, a number or [T]; entry t belongs to the transition from t-1 to t.
      clip_rho: ρ̄, at least clip_c; it decides which policy's value the targets converge to.
      clip_c: c̄; it decides only how fast.
      clip_pg_rho: ρ̄_pg; infinite by default: not clipped.

    Returns:
      targets and advantages.

    Raises:
      ValueError: the shapes disagree.

    Source: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted
    Actor-Learner Architectures", eq. 1 and section 4.2; λ in c as in its remark 2.
    """
    targets = _vtrace_targets(r_t, discount_t, v_tm1, v_t, w_tm1, log_rho_tm1, lambda_, clip_rho, clip_c)
    advantages = vtrace_advantages(r_t, discount_t, v_tm1, v_t, w_tm1, targets, lambda_)
    log_rho_tm1 = jnp.where(w_tm1 > 0, log_rho_tm1, 0.0)
    ratio = jnp.exp(jnp.minimum(log_rho_tm1, jnp.log(clip_pg_rho)))
    return VTrace(targets, ratio * advantages)


def vtrace_advantages(
    r_t: Array,
    discount_t: Array,
    v_tm1: Array,
    v_t: Array,
    w_tm1: Array,
    targets_tm1: Array,
    lambda_: Array | float = 1.0,
) -> Array:
    """V-trace's advantages without their ratio, for a loss that brings its own (PPO's).

        A_{t-1} = w_{t-1} (r_t + γ_t [(1 - λ) V_t + λ v_t] - V_{t-1}),   [...] = V_t where w_t = 0

    Args:
      r_t: rewards, [T].
      discount_t: γ times the environment's discount, [T]; 0 where the episode terminated.
      v_tm1: values V of the observations that were acted on, [T].
      v_t: values V of the observations that followed, [T].
      w_tm1: weights of the transitions, 0 or 1, [T].
      targets_tm1: `vtrace(...).targets`, [T].
      lambda_: trace decay, a number or [T].

    Returns:
      advantages, [T].

    Raises:
      ValueError: the shapes disagree.

    Source: as `vtrace`.
    """
    _same_shape(r_t=r_t, discount_t=discount_t, v_tm1=v_tm1, v_t=v_t, w_tm1=w_tm1, targets_tm1=targets_tm1)
    goes_on_t = jnp.append(w_tm1[1:] > 0, False)
    mixed = (1 - lambda_) * v_t + lambda_ * jnp.append(targets_tm1[1:], 0.0)
    bootstrap_t = jnp.where(goes_on_t, mixed, v_t)
    return jnp.where(w_tm1 > 0, r_t + _discounted(discount_t, bootstrap_t) - v_tm1, 0.0)


def _vtrace_targets(
    r_t: Array,
    discount_t: Array,
    v_tm1: Array,
    v_t: Array,
    w_tm1: Array,
    log_rho_tm1: Array,
    lambda_: Array | float,
    clip_rho: Array | float,
    clip_c: Array | float,
) -> Array:
    _same_shape(r_t=r_t, discount_t=discount_t, v_tm1=v_tm1, v_t=v_t, w_tm1=w_tm1, log_rho_tm1=log_rho_tm1)
    log_rho_tm1 = jnp.where(w_tm1 > 0, log_rho_tm1, 0.0)
    # The minimum is taken of the logarithms: a ratio that overflows has no gradient that is finite.
    rho = jnp.exp(jnp.minimum(log_rho_tm1, jnp.log(clip_rho)))
    c = lambda_ * jnp.exp(jnp.minimum(log_rho_tm1, jnp.log(clip_c)))
    delta_t = rho * jnp.where(w_tm1 > 0, r_t + _discounted(discount_t, v_t) - v_tm1, 0.0)
    return v_tm1 + _accumulate(delta_t, discount_t * c, w_tm1)


def _accumulate(delta_t: Array, decay_t: Array, w_tm1: Array) -> Array:
    """x_{t-1} = w_{t-1} (delta_t + decay_t x_t), x_T = 0; weight 0 gives 0 whatever the rest holds."""

    def backwards(following: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        delta, decay, weight = step
        result = jnp.where(weight > 0, delta + decay * following, 0.0)
        return result, result

    # Entries of weight 0 are replaced before the scan too: a gradient passes through both sides of `where`.
    delta_t = jnp.where(w_tm1 > 0, delta_t, 0.0).astype(jnp.float32)
    decay_t = jnp.where(w_tm1 > 0, decay_t, 0.0).astype(jnp.float32)
    return jax.lax.scan(backwards, jnp.zeros((), jnp.float32), (delta_t, decay_t, w_tm1), reverse=True)[1]


def _discounted(discount_t: Array, v_t: Array) -> Array:
    return discount_t * jnp.where(discount_t > 0, v_t, 0.0)  # v_t may be NaN where nothing follows


def _same_shape(**arrays: Array) -> None:
    shapes = {name: jnp.shape(array) for name, array in arrays.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        named = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(f"{named} must all have the same shape [T]; map over further axes with jax.vmap.")
