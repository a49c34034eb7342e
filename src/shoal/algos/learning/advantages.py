"""Advantages and value targets of a rollout: functions with one signature, by name.

Each takes the config, the transitions [T, N] (of which it reads `reward`, `discount`, `last` and `weight`), the values
of all time-steps [T+1, N], and the log-ratio log π(a) - log μ(a) of the actions [T, N], where π is the policy of the
values' parameters and μ the one that acted; None where they are the same. It returns the advantages and the targets of
the value, [T, N] each. In the place of N there may be several axes.

Where the weight is 0, inputs may hold anything, NaN included, and so may what a user's own function returns: it is
replaced. Shoal's own return the advantage 0, and the value as its target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from shoal.algos.learning.minibatches import Rows
from shoal.base.imports import chosen_function
from shoal.ops import off_policy, returns
from shoal.ops import vtrace as vtrace_ops
from shoal.types import Array

if TYPE_CHECKING:
    from shoal.algos.ppo_config import PPOConfig


def gae(config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None) -> tuple[Array, Array]:
    """Compute generalised advantage estimates, and the TD(λ) targets that are these plus the values."""
    estimate = _over_streams(returns.gae, (1, 1, 1, 1, 1, None, 1), value)
    steps = inputs.reward, inputs.discount, inputs.last, value[:-1], value[1:]
    advantage = estimate(*steps, config.gae_lambda, inputs.weight)
    return advantage, advantage + value[:-1]


def vtrace(config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None) -> tuple[Array, Array]:
    """Compute V-trace's targets, and its advantages without the ratio of their own action.

        v_t = V_t + ρ_t δ_t + γ_{t+1} λ c_t (v_{t+1} - V_{t+1}),   ρ = min(ρ̄, π/μ),   c = min(c̄, π/μ)
        A_t = r_{t+1} + γ_{t+1} [(1 - λ) V_{t+1} + λ v_{t+1}] - V_t

    V-trace's policy gradient is ρ_t A_t ∇ log π(a_t): the first factor corrects that a_t was drawn from μ and not from
    π. PPO's surrogates multiply A_t by π(a_t)/μ(a_t) themselves, whose gradient is (π/μ) A_t ∇ log π(a_t). So their
    ratio must be to the policy that acted, also where values and ratios were computed again since, and A_t must be
    without ρ_t: with it, one action would be corrected twice. The ratios of the steps after t, within v_{t+1}, are in
    no surrogate's ratio and belong to A_t; the target v_t, which no ratio multiplies, keeps ρ_t.

    Where π is μ and no clip is below 1, both are those of `gae`, but for rounding.

    Source: Espeholt et al. 2018, "IMPALA", section 4; λ as in its remark 2. Schulman et al. 2017, eq. 6 and 7.
    """
    targets = functools.partial(vtrace_ops.vtrace_targets, clip_rho=config.rho_clip, clip_c=config.c_clip)
    return _corrected(targets, config, inputs, value, log_ratio)


def importance_corrected_td(
    config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None
) -> tuple[Array, Array]:
    """Compute targets by importance sampling per decision, and advantages from these as `vtrace` does.

        v_t = V_t + e_t,   e_t = ρ_t (δ_t + γ_{t+1} λ e_{t+1}),   ρ = π/μ

    These are V-trace's where nothing is clipped: without bias, and with products of ratios that may be very large.
    """

    def targets(*arguments: Array) -> Array:
        return arguments[3] + off_policy.importance_corrected_td_errors(*arguments)

    return _corrected(targets, config, inputs, value, log_ratio)


def vtrace_rewards(
    config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None
) -> tuple[Array, Array]:
    """Compute generalised advantage estimates whose rewards and traces are multiplied by clipped ratios.

        A_t = ρ_t r_{t+1} + γ_{t+1} V_{t+1} - V_t + γ_{t+1} λ c_t A_{t+1},   ρ = min(ρ̄, π/μ),   c = min(c̄, π/μ)

    The targets are these plus the values. Where π is μ and no clip is below 1 both are those of `gae`. In V-trace ρ
    multiplies the values too, so that an action that π never takes has the error 0; here its error is γ V' - V. A
    surrogate with a ratio corrects an action twice.

    Source: the trainer of JaxDEM (github.com/cdelv/JaxDEM).
    """
    ratio = jnp.ones_like(value[:-1]) if log_ratio is None else jnp.exp(log_ratio)
    reward = jnp.minimum(ratio, config.rho_clip) * inputs.reward
    trace = jnp.minimum(ratio, config.c_clip) * config.gae_lambda
    steps = reward, inputs.discount, inputs.last, value[:-1], value[1:]
    advantage = _over_streams(returns.gae, (1,) * 7, value)(*steps, trace, inputs.weight)
    return advantage, advantage + value[:-1]


def lambda_returns(
    config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None
) -> tuple[Array, Array]:
    """Compute λ-returns as targets, and their excess over the values as advantages; both equal `gae`'s."""
    estimate = _over_streams(returns.lambda_returns, (1, 1, 1, 1, None, 1), value)
    steps = inputs.reward, inputs.discount, inputs.last, value[1:]
    return _from_returns(estimate(*steps, config.gae_lambda, inputs.weight), value, inputs.weight)


