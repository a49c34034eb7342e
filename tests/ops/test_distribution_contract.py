"""What every distribution promises: one suite over all of them.

What each is a distribution of, against SciPy and by loops, is in `test_distributions.py`.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from shoal.ops.distributions import (
    Beta,
    Categorical,
    Deterministic,
    DiscreteValued,
    EpsilonGreedy,
    MultiCategorical,
    Normal,
    TanhNormal,
    masked,
)

KEY, BATCH = jax.random.key(0), 3
RNG = np.random.default_rng(0)
MASK = np.asarray([[True, False, True, True], [False, False, True, False], [True, True, True, True]])
TEN, MILLION = (-1e4, 0.0, 1e4), (1e-6, 1e-3, 1.0, 1e3, 1e6)


class Member(NamedTuple):
    make: Callable[..., Any]  # from parameters
    parameters: tuple[np.ndarray, ...]  # with one batch axis, of BATCH
    integral: bool = False  # whether it draws integers
    extremes: tuple[tuple[float, ...], ...] = ()  # of each parameter; all combinations are tried
    at: tuple[float, ...] = ()  # what log_prob is asked about there
    fixed: tuple[int, ...] = ()  # parameters that get no gradient


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=(BATCH, *shape)).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, size=(BATCH, *shape)).astype(np.float32)


def legal(logits) -> np.ndarray:
    """A mask for any number of rows: of all kinds, with one legal action and with none."""
    rows = np.asarray([[True, False, False], [True, True, False], [False] * 3, [True] * 3])
    return np.resize(rows, logits.shape) if logits.shape[-1] == 3 else MASK[: len(logits)]


VALUES, EPSILONS = tuple(itertools.product(TEN, repeat=3)), (0.0, 1e-6, 0.3, 1.0)
MEMBERS = {
    "Categorical": Member(Categorical, (normal(4),), True, (VALUES,), (0, 1, 2)),
    "masked Categorical": Member(
        lambda x: masked(Categorical(x), legal(x)), (normal(4),), True, (VALUES,), (0, 1, 2)
    ),
    "MultiCategorical": Member(
        lambda x, y: MultiCategorical((x, y)),
        (normal(2), normal(4)),
        True,
        (VALUES[:9], VALUES[4:13]),
        ((0, 1), (2, 2)),
    ),
    "masked MultiCategorical": Member(
        lambda x, y: masked(
            MultiCategorical((x, y)), np.concatenate([np.ones(x.shape, bool), legal(y)], axis=-1)
        ),
        (normal(2), normal(4)),
        True,
        (VALUES[:9], VALUES[4:13]),
        ((0, 1), (2, 2)),
    ),
    "EpsilonGreedy": Member(
        EpsilonGreedy,
        (normal(4), np.asarray([0.0, 0.3, 1.0], np.float32)),
        True,
        (VALUES, EPSILONS),
        (0, 1, 2),
        (0,),
    ),
    "masked EpsilonGreedy": Member(
        lambda x, e: EpsilonGreedy(x, e, legal(x)),
        (normal(4), np.asarray([0.2, 0.3, 0.9], np.float32)),
        True,
        (VALUES, EPSILONS),
        (0, 1, 2),
        (0,),
    ),
    "DiscreteValued": Member(
        DiscreteValued,
        (normal(4), np.sort(normal(4))),
        extremes=(VALUES, ((-1e6, 0.0, 1e6), (-1e-6, 0.0, 1e-6), (5.0, 5.0, 5.0))),
        at=(-1e6, 0.0, 5.0),
    ),
    "Normal": Member(Normal, (normal(2), positive(2)), extremes=(TEN, MILLION), at=TEN),
    "TanhNormal": Member(
        lambda m, s: TanhNormal(m, s, low=-2.0, high=(5.0, 7.0) if np.shape(m)[-1:] == (2,) else 5.0),
        (normal(2), positive(2)),
        extremes=(TEN, MILLION),
        at=(-2.0, -2.0 + 2e-7, 0.0, 5.0),
    ),
    "Beta": Member(
        lambda a, b: Beta(a, b, low=-1.0, high=1.0),
        (1 + positive(2), 1 + positive(2)),
        extremes=(MILLION, MILLION),
        at=(-1.0, 0.0, 1.0),
    ),
    "Deterministic": Member(
        Deterministic, (normal(2),), extremes=((-1e6, 0.0, 1e6),), at=(-1e6, 1.0), fixed=(0,)
    ),
}


@pytest.fixture(params=MEMBERS)
def member(request):
    return MEMBERS[request.param]


def other_of(member: Member) -> Any:
    """One of the same family, elsewhere; the same support, and ε above 0."""
    if member.make is Deterministic:
        return member.make(*member.parameters)
    first, *rest = member.parameters
    if len(rest) and rest[0].ndim == 1:
        return member.make(first, np.full_like(rest[0], 0.5))
    rest = rest if member.make is DiscreteValued else [1.2 * parameter for parameter in rest]
    return member.make(first * np.float32(0.7) + np.float32(0.4), *rest)


def entropy(d: Any) -> jax.Array:
    return d.entropy_estimate() if isinstance(d, TanhNormal) else d.entropy()


def answers(d: Any, other: Any, x: jax.Array, key: jax.Array) -> dict[str, Any]:
    """What each method says, by its name."""
    said = {"sample": d.sample(key), "mode": d.mode(), "log_prob": d.log_prob(x), "entropy": entropy(d)}
    said |= {"sample_and_log_prob": d.sample_and_log_prob(key), "kl": d.kl(other), "kl to it": other.kl(d)}
    if isinstance(d, DiscreteValued):
        said |= {"mean": d.mean(), "variance": d.variance()}
    if isinstance(d, TanhNormal):
        said |= {"log_prob_raw": d.log_prob_raw(x), "sample_raw": d.sample_raw(key), "mode_raw": d.mode_raw()}
    return said


@pytest.mark.full
@pytest.mark.rare("Beta", "Categorical", "MultiCategorical", "Normal")
def test_batches_mapped_and_scanned_are_alike(member):
    """The same answers for a batch, each mapped by itself, and each in a scan; and of the shapes that are promised."""
    d, other, x = (
        member.make(*member.parameters),
        other_of(member),
        member.make(*member.parameters).sample(KEY),
    )
    keys = jax.random.split(KEY, BATCH)

    @jax.jit
    def in_all_ways(d, other, x):
        batch = answers(d, other, x, KEY)
        rows = (d, other, x, keys)
        mapped = jax.vmap(lambda row: answers(*row))(rows)
        carried, scanned = jax.lax.scan(lambda carry, row: (carry, (answers(*row), row[0])), d, rows)
        return batch, mapped, scanned, carried

    batch, mapped, (scanned, back), carried = in_all_ways(d, other, x)
    for tree in (back, carried):
        assert (
            jax.tree.structure(tree)
            == jax.tree.structure(d)
            == jax.tree.structure(member.make(*member.parameters))
        )
        jax.tree.map(np.testing.assert_array_equal, tree, d)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), mapped, scanned)
    drawn = ("sample", "sample_and_log_prob", "sample_raw")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5),
        {name: said for name, said in batch.items() if name not in drawn},
        {name: said for name, said in mapped.items() if name not in drawn},
    )
    np.testing.assert_array_equal(batch["sample"], batch["sample_and_log_prob"][0])
    for said in (batch, mapped):
        for name in ("log_prob", "entropy", "kl"):
            assert said[name].shape == (BATCH,) and said[name].dtype == jnp.float32, name
        assert said["mode"].shape == said["sample"].shape == x.shape
        assert said["mode"].dtype == said["sample"].dtype == (jnp.int32 if member.integral else jnp.float32)
        assert np.all(said["kl"] >= -1e-6)


@pytest.mark.quick("masked MultiCategorical", "TanhNormal", "DiscreteValued")
def test_entropy_kl_and_mode_are_those_of_the_samples(member):
    """By Monte Carlo, within five standard errors; nothing that is drawn is impossible or likelier than the mode."""
    d, other = member.make(*member.parameters), other_of(member)

    @jax.jit
    def draw(key):
        x, log_prob = jax.vmap(d.sample_and_log_prob)(jax.random.split(key, 20_000))
        return (
            x,
            log_prob,
            d.log_prob(x),
            other.log_prob(x),
            entropy(d),
            d.kl(other),
            d.log_prob(d.mode()),
            d.kl(d),
        )

    x, log_prob, again, of_other, its_entropy, kl, highest, zero = draw(KEY)
    assert x.shape == (20_000, *d.mode().shape) and log_prob.shape == (20_000, BATCH)
    np.testing.assert_allclose(np.median(np.abs(log_prob - again)), 0.0, atol=1e-5)
    for samples, right in ((-log_prob, its_entropy), (log_prob - of_other, kl)):
        error = 5 * np.std(samples, axis=0) / np.sqrt(len(samples)) + 2e-4
        assert np.all(np.abs(np.mean(samples, axis=0) - right) < error)
    assert np.all(np.isfinite(log_prob))
    if not isinstance(d, TanhNormal):  # whose mode is that of the Normal
        assert np.all(log_prob <= highest + 1e-5)
    np.testing.assert_allclose(zero, 0.0, atol=2e-6)


@pytest.mark.full
@pytest.mark.rare("Beta", "Categorical", "MultiCategorical", "Normal", "Deterministic")
def test_gradients_are_those_of_finite_differences(member):
    """In float64, which parameters in float64 give."""
    fixed, sampled = member.fixed, member.make(*member.parameters).sample(KEY)
    with jax.enable_x64(True):
        parameters = [jnp.asarray(p, jnp.float64) for p in member.parameters]
        if parameters[-1].ndim == 1:
            parameters[-1] = jnp.asarray([0.2, 0.3, 0.8])  # at 0 and 1 there is no derivative
        moving = [p for i, p in enumerate(parameters) if i not in fixed]
        other = jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), other_of(member))
        x = sampled if member.integral else jnp.asarray(sampled, jnp.float64)
        still = member.make is DiscreteValued  # of which x are the atoms
        x = member.make(*parameters).sample(KEY) if still else x

        @jax.jit
        def total(moving):
            new = iter(moving)
            d = member.make(
                *(p if i in fixed or (still and i == 1) else next(new) for i, p in enumerate(parameters))
            )
            said = [d.log_prob(x), entropy(d), d.kl(other), other.kl(d)]
            assert all(a.dtype == jnp.float64 for a in said)
            return jnp.stack(said)

        if moving:
            check_grads(
                total, (moving[:1] if still else moving,), order=1, modes=["rev"], rtol=1e-3, atol=1e-4
            )
        moments = (
            (lambda a: jnp.stack([DiscreteValued(*a).mean(), DiscreteValued(*a).variance()]))
            if still
            else None
        )
        if moments:
            check_grads(moments, (moving,), order=1, modes=["rev"], rtol=1e-4, atol=1e-5)
        floating = not member.integral and not still and not fixed
        if floating:
            d = member.make(*parameters)
            check_grads(jax.jit(d.log_prob), (x,), order=1, modes=["rev"], rtol=1e-3, atol=1e-4)


def rows_of(member: Member) -> tuple[list[np.ndarray], np.ndarray]:
    """Every combination of extreme parameters and arguments, as one batch."""
    combinations = list(itertools.product(*member.extremes, member.at))
    *parameters, x = zip(*combinations, strict=True)
    vectors = not member.integral and member.make is not DiscreteValued
    arrays = [np.asarray(p, np.float32) for p in parameters]
    x = np.asarray(x, np.int32 if member.integral else np.float32)
    if vectors:
        arrays, x = [a[:, None] for a in arrays], x[:, None]
    return arrays, x


@pytest.mark.full
@pytest.mark.rare("Beta", "Categorical", "MultiCategorical", "Normal", "Deterministic")
def test_nothing_is_nan_or_infinite_at_extremes(member):
    """Of every method its value and its gradient in every parameter and in x, one method at a time; but what a member
    excludes has the log-probability -inf, and the KL to one that excludes what it does not is inf."""
    parameters, x = rows_of(member)
    names = "masked Categorical", "masked MultiCategorical", "EpsilonGreedy", "masked EpsilonGreedy"
    excludes = any(member is MEMBERS[name] for name in (*names, "DiscreteValued", "Deterministic"))
    middle = [p[len(p) // 2 : len(p) // 2 + 1] for p in parameters]
    other = member.make(*(np.broadcast_to(m, p.shape) for m, p in zip(middle, parameters, strict=True)))

    def sums(parameters, x):
        said = answers(member.make(*parameters), other, x, KEY)
        said["sample"], said["log_prob of it"] = said.pop("sample_and_log_prob")
        floats = {name: a for name, a in said.items() if jnp.issubdtype(a.dtype, jnp.floating)}
        return {name: jnp.sum(a) for name, a in floats.items()}, said

    moving = (parameters,) if member.integral else (parameters, x)
    slopes, said = jax.jit(
        jax.jacrev(lambda *moving: sums(*(*moving, x)[:2]), argnums=tuple(range(len(moving))), has_aux=True)
    )(*moving)
    for name, answer in said.items():
        assert not np.any(np.isnan(answer)), name
        infinite = (
            {"log_prob": -np.inf, "kl": np.inf, "kl to it": np.inf}.get(name, np.nan) if excludes else np.nan
        )
        assert np.all(np.isfinite(answer) | (answer == infinite)), name
    for name, slope in slopes.items():
        for leaf in jax.tree.leaves(slope):
            assert np.all(np.isfinite(leaf)), f"gradient of {name}"


@pytest.mark.parametrize("name", [name for name, member in MEMBERS.items() if member.integral])
@pytest.mark.quick("masked MultiCategorical", "EpsilonGreedy", "Categorical")
def test_a_number_that_is_no_action_has_the_log_probability_nan(name):
    """In its own row alone, and with a gradient that a mask takes out, whatever it is used for."""
    member = MEMBERS[name]
    x = np.asarray(member.make(*member.parameters).sample(KEY))
    counts = np.asarray([True, False, True])

    @jax.jit
    def slopes_and_log_prob(parameters, x):
        def total(parameters):
            log_prob = member.make(*parameters).log_prob(x)
            return jnp.sum(jnp.where(counts, jnp.exp(2.0 * log_prob), 0.0)), log_prob

        return jax.grad(total, has_aux=True)(parameters)

    _, right = slopes_and_log_prob(member.parameters, x)
    for wrong in (-1, 4, 2**31 - 1, -(2**31)):
        wrongly = x.copy()  # one part is enough
        wrongly[1, ...] = np.where(np.arange(x[1].size).reshape(x[1].shape) == 0, wrong, x[1])
        slopes, log_prob = slopes_and_log_prob(member.parameters, wrongly)
        np.testing.assert_array_equal(np.isnan(log_prob), ~counts, err_msg=str(wrong))
        np.testing.assert_array_equal(log_prob[counts], right[counts])
        for slope in slopes:
            np.testing.assert_array_equal(slope[1], 0.0)
            assert np.all(np.isfinite(slope))


def test_narrow_and_unsigned_numbers_of_actions():
    """A narrow dtype need not hold the number of actions; the largest unsigned number is not the last action."""
    d = Categorical(jnp.zeros((2, 300)))
    for dtype in (np.uint8, np.int8, np.uint16, np.uint32):
        np.testing.assert_allclose(d.log_prob(np.asarray([7, 100], dtype)), -np.log(300), rtol=1e-6)
    assert np.isnan(d.log_prob(np.asarray([-1, 2**31 - 1], np.int32))).all()
    assert np.isnan(Categorical(jnp.zeros((2, 3))).log_prob(np.asarray([3, 255], np.uint8))).all()
    assert np.isnan(d.log_prob(np.asarray([300, 2**32 - 1], np.uint32))).all()
    with jax.enable_x64(True):
        assert np.isnan(d.log_prob(np.asarray([2**32, -(2**32)]))).all()


@pytest.mark.quick("masked MultiCategorical", "TanhNormal")
@pytest.mark.rare("Beta")
def test_narrow_parameters_are_widened_first(member):
    """In bfloat16 as in float32 of the same numbers, so that no digit is lost but those of the parameters."""
    narrow = [jnp.asarray(p, jnp.bfloat16) for p in member.parameters]
    x = member.make(*(p.astype(jnp.float32) for p in narrow)).sample(KEY)
    if member.make is Deterministic:
        return  # of any dtype: it has no parameters to compute with

    @jax.jit
    def both(narrow):
        wide = [p.astype(jnp.float32) for p in narrow]
        other = other_of(member)
        return answers(member.make(*narrow), other, x, KEY), answers(member.make(*wide), other, x, KEY)

    got, right = both(narrow)
    assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(got))
    jax.tree.map(np.testing.assert_array_equal, got, right)


@pytest.mark.quick("Beta", "masked MultiCategorical", "Categorical")
def test_arguments_that_do_not_fit_are_named(member):
    d, x = member.make(*member.parameters), member.make(*member.parameters).sample(KEY)
    batch = r"(batch|distribution|value|parts) \[3"
    wrongs = [x[:2]] if x.ndim == 1 else [x[:, :1], x[0, 0], x[:2]]  # one number, or a vector
    for wrong in wrongs:
        with pytest.raises(ValueError, match=rf"x \[{'.*' if wrong.ndim else ''}\].*{batch}"):
            jax.eval_shape(d.log_prob, wrong)
    if member.integral:
        with pytest.raises(TypeError, match="x is float32; it must be integer"):
            jax.eval_shape(d.log_prob, x.astype(jnp.float32))
    longer = [np.concatenate([p, p], axis=-1) if p.ndim > 1 else p for p in member.parameters]
    if "masked" not in str(member.make) and member.make.__name__ != "<lambda>":
        with pytest.raises(ValueError, match=r"self .* and other|x .* and value"):
            jax.eval_shape(d.kl, member.make(*longer))
    if member.make is not Deterministic:
        whole = [np.ones(p.shape, np.int32) for p in member.parameters]
        with pytest.raises(TypeError, match="is int32; it must be floating"):
            jax.eval_shape(lambda: member.make(*whole).log_prob(x))


@pytest.mark.usefixtures("eager")
def test_particular_arguments_that_do_not_fit_are_named():
    two, three = jnp.ones((2, 2)), jnp.ones((2, 3))
    both = MultiCategorical((two, three))
    for call, said in (
        (
            lambda: both.kl(MultiCategorical((three, two))),
            r"self has parts of \[2, 3\] and other of \[3, 2\]",
        ),
        (lambda: Normal(two, three).mode(), r"loc \[2, 2\] and scale \[2, 3\] do not broadcast"),
        (lambda: DiscreteValued(two, three).mean(), r"logits \[2, 2\] and atoms \[2, 3\] must end in axes"),
        (
            lambda: EpsilonGreedy(two, 0.1, three > 0).mode(),
            r"mask has shape \[2, 3\]; its last axis must be 2",
        ),
        (lambda: EpsilonGreedy(two, 1.5).sample(KEY), r"epsilon=1.5 must be between 0 and 1"),
        (
            lambda: Beta(two, two, high=2.0).kl(Beta(two, two)),
            r"low=0.0, high=2.0 and other low=0.0, high=1.0",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            jax.eval_shape(call)
