"""V-trace against rlax where no episode is cut, by what it must reduce to, and at ratios that overflow.

That it equals its paper's sum, and is right at every kind of end, is in test_returns.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from return_streams import Stream, consistent, stream, unbroken, vtrace_targets

from shoal.ops import policy_losses, returns, vtrace

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def given(s: Stream) -> tuple[np.ndarray, ...]:
    return s.r_t, s.discount_t, s.last_t, s.v_tm1, s.v_t


def both(s: Stream, log_rho: np.ndarray, lambda_: np.ndarray | float, w_tm1: np.ndarray | None = None):
    """Targets, and the advantages that belong to them."""
    targets = vtrace.vtrace_targets(*given(s), log_rho, lambda_, w_tm1)
    return targets, vtrace.vtrace_advantages(*given(s), targets, lambda_, w_tm1)


def test_equals_rlax_for_c_1(rlax):
    s, clip_rho = unbroken(), 1.7
    lambda_ = s.lambda_
    theirs = rlax.vtrace_td_error_and_advantage(
        s.v_tm1, s.v_t, s.r_t, s.discount_t, np.exp(s.log_rho_tm1), lambda_, clip_rho, 1.3
    )
    alone = rlax.vtrace(s.v_tm1, s.v_t, s.r_t, s.discount_t, np.exp(s.log_rho_tm1), lambda_, clip_rho)
    targets = vtrace.vtrace_targets(*given(s), s.log_rho_tm1, lambda_, clip_rho=clip_rho)
    advantages = vtrace.vtrace_advantages(*given(s), targets, lambda_)
    np.testing.assert_allclose(targets - s.v_tm1, theirs.errors, **TOLERANCE)
    np.testing.assert_allclose(targets - s.v_tm1, alone, **TOLERANCE)
    # rlax's advantage has the ratio that the policy gradient multiplies by here.
    slope = jax.grad(lambda x: policy_losses.vtrace_policy_gradient(x, s.log_rho_tm1, advantages, 1.3).sum())(
        jnp.zeros_like(s.r_t)
    )
    np.testing.assert_allclose(-slope, theirs.pg_advantage, **TOLERANCE)


class TestIdentities:
    s = consistent(stream(11, "oooTooooocoooCooo0oboodooooo", poison=False))
    counts = s.w_tm1 > 0
    nowhere = np.zeros_like(s.r_t)  # log-ratios of data from the policy itself

    def test_on_policy_it_is_the_lambda_return(self):
        s = self.s
        targets, advantages = both(s, self.nowhere, s.lambda_, s.w_tm1)
        mixed = returns.lambda_returns(s.r_t, s.discount_t, s.last_t, s.v_t, s.lambda_, s.w_tm1)
        np.testing.assert_allclose(targets, np.where(self.counts, mixed, s.v_tm1), **TOLERANCE)
        np.testing.assert_allclose(advantages, returns.gae(*given(s), s.lambda_, s.w_tm1), **TOLERANCE)

    @pytest.mark.full
    def test_inside_a_loss_with_the_ratio_it_has_none(self):
        """The gradients of PPO's loss and of V-trace's policy gradient agree where nothing is clipped."""
        _, bare = both(self.s, self.s.log_rho_tm1, self.s.lambda_, self.s.w_tm1)
        log_ratio = jnp.asarray(self.s.log_rho_tm1)
        ppo = jax.grad(lambda x: policy_losses.clip_surrogate(x, bare, 1e9).sum())(log_ratio)
        plain = jax.grad(
            lambda x: policy_losses.vtrace_policy_gradient(x, log_ratio, bare, clip_pg_rho=jnp.inf).sum()
        )(log_ratio)
        np.testing.assert_allclose(ppo, plain, **TOLERANCE)

    def test_an_action_that_the_policy_never_takes_teaches_nothing(self):
        s, never = self.s, np.full_like(self.s.r_t, -np.inf)
        targets, advantages = both(s, never, 0.9, s.w_tm1)
        np.testing.assert_array_equal(targets, s.v_tm1)
        slope = jax.grad(lambda x: policy_losses.vtrace_policy_gradient(x, never, advantages).sum())
        np.testing.assert_array_equal(slope(jnp.zeros_like(s.r_t)), 0)


def test_ratios_that_overflow():
    s = stream(2, "oooocoooTooo", poison=False)
    log_rho = jnp.full(12, 200.0).at[::2].set(-200.0)

    def total(log_rho):
        targets = vtrace.vtrace_targets(*given(s), log_rho, 0.9, s.w_tm1, stop_target_gradients=False)
        arguments = (*given(s), targets, 0.9, s.w_tm1)
        return jnp.sum(targets) + jnp.sum(vtrace.vtrace_advantages(*arguments, stop_target_gradients=False))

    value, gradient = jax.jit(jax.value_and_grad(total))(log_rho)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_bounds_may_be_traced_and_either_may_be_the_greater():
    s = unbroken()
    expected = vtrace.vtrace_targets(*given(s), s.log_rho_tm1, clip_rho=1.5, clip_c=0.5)
    traced = jax.jit(lambda rho, c: vtrace.vtrace_targets(*given(s), s.log_rho_tm1, clip_rho=rho, clip_c=c))
    np.testing.assert_allclose(traced(1.5, 0.5), expected, rtol=1e-6, atol=1e-6)
    (looped,) = vtrace_targets(s, clip_rho=0.5, clip_c=1.5)
    got = vtrace.vtrace_targets(*given(s), s.log_rho_tm1, s.lambda_, clip_rho=0.5, clip_c=1.5)
    np.testing.assert_allclose(got, looped, **TOLERANCE)
