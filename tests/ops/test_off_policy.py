"""Off-policy returns against rlax where no episode is cut, and by what they must reduce to.

That each equals its paper's sum, and is right at every kind of end, is in test_returns.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from return_streams import ACTIONS, CASES, Stream, consistent, stream, unbroken

from shoal.ops import off_policy, returns

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def common(s: Stream) -> tuple[np.ndarray, ...]:
    return s.r_t, s.discount_t, s.last_t


def rows(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    return x[np.arange(len(a)), a]


class TestRlax:
    """rlax returns errors of the values of the actions taken, `q_tm1`; these plus those values are the targets."""

    s = unbroken()
    q_tm1 = np.random.default_rng(1).normal(size=(24, ACTIONS)).astype(np.float32)
    a_tm1 = np.random.default_rng(2).integers(ACTIONS, size=24)

    @pytest.mark.full
    def test_general_from_q_and_v(self, rlax):
        s = self.s
        theirs = rlax.general_off_policy_returns_from_q_and_v(
            s.q_a_t[:-1], s.v_t, s.r_t, s.discount_t, s.c_t[:-1]
        )
        ours = off_policy.general_off_policy_returns_from_q_and_v(*common(s), s.q_a_t, s.v_t, s.c_t)
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)

    @pytest.mark.full
    def test_general_from_action_values(self, rlax):
        s = self.s
        theirs = rlax.general_off_policy_returns_from_action_values(
            s.q_t, s.a_t, s.r_t, s.discount_t, s.c_t, s.pi_t
        )
        ours = off_policy.general_off_policy_returns_from_action_values(
            *common(s), s.q_t, s.a_t, s.pi_t, s.c_t
        )
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)

    @pytest.mark.full
    @pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
    def test_tree_backup(self, rlax, lambda_):
        s = self.s
        c_t = lambda_ * rows(s.pi_t, s.a_t)
        theirs = rlax.general_off_policy_returns_from_action_values(
            s.q_t, s.a_t, s.r_t, s.discount_t, c_t, s.pi_t
        )
        ours = off_policy.tree_backup(*common(s), s.q_t, s.a_t, s.pi_t, lambda_)
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)

    @pytest.mark.full
    def test_retrace_continuous(self, rlax):
        s = self.s
        q_tm1 = rows(self.q_tm1, self.a_tm1)
        theirs = rlax.retrace_continuous(
            q_tm1, s.q_a_t[:-1], s.v_t, s.r_t, s.discount_t, s.log_rho_t[:-1], 0.7
        )
        ours = off_policy.retrace_continuous(*common(s), s.q_a_t, s.v_t, s.log_rho_t, 0.7)
        np.testing.assert_allclose(ours, theirs + q_tm1, **TOLERANCE)

    @pytest.mark.full
    @pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
    def test_importance_corrected_td_errors(self, rlax, lambda_):
        s = self.s
        values = np.append(s.v_tm1, s.v_t[-1])
        theirs = rlax._src.multistep.importance_corrected_td_errors(
            s.r_t, s.discount_t, np.exp(s.log_rho_tm1), lambda_, values
        )
        ours = off_policy.importance_corrected_td_errors(*common(s), s.v_tm1, s.v_t, s.log_rho_tm1, lambda_)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)

    def test_retrace(self, rlax):
        s = self.s
        arrays = (self.q_tm1, s.q_t, self.a_tm1, s.a_t, s.r_t, s.discount_t, s.pi_t, s.mu_t)
        theirs = rlax.retrace(*arrays, s.lambda_) + rows(self.q_tm1, self.a_tm1)
        ours = off_policy.retrace(*common(s), s.q_t, s.a_t, s.pi_t, s.mu_t, s.lambda_)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)  # rlax adds 1e-8 to the probability

    def test_q_lambda_after_peng(self, rlax):
        s = self.s
        theirs = rlax.q_lambda(self.q_tm1, self.a_tm1, s.r_t, s.discount_t, s.q_t, s.lambda_)
        ours = off_policy.q_lambda_peng(*common(s), s.q_t, s.lambda_)
        np.testing.assert_allclose(ours, theirs + rows(self.q_tm1, self.a_tm1), **TOLERANCE)


class TestIdentities:
    s = consistent(stream(11, "oooTooooocoooCooo0oboodooooo", poison=False))
    common = common(s)
    counts = s.w_tm1 > 0

    def watkins(self, q_t, a_t, lambda_):
        return off_policy.q_lambda_watkins(*self.common, q_t, a_t, lambda_, self.s.w_tm1)

    def test_watkins_and_peng(self):
        s = self.s
        peng = off_policy.q_lambda_peng(*self.common, s.q_t, s.lambda_, s.w_tm1)
        greedy = s.q_t.argmax(-1)
        np.testing.assert_allclose(self.watkins(s.q_t, greedy, s.lambda_), peng, **TOLERANCE)
        one_step = np.where(self.counts, s.r_t + s.discount_t * s.q_t.max(-1), 0)
        never = self.watkins(s.q_t, s.q_t.argmin(-1), s.lambda_)
        np.testing.assert_allclose(never, one_step, **TOLERANCE)
        assert not np.allclose(self.watkins(s.q_t, s.a_t, s.lambda_), peng)

    def test_one_of_several_best_actions_is_greedy(self):
        s = self.s
        got = self.watkins(np.zeros_like(s.q_t), s.a_t, np.ones_like(s.lambda_))
        expected = returns.discounted_returns(*self.common, np.zeros_like(s.v_t), s.w_tm1)
        np.testing.assert_allclose(got, expected, **TOLERANCE)

    def test_importance_corrected_errors(self):
        """On policy they are GAE."""
        s = self.s
        given = (*self.common, s.v_tm1, s.v_t)
        on_policy = off_policy.importance_corrected_td_errors(
            *given, np.zeros_like(s.r_t), s.lambda_, s.w_tm1
        )
        np.testing.assert_allclose(on_policy, returns.gae(*given, s.lambda_, s.w_tm1), **TOLERANCE)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "a_t" in case.arguments])
@pytest.mark.parametrize("wrong", [-1, ACTIONS])
def test_an_action_that_does_not_exist_is_nan_as_far_as_it_is_read(name, wrong):
    """In the returns that it is passed back into, and in those of no other episode."""
    s = stream(6, "oootooooToooo")
    wrongly = s._replace(a_t=np.where(np.arange(13) == 5, wrong, s.a_t).astype(np.int32))
    run = jax.jit(CASES[name])
    right, got = run(s)[0], run(wrongly)[0]
    others = np.asarray([0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12])  # and 4, which leads to 5, as far as it goes on
    assert np.isnan(got[5])
    np.testing.assert_array_equal(got[others], right[others])


@pytest.mark.full
def test_values_of_illegal_actions_are_not_read():
    s = stream(5, "oocoToo", poison=False)
    legal = np.zeros_like(s.pi_t)
    legal[:, 0] = 1.0  # the only one, and it is taken
    for unknown in (np.nan, -np.inf):
        q_t = jnp.where(legal > 0, s.q_t, unknown)

        def total(q_t, pi_t, mu_t, function):
            last = () if function is off_policy.tree_backup else (mu_t,)
            a_t = np.zeros_like(s.a_t)
            result = function(*common(s), q_t, a_t, pi_t, *last, 0.9, s.w_tm1, stop_target_gradients=False)
            return jnp.sum(result)

        for function in (off_policy.retrace, off_policy.tree_backup):
            both = jax.jit(jax.value_and_grad(functools.partial(total, function=function), argnums=(0, 1, 2)))
            known, _ = both(jnp.where(legal > 0, s.q_t, 7.0), legal, s.mu_t)
            value, gradients = both(q_t, legal, s.mu_t)
            assert value == known
            assert all(np.all(np.isfinite(x)) for x in gradients)


def test_behaviour_that_was_all_but_impossible():
    """The ratio overflows, and with a probability that was rounded to 0 it is no number; the trace is 1 in both."""
    s = stream(5, "ooooo", poison=False)

    def total(mu_t):
        given = (*common(s), s.q_t, s.a_t, s.pi_t, mu_t)
        return jnp.sum(off_policy.retrace(*given, stop_target_gradients=False))

    both = jax.jit(jax.value_and_grad(total))
    uncut, _ = both(rows(s.pi_t, s.a_t))
    for tiny in (0.0, 1e-38):
        value, gradient = both(np.full(5, tiny, np.float32))
        np.testing.assert_allclose(value, uncut, rtol=1e-6)
        np.testing.assert_array_equal(gradient, 0)


def test_disagreement_over_actions_is_named():
    s = stream(5, "oooo", poison=False)
    with pytest.raises(
        ValueError, match=r"q_t \[4, 3\], pi_t \[4, 2\] must all have the same shape \[T, A\]"
    ):
        off_policy.tree_backup(*common(s), s.q_t, s.a_t, s.pi_t[:, :2])
    with pytest.raises(TypeError, match=r"a_t is float32; it must be integer"):
        off_policy.q_lambda_watkins(*common(s), s.q_t, s.v_t, 0.9)
