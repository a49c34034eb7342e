"""Heads: which one an action space gets, and the distributions that they make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from shoal.base.errors import ShoalError
from shoal.nets.heads import (
    BetaHead,
    CategoricalHead,
    DeterministicHead,
    GSDEHead,
    MultiCategoricalHead,
    NormalHead,
    TanhNormalHead,
    head_for,
)
from shoal.types.spaces import Box, Discrete, MultiDiscrete

PLANE = Box(-2.0, 2.0, (3,))


def test_categorical_forbids_what_the_mask_forbids():
    head, mask = CategoricalHead(4), jnp.array([True, False, True, False])
    logits = jnp.array([0.0, 100.0, 1.0, 3.0])
    actions = jax.vmap(head(logits, mask).sample)(jax.random.split(jax.random.key(0), 500))
    assert set(np.unique(actions)) == {0, 2}
    expected = np.log(np.exp([0.0, 1.0]) / np.exp([0.0, 1.0]).sum())
    np.testing.assert_allclose(head(logits, mask).log_prob(jnp.array(2)), expected[1], rtol=1e-5)
    gradient = jax.grad(lambda logits: head(logits, mask).entropy())(logits)
    assert np.all(np.isfinite(gradient))
    np.testing.assert_array_equal(gradient[jnp.array([1, 3])], 0.0)


def test_multi_categorical_splits_logits_and_mask_by_its_parts():
    head = MultiCategoricalHead((2, 3))
    x = jnp.array([0.0, 1.0, 0.5, -0.5, 2.0])
    parts = [x[:2], x[2:]]
    expected = sum(jax.nn.log_softmax(part)[i] for part, i in zip(parts, (1, 2), strict=True))
    np.testing.assert_allclose(head(x).log_prob(jnp.array([1, 2])), expected, rtol=1e-5)
    only = head(x, jnp.array([True, False, False, True, False]))
    np.testing.assert_array_equal(only.mode(), [0, 1])
    np.testing.assert_allclose(only.log_prob(jnp.array([0, 1])), 0.0, atol=1e-6)


@pytest.mark.parametrize("state_dependent", [False, True])
def test_normal_begins_with_the_stated_deviation_and_keeps_the_minimum(state_dependent):
    head = NormalHead(3, state_dependent_std=state_dependent, initial_std=0.6, minimum_std=0.1)
    x = jnp.concatenate([jnp.array([1.0, 2.0, 3.0]), jnp.zeros(head.num_inputs - 3)])
    action = np.array([0.5, 2.5, 3.0])
    expected = scipy.stats.norm(x[:3], 0.6).logpdf(action).sum()
    np.testing.assert_allclose(head(x).log_prob(jnp.asarray(action, jnp.float32)), expected, rtol=1e-5)
    if state_dependent:
        low = head.loc_and_scale(x.at[3:].set(-1e6))[1]
    else:
        low = jax.tree.map(lambda log_std: log_std - 1e6, head).loc_and_scale(x)[1]
    np.testing.assert_allclose(low, 0.1, rtol=1e-6)


def test_an_initial_deviation_may_be_traced():
    scales = jax.vmap(lambda std: NormalHead(2, initial_std=std).loc_and_scale(jnp.zeros(2))[1])
    np.testing.assert_allclose(scales(jnp.array([0.5, 2.0])), [[0.5, 0.5], [2.0, 2.0]], rtol=1e-6)


@pytest.mark.parametrize("head", [TanhNormalHead(2), BetaHead(2)], ids=["tanh_normal", "beta"])
def test_bounded_heads_stay_within_one(head):
    x = jnp.linspace(-3.0, 3.0, head.num_inputs)
    actions = jax.vmap(head(x).sample)(jax.random.split(jax.random.key(0), 2000))
    assert np.all(np.abs(actions) <= 1.0)
    assert np.all(np.ptp(np.asarray(actions), axis=0) > 0.5)


def test_beta_is_scipys_with_parameters_of_one_plus_softplus():
    x = jnp.array([-1.0, 0.5, 2.0, -3.0])
    alpha, beta = 1 + np.logaddexp(0, x[:2]), 1 + np.logaddexp(0, x[2:])
    action = np.array([-0.3, 0.7])
    expected = scipy.stats.beta(alpha, beta, loc=-1, scale=2).logpdf(action).sum()
    np.testing.assert_allclose(BetaHead(2)(x).log_prob(jnp.asarray(action, jnp.float32)), expected, rtol=1e-4)


@pytest.mark.quick("bfloat16")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_both_parameters_of_beta_are_above_one_wherever_the_inputs_are(dtype):
    """Softplus is 0 to rounding below -16, and below -5 in half precision."""
    x = jnp.asarray([-6e4, -1e3, -88.0, -20.0, -16.0, -8.0, -5.0, 0.0, 5.0, 100.0, 6e4, -6e4], dtype)
    d = BetaHead(6)(x)
    assert d.alpha.dtype == d.beta.dtype == jnp.float32
    got = np.concatenate([d.alpha, d.beta]).astype(np.float64)
    assert np.all(got > 1.0)
    np.testing.assert_allclose(got, 1 + np.logaddexp(0, np.asarray(x, np.float64)), rtol=3e-7)
    mode = np.asarray(d.mode())
    assert np.all(np.abs(mode) < 1) and np.isfinite(d.entropy())
    assert np.all(np.isfinite(jax.grad(lambda x: BetaHead(6)(x).log_prob(jnp.zeros(6)))(x)))


def test_gsde_is_the_distribution_of_its_noise_matrix():
    head = GSDEHead(2, 16, initial_std=0.7)
    head = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(3), x.shape), head)
    loc, features = jnp.array([1.0, -1.0]), jax.random.normal(jax.random.key(0), (16,))
    noise = jnp.exp(head.log_std) * jax.random.normal(jax.random.key(1), (20_000, 16, 2))
    drawn = np.asarray(loc + jnp.einsum("f,nfa->na", features, noise))
    np.testing.assert_allclose(drawn.mean(axis=0), head(loc, features).loc, atol=0.1)
    np.testing.assert_allclose(drawn.std(axis=0), head(loc, features).scale, rtol=0.02)
    gradient = jax.grad(lambda f: head(loc, f).log_prob(loc + 1.0))(features)
    np.testing.assert_array_equal(gradient, 0.0)
    fresh = GSDEHead(2, 16, initial_std=0.7, minimum_std=0.0)
    expected = scipy.stats.norm(0, 0.7).logpdf(0.5) * 2
    np.testing.assert_allclose(
        fresh(jnp.zeros(2), jnp.ones(16)).log_prob(jnp.full(2, 0.5)), expected, rtol=1e-5
    )


@pytest.mark.parametrize(
    "space, kind, head, num_inputs",
    [
        (Discrete(4), "auto", CategoricalHead, 4),
        (MultiDiscrete((2, 3)), "auto", MultiCategoricalHead, 5),
        (PLANE, "auto", NormalHead, 3),
        (PLANE, "tanh_normal", TanhNormalHead, 3),
        (PLANE, "beta", BetaHead, 6),
        (PLANE, "gsde", GSDEHead, 3),
        (PLANE, "deterministic", DeterministicHead, 3),
        (Box(-1.0, 1.0, (2, 2)), "normal", NormalHead, 4),
    ],
)
def test_head_for_an_action_space(space, kind, head, num_inputs):
    chosen = head_for(space, kind, num_features=8)
    assert type(chosen) is head
    assert chosen.num_inputs == num_inputs
    assert head_for(PLANE, state_dependent_std=True).num_inputs == 6


@pytest.mark.parametrize(
    "space, kind, message",
    [
        (
            PLANE,
            "categorical",
            r"distribution='categorical' does not fit .* Box\(-2, 2, .* one of auto, normal",
        ),
        (Discrete(4), "normal", r"distribution='normal' does not fit .* Discrete\(n=4\): .* categorical"),
        (PLANE, "norml", r"distribution='norml' .* did you mean 'normal'\?"),
        (
            Box(-np.inf, 1.0, (2,)),
            "beta",
            r"'beta' does not fit .* Box\(-inf, 1, .* normal, .* need finite bounds",
        ),
        (
            Box(-np.inf, 1.0, (2,)),
            "deterministic",
            r"'deterministic' does not fit .* gsde; tanh_normal, beta, deterministic need finite bounds",
        ),
        (Discrete(4), "deterministic", r"'deterministic' does not fit .* Discrete\(n=4\): .* categorical"),
        (
            Box(0, 9, (2,), np.int32),
            "auto",
            r"there is no head for .* Box\(0, 9, \(2,\), int32\); .* MultiDiscrete",
        ),
    ],
)
def test_a_head_that_does_not_fit_is_named(space, kind, message):
    with pytest.raises(ShoalError, match=message):
        head_for(space, kind)


def test_bad_deviations_are_named_and_a_mask_for_a_box_restricts():
    with pytest.raises(ShoalError, match=r"initial_std=0.1 must be above minimum_std=0.5"):
        NormalHead(2, initial_std=0.1, minimum_std=0.5)
    # The entries of a role that has the first one only.
    for head in (NormalHead(2), TanhNormalHead(2), DeterministicHead(2)):
        distribution = head(jnp.ones(2), jnp.asarray([True, False]))
        assert distribution.sample_raw(jax.random.key(0))[1] == 0 != distribution.mode()[0]
