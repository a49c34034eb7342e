"""Against double loops written from the papers, over random ends, with NaN wherever nothing may be read."""

from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops import returns

GAMMA = 0.97
LENGTH = 24  # one length for all random streams, so that each function compiles once


class Stream(NamedTuple):
    r_t: np.ndarray
    discount_t: np.ndarray
    v_tm1: np.ndarray
    v_t: np.ndarray
    w_tm1: np.ndarray
    log_rho_tm1: np.ndarray
    lambda_: np.ndarray


def stream(seed: int, ends: str, poison: bool = True) -> Stream:
    """A stream whose t-th transition is `ends[t]`: on, terminated, cut (truncated), weight 0 ("0").

    After an end the next transition has weight 0, as the batch's reset step has. With `poison`, everything
    that may not be read is NaN: all of a transition of weight 0, and the value after a termination.
    """
    rng = np.random.default_rng(seed)
    length = len(ends)
    values = rng.normal(size=length + 1).astype(np.float32)
    kinds = list(ends)
    for t in range(1, length):
        if kinds[t - 1] in "tc":
            kinds[t] = "0"
    terminated = np.array([kind == "t" for kind in kinds])
    weight = np.array([0.0 if kind == "0" else 1.0 for kind in kinds], np.float32)
    made = Stream(
        r_t=rng.normal(size=length).astype(np.float32),
        discount_t=np.where(terminated, 0.0, GAMMA).astype(np.float32),
        v_tm1=values[:-1].copy(),
        v_t=values[1:].copy(),
        w_tm1=weight,
        log_rho_tm1=rng.normal(size=length).astype(np.float32),
        lambda_=rng.uniform(size=length).astype(np.float32),
    )
    if poison:
        made.v_t[terminated] = np.nan
        for array in (made.r_t, made.discount_t, made.v_tm1, made.v_t, made.log_rho_tm1):
            array[weight == 0] = np.nan
    return made


def episodes(s: Stream) -> list[range]:
    """Runs of transitions of weight 1; none reaches across a transition of weight 0."""
    runs, start = [], None
    for t, weight in enumerate([*s.w_tm1, 0.0]):
        if weight > 0 and start is None:
            start = t
        if weight == 0 and start is not None:
            runs.append(range(start, t))
            start = None
    return runs


def bootstrap(s: Stream, t: int) -> float:
    return 0.0 if s.discount_t[t] == 0 else float(s.discount_t[t]) * float(s.v_t[t])


def loop_gae(s: Stream) -> np.ndarray:
    """Eq. 16: A_i = sum_l (prod γλ) δ_{i+l}, by a sum for every i."""
    result = np.zeros(len(s.r_t))
    for run in episodes(s):
        for i in run:
            decay = 1.0
            for j in range(i, run.stop):
                result[i] += decay * (s.r_t[j] + bootstrap(s, j) - s.v_tm1[j])
                decay *= float(s.discount_t[j]) * float(s.lambda_[j])
    return result


def loop_n_step(s: Stream, n: int) -> np.ndarray:
    """Eq. 7.1: up to n rewards, then the value of where they led."""
    result = np.zeros(len(s.r_t))
    for run in episodes(s):
        for i in run:
            decay, last = 1.0, min(i + n, run.stop) - 1
            for j in range(i, last):
                result[i] += decay * s.r_t[j]
                decay *= float(s.discount_t[j])
            result[i] += decay * (s.r_t[last] + bootstrap(s, last)) if decay else 0.0
    return result


def loop_lambda(s: Stream) -> np.ndarray:
    """Eq. 12.18 unrolled: the n-step returns of all lengths, each by the probability of stopping there."""
    result = np.zeros(len(s.r_t))
    for run in episodes(s):
        for i in run:
            going_on = 1.0
            for n in range(1, run.stop - i + 1):
                j = i + n - 1
                stop = 1.0 if j == run.stop - 1 else 1.0 - float(s.lambda_[j])
                only_this_run = s._replace(
                    w_tm1=np.where(np.isin(np.arange(len(s.r_t)), list(run)), 1.0, 0.0)
                )
                result[i] += going_on * stop * loop_n_step_at(only_this_run, i, n)
                going_on *= 1.0 - stop
    return result