def discounted_returns(
    config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None
) -> tuple[Array, Array]:
    """Compute discounted returns as targets, and their excess over the values as advantages.

    An episode that is cut, by truncation or by the rollout's end, is bootstrapped there.
    """
    estimate = _over_streams(returns.discounted_returns, (1, 1, 1, 1, 1), value)
    steps = inputs.reward, inputs.discount, inputs.last, value[1:]
    return _from_returns(estimate(*steps, inputs.weight), value, inputs.weight)


def n_step_returns(
    config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None
) -> tuple[Array, Array]:
    """Compute returns of at most `n_step` rewards as targets, and their excess over the values as advantages."""
    function = functools.partial(returns.n_step_returns, n=config.n_step)
    estimate = _over_streams(function, (1, 1, 1, 1, None, 1), value)
    steps = inputs.reward, inputs.discount, inputs.last, value[1:]
    return _from_returns(estimate(*steps, config.gae_lambda, inputs.weight), value, inputs.weight)


def _corrected(
    targets: Callable[..., Array], config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None
) -> tuple[Array, Array]:
    """Compute targets by ratios, and advantages that have the ratios of the following steps only (see `vtrace`)."""
    log_ratio = jnp.zeros_like(value[:-1]) if log_ratio is None else log_ratio
    arguments = inputs.reward, inputs.discount, inputs.last, value[:-1], value[1:]
    in_axes = (1, 1, 1, 1, 1, 1, None, 1)
    target = _over_streams(targets, in_axes, value)(*arguments, log_ratio, config.gae_lambda, inputs.weight)
    advantage = _over_streams(vtrace_ops.vtrace_advantages, in_axes, value)(
        *arguments, target, config.gae_lambda, inputs.weight
    )
    return advantage, target


def _from_returns(target: Array, value: Array, weight: Array) -> tuple[Array, Array]:
    target = jnp.where(weight > 0, target, value[:-1])
    return jnp.where(weight > 0, target - value[:-1], 0.0), target


def _over_streams(
    function: Callable[..., Array], in_axes: tuple[int | None, ...], value: Array
) -> Callable[..., Array]:
    """Map a function of one stream over the axes of the values after that of time."""
    for _ in range(value.ndim - 1):
        function = jax.vmap(function, in_axes, out_axes=1)
    return function


ESTIMATORS = {
    "gae": gae,
    "lambda_returns": lambda_returns,
    "discounted_returns": discounted_returns,
    "n_step_returns": n_step_returns,
    "vtrace": vtrace,
    "vtrace_rewards": vtrace_rewards,
    "importance_corrected_td": importance_corrected_td,
}
LEAVING_RATIOS = ("vtrace", "importance_corrected_td")  # to the surrogate: that of each action itself
WITH_RATIOS = (*LEAVING_RATIOS, "vtrace_rewards")  # of the current policy to the one that acted


def estimate(config: PPOConfig, inputs: Rows, value: Array, log_ratio: Array | None) -> tuple[Array, Array]:
    """Compute advantages and targets by the chosen estimator."""
    advantage, target = chosen_function("advantage", config.advantage, ESTIMATORS)(
        config, inputs, value, log_ratio
    )
    if config.advantage in ESTIMATORS:
        return advantage, target
    is_transition = inputs.weight > 0
    return jnp.where(is_transition, advantage, 0.0), jnp.where(is_transition, target, value[:-1])
