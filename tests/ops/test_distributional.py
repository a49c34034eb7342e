"""The C51 projection, categorical losses and quantile regression: against rlax, and what must hold of them.

The losses' formulas, weights, gradients and shapes are held by `test_transitions.py`.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from transition_losses import DELTA, LOSSES, arguments, project, quantile_regression, softmax

from shoal.ops import distributional

RNG = np.random.default_rng(0)
projection = jax.jit(distributional.categorical_projection)
regression = jax.jit(distributional.quantile_regression, static_argnames="stop_target_gradients")
SUPPORTS = {
    "even": np.linspace(-2.0, 2.0, 9),
    "uneven": np.asarray([-3.0, -2.5, -0.1, 0.0, 0.4, 5.0]),
    "one": np.asarray([0.5]),
    "wide": np.asarray([-1e4, 1e4]),
}


@pytest.mark.parametrize("name", SUPPORTS)
def test_the_projection_is_that_of_each_mass_alone(name):
    """Also with atoms beyond the ends, at atoms exactly and in any order; the masses keep their sum."""
    onto = SUPPORTS[name].astype(np.float32)
    atoms = np.concatenate([RNG.normal(scale=2.0, size=9), onto[[0, -1]], [-99.0, 99.0]]).astype(np.float32)
    probabilities = RNG.dirichlet(np.ones(len(atoms)), size=4).astype(np.float32)
    got = np.asarray(projection(atoms, probabilities, onto))
    expected = [project(atoms.astype(float), p.astype(float), onto.astype(float)) for p in probabilities]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.sum(axis=-1), 1.0, rtol=1e-6)
    assert np.all(got >= 0)


def test_the_projection_keeps_the_mean_of_what_lies_inside():
    for onto in (SUPPORTS["even"], SUPPORTS["uneven"]):
        atoms = RNG.uniform(onto[0], onto[-1], size=(20, 7)).astype(np.float32)
        probabilities = RNG.dirichlet(np.ones(7), size=20).astype(np.float32)
        got = projection(atoms, probabilities, onto.astype(np.float32))
        np.testing.assert_allclose(got @ onto, np.sum(atoms * probabilities, axis=-1), rtol=1e-5, atol=1e-6)


def test_the_projection_is_exact_at_the_atoms_and_beyond_the_ends():
    for support in (np.linspace(-10.0, 10.0, 51), SUPPORTS["uneven"]):
        onto = support.astype(np.float32)
        n = len(onto)
        same = projection(onto[:, None], np.ones((n, 1), np.float32), onto)
        np.testing.assert_array_equal(same, np.eye(n))
        beyond = np.asarray([np.nextafter(onto[0], -99), np.nextafter(onto[-1], 99), -1e30, 1e30], np.float32)
        ends = projection(beyond[:, None], np.ones((4, 1), np.float32), onto)
        np.testing.assert_array_equal(ends, np.eye(n)[[0, n - 1, 0, n - 1]])
    twice = jnp.asarray([0.0, 1.0, 1.0, 2.0])  # a support that is only nearly one
    split = projection(jnp.asarray([0.5, 1.0, 1.5]), jnp.full(3, 1 / 3), twice)
    assert np.all(split >= 0)
    np.testing.assert_allclose([split.sum(), split[0], split[3]], [1.0, 1 / 6, 1 / 6], rtol=1e-6)


def test_the_projection_is_differentiable():
    onto = SUPPORTS["uneven"].astype(np.float32)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(RNG.normal(size=8)), jnp.asarray(RNG.dirichlet(np.ones(8)))]
        run = jax.jit(lambda *a: projection(*a, jnp.asarray(onto, jnp.float64)))
        check_grads(run, arrays, order=1, modes=["rev"])


@pytest.mark.filterwarnings("ignore:Rlax categorical_cross_entropy will be deprecated")
def test_categorical_q_learning_is_rlaxs(rlax):
    made = arguments(LOSSES["categorical_q"], 1, (20,))
    axes = [None if name.startswith("atoms") else 0 for name in made]
    theirs = jax.jit(jax.vmap(rlax.categorical_q_learning, in_axes=axes))(*made.values())
    ours = jax.jit(distributional.categorical_q_learning)(*made.values())
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_categorical_loss_is_least_at_its_target():
    """The gradient in the logits is their distribution less the target's, so it is 0 where they agree."""
    atoms = jnp.linspace(-1.0, 1.0, 5)
    following = jnp.asarray([0.3, -1.0, 0.2, 0.7, 0.0])

    def loss(logits):
        return distributional.categorical_td_learning(
            atoms, logits, jnp.float32(0.1), jnp.float32(0.5), atoms, following
        )

    slope = jax.jit(jax.grad(loss))
    target = project(0.1 + 0.5 * np.asarray(atoms, float), softmax(np.asarray(following)), np.asarray(atoms))
    np.testing.assert_allclose(slope(jnp.log(target).astype(jnp.float32)), 0.0, atol=1e-6)
    logits = jnp.asarray([0.0, 1.0, 2.0, 0.0, -1.0])
    np.testing.assert_allclose(slope(logits), jax.nn.softmax(logits) - target, atol=1e-6)