def loop_n_step_at(s: Stream, i: int, n: int) -> float:
    total, decay = 0.0, 1.0
    for j in range(i, i + n):
        total += decay * s.r_t[j]
        if j == i + n - 1:
            return total + (decay * bootstrap(s, j) if decay else 0.0)
        decay *= float(s.discount_t[j])
    return total


def loop_vtrace(s: Stream, clip_rho: float, clip_c: float, clip_pg: float) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 1: v_i = V_i + sum_j γ^{j-i} (prod c) δ_j, by a sum for every i."""
    targets, advantages = s.v_tm1.astype(np.float64).copy(), np.zeros(len(s.r_t))
    ratio = np.exp(s.log_rho_tm1.astype(np.float64))
    rho, c = np.minimum(clip_rho, ratio), s.lambda_ * np.minimum(clip_c, ratio)
    for run in episodes(s):
        for i in run:
            decay = 1.0
            for j in range(i, run.stop):
                targets[i] += decay * rho[j] * (s.r_t[j] + bootstrap(s, j) - s.v_tm1[j])
                decay *= float(s.discount_t[j]) * c[j]
        for i in run:
            following = 0.0
            if s.discount_t[i] > 0:
                following = float(s.v_t[i])
                if i + 1 < run.stop:
                    lambda_ = float(s.lambda_[i])
                    following = (1 - lambda_) * following + lambda_ * targets[i + 1]
            q = s.r_t[i] + float(s.discount_t[i]) * following
            advantages[i] = min(clip_pg, ratio[i]) * (q - s.v_tm1[i])
    return targets, advantages


def apply(name: str, s: Stream) -> np.ndarray:
    """Every function of the module as one array [T, outputs], each with arguments of its own."""
    r, discount, v_tm1, v, w, log_rho, lambda_ = (jnp.asarray(x) for x in s)
    if name == "gae":
        return JITTED[name](r, discount, v_tm1, v, w, lambda_)
    if name.startswith("n_step"):
        return JITTED[name](r, discount, v, w)
    if name == "discounted":
        return JITTED[name](r, discount, v, w)
    if name == "lambda":
        return JITTED[name](r, discount, v, w, lambda_)
    return jnp.stack(JITTED[name](r, discount, v_tm1, v, w, log_rho, lambda_), axis=-1)


CLIPS = {"vtrace": (1.0, 1.0, np.inf), "vtrace_clips": (2.0, 0.7, 1.5)}
JITTED = {
    "gae": jax.jit(returns.gae),
    "discounted": jax.jit(returns.discounted_returns),
    "lambda": jax.jit(returns.lambda_returns),
    "n_step_1": jax.jit(lambda *a: returns.n_step_returns(*a, 1)),
    "n_step_5": jax.jit(lambda *a: returns.n_step_returns(*a, 5)),
    "n_step_100": jax.jit(lambda *a: returns.n_step_returns(*a, 100)),
    "vtrace": jax.jit(returns.vtrace),
    "vtrace_clips": jax.jit(lambda *a: returns.vtrace(*a, *CLIPS["vtrace_clips"])),
}


def loop(name: str, s: Stream) -> np.ndarray:
    if name == "gae":
        return loop_gae(s)
    if name.startswith("n_step"):
        return loop_n_step(s, int(name.removeprefix("n_step_")))
    if name == "discounted":
        return loop_lambda(s._replace(lambda_=np.ones_like(s.lambda_)))
    if name == "lambda":
        return loop_lambda(s)
    return np.stack(loop_vtrace(s, *CLIPS[name]), axis=-1)


endings = st.text(alphabet="ooootc0", min_size=LENGTH, max_size=LENGTH)


@pytest.mark.parametrize("name", JITTED)
@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(st.integers(0, 2**31), endings)
def test_equals_the_loop_from_the_paper(name, seed, ends):
    s = stream(seed, ends)
    got = np.asarray(apply(name, s))
    np.testing.assert_allclose(got, loop(name, s), rtol=2e-5, atol=2e-5)
    quiet = got[s.w_tm1 == 0] if got.ndim == 1 else got[s.w_tm1 == 0, 1]
    assert np.all(quiet == 0)  # advantages and returns; a target is the value that was there


@pytest.mark.parametrize("name", JITTED)
@pytest.mark.parametrize("end", "tc")
def test_two_episodes_in_one_stream_equal_the_two_apart(name, end):
    first, second = "o" * 8 + end, "o" * 15
    s = stream(3, first + second)
    got = np.asarray(apply(name, s))
    for part in (slice(0, 9), slice(10, LENGTH)):
        apart = np.asarray(apply(name, Stream(*(x[part] for x in s))))
        np.testing.assert_array_equal(got[part], apart)


@pytest.mark.parametrize("name", JITTED)
def test_gradients_are_finite_where_masked_entries_are_nan(name):
    s = stream(5, "ooot0oocooo0ooooootooooo")
    mask = s.w_tm1 > 0

    def total(v_tm1, r_t, log_rho, discount):
        out = apply(name, s._replace(v_tm1=v_tm1, r_t=r_t, log_rho_tm1=log_rho, discount_t=discount))
        return jnp.sum(jnp.where(mask if out.ndim == 1 else mask[:, None], out, 0.0))

    gradients = jax.grad(total, argnums=(0, 1, 2))(s.v_tm1, s.r_t, s.log_rho_tm1, s.discount_t)
    for gradient in gradients:
        assert np.all(np.isfinite(np.asarray(gradient)[mask]))
        assert np.all(np.asarray(gradient)[~mask] == 0)
    by_discount = np.asarray(jax.grad(total, argnums=3)(s.v_tm1, s.r_t, s.log_rho_tm1, s.discount_t))
    assert np.all(np.isfinite(by_discount[mask]))


def unbroken(seed: int = 0) -> Stream:
    """A stream with terminations alone and no reset steps: what rlax's functions are for."""
    s = stream(seed, "o" * LENGTH)
    s.discount_t[[6, 13]] = 0.0
    return s


