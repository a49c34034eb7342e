"""Policy losses against plain loops and rlax, their gradients by finite differences, and at extremes."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from shoal.ops import policy_losses
from shoal.ops.distributions import Categorical

RNG = np.random.default_rng(0)
LOG_RATIO = RNG.normal(scale=0.4, size=200).astype(np.float32)
ADVANTAGE = RNG.normal(size=200).astype(np.float32)
KL = RNG.uniform(size=200).astype(np.float32)


def clip_by_case(log_ratio: float, advantage: float, epsilon: float) -> float:
    """Figure 1 of the paper, case by case."""
    ratio = np.exp(np.float64(log_ratio))
    if advantage >= 0:
        return -advantage * min(ratio, 1 + epsilon)
    return -advantage * max(ratio, 1 - epsilon)


# Ratios from 1e-6 to 1e6, each with advantages from small to large of both signs.
WIDE_LOG_RATIO, WIDE_ADVANTAGE = (
    x.ravel().astype(np.float32)
    for x in np.meshgrid(
        np.log(np.concatenate([np.geomspace(1e-6, 1e6, 41), [1.19, 1.21, 0.79, 0.81]])),
        [-100.0, -1.0, -1e-3, 0.0, 1e-6, 1e-3, 1.0, 100.0],
    )
)


def dpo_by_case(log_ratio: float, advantage: float, alpha: float, beta: float) -> float:
    ratio = np.exp(np.float64(log_ratio))
    if advantage >= 0:
        drift = (ratio - 1) * advantage - alpha * np.tanh((ratio - 1) * advantage / alpha)
    else:
        drift = np.float64(log_ratio) * advantage - beta * np.tanh(np.log(ratio) * advantage / beta)
    return -(ratio * advantage - max(drift, 0.0))


def k3_by_series(x: float) -> float:
    """exp(x) - 1 - x, term by term, so that nothing cancels."""
    total, term = 0.0, x
    for n in range(2, 60):
        term *= x / n
        total += term
    return total


FORMULAS = {
    "policy_gradient": (policy_losses.policy_gradient, lambda x, a, y: -a * x),
    "vtrace": (
        lambda x, a, y: policy_losses.vtrace_policy_gradient(x, y, a, 1.1),
        lambda x, a, y: -min(1.1, np.exp(y)) * a * x,
    ),
    "sampled_entropy": (policy_losses.sampled_entropy_loss, lambda x, a, y: x),
    "clip": (lambda x, a: policy_losses.clip_surrogate(x, a, 0.2), lambda x, a, y: clip_by_case(x, a, 0.2)),
    "penalty": (
        lambda x, a, y: policy_losses.kl_penalty_surrogate(x, a, y, 3.0),
        lambda x, a, y: -(np.exp(x) * a - 3.0 * y),
    ),
    "dpo": (policy_losses.dpo_surrogate, lambda x, a, y: dpo_by_case(x, a, 2.0, 0.6)),
    "dpo_other": (
        lambda x, a: policy_losses.dpo_surrogate(x, a, 0.5, 1.5),
        lambda x, a, y: dpo_by_case(x, a, 0.5, 1.5),
    ),
    "k3": (policy_losses.kl_k3, lambda x, a, y: k3_by_series(x)),
}
FORMULAS = {name: (jax.jit(function), oracle) for name, (function, oracle) in FORMULAS.items()}


def arity(function) -> int:
    """How many of log-ratio, advantage and a third array a loss of the table takes."""
    return sum(p.default is p.empty for p in inspect.signature(function).parameters.values())


@pytest.mark.quick("dpo")
@pytest.mark.parametrize("name", FORMULAS)
def test_every_loss_equals_its_paper(name):
    function, oracle = FORMULAS[name]
    arrays = (LOG_RATIO, ADVANTAGE, KL)[: arity(function)]
    rows = zip(*(a.astype(np.float64) for a in (LOG_RATIO, ADVANTAGE, KL)), strict=True)
    expected = [oracle(*row) for row in rows]
    got = function(*arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert got.dtype == jnp.float32
    with jax.enable_x64(True):
        doubles = [jnp.asarray(a, jnp.float64) for a in arrays]
        exact = function(*doubles)
        assert exact.dtype == jnp.float64
        series = name == "k3"  # which is as long as float32 needs
        np.testing.assert_allclose(exact, expected, rtol=1e-6 if series else 1e-12, atol=1e-13)


@pytest.mark.parametrize("name", FORMULAS)
def test_every_loss_equals_its_paper_for_ratios_from_1e_6_to_1e6(name):
    """Beside the numbers that the formula adds; only those of the penalty may cancel."""
    function, oracle = FORMULAS[name]
    third = WIDE_LOG_RATIO[::-1]
    exact = [a.astype(np.float64) for a in (WIDE_LOG_RATIO, WIDE_ADVANTAGE, third)]
    expected = np.asarray([oracle(*row) for row in zip(*exact, strict=True)])
    _, a, y = np.abs(exact)
    added = np.exp(exact[0]) * a + 3.0 * y if name == "penalty" else 0.0
    got = function(*(WIDE_LOG_RATIO, WIDE_ADVANTAGE, third)[: arity(function)])
    assert np.all(np.abs(got - expected) <= 1e-5 * np.abs(expected) + 1e-6 * added)


def dpo_slope(log_ratio: float, advantage: float, alpha: float, beta: float) -> float:
    """By hand, in float64; 1 - tanh² as 1 / cosh²."""
    ratio = np.exp(np.float64(log_ratio))
    if advantage >= 0 and ratio > 1:
        return -ratio * advantage / np.cosh(np.minimum((ratio - 1) * advantage / alpha, 300.0)) ** 2
    drift = advantage * np.tanh(np.float64(log_ratio) * advantage / beta) ** 2
    return (drift if advantage < 0 and ratio < 1 else 0.0) - ratio * advantage


def test_the_surrogates_have_their_gradients_for_ratios_from_1e_6_to_1e6():
    """Beside the terms that the gradient adds, as DPO's does downwards: there r and the drift's slope may cancel."""
    x, a = WIDE_LOG_RATIO, WIDE_ADVANTAGE
    ratio = np.exp(x.astype(np.float64))
    passes = np.where(a > 0, ratio < 1.2, ratio > 0.8)
    dpo = np.asarray([dpo_slope(*row, 2.0, 0.6) for row in zip(x, a, strict=True)])
    for name, expected, added in (
        ("clip", np.where(passes, -ratio * a, 0.0), 0.0),
        ("penalty", -ratio * a + 0.7 * 2 * x, ratio * np.abs(a) + np.abs(x)),
        ("dpo", dpo, np.where(a < 0, np.abs(a), 0.0)),
    ):
        got = jax.grad(lambda x, name=name: jnp.sum(SURROGATES[name](x, a)))(jnp.asarray(x))
        wrong = np.abs(got - expected) > 2e-5 * np.abs(expected) + 1e-6 * added + 1e-30
        assert not np.any(wrong), (name, x[wrong], a[wrong], got[wrong], expected[wrong])


def test_discovered_policy_optimisation_does_not_cancel():
    """Upwards it saturates: -A - α whatever the ratio; downwards a small drift keeps its digits."""
    log_ratio = jnp.asarray([11.0, 20.0, 40.0, 60.0, 1e4])
    got = policy_losses.dpo_surrogate(log_ratio, jnp.full(5, 0.37))
    np.testing.assert_allclose(got, -(0.37 + 2.0), rtol=1e-6)
    ratio, advantage = np.float64(1e-6), -1e-3
    z = np.log(ratio) * advantage / 0.6
    exact = 0.6 * (z**3 / 3 - 2 * z**5 / 15 + 17 * z**7 / 315) - ratio * advantage
    got = policy_losses.dpo_surrogate(jnp.float32(np.log(ratio)), jnp.float32(advantage))
    np.testing.assert_allclose(got, exact, rtol=2e-6)


@pytest.mark.parametrize("dtype, highest", [(jnp.float16, 10.0), (jnp.bfloat16, 60.0), (jnp.float32, 60.0)])
@pytest.mark.quick("bfloat16-60.0")
def test_beyond_the_greatest_ratio_it_stays_and_has_no_gradient(dtype, highest):
    """As the page says; below it the gradient of a bad action is there, however large the ratio."""
    x = jnp.asarray([highest - 0.5, highest + 2.0, 300.0, 6e4], dtype)
    bad, none = jnp.asarray(-1.0, dtype), jnp.zeros((), dtype)
    functions = [lambda x, f=SURROGATES[name]: f(x, bad) for name in ("clip", "dpo")]
    functions.append(lambda x: policy_losses.kl_penalty_surrogate(x, bad, none, 1.0))
    everything = jax.jit(
        lambda x: [jax.vmap(jax.value_and_grad(f))(x) for f in (*functions, policy_losses.kl_k3)]
    )
    *surrogates, (k3, k3_slopes) = jax.tree.map(lambda y: np.asarray(y, np.float64), everything(x))
    for values, slopes in surrogates:
        below = np.asarray([values[0], slopes[0]])
        np.testing.assert_allclose(below, np.exp(highest - 0.5), rtol=4 * float(jnp.finfo(dtype).eps))
        assert np.all(np.isfinite(values)) and np.all(values[1:] > values[0])
        np.testing.assert_array_equal(slopes[1:], 0.0)
    assert np.all(np.isfinite(k3))
    np.testing.assert_array_equal(k3_slopes[1:], 0.0)


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "sampled_entropy"])
@pytest.mark.quick("vtrace", "penalty", "k3")
def test_every_loss_has_its_own_gradient(name):
    function = FORMULAS[name][0]
    with jax.enable_x64(True):
        # Away from the clip's corners, where there is no derivative.
        smooth = np.abs(np.abs(np.expm1(LOG_RATIO)) - 0.2) > 0.02
        x, *rest = (
            jnp.asarray(a[smooth], jnp.float64) for a in (LOG_RATIO, ADVANTAGE, KL)[: arity(function)]
        )
        check_grads(
            lambda x: function(x, *rest), (x,), order=1, modes=["rev"], rtol=1e-5, atol=1e-6, eps=1e-6
        )


@pytest.mark.quick("vtrace")
@pytest.mark.parametrize("name", ["policy_gradient", "vtrace", "clip", "penalty", "dpo"])
def test_no_gradient_passes_into_the_advantage_nor_a_constant_ratio(name):
    function = FORMULAS[name][0]
    arrays = (LOG_RATIO, ADVANTAGE, KL)[: arity(function)]
    slopes = jax.grad(lambda *a: jnp.sum(function(*a)), argnums=tuple(range(len(arrays))))(*arrays)
    for slope in slopes[1:] if name != "penalty" else slopes[1:2]:
        np.testing.assert_array_equal(slope, 0.0)


SURROGATES = {
    "clip": lambda x, a: policy_losses.clip_surrogate(x, a, 0.2),
    "penalty": lambda x, a: policy_losses.kl_penalty_surrogate(x, a, jnp.square(x), 0.7),
    "dpo": policy_losses.dpo_surrogate,
    "policy_gradient": policy_losses.policy_gradient,
}
SURROGATES = {name: jax.jit(function) for name, function in SURROGATES.items()}


@pytest.mark.parametrize("name", SURROGATES)
def test_every_surrogate_is_the_policy_gradient_where_the_policies_agree(name):
    zeros = jnp.zeros_like(ADVANTAGE)
    gradient = jax.grad(lambda x: jnp.sum(SURROGATES[name](x, ADVANTAGE)))(zeros)
    np.testing.assert_allclose(gradient, -ADVANTAGE, rtol=1e-6)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.quick("clip", "dpo")
def test_surrogates_are_finite_at_extremes(name):
    log_ratio, advantage = (
        x.ravel()
        for x in jnp.meshgrid(
            jnp.asarray([-1e4, -100.0, 0.0, 50.0, 100.0, 1e4]), jnp.asarray([-100.0, 0.0, 100.0])
        )
    )
    value, gradient = jax.vmap(jax.value_and_grad(SURROGATES[name]))(log_ratio, advantage)
    assert np.all(np.isfinite(value)) and np.all(np.isfinite(gradient))


@pytest.mark.full
def test_k3_estimates_the_kl():
    """Of two normals one apart: KL = 1/2; and k3 is right where exp(x) - 1 - x loses all its digits."""
    x = np.random.default_rng(1).normal(size=400_000)  # of μ = N(0, 1); π = N(1, 1)
    log_ratio = jnp.asarray((x - 0.5).astype(np.float32))
    k3 = policy_losses.kl_k3(log_ratio)
    assert abs(float(jnp.mean(k3)) - 0.5) < 5 * float(jnp.std(k3)) / np.sqrt(len(x))
    assert jnp.all(k3 >= 0)
    small = np.concatenate([np.geomspace(1e-7, 1.0, 60), -np.geomspace(1e-7, 1.0, 60)]).astype(np.float32)
    exact = np.expm1(small.astype(np.longdouble)) - small.astype(np.longdouble)
    exact = np.where(np.abs(small) < 1e-4, small.astype(np.float64) ** 2 * (0.5 + small / 6.0), exact)
    np.testing.assert_allclose(policy_losses.kl_k3(small), exact.astype(np.float64), rtol=2e-5)
    gradient = jax.vmap(jax.grad(policy_losses.kl_k3))(jnp.asarray([0.0, 0.01, -0.5, 1e4]))
    np.testing.assert_allclose(gradient[:3], np.expm1([0.0, 0.01, -0.5]), rtol=1e-5)
    assert gradient[3] == 0  # beyond the greatest ratio; never below 0, which would raise it further


def test_the_kl_coefficient_follows_the_kl():
    adapted = [
        float(policy_losses.adapt_kl_coef(0.4, jnp.float32(kl), 0.03)) for kl in (0.019, 0.021, 0.044, 0.046)
    ]
    np.testing.assert_allclose(adapted, [0.2, 0.4, 0.4, 0.8], rtol=1e-6)
    assert float(policy_losses.adapt_kl_coef(0.4, jnp.float32(np.nan), 0.03)) == np.float32(0.4)
    assert float(policy_losses.adapt_kl_coef(1e-6, jnp.float32(0.0), 0.03)) == np.float32(1e-6)


def test_the_sampled_entropys_gradient_is_the_entropys():
    """In expectation over all actions; that of log π(a) alone would be 0."""
    logits = jnp.asarray([0.3, -1.0, 1.2, 0.0])

    def expected_loss(logits, loss):
        policy = Categorical(jnp.broadcast_to(logits, (4, 4)))
        probabilities = jax.lax.stop_gradient(jax.nn.softmax(logits))
        return jnp.sum(probabilities * loss(policy.log_prob(jnp.arange(4))))

    @jax.jit
    def everything(logits):
        entropy = jax.value_and_grad(lambda x: -Categorical(x).entropy())
        both = jax.value_and_grad(expected_loss)
        return both(logits, policy_losses.sampled_entropy_loss), entropy(logits), both(logits, lambda x: x)[1]

    (value, slope), (right, right_slope), alone = everything(logits)
    np.testing.assert_allclose(value, right, rtol=1e-5)
    np.testing.assert_allclose(slope, right_slope, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(alone, 0.0, atol=1e-6)


def test_k3_has_the_kls_gradient():
    """In expectation over the actions of μ."""
    mu, logits = Categorical(jnp.asarray([0.3, -1.0, 1.2])), jnp.asarray([0.5, 0.1, -0.4])

    def expected_estimate(logits):
        actions = jnp.arange(3)
        policies = [jnp.broadcast_to(x, (3, 3)) for x in (logits, mu.logits)]
        log_ratio = Categorical(policies[0]).log_prob(actions) - Categorical(policies[1]).log_prob(actions)
        return jnp.sum(jax.nn.softmax(mu.logits) * policy_losses.kl_k3(log_ratio))

    right, right_slope = jax.jit(jax.value_and_grad(lambda x: mu.kl(Categorical(x))))(logits)
    value, slope = jax.jit(jax.value_and_grad(expected_estimate))(logits)
    np.testing.assert_allclose(value, right, rtol=1e-5)
    np.testing.assert_allclose(slope, right_slope, rtol=1e-4, atol=1e-6)


BAD = {
    "policy_gradient": "log_prob",
    "vtrace_policy_gradient": "log_prob",
    "clip_surrogate": "log_ratio",
    "kl_penalty_surrogate": "log_ratio",
    "dpo_surrogate": "log_ratio",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.quick("vtrace_policy_gradient", "clip_surrogate")
def test_bad_input_is_named(name):
    function = getattr(policy_losses, name)
    parameters = inspect.signature(function).parameters
    numbers = ("clip_coef", "kl_coef", "clip_pg_rho", "alpha", "beta")
    right = {key: jnp.ones(()) if key in numbers else jnp.zeros(4) for key in parameters}
    for key in parameters:
        with pytest.raises(ValueError, match=rf"\b{key} \[5\]"):
            jax.eval_shape(lambda arrays: function(**arrays), right | {key: jnp.zeros(5)})
        if key not in numbers:
            with pytest.raises(TypeError, match=rf"\b{key} (is int32|bfloat16)"):
                jax.eval_shape(lambda arrays: function(**arrays), right | {key: jnp.zeros(4, jnp.bfloat16)})
            with pytest.raises(TypeError, match=rf"\b{key} is int32; it must be floating"):
                jax.eval_shape(lambda arrays: function(**arrays), right | {key: jnp.zeros(4, jnp.int32)})


@pytest.mark.full
def test_are_rlaxs(rlax):
    """Where rlax has them; it reduces to a mean, and takes logits or ratios."""
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(30, 4)).astype(np.float32)
    actions, weight = rng.integers(4, size=30), np.ones(30, np.float32)
    advantage, log_ratio = ADVANTAGE[:30], LOG_RATIO[:30]
    policy = Categorical(logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the distributions that rlax uses
        theirs = [
            rlax.policy_gradient_loss(logits, actions, advantage, weight),
            rlax.clipped_surrogate_pg_loss(np.exp(log_ratio), advantage, 0.2),
        ]
    ours = [
        policy_losses.policy_gradient(policy.log_prob(actions), advantage),
        policy_losses.clip_surrogate(log_ratio, advantage, 0.2),
    ]
    np.testing.assert_allclose([jnp.mean(loss) for loss in ours], theirs, rtol=1e-5)