def gaussian_in_bins(atoms, target, sigma):
    """The probabilities of HL-Gauss, bin by bin, by the error function."""
    target = min(max(target, atoms[0]), atoms[-1])
    middles = [(a + b) / 2 for a, b in itertools.pairwise(atoms)]
    edges = [2 * atoms[0] - middles[0], *middles, 2 * atoms[-1] - middles[-1]]
    below = [(1 + math.erf((x - target) / (sigma * math.sqrt(2)))) / 2 for x in edges]
    return np.asarray([(b - a) / (below[-1] - below[0]) for a, b in itertools.pairwise(below)])


NUMBERS = np.asarray([-99.0, -2.0, -1.9, 0.0, 0.25, 0.3, 1.9, 2.0, 99.0], np.float32)
TO_NUMBERS = {
    "two_hot": (
        distributional.two_hot,
        lambda atoms, target: project(np.asarray([target]), np.ones(1), np.asarray(atoms)),
    ),
    "hl_gauss": (
        lambda *arguments: distributional.hl_gauss(*arguments, 0.4),
        lambda atoms, target: gaussian_in_bins(atoms, target, 0.4),
    ),
}


@pytest.mark.quick("two_hot-uneven")
@pytest.mark.parametrize("support", ["even", "uneven"])
@pytest.mark.parametrize("name", TO_NUMBERS)
def test_losses_with_numbers_for_targets_are_cross_entropies(name, support):
    """Of every row alone, with targets at atoms, between them and beyond the ends; and so is their gradient."""
    loss, probabilities = TO_NUMBERS[name]
    atoms = SUPPORTS[support].astype(np.float32)
    logits = RNG.normal(size=(len(NUMBERS), len(atoms))).astype(np.float32)
    targets = np.stack([probabilities(atoms.astype(float), float(x)) for x in NUMBERS])
    predicted = np.stack([softmax(x) for x in logits.astype(float)])
    run = jax.jit(loss)
    np.testing.assert_allclose(
        run(atoms, logits, NUMBERS), -np.sum(targets * np.log(predicted), axis=-1), rtol=1e-5, atol=1e-5
    )
    slope, of_atoms, of_target = jax.grad(lambda x, a, g: jnp.sum(run(a, x, g)), argnums=(0, 1, 2))(
        logits, atoms, NUMBERS
    )
    np.testing.assert_allclose(slope, predicted - targets, atol=1e-5)
    np.testing.assert_array_equal(of_atoms, 0.0)
    np.testing.assert_array_equal(of_target, 0.0)
    same = np.broadcast_to(atoms, logits.shape)  # a support for each
    np.testing.assert_allclose(run(same, logits, NUMBERS), run(atoms, logits, NUMBERS), rtol=1e-6)


@pytest.mark.full
def test_two_hot_is_rlaxs(rlax):
    targets = RNG.uniform(-12.0, 12.0, size=30).astype(np.float32)
    logits = RNG.normal(size=(30, 21)).astype(np.float32)
    theirs = rlax.transform_to_2hot(targets, -10.0, 10.0, 21)
    expected = -np.sum(theirs * jax.nn.log_softmax(logits), axis=-1)
    got = distributional.two_hot(jnp.linspace(-10.0, 10.0, 21), logits, targets)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_target_of_the_wrong_shape_or_dtype_is_named():
    atoms, logits = jnp.zeros(3), jnp.zeros((4, 3))
    for loss, _ in TO_NUMBERS.values():
        with pytest.raises(ValueError, match=r"target \[3\]"):
            jax.eval_shape(loss, atoms, logits, jnp.zeros(3))
        with pytest.raises(TypeError, match="target is int32; it must be floating"):
            jax.eval_shape(loss, atoms, logits, jnp.zeros(4, jnp.int32))


