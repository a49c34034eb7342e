"""V-trace against rlax where no episode is cut, by what it must reduce to, and at ratios that overflow.

That it equals its paper's sum, and is right at every kind of end, is in test_returns.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from return_streams import Stream, consistent, stream, unbroken

from shoal.ops import policy_losses, returns, vtrace

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def given(s: Stream) -> tuple[np.ndarray, ...]:
    return s.r_t, s.discount_t, s.last_t, s.v_tm1, s.v_t


def test_equals_rlax_for_c_1(rlax):
    s, clip_rho = unbroken(), 1.7
    lambda_ = s.lambda_
    theirs = rlax.vtrace_td_error_and_advantage(
        s.v_tm1, s.v_t, s.r_t, s.discount_t, np.exp(s.log_rho_tm1), lambda_, clip_rho, 1.3
    )
    alone = rlax.vtrace(s.v_tm1, s.v_t, s.r_t, s.discount_t, np.exp(s.log_rho_tm1), lambda_, clip_rho)
    ours = vtrace.vtrace(*given(s), s.log_rho_tm1, lambda_, clip_rho=clip_rho, clip_pg_rho=1.3)
    np.testing.assert_allclose(ours.targets - s.v_tm1, theirs.errors, **TOLERANCE)
    np.testing.assert_allclose(ours.targets - s.v_tm1, alone, **TOLERANCE)
    np.testing.assert_allclose(ours.advantages, theirs.pg_advantage, **TOLERANCE)


class TestIdentities:
    s = consistent(stream(11, "oooTooooocoooCooo0oboodooooo", poison=False))
    counts = s.w_tm1 > 0
    nowhere = np.zeros_like(s.r_t)  # log-ratios of data from the policy itself

    def test_on_policy_it_is_the_lambda_return(self):
        s = self.s
        on_policy = vtrace.vtrace(*given(s), self.nowhere, s.lambda_, s.w_tm1)
        mixed = returns.lambda_returns(s.r_t, s.discount_t, s.last_t, s.v_t, s.lambda_, s.w_tm1)
        np.testing.assert_allclose(on_policy.targets, np.where(self.counts, mixed, s.v_tm1), **TOLERANCE)
        advantages = returns.gae(*given(s), s.lambda_, s.w_tm1)
        np.testing.assert_allclose(on_policy.advantages, advantages, **TOLERANCE)

    @pytest.mark.full
    def test_inside_a_loss_with_the_ratio_it_has_none(self):
        """The gradients of PPO's loss and of V-trace's policy gradient agree where nothing is clipped."""
        s, lambda_ = self.s, self.s.lambda_
        both = vtrace.vtrace(*given(s), s.log_rho_tm1, lambda_, s.w_tm1, clip_pg_rho=jnp.inf)
        bare = vtrace.vtrace_advantages(*given(s), both.targets, lambda_, s.w_tm1)
        np.testing.assert_allclose(np.exp(s.log_rho_tm1) * bare, both.advantages, **TOLERANCE)
        ppo = jax.grad(lambda x: policy_losses.clip_surrogate(x, bare, 1e9).sum())(jnp.asarray(s.log_rho_tm1))
        plain = jax.grad(lambda x: policy_losses.policy_gradient(x, both.advantages).sum())(
            jnp.asarray(s.log_rho_tm1)
        )
        np.testing.assert_allclose(ppo, plain, **TOLERANCE)

    def test_an_action_that_the_policy_never_takes_teaches_nothing(self):
        s = self.s
        never = vtrace.vtrace(*given(s), np.full_like(s.r_t, -np.inf), 0.9, s.w_tm1)
        np.testing.assert_array_equal(never.targets, s.v_tm1)
        np.testing.assert_array_equal(never.advantages, 0)


def test_ratios_that_overflow():
    s = stream(2, "oooocoooTooo", poison=False)
    log_rho = jnp.full(12, 200.0).at[::2].set(-200.0)

    def total(log_rho):
        out = vtrace.vtrace(*given(s), log_rho, 0.9, s.w_tm1, stop_target_gradients=False)
        return jnp.sum(out.targets) + jnp.sum(out.advantages)

    value, gradient = jax.jit(jax.value_and_grad(total))(log_rho)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_bounds_may_be_traced_and_in_the_right_order():
    s = unbroken()
    expected = vtrace.vtrace_targets(*given(s), s.log_rho_tm1, clip_rho=1.5, clip_c=0.5)
    traced = jax.jit(lambda rho, c: vtrace.vtrace_targets(*given(s), s.log_rho_tm1, clip_rho=rho, clip_c=c))
    np.testing.assert_allclose(traced(1.5, 0.5), expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"^clip_rho=0\.5 must be at least clip_c=1\.0\.$"):
        vtrace.vtrace(*given(s), s.log_rho_tm1, clip_rho=0.5)
