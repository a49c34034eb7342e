"""What holds for every loss of single transitions: the paper's formula, weights, gradients, dtypes and shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from transition_losses import ACTIONS, ATOMS, BATCH, LOSSES, arguments, expected, poisoned

WEIGHT = (np.random.default_rng(9).uniform(size=BATCH) < 0.7).astype(np.float32)


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


def test_equals_its_paper_and_reads_nothing_that_does_not_count(loss):
    """With NaN wherever nothing may be read: the values of the loop, and gradients that are finite and 0 there."""
    made = arguments(loss, 0)
    unread = poisoned(loss, made, WEIGHT)
    names = [name for name, array in unread.items() if array.dtype == np.float32]

    def total(arrays):
        losses = loss.function(**(unread | arrays), w_tm1=WEIGHT, stop_target_gradients=False)
        return jnp.sum(losses), losses

    floats = {name: unread[name] for name in names}
    gradient, losses = jax.jit(jax.grad(total, has_aux=True))(floats)
    right = np.where(WEIGHT > 0, expected(loss, made), 0.0)
    np.testing.assert_allclose(losses, right, rtol=2e-5, atol=2e-5)
    for name in names:
        assert np.all(np.isfinite(gradient[name])), name
        if not loss.axes[name].startswith("*"):
            np.testing.assert_array_equal(np.asarray(gradient[name])[WEIGHT == 0], 0.0)


@pytest.mark.parametrize("wrong", [-1, ACTIONS])
@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if "a_tm1" in loss.axes])
@pytest.mark.quick("munchausen-3", "quantile_q--1")
def test_an_action_that_does_not_exist_is_nan_where_it_counts(name, wrong):
    loss = LOSSES[name]
    run = jax.jit(loss.function)
    made = arguments(loss, 6)
    wrongly = made | {"a_tm1": np.where(WEIGHT > 0, made["a_tm1"], wrong)}
    wrongly["a_tm1"][0, 0] = wrong
    weight = WEIGHT.copy()
    weight[0, 0] = 1
    losses = np.asarray(run(**wrongly, w_tm1=weight))
    assert np.isnan(losses[0, 0]) and np.isnan(losses).sum() == 1
    right = run(**made, w_tm1=weight)
    np.testing.assert_array_equal(losses.ravel()[1:], right.ravel()[1:])
    assert np.isnan(run(**wrongly))[(WEIGHT == 0) | (weight != WEIGHT)].all()  # without weights all count


@pytest.mark.quick("q", "quantile_double_q")
def test_targets_are_constants_unless_asked_otherwise(loss):
    """The gradient by finite differences in float64: of the predictions alone, or of everything."""
    with jax.enable_x64(True):
        made = {k: v if v.dtype == np.int32 else v.astype(np.float64) for k, v in arguments(loss, 1).items()}
        made["discount_t"] = np.full(BATCH, 0.9)  # at 0 there is no derivative: nothing is read there
        floats = {name: v for name, v in made.items() if v.dtype == np.float64}
        moving = {
            name: v for name, v in floats.items() if name not in ("atoms_tm1", "selector_t", "fractions")
        }

        @jax.jit
        def stopped(arrays):
            return loss.function(**(made | arrays))

        @jax.jit
        def through(arrays):
            return loss.function(**(made | arrays), stop_target_gradients=False)

        predictions = {name: made[name] for name in loss.predictions}
        for function, arrays in ((stopped, predictions), (through, moving)):
            check_grads(function, (arrays,), order=1, modes=["rev"], rtol=1e-4, atol=1e-5)
        gradient = jax.grad(lambda arrays: jnp.sum(stopped(arrays)))(moving)
        for name, slope in gradient.items():
            assert bool(np.any(slope != 0)) == (name in loss.predictions), name


@pytest.mark.quick("munchausen", "categorical_double_q")
def test_one_transition_a_batch_and_a_stream_are_alike(loss):
    """Two episodes with the step between them give what each gives alone; so does each transition alone."""
    made = arguments(loss, 2, (7,))
    weight = np.asarray([1, 1, 1, 0, 1, 1, 1], np.float32)
    shared = {name for name, axes in loss.axes.items() if axes.startswith("*")}
    axes = [{name: None if name in shared else 0 for name in made}]

    @jax.jit
    def in_all_ways(made):
        parts = [
            loss.function(**{name: array if name in shared else array[part] for name, array in made.items()})
            for part in (slice(0, 3), slice(4, 7))
        ]
        whole = loss.function(**made, w_tm1=weight)
        return whole, jnp.concatenate(parts), jax.vmap(lambda one: loss.function(**one), in_axes=axes)(made)

    whole, parts, mapped = in_all_ways(made)
    assert whole[3] == 0 and mapped.shape == (7,) and mapped.dtype == jnp.float32
    np.testing.assert_allclose(parts, np.delete(whole, 3), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.delete(mapped, 3), np.delete(whole, 3), rtol=1e-6, atol=1e-6)


@pytest.mark.quick("munchausen", "categorical_double_q")
def test_rewards_and_weights_may_be_integers_and_the_rest_keeps_its_dtype(loss):
    made = arguments(loss, 3)
    made["r_t"] = np.round(3 * made["r_t"])
    run = jax.jit(loss.function)
    whole = run(**made, w_tm1=WEIGHT)
    integers = made | {"r_t": made["r_t"].astype(np.int32)}
    other = run(**integers, w_tm1=WEIGHT > 0)
    np.testing.assert_array_equal(whole, other)
    assert other.dtype == jnp.float32
    with jax.enable_x64(True):
        doubled = {name: v if v.dtype == np.int32 else v.astype(np.float64) for name, v in made.items()}
        exact = run(**doubled)
        assert exact.dtype == jnp.float64
        np.testing.assert_allclose(exact, expected(loss, doubled), rtol=1e-12, atol=1e-12)


@pytest.mark.quick("munchausen", "categorical_q", "quantile_double_q")
def test_arguments_that_do_not_fit_are_named(loss):
    """Every argument in turn with an axis too long, an axis too many, and another dtype."""
    made = arguments(loss, 4)
    for name, array in made.items():
        if name == "fractions":
            wrongs = [np.zeros((ATOMS + 1,), np.float32)]
        else:
            wrongs = [np.concatenate([array, array[..., -1:]], axis=-1), np.stack([array, array])]
            wrongs = wrongs[1:] if name == "quantiles_t" else wrongs  # of which there may be any number
        for wrong in wrongs:
            with pytest.raises(ValueError, match=rf"\b{name} \[{', '.join(map(str, wrong.shape))}\]"):
                jax.eval_shape(lambda arrays: loss.function(**arrays), made | {name: wrong})
        wrong = array.astype(np.float32 if name == "a_tm1" else np.float16)
        with pytest.raises(TypeError, match=rf"\b{name} (is )?float"):
            jax.eval_shape(lambda arrays: loss.function(**arrays), made | {name: wrong})
    with pytest.raises(ValueError, match=r"w_tm1 \[4\]"):
        jax.eval_shape(lambda arrays: loss.function(**arrays, w_tm1=np.ones(4)), made)


@pytest.mark.quick("munchausen", "categorical_double_q")
def test_finite_at_extremes(loss):
    """Values, logits and rewards of ±1e4."""
    made = arguments(loss, 5)
    rng = np.random.default_rng(5)
    for name, array in made.items():
        if name not in ("a_tm1", "discount_t", "fractions", "atoms_tm1", "atoms_t"):
            made[name] = rng.choice([-1e4, 0.0, 1e4], size=array.shape).astype(np.float32)
    floats = {name: v for name, v in made.items() if v.dtype == np.float32}

    def total(arrays):
        losses = loss.function(**(made | arrays), stop_target_gradients=False)
        return jnp.sum(losses), losses

    gradient, losses = jax.jit(jax.grad(total, has_aux=True))(floats)
    for leaf in jax.tree.leaves((gradient, losses)):
        assert np.all(np.isfinite(leaf))