def test_gae_equals_rlax(rlax):
    s = unbroken()
    values = np.append(s.v_tm1, s.v_t[-1])
    expected = rlax.truncated_generalized_advantage_estimation(s.r_t, s.discount_t, 0.9, values)
    got = returns.gae(s.r_t, s.discount_t, s.v_tm1, s.v_t, s.w_tm1, 0.9)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_returns_equal_rlax(rlax):
    s = unbroken()
    for lambda_ in (0.0, 0.7, s.lambda_):
        expected = rlax.lambda_returns(s.r_t, s.discount_t, s.v_t, lambda_)
        got = returns.lambda_returns(s.r_t, s.discount_t, s.v_t, s.w_tm1, lambda_)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    expected = rlax.discounted_returns(s.r_t, s.discount_t, s.v_t)
    got = returns.discounted_returns(s.r_t, s.discount_t, s.v_t, s.w_tm1)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    expected = rlax.n_step_bootstrapped_returns(s.r_t, s.discount_t, s.v_t, 4)
    got = returns.n_step_returns(s.r_t, s.discount_t, s.v_t, s.w_tm1, 4)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_vtrace_equals_rlax(rlax):
    s = unbroken()
    ratio = np.exp(s.log_rho_tm1)
    for lambda_ in (1.0, 0.8):
        errors = rlax.vtrace(s.v_tm1, s.v_t, s.r_t, s.discount_t, ratio, lambda_, clip_rho_threshold=1.0)
        got = returns.vtrace(s.r_t, s.discount_t, s.v_tm1, s.v_t, s.w_tm1, s.log_rho_tm1, lambda_)
        np.testing.assert_allclose(got.targets - s.v_tm1, errors, rtol=1e-5, atol=1e-5)
    expected = rlax.vtrace_td_error_and_advantage(s.v_tm1, s.v_t, s.r_t, s.discount_t, ratio)
    got = returns.vtrace(s.r_t, s.discount_t, s.v_tm1, s.v_t, s.w_tm1, s.log_rho_tm1, 1.0, clip_pg_rho=1.0)
    np.testing.assert_allclose(got.advantages, expected.pg_advantage, rtol=1e-5, atol=1e-5)