def test_quantile_regression_equals_its_formula_and_its_gradient():
    quantiles, samples = RNG.normal(size=(2, 3, 5)).astype(np.float32)
    fractions = RNG.uniform(0.05, 0.95, size=(3, 5)).astype(np.float32)
    expected = [
        quantile_regression(*(np.asarray(a, np.float64) for a in row))
        for row in zip(quantiles, fractions, samples, strict=True)
    ]
    np.testing.assert_allclose(regression(quantiles, fractions, samples, DELTA), expected, rtol=1e-5)
    with jax.enable_x64(True):
        doubles = [jnp.asarray(a, jnp.float64) for a in (quantiles, fractions, samples)]
        for delta in (0.0, DELTA):
            check_grads(
                lambda q, x, delta=delta: regression(q, doubles[1], x, delta, stop_target_gradients=False),
                (doubles[0], doubles[2]),
                order=1,
                modes=["rev"],
            )
    slope = jax.grad(lambda x: jnp.sum(regression(quantiles, fractions, x)))(samples)
    np.testing.assert_array_equal(slope, 0.0)


def test_quantiles_minimise_the_quantile_loss():
    """At δ = 0 the slope changes its sign at the quantile of the samples, and nowhere else."""
    samples = RNG.normal(size=203).astype(np.float32)  # no fraction of which is whole
    fractions = distributional.quantile_fractions(5)
    np.testing.assert_allclose(fractions, [0.1, 0.3, 0.5, 0.7, 0.9], rtol=1e-6)
    right = np.quantile(samples, fractions, method="inverted_cdf")

    def slope(shift):
        def loss(quantiles):
            return regression(quantiles, fractions, samples, 0.0)

        return jax.grad(loss)(jnp.asarray(right + shift, jnp.float32))

    for shift in (1e-6, 0.1, 1.0, 10.0):
        assert np.all(slope(shift) > 0) and np.all(slope(-shift) < 0)
    # Far out each slope is τ - 1 or τ: on one side of all samples.
    np.testing.assert_allclose(slope(-10.0), -fractions, rtol=1e-5)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(
        ValueError, match=r"atoms \[3\], probabilities \[2, 4\], onto \[5\] must have the axes"
    ):
        distributional.categorical_projection(jnp.zeros(3), jnp.zeros((2, 4)), jnp.zeros(5))
    with pytest.raises(ValueError, match=r"quantiles \[2, 4\], fractions \[3\], samples \[2, 5\]"):
        distributional.quantile_regression(jnp.zeros((2, 4)), jnp.zeros(3), jnp.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"delta \[4\] must be a number"):
        distributional.quantile_regression(jnp.zeros(4), jnp.zeros(4), jnp.zeros(5), jnp.ones(4))


@pytest.mark.full
@pytest.mark.parametrize("delta", [0.0, 0.7, 1.0])
def test_quantile_losses_are_rlaxs_times_a_constant(rlax, delta):
    """rlax does not divide by δ, and has the action's axis last."""
    made = arguments(LOSSES["quantile_double_q"], 3, (20,))
    quantiles_t = made["quantiles_t"]
    ours = distributional.quantile_q_learning(
        **{k: v for k, v in made.items() if k != "selector_t"}, delta=delta
    )

    def one(quantiles_tm1, a_tm1, r_t, discount_t, quantiles_t):
        fractions = jnp.asarray(made["fractions"])
        return rlax.quantile_q_learning(
            quantiles_tm1.T, fractions, a_tm1, r_t, discount_t, quantiles_t.T, quantiles_t.T, delta
        )

    arrays = [made[k] for k in ("quantiles_tm1", "a_tm1", "r_t", "discount_t")]
    theirs = jax.jit(jax.vmap(one))(*arrays, quantiles_t)
    np.testing.assert_allclose(ours, theirs / (delta or 1.0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        distributional.quantile_q_learning(**made | {"selector_t": quantiles_t.mean(axis=-1)}, delta=delta),
        ours,
        rtol=1e-6,
    )
