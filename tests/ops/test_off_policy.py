"""Off-policy returns against rlax where no episode is cut, and by what they must reduce to.

That each equals its paper's sum, and is right at every kind of end, is in test_returns.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from return_streams import ACTIONS, CASES, Stream, consistent, stream, unbroken

from shoal.ops import off_policy, returns, vtrace

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

    @pytest.fixture(params=[0.7, "per step"])
    def lambda_(self, request):
        return self.s.lambda_ if request.param == "per step" else request.param

    def test_general_from_q_and_v(self, rlax):
        s = self.s
        theirs = rlax.general_off_policy_returns_from_q_and_v(
            s.q_a_t[:-1], s.v_t, s.r_t, s.discount_t, s.c_t[:-1]
        )
        ours = off_policy.general_off_policy_returns_from_q_and_v(*common(s), s.q_a_t, s.v_t, s.c_t)
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)

    def test_general_from_action_values(self, rlax):
        s = self.s
        theirs = rlax.general_off_policy_returns_from_action_values(
            s.q_t, s.a_t, s.r_t, s.discount_t, s.c_t, s.pi_t
        )
        ours = off_policy.general_off_policy_returns_from_action_values(
            *common(s), s.q_t, s.a_t, s.pi_t, s.c_t
        )
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)

    def test_tree_backup(self, rlax, lambda_):
        s = self.s
        c_t = lambda_ * rows(s.pi_t, s.a_t)
        theirs = rlax.general_off_policy_returns_from_action_values(
            s.q_t, s.a_t, s.r_t, s.discount_t, c_t, s.pi_t
        )
        ours = off_policy.tree_backup(*common(s), s.q_t, s.a_t, s.pi_t, lambda_)
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)

    def test_retrace(self, rlax, lambda_):
        s = self.s
        arrays = (self.q_tm1, s.q_t, self.a_tm1, s.a_t, s.r_t, s.discount_t, s.pi_t, s.mu_t)
        theirs = rlax.retrace(*arrays, lambda_) + rows(self.q_tm1, self.a_tm1)
        ours = off_policy.retrace(*common(s), s.q_t, s.a_t, s.pi_t, s.mu_t, lambda_)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)  # rlax adds 1e-8 to the probability

    def test_retrace_continuous(self, rlax):
        s = self.s
        q_tm1 = rows(self.q_tm1, self.a_tm1)
        theirs = rlax.retrace_continuous(
            q_tm1, s.q_a_t[:-1], s.v_t, s.r_t, s.discount_t, s.log_rho_t[:-1], 0.7
        )
        ours = off_policy.retrace_continuous(*common(s), s.q_a_t, s.v_t, s.log_rho_t, 0.7)
        np.testing.assert_allclose(ours, theirs + q_tm1, **TOLERANCE)

    def test_q_lambda_after_peng(self, rlax, lambda_):
        s = self.s
        theirs = rlax.q_lambda(self.q_tm1, self.a_tm1, s.r_t, s.discount_t, s.q_t, lambda_)
        ours = off_policy.q_lambda_peng(*common(s), s.q_t, lambda_)
        np.testing.assert_allclose(ours, theirs + rows(self.q_tm1, self.a_tm1), **TOLERANCE)

    def test_importance_corrected_td_errors(self, rlax, lambda_):
        s = self.s
        values = np.append(s.v_tm1, s.v_t[-1])
        theirs = rlax._src.multistep.importance_corrected_td_errors(
            s.r_t, s.discount_t, np.exp(s.log_rho_tm1), lambda_, values
        )
        ours = off_policy.importance_corrected_td_errors(*common(s), s.v_tm1, s.v_t, s.log_rho_tm1, lambda_)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


class TestIdentities:
    s = consistent(stream(11, "oooTooooocoooCooo0oboodooooo", poison=False))
    common = common(s)
    counts = s.w_tm1 > 0
    one_hot = np.eye(ACTIONS, dtype=np.float32)

    def one_step(self, v_t):
        return np.where(self.counts, self.s.r_t + self.s.discount_t * v_t, 0)

    def discounted(self, v_t):
        return returns.discounted_returns(*self.common, v_t, self.s.w_tm1)

    def retrace(self, pi_t, mu_t, lambda_):
        return off_policy.retrace(*self.common, self.s.q_t, self.s.a_t, pi_t, mu_t, lambda_, self.s.w_tm1)

    def tree_backup(self, pi_t, lambda_, a_t=None):
        a_t = self.s.a_t if a_t is None else a_t
        return off_policy.tree_backup(*self.common, self.s.q_t, a_t, pi_t, lambda_, self.s.w_tm1)

    def watkins(self, a_t, lambda_):
        return off_policy.q_lambda_watkins(*self.common, self.s.q_t, a_t, lambda_, self.s.w_tm1)

    def peng(self, lambda_):
        return off_policy.q_lambda_peng(*self.common, self.s.q_t, lambda_, self.s.w_tm1)

    def test_lambda_0_is_one_step(self):
        s = self.s
        expected = self.one_step((s.pi_t * s.q_t).sum(-1))
        np.testing.assert_allclose(self.retrace(s.pi_t, s.mu_t, 0.0), expected, **TOLERANCE)
        np.testing.assert_allclose(self.tree_backup(s.pi_t, 0.0), expected, **TOLERANCE)
        expected = self.one_step(s.q_t.max(-1))
        np.testing.assert_allclose(self.peng(0.0), expected, **TOLERANCE)
        np.testing.assert_allclose(self.watkins(s.a_t, 0.0), expected, **TOLERANCE)

    def test_retrace_on_policy_cuts_nothing(self):
        """c = 1 is Q(λ) after Harutyunyan et al.; so it is wherever the action is likelier under π."""
        s = self.s
        uncut = off_policy.general_off_policy_returns_from_action_values(
            *self.common, s.q_t, s.a_t, s.pi_t, np.ones_like(s.c_t), s.lambda_, s.w_tm1
        )
        pi_a_t = rows(s.pi_t, s.a_t)
        np.testing.assert_allclose(self.retrace(s.pi_t, pi_a_t, s.lambda_), uncut, **TOLERANCE)
        np.testing.assert_allclose(self.retrace(s.pi_t, 0.5 * pi_a_t, s.lambda_), uncut, **TOLERANCE)

    def test_retrace_of_values_that_ignore_the_action_is_the_lambda_return(self):
        s = self.s
        alike = np.broadcast_to(s.v_t[:, None], s.q_t.shape)
        got = off_policy.retrace(*self.common, alike, s.a_t, s.pi_t, rows(s.pi_t, s.a_t), s.lambda_, s.w_tm1)
        expected = returns.lambda_returns(*self.common, s.v_t, s.lambda_, s.w_tm1)
        np.testing.assert_allclose(got, expected, **TOLERANCE)

    def test_retrace_of_continuous_actions_is_the_same(self):
        s = self.s
        pi_a_t = rows(s.pi_t, s.a_t)
        got = off_policy.retrace_continuous(
            *self.common,
            rows(s.q_t, s.a_t),
            (s.pi_t * s.q_t).sum(-1),
            np.log(pi_a_t / s.mu_t),
            s.lambda_,
            s.w_tm1,
        )
        np.testing.assert_allclose(got, self.retrace(s.pi_t, s.mu_t, s.lambda_), **TOLERANCE)

    def test_tree_backup_of_a_deterministic_policy(self):
        """It is the whole return if the policy would have done the same, and one step if it never would."""
        s = self.s
        same, other = self.one_hot[s.a_t], self.one_hot[(s.a_t + 1) % ACTIONS]
        expected = self.discounted(rows(s.q_t, s.a_t))
        np.testing.assert_allclose(self.tree_backup(same, 1.0), expected, **TOLERANCE)
        expected = self.one_step((other * s.q_t).sum(-1))
        np.testing.assert_allclose(self.tree_backup(other, 1.0), expected, **TOLERANCE)

    def test_retrace_of_certain_behaviour_is_tree_backup(self):
        """With μ(a) = 1 the ratio is π(a)."""
        s = self.s
        certain = np.ones_like(s.mu_t)
        np.testing.assert_allclose(
            self.retrace(s.pi_t, certain, s.lambda_), self.tree_backup(s.pi_t, s.lambda_), **TOLERANCE
        )

    def test_watkins_and_peng(self):
        s = self.s
        greedy = s.q_t.argmax(-1)
        np.testing.assert_allclose(self.watkins(greedy, s.lambda_), self.peng(s.lambda_), **TOLERANCE)
        never = self.one_step(s.q_t.max(-1))
        np.testing.assert_allclose(self.watkins(s.q_t.argmin(-1), s.lambda_), never, **TOLERANCE)
        np.testing.assert_allclose(
            self.watkins(s.a_t, s.lambda_), self.tree_backup(self.one_hot[greedy], s.lambda_), **TOLERANCE
        )
        assert not np.allclose(self.watkins(s.a_t, s.lambda_), self.peng(s.lambda_))
        expected = returns.lambda_returns(*self.common, s.q_t.max(-1), s.lambda_, s.w_tm1)
        np.testing.assert_allclose(self.peng(s.lambda_), expected, **TOLERANCE)

    def test_one_of_several_best_actions_is_greedy(self):
        s = self.s
        tied = np.zeros_like(s.q_t)
        got = off_policy.q_lambda_watkins(*self.common, tied, s.a_t, 1.0, s.w_tm1)
        np.testing.assert_allclose(got, self.discounted(np.zeros_like(s.v_t)), **TOLERANCE)

    def test_importance_corrected_errors(self):
        """On policy they are GAE; in general, V-trace whose ratios nobody clips."""
        s = self.s
        given = (*self.common, s.v_tm1, s.v_t)
        on_policy = off_policy.importance_corrected_td_errors(
            *given, np.zeros_like(s.r_t), s.lambda_, s.w_tm1
        )
        np.testing.assert_allclose(on_policy, returns.gae(*given, s.lambda_, s.w_tm1), **TOLERANCE)
        got = off_policy.importance_corrected_td_errors(*given, s.log_rho_tm1, s.lambda_, s.w_tm1)
        unclipped = vtrace.vtrace_targets(
            *given, s.log_rho_tm1, s.lambda_, s.w_tm1, clip_rho=jnp.inf, clip_c=jnp.inf
        )
        np.testing.assert_allclose(got, unclipped - s.v_tm1, **TOLERANCE)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "a_t" in case.arguments])
@pytest.mark.parametrize("wrong", [-1, -ACTIONS, ACTIONS, 99])
def test_an_action_that_does_not_exist_is_nan_as_far_as_it_is_read(name, wrong):
    """In the returns that it is passed back into, and in those of no other episode."""
    s = stream(6, "oootooooToooo")
    wrongly = s._replace(a_t=np.where(np.arange(13) == 5, wrong, s.a_t).astype(np.int32))
    run = jax.jit(CASES[name])
    right, got = run(s)[0], run(wrongly)[0]
    others = np.asarray([0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12])  # and 4, which leads to 5, as far as it goes on
    assert np.isnan(got[5])
    np.testing.assert_array_equal(got[others], right[others])


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
            both = jax.value_and_grad(total, argnums=(0, 1, 2))
            known, _ = both(jnp.where(legal > 0, s.q_t, 7.0), legal, s.mu_t, function)
            value, gradients = both(q_t, legal, s.mu_t, function)
            assert value == known
            assert all(np.all(np.isfinite(x)) for x in gradients)


def test_behaviour_that_was_all_but_impossible():
    """The ratio overflows, and with a probability that was rounded to 0 it is no number; the trace is 1 in both."""
    s = stream(5, "ooooo", poison=False)

    def total(mu_t):
        given = (*common(s), s.q_t, s.a_t, s.pi_t, mu_t)
        return jnp.sum(off_policy.retrace(*given, stop_target_gradients=False))

    uncut = total(rows(s.pi_t, s.a_t))
    for tiny in (0.0, 1e-38):
        value, gradient = jax.value_and_grad(total)(np.full(5, tiny, np.float32))
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