def test_identities():
    s = stream(11, "ooootooooocoooooo0oootoo", poison=False)
    r, discount, v_tm1, v, w, _, lambda_ = s
    returned = returns.discounted_returns(r, discount, v, w)
    monte_carlo = returns.gae(r, discount, v_tm1, v, w, 1.0)
    np.testing.assert_allclose(monte_carlo, np.where(w > 0, returned - v_tm1, 0), rtol=1e-5, atol=1e-5)
    one_step = np.where(w > 0, r + discount * v - v_tm1, 0)
    np.testing.assert_allclose(returns.gae(r, discount, v_tm1, v, w, 0.0), one_step, rtol=1e-5, atol=1e-6)
    mixed = returns.lambda_returns(r, discount, v, w, lambda_)
    np.testing.assert_allclose(
        returns.gae(r, discount, v_tm1, v, w, lambda_),
        np.where(w > 0, mixed - v_tm1, 0),
        rtol=1e-5,
        atol=1e-5,
    )
    on_policy = returns.vtrace(r, discount, v_tm1, v, w, np.zeros_like(r), lambda_)
    np.testing.assert_allclose(on_policy.targets, np.where(w > 0, mixed, v_tm1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(
        returns.n_step_returns(r, discount, v, w, 500), returns.n_step_returns(r, discount, v, w, LENGTH)
    )
    own_ratio = returns.vtrace_advantages(r, discount, v_tm1, v, w, on_policy.targets, lambda_)
    np.testing.assert_allclose(own_ratio, on_policy.advantages, rtol=1e-5, atol=1e-6)


def test_vtrace_survives_ratios_that_overflow():
    s = stream(2, "o" * LENGTH, poison=False)
    log_rho = jnp.full(LENGTH, 200.0).at[::2].set(-200.0)

    def total(log_rho):
        out = returns.vtrace(*s[:5], log_rho, 0.9, clip_pg_rho=1.0)
        return jnp.sum(out.targets) + jnp.sum(out.advantages)

    value, gradient = jax.value_and_grad(total)(log_rho)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_whole_batches_by_vmap_and_integer_rewards():
    streams = [stream(seed, "ooooooootooooocooooooooo") for seed in range(3)]
    r, discount, v_tm1, v, w, _, _ = (np.stack(x, axis=1) for x in zip(*streams, strict=True))
    gae = jax.vmap(returns.gae, in_axes=(1, 1, 1, 1, 1, None), out_axes=1)
    together = gae(r, discount, v_tm1, v, w, 0.95)
    for i, s in enumerate(streams):
        alone = returns.gae(*s[:5], 0.95)
        np.testing.assert_allclose(together[:, i], alone, rtol=1e-6)
    whole = np.arange(LENGTH, dtype=np.int32)
    s = streams[0]
    for function in (returns.discounted_returns, lambda *a: returns.n_step_returns(*a, 3)):
        got = function(jnp.asarray(whole), s.discount_t, s.v_t, s.w_tm1)
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, function(whole.astype(np.float32), *s[1:2], s.v_t, s.w_tm1))


def test_shapes_that_disagree_are_named():
    s = stream(0, "o" * LENGTH)
    with pytest.raises(ValueError, match=r"v_t \[23\].*vmap"):
        returns.gae(s.r_t, s.discount_t, s.v_tm1, s.v_t[1:], s.w_tm1, 0.9)
    with pytest.raises(ValueError, match=r"r_t \[24, 1\]"):
        returns.discounted_returns(*(x[:, None] for x in (s.r_t, s.discount_t, s.v_t, s.w_tm1)))
    with pytest.raises(ValueError, match="n=0"):
        returns.n_step_returns(s.r_t, s.discount_t, s.v_t, s.w_tm1, 0)


def test_discounted_returns_read_no_value_but_where_the_rewards_end():
    s = stream(4, "oooocoooooootooooooooooo")
    silent = np.full_like(s.v_t, np.nan)
    silent[[4, LENGTH - 1]] = s.v_t[[4, LENGTH - 1]]
    np.testing.assert_array_equal(apply("discounted", s._replace(v_t=silent)), apply("discounted", s))
