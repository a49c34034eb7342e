"""Every function of returns against loops written from the papers, over random ends, NaN wherever nothing is read.

The first half runs over all functions, those of `vtrace` and `off_policy` too; the second is about `returns`.
"""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from return_streams import CASES, FLOATING, Case, Stream, episodes, may_be_read, stream, unbroken

from shoal.ops import off_policy, returns, vtrace

BATCH, LENGTHS = 3, (1, 16)  # few, so that each function compiles few times
KINDS = "oooootcbd0TCB"
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}

every = pytest.mark.parametrize("name", CASES)
FEW = (
    "gae",
    "n_step_returns_3",
    "vtrace_targets",
    "tree_backup",
    "general_off_policy_returns_from_action_values",
)
few = pytest.mark.quick(*FEW)  # which differ in what they read


@functools.cache
def batched(name: str):
    """The function over a batch of streams, time-major, as a caller has them."""
    axes = Stream(*(1 for _ in Stream._fields))
    return jax.jit(jax.vmap(CASES[name], in_axes=(axes,), out_axes=1))


@functools.cache
def compiled(name: str):
    return jax.jit(CASES[name])


@functools.cache
def gradient(name: str, stop: bool):
    """Of the sum of what counts, with respect to all that floats."""

    def total(floating: dict[str, jax.Array], s: Stream) -> jax.Array:
        results = CASES[name](s._replace(**floating), stop_target_gradients=stop)
        return sum(jnp.sum(jnp.where(s.w_tm1 > 0, x, 0.0)) for x in results)

    return jax.jit(jax.grad(total))


def floating(s: Stream) -> dict[str, np.ndarray]:
    return {name: getattr(s, name) for name in FLOATING}


def batches(length: int) -> st.SearchStrategy:
    kinds = st.text(alphabet=KINDS, min_size=length, max_size=length)
    return st.lists(kinds, min_size=BATCH, max_size=BATCH)


def test_every_public_function_is_a_case():
    public = [
        value
        for module in (returns, vtrace, off_policy)
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and key[0] not in "_V"
    ]
    assert len(public) == 14 and {case.function for case in CASES.values()} == set(public)


@every
@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.integers(0, 2**31), st.sampled_from(LENGTHS).flatmap(batches), st.booleans())
def test_equals_the_loop_from_the_paper(name, seed, kinds, whole):
    streams = [stream(seed + i, row) for i, row in enumerate(kinds)]
    if whole:  # rewards that are integers, in a dtype of their own
        rewards = [
            np.random.default_rng(seed + i).integers(-9, 10, len(s.r_t)) for i, s in enumerate(streams)
        ]
        streams = [s._replace(r_t=r.astype(np.int32)) for s, r in zip(streams, rewards, strict=True)]
    got = batched(name)(Stream(*(np.stack(x, axis=1) for x in zip(*streams, strict=True))))
    for i, s in enumerate(streams):
        for result, expected in zip(got, CASES[name].loop(s), strict=True):
            np.testing.assert_allclose(result[:, i], expected, **TOLERANCE)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "log_rho" in str(case.arguments)])
@pytest.mark.parametrize("kinds", ["o", "t", "oo", "co", "oc", "ot"])
def test_ratios_from_1e_6_to_1e6_in_streams_of_one_and_two(name, kinds):
    ratios = np.log(np.geomspace(1e-6, 1e6, 13)).astype(np.float32)
    for i, first in enumerate(ratios):
        log_rho = np.resize([first, ratios[(5 * i) % 13]], len(kinds)).astype(np.float32)
        s = stream(i, kinds, poison=False)._replace(log_rho_tm1=log_rho, log_rho_t=log_rho[::-1].copy())
        for result, expected in zip(compiled(name)(s), CASES[name].loop(s), strict=True):
            np.testing.assert_allclose(result, expected, **TOLERANCE)


@every
@pytest.mark.parametrize("end", "tcbTCB")
@pytest.mark.quick(*(f"{end}-{name}" for end in "tcbTCB" for name in FEW))
def test_two_episodes_in_one_stream_equal_the_two_apart(name, end):
    """Whether the world resets in the same step (lower case) or spends a step on it, that of weight 0."""
    first, second = "ooo" + end, "o" * 4
    between = "0" if end.isupper() else ""
    s = stream(3, first + between + second)
    got = compiled(name)(s)
    for part in (slice(0, 4), slice(4 + len(between), None)):
        apart = compiled(name)(Stream(*(x[part] for x in s)))
        for result, expected in zip(got, apart, strict=True):
            np.testing.assert_array_equal(result[part], expected)


