"""Distributions against SciPy, their unit transform, and the sentences about wrong ones."""

import math

import numpy as np
import pytest
from scipy import stats

from shoal import ShoalError
from shoal.search import distributions
from shoal.search.distributions import Choice, Int, Log, OneMinusLog, UniformRange, read_distribution

REFERENCES = [
    ("uniform:-2:3", stats.uniform(-2, 5), lambda x: x),
    ("log:1e-5:1e-2", stats.loguniform(1e-5, 1e-2), lambda x: x),
    ("one-minus-log:0.9:0.999", stats.loguniform(1e-3, 0.1), lambda x: 1 - x),
]


@pytest.mark.parametrize(("text", "reference", "transform"), REFERENCES)
def test_draws_have_scipys_distribution(text, reference, transform):
    kind = read_distribution("x", text)
    draws = np.array([kind.from_unit(u) for u in np.random.default_rng(0).random(20_000)])
    assert stats.kstest(transform(draws), reference.cdf).pvalue > 0.01
    wrong = stats.uniform(*((kind.low, kind.high - kind.low) if "log" in text else (-2, 5.1)))
    assert stats.kstest(draws, wrong.cdf).pvalue < 0.01  # the test can tell distributions apart


def test_whole_numbers_and_choices_are_equally_likely():
    u = np.random.default_rng(1).random(20_000)
    for kind, values in (
        (Int(-1, 5), range(-1, 6)),
        (Choice(("tanh", "relu", (64, 64))), ["tanh", "relu", (64, 64)]),
    ):
        drawn = [kind.from_unit(x) for x in u]
        counts = [sum(value == wanted for value in drawn) for wanted in values]
        assert sum(counts) == len(u)
        assert stats.chisquare(counts).pvalue > 0.01
    assert type(Int(1, 3).from_unit(0.5)) is int


@pytest.mark.parametrize(
    "kind", [UniformRange(-2.0, 3.0), Log(1e-5, 1e-2), OneMinusLog(0.9, 0.999), Int(2, 9), Choice((8, 2, 4))]
)
def test_units_and_values_are_inverse(kind):
    for u in np.linspace(0, 1 - 1e-9, 50):
        value = kind.from_unit(u)
        slack = (
            {"linear": 1 / 8, "choice": 1.0}.get(kind.scale, 1e-5) if isinstance(kind, Int | Choice) else 1e-5
        )
        assert kind.to_unit(value) == pytest.approx(u, abs=slack)
        assert 0 <= kind.to_unit(value) <= 1
    ends = [kind.to_unit(kind.from_unit(u)) for u in (0.0, 1.0)]
    assert sorted(ends) == pytest.approx([0, 1] if not isinstance(kind, Choice) else [0.5, 1.0], abs=1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        UniformRange(-2.0, 3.0),
        UniformRange(1e6, 1e6 + 1),  # a rounding of the value alone would leave nothing of it
        Log(1e-5, 1e-2),
        Log(1.0, 1.0 + 1e-7),
        OneMinusLog(0.9, 0.999999),
        OneMinusLog(0.99, 0.99 + 1e-6),
    ],
)
def test_numbers_are_short_different_and_within_their_bounds(kind):
    drawn = [kind.from_unit(u) for u in np.random.default_rng(2).random(200)]
    assert len(set(drawn)) > 190
    assert all(kind.low <= x <= kind.high for x in drawn)
    assert max(len(repr(x)) for x in drawn) <= 15
    assert (kind.from_unit(0.0), kind.from_unit(1.0)) == pytest.approx((kind.low, kind.high), rel=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        UniformRange(-2.0, 3.0),
        Log(1e-5, 1e-2),
        OneMinusLog(0.9, 0.999),
        Int(2, 9),
        Choice((math.inf, "a", (1, 2))),
    ],
)
def test_json_reads_back_the_same(kind):
    assert read_distribution("x", kind.to_json()) == kind


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("log:1e-2:1e-5", "x=log:0.01:1e-05 has its bounds the wrong way round; give log:1e-05:0.01."),
        (
            "log:0:1",
            "x=log:0.0:1.0 has the bound 0, which has no logarithm; give one above 0, or uniform:0.0:1.0.",
        ),
        (
            "one-minus-log:0.9:1",
            "x=one-minus-log:0.9:1.0 has the bound 1, and 1-1 has no logarithm; give one below 1, such as 0.999.",
        ),
        ("uniform:1:1", "x=uniform:1.0:1.0 has equal bounds; to fix a setting, give it as x=1.0."),
        ("uniform:0:inf", "x=uniform:0.0:inf has a bound that is not finite; both must be numbers."),
        ("uniform:0:nan", "x=uniform:0.0:nan has a bound that is not finite; both must be numbers."),
        ("uniform:0", "x=uniform:0 does not have two bounds; give one such as uniform:0.1:0.9."),
        ("int:1:b", "x=int:1:b has the bound 'b', which is not a number; give one such as int:1:8."),
        ("int:1:2.5", "x: the bound=2.5 is not a whole number."),
        (
            "unifrom:0:1",
            "x=unifrom:0:1 names no distribution; there are uniform, log, one-minus-log, int, choice; did you "
            "mean 'uniform'?",
        ),
        ("choice:", "x has no values; give one or more, such as x=0.1,0.2."),
        ([1, 2, 1], "x has the value 1 twice; give it once."),
        (3.0, "x=3.0 is not a distribution; give one such as 'uniform:0:1', or a list of choices."),
    ],
)
def test_one_sentence_says_what_is_wrong(given, sentence):
    with pytest.raises(ShoalError) as caught:
        read_distribution("x", given)
    assert str(caught.value) == sentence


def test_values_are_told_apart():
    assert distributions.read_values("x", [True, 1, np.float32(0.5), [64, 64]]) == (True, 1, 0.5, (64, 64))
    assert distributions.natural_order([3, 1.5, 2]) == [1.5, 2, 3]
    assert distributions.natural_order(["b", "a"]) == ["b", "a"]