@every
@few
def test_an_episode_that_diverges_leaves_the_one_before_alone(name):
    s = stream(4, "ooocoooo")
    wild = {
        key: np.array(value) for key, value in floating(s).items() if key not in ("discount_t", "lambda_")
    }
    for value in wild.values():
        value[5:] = np.inf
    diverged = compiled(name)(s._replace(**wild))
    for result, expected in zip(diverged, compiled(name)(s), strict=True):
        np.testing.assert_array_equal(result[:4], expected[:4])
        assert not np.all(np.isfinite(result[4:]))


@every
@few
def test_gradients_are_finite_and_nothing_reaches_what_is_not_read(name):
    s = stream(5, "ooTooocoooCo0btoooBodooo")
    masks, gradients = may_be_read(s), gradient(name, False)(floating(s), s)
    for field in FLOATING:
        got, mask = np.asarray(gradients[field]), masks[field]
        assert np.all(np.isfinite(got[mask])), field
        assert np.all(got[~mask] == 0), field
        if field in CASES[name].arguments:
            assert np.any(got != 0), field


@every
@few
def test_targets_are_constants_unless_they_are_asked_to_carry_gradients(name):
    s = stream(6, "oocoooTo")
    open_ = jax.jit(functools.partial(CASES[name], stop_target_gradients=False))
    for by_default, carrying in zip(compiled(name)(s), open_(s), strict=True):
        np.testing.assert_allclose(by_default, carrying, rtol=1e-6, atol=1e-6)
    gradients = gradient(name, True)(floating(s), s)
    for field in FLOATING:
        expected = np.zeros_like(getattr(s, field))
        if name == "importance_corrected_td_errors" and field == "v_tm1":
            expected = -s.w_tm1  # the prediction that is compared with the target
        np.testing.assert_array_equal(gradients[field], expected, err_msg=field)


@every
@few
def test_gradients_equal_differences(name):
    """In float64, with one factor on all discounts: at a termination there is no discount to differentiate by."""
    case = CASES[name]
    s = stream(7, "oocooTootoo", poison=False)
    varied = [field for field in FLOATING if field in case.arguments and field != "discount_t"]
    with jax.enable_x64(True):
        wide = s._replace(**{field: getattr(s, field).astype(np.float64) for field in FLOATING})

        @jax.jit
        def function(factor, *values):
            given = dict(zip(varied, values, strict=True))
            results = case(
                wide._replace(discount_t=factor * wide.discount_t, **given), stop_target_gradients=False
            )
            return sum(jnp.sum(jnp.square(x)) for x in results)

        values = [jnp.asarray(getattr(wide, field)) for field in varied]
        check_grads(function, (jnp.asarray(0.9), *values), order=1, modes=("rev",), atol=1e-6, rtol=1e-6)


@every
@few
def test_dtypes(name):
    case, s = CASES[name], stream(8, "oocooToo", poison=False)
    whole = s._replace(r_t=np.arange(8, dtype=np.int32), w_tm1=s.w_tm1 > 0)
    as_floats = whole._replace(r_t=whole.r_t.astype(np.float32), w_tm1=s.w_tm1)
    for result, expected in zip(compiled(name)(whole), compiled(name)(as_floats), strict=True):
        assert result.dtype == jnp.float32 and not result.weak_type
        np.testing.assert_array_equal(result, expected)
    with jax.enable_x64(True):
        assert all(x.dtype == jnp.float32 for x in jax.eval_shape(case, s))
        wide = s._replace(**{field: getattr(s, field).astype(np.float64) for field in FLOATING})
        for result, expected in zip(compiled(name)(wide), case.loop(wide), strict=True):
            assert result.dtype == jnp.float64
            np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
        with pytest.raises(TypeError, match=r"discount_t float64.* must all have the same dtype"):
            jax.eval_shape(case, s._replace(discount_t=wide.discount_t))


@every
@few
def test_disagreement_is_named(name):
    case, s = CASES[name], stream(9, "oooo", poison=False)
    public = {field: argument for argument, field in case.renamed.items()}
    for field in case.arguments:
        short = s._replace(**{field: getattr(s, field)[1:]})
        with pytest.raises(ValueError, match=rf"{public.get(field, field)} \[3(, 3)?\]"):
            jax.eval_shape(case, short)
        with pytest.raises(ValueError, match=rf"{public.get(field, field)} \[4, 1(, 3)?\]"):
            jax.eval_shape(case, s._replace(**{field: getattr(s, field)[:, None]}))
        if field in FLOATING and field not in ("r_t", "lambda_"):
            with pytest.raises(TypeError, match=rf"{public.get(field, field)} is int32; it must be floating"):
                jax.eval_shape(case, s._replace(**{field: getattr(s, field).astype(np.int32)}))
    with pytest.raises(TypeError, match="last_t is float32; it must be boolean"):
        jax.eval_shape(case, s._replace(last_t=s.discount_t))


def as_number(case: Case, s: Stream, lambda_: float) -> list[np.ndarray]:
    return case(s._replace(lambda_=lambda_, w_tm1=None))


@every
@few
def test_a_number_counts_for_every_step_and_no_weights_count_all(name):
    s = stream(10, "oocootoo")
    spread = s._replace(lambda_=np.full(8, 0.7, np.float32))
    assert np.all(s.w_tm1 == 1)
    for result, expected in zip(as_number(CASES[name], s, 0.7), compiled(name)(spread), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
    if "lambda_" in CASES[name].arguments:
        with pytest.raises(ValueError, match=r"lambda_=1\.5 must be between 0 and 1"):
            as_number(CASES[name], s, 1.5)


@every
@few
def test_a_stream_of_length_0(name):
    s = Stream(*(x[:0] for x in stream(0, "oo")))
    assert all(result.shape == (0,) for result in CASES[name](s))


@pytest.mark.full
def test_gae_equals_rlax(rlax):
    s = unbroken()
    values = np.append(s.v_tm1, s.v_t[-1])
    for lambda_ in (0.9, s.lambda_):
        expected = rlax.truncated_generalized_advantage_estimation(s.r_t, s.discount_t, lambda_, values)
        got = returns.gae(s.r_t, s.discount_t, s.last_t, s.v_tm1, s.v_t, lambda_)
        np.testing.assert_allclose(got, expected, **TOLERANCE)


def test_returns_equal_rlax(rlax):
    s = unbroken()
    given = (s.r_t, s.discount_t, s.last_t, s.v_t)
    for lambda_ in (0.0, 0.7, s.lambda_):
        expected = rlax.lambda_returns(s.r_t, s.discount_t, s.v_t, lambda_)
        np.testing.assert_allclose(returns.lambda_returns(*given, lambda_), expected, **TOLERANCE)
        expected = rlax.n_step_bootstrapped_returns(s.r_t, s.discount_t, s.v_t, 4, lambda_)
        np.testing.assert_allclose(returns.n_step_returns(*given, lambda_, n=4), expected, **TOLERANCE)
    expected = rlax.discounted_returns(s.r_t, s.discount_t, s.v_t)
    np.testing.assert_allclose(returns.discounted_returns(*given), expected, **TOLERANCE)


@pytest.mark.parametrize("n", [0, -1])
def test_returns_of_no_step_are_refused(n):
    s = unbroken()
    with pytest.raises(ValueError, match=rf"^n={n} must be at least 1\.$"):
        returns.n_step_returns(s.r_t, s.discount_t, s.last_t, s.v_t, n=n)


def test_what_is_known_without_any_formula():
    """With reward 1 everywhere, no discount and values 0, a return counts the steps to the end."""
    s = stream(11, "oooTooooocoooCooo0oboodooooo", poison=False)
    zeros, ones = np.zeros_like(s.r_t), np.ones_like(s.r_t)
    ends = np.where(s.discount_t == 0, 0.0, 1.0).astype(np.float32)
    got = returns.discounted_returns(ones, ends, s.last_t, zeros, s.w_tm1)
    expected = np.zeros(len(zeros))
    for run in episodes(s):
        expected[list(run)] = np.arange(len(run), 0, -1)
    np.testing.assert_array_equal(got, expected)


def test_discounted_returns_read_no_value_but_where_the_rewards_end():
    s = stream(4, "oooocoooootoooooCooooooo")
    silent = np.full_like(s.v_t, np.nan)
    cut = [4, 16, 23]
    silent[cut] = s.v_t[cut]
    got = CASES["discounted_returns"](s._replace(v_t=silent))
    np.testing.assert_array_equal(got, CASES["discounted_returns"](s))
    assert np.all(np.isfinite(got))
